"""Random streams of any name, and losses that modules sow: in every engine as in a plain loop, in evaluation off."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracle
import pytest
from small import CLASSES, batches, cross_entropy, fed, pipeline, recipe

import fdg_jax
from fdg_jax import split
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


@pytest.mark.parametrize("engine", ["pipeline", pytest.param("scan", marks=pytest.mark.slow)])
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


def test_a_network_that_is_cut_may_sow_and_ask_for_streams():
    blocks = stages(3, sown=True)
    ours = fdg_jax.Pipeline(blocks, cross_entropy, recipe(), split=[2]).init(jax.random.key(0), DATA[0])
    ours.step(DATA[0])
    whole = ours.export(whole=True)
    assert set(whole) == {"params"}
    y, seen = split.whole(blocks).apply(whole, X, train=False, mutable=["losses", "intermediates"])
    np.testing.assert_allclose(y, ours.predict(X), rtol=0, atol=1e-6)  # one program rounds otherwise than two
    assert len(jax.tree.leaves(seen["losses"])) == 9 and len(jax.tree.leaves(seen["intermediates"])) == 3


def test_a_module_that_draws_in_evaluation_is_refused():
    class Always(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(CLASSES)(x) + jax.random.normal(self.make_rng("noise"), (CLASSES,))

    with pytest.raises(BadInput, match=r"stage k=1 \(Always\) can be trained but not evaluated: .*\"noise\""):
        pipeline(1, DATA[0], stages=[Always()])


def test_keys_of_another_implementation_than_the_default_will_do():
    default, made = "threefry2x32", "rbg"
    with jax.default_prng_impl(default):
        stages = [Noisy(12), nn.Dense(CLASSES)]
        ours = fdg_jax.Pipeline(stages, cross_entropy, recipe()).init(jax.random.key(0, impl=made), DATA[0])
        fed(ours, DATA[:3])
        assert len(ours.losses(wait=True)) == 3
        ours.restore(ours.state())
