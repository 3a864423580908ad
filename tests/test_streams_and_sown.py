"""Random streams of any name, and losses that modules sow: in every engine as in a plain loop, in evaluation off."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracle
import pytest
from small import CLASSES, batches, cross_entropy, fed, mostly_slow, pipeline, recipe

import fdg_jax
from fdg_jax.errors import BadInput
from fdg_jax.methods.fdg import fdg
from fdg_jax.stages.functions import stream_key

DATA = batches(8)
X, Y = DATA[0]
# The programs of the oracle and of the stages round sums differently: observed 3e-7 at weights of order 1.
CLOSE = {"rtol": 0, "atol": 1e-5}


class Noisy(nn.Module):
    """Asks for three streams; `sown` losses and intermediates are as in mixtures of experts."""

    width: int
    sown: bool = False
    draws: bool = True

    @nn.compact
    def __call__(self, x, train: bool):
        y = nn.Dense(self.width)(x)
        if self.draws and train:
            y = y + 0.1 * jax.random.normal(self.make_rng("noise"), y.shape)
            y = nn.Dropout(0.2, rng_collection="path", deterministic=False)(y)
        y = nn.Dropout(0.2, deterministic=not (train and self.draws))(jnp.tanh(y))
        if self.sown:
            self.sow("losses", "size", 0.1 * jnp.mean(y**2))
            self.sow("losses", "shift", 0.1 * jnp.mean(jnp.abs(y), 0))
            self.sow("losses", "constant", 1.0)  # Python's number
            self.sow("intermediates", "y", y)
            self.sow("looked_at", "y", y)
        return y


def stages(K, **options):
    return [Noisy(CLASSES if k == K else 12, **options) for k in range(1, K + 1)]


def plain(module, streams):
    """A stage for the oracle, whose activations are (x, sum of sown losses)."""

    def run(params, extra, x):
        (x, total), (rng, key) = x, jax.random.split(extra["rng"])
        keys = {name: stream_key(key, name) for name in streams}
        y, sown = module.apply({"params": params}, x, train=True, rngs=keys, mutable=["losses"])
        return (y, total + sum(jnp.sum(leaf) for leaf in jax.tree.leaves(sown))), {"rng": rng}

    return run


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["pipeline", "scan"])
def test_every_stream_has_a_key_of_its_own_and_sown_losses_are_part_of_the_gradient(engine):
    K, streams, modules = 3, ("dropout", "noise", "path"), stages(3, sown=True)
    ours = pipeline(K, DATA[0], stages=modules, engine=engine)
    start = fed(ours, DATA)
    rngs = [jax.random.fold_in(jax.random.fold_in(jax.random.PRNGKey(0), k), 1) for k in range(1, K + 1)]
    first = [{**own, "rng": jax.random.key_data(rng)} for own, rng in zip(start, rngs, strict=True)]
    data = [((x, jnp.zeros(())), y) for x, y in DATA]
    loss = lambda outputs, labels: cross_entropy(outputs[0], labels) + outputs[1]  # noqa: E731
    forwards = [plain(module, streams) for module in modules]
    true, _, stale = oracle.stashed(forwards, loss, recipe(), first, data, fdg(K).staleness)
    for own, theirs in zip(jax.device_get(ours.params), true, strict=True):
        assert set(own) == {"params"}  # what is sown is not kept
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **CLOSE), own["params"], theirs["params"])
    assert ours.staleness == stale


def test_the_loss_that_is_reported_and_evaluation_are_without_sown_losses():
    sowing = pipeline(2, DATA[0], stages=stages(2, sown=True, draws=False))
    without = pipeline(2, DATA[0], stages=stages(2, draws=False), variables=sowing.params)
    assert sowing.evaluate(DATA[:2]) == without.evaluate(DATA[:2])
    for ours in (sowing, without):
        ours.step(DATA[0])
        ours.drain()
    one, other = (ours.losses(wait=True)[0].loss for ours in (sowing, without))
    assert one == pytest.approx(other, rel=1e-6)  # two programs
    assert sowing.parameters_sha256() != without.parameters_sha256()


def test_keys_of_streams_differ_and_that_of_dropout_is_the_one_that_was_split_off():
    key = jax.random.PRNGKey(3)
    keys = [np.asarray(stream_key(key, name)).tolist() for name in ("dropout", "noise", "path", "params")]
    assert keys[0] == np.asarray(key).tolist() and len(set(map(tuple, keys))) == 4


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fdg", "fr", "dgl", "gpipe"])
def test_every_method_with_a_backward_pass_adds_the_gradient_of_sown_losses(method):
    """One stage below K whose outputs nobody uses: all that moves its weights is what it sows."""
    ends = []
    for scale in (0.0, 1.0):
        modules = [Useless(scale), nn.Dense(CLASSES)]
        options = {"micro_batches": 1} if method == "gpipe" else {}
        ours = pipeline(2, DATA[0], stages=modules, method=method, optimizer=optax.sgd(0.1), **options)
        start = jax.device_get(ours.params[0]["params"])
        fed(ours, DATA[:3])
        ends.append((start, jax.device_get(ours.params[0]["params"])))
    moved = [np.abs(end["unused"] - start["unused"]).max() for start, end in ends]
    assert moved[0] == 0
    weights, late = [1.0, 0.8], 1 if method in ("fdg", "ddg") else 0  # FR takes gradients at the newest weights
    for _ in range(2):
        weights.append(weights[-1] - 0.1 * 2 * weights[-1 - late])  # SGD at 0.1, d(sum(w^2))/dw = 2w
    np.testing.assert_allclose(ends[1][1]["unused"], weights[-1], rtol=1e-5)  # three roundings


class Useless(nn.Module):
    scale: float

    @nn.compact
    def __call__(self, x):
        w = self.param("unused", nn.initializers.ones, (3,))
        self.sow("losses", "w", self.scale * jnp.sum(w**2))
        return nn.Dense(12)(x)


def test_micro_batches_refuse_losses_sown_below_the_last_stage_and_take_those_of_the_last():
    with pytest.raises(BadInput, match=r"stage k=1 sows losses, and method gpipe .* 4 micro-batches.*micro_batches=1"):
        pipeline(2, DATA[0], stages=[Useless(1.0), nn.Dense(CLASSES)], method="gpipe")


class Latent(nn.Module):
    """Draws in training and in evaluation; its dropout is off in evaluation."""

    width: int

    @nn.compact
    def __call__(self, x, train: bool):
        y = nn.Dropout(0.5, deterministic=not train)(nn.Dense(self.width)(x))
        return y + jax.random.normal(self.make_rng("noise"), y.shape)


def noisy_loss(outputs, labels, key):
    return cross_entropy(outputs + jax.random.normal(key, outputs.shape), labels)


def drawing(engine="pipeline", loss=noisy_loss, stages=None, **options):
    stages = stages or [nn.Sequential([nn.Dense(12), nn.tanh]), nn.Dense(CLASSES)]
    return fdg_jax.Pipeline(stages, loss, recipe(), engine=engine, **options).init(jax.random.key(0), DATA[0])


def key_in_evaluation(key, n, k):
    return jax.random.key_data(jax.random.fold_in(jax.random.fold_in(key, n), k))


@pytest.mark.parametrize("engine", mostly_slow(["pipeline", "scan"], "scan"))
def test_a_module_that_draws_in_evaluation_draws_from_the_key_that_is_given(engine):
    key, modules = jax.random.key(5), [nn.Dense(12), Latent(CLASSES)]
    ours = drawing(engine, cross_entropy, modules)
    for call in (lambda: ours.evaluate(DATA[:2]), lambda: ours.predict(X)):
        with pytest.raises(BadInput, match=r"stage k=2 \(Latent\) .* Call (evaluate|predict)\(\.\.\., key=jax\.random"):
            call()
    with pytest.raises(BadInput, match=r"predict takes a JAX random key; the key given is 0\. Use predict"):
        ours.predict(X, key=0)
    first, last = jax.device_get(ours.params)
    each = []
    for n, (x, y) in enumerate(DATA[:2], 1):
        rngs = {"noise": stream_key(key_in_evaluation(key, n, 2), "noise")}
        y_hat = modules[1].apply(last, modules[0].apply(first, x), train=False, rngs=rngs)
        each.append(float(cross_entropy(y_hat, y)))
        if n == 1:
            np.testing.assert_allclose(ours.predict(x, key=key), y_hat, **CLOSE)
    assert ours.evaluate(DATA[:2], key=key).loss == pytest.approx(np.mean(each), rel=1e-5)
    assert ours.evaluate(DATA[:2], key=key) == ours.evaluate(DATA[:2], key=key)
    assert ours.evaluate(DATA[:2], key=jax.random.PRNGKey(5)) == ours.evaluate(DATA[:2], key=key)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dgl", "data_parallel", "gpipe"])
def test_methods_with_another_evaluation_draw_from_the_key_too(method):
    ours = drawing(loss=cross_entropy, stages=[Latent(12), nn.Dense(CLASSES)], method=method)
    one, same, other = (ours.predict(X, key=jax.random.key(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert np.abs(one - other).max() > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["pipeline", "scan"])
def test_a_loss_that_draws_has_a_key_of_stage_K_new_in_every_step(engine):
    ours = drawing(engine)
    start = fed(ours, DATA)
    rng = jax.random.key_data(jax.random.fold_in(jax.random.fold_in(jax.random.key(0), 2), 1))

    def last(params, extra, x):
        rng, key = jax.random.split(extra["rng"])
        return (ours.modules[1].apply({"params": params}, x), stream_key(key, "loss")), {"rng": rng}

    forwards = [lambda params, extra, x: (ours.modules[0].apply({"params": params}, x), extra), last]
    loss = lambda pair, labels: noisy_loss(pair[0], labels, pair[1])  # noqa: E731
    first = [start[0], {**start[1], "rng": rng}]
    true, losses, _ = oracle.stashed(forwards, loss, recipe(), first, DATA, fdg(2).staleness)
    for own, theirs in zip(jax.device_get(ours.params), true, strict=True):
        assert set(own) == {"params"}
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **CLOSE), own["params"], theirs["params"])
    np.testing.assert_allclose([each.loss for each in ours.losses(wait=True)], losses, **CLOSE)
    with pytest.raises(BadInput, match=r"the loss draws random numbers in evaluation, too. Call evaluate\(.*key="):
        ours.evaluate(DATA)
    key = jax.random.key(5)
    drawn = [stream_key(key_in_evaluation(key, n, 2), "loss") for n in (1, 2)]
    each = [noisy_loss(ours.predict(x), y, of) for (x, y), of in zip(DATA[:2], drawn, strict=True)]
    assert ours.evaluate(DATA[:2], key=key).loss == pytest.approx(float(sum(each)) / 2, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dfa", "dgl", "fr", "gpipe", "data_parallel"])
def test_every_method_gives_the_loss_another_key_in_every_step(method):
    ours = drawing(method=method, guard=True)
    ours.step(DATA[0])
    again = drawing(method=method, guard=True)
    again.restore(ours.state())
    for one in (ours, again):
        fed(one, DATA[1:4])
    assert ours.state_sha256() == again.state_sha256()
    still = fdg_jax.Pipeline(ours.modules, noisy_loss, optax.sgd(0.0), method).init(jax.random.key(0), DATA[0])
    fed(still, [DATA[0]] * 3)
    assert len({each.loss for each in still.losses(wait=True)}) == 3
