"""Stages on several devices each: the numbers of one device for each stage, except for the rounding of sums."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small import CLASSES, batches, cross_entropy

import fdg_jax
from fdg_jax.errors import BadInput

WIDE = [(x.astype(np.float64), y) for x, y in batches(8)]  # batches of 16
# In float64, sums over the parts of a batch differ in the last bits: 7e-16 seen. What dgl and dni add to a stage is
# float32: 3e-8 seen.
CLOSE = {"rtol": 0, "atol": 1e-12}
FLOAT32 = {"dgl": 1e-6, "dni": 1e-6}


class Part(nn.Module):
    """Statistics of the whole batch, a running mean, dropout."""

    width: int

    @nn.compact
    def __call__(self, x, train: bool):
        x = nn.Dense(self.width, param_dtype=jnp.float64)(x)
        mean = self.variable("batch_stats", "mean", jnp.zeros, self.width)
        now = x.mean(0) if train else mean.value
        if train and not self.is_initializing():
            mean.value = 0.9 * mean.value + 0.1 * now
        return nn.Dropout(0.2, deterministic=not train)(jnp.tanh((x - now) / jnp.sqrt(jnp.var(x, 0) + 1e-2)))


def devices(K, R):
    """The devices of K stages: a list of R for each; stages share them where there are too few."""
    all_of = jax.devices()
    return [[all_of[(k * R + r) % len(all_of)] for r in range(R)] if R > 1 else all_of[k] for k in range(K)]


def made(K, R, method, **options):
    stages = [Part(CLASSES if k == K else 12) for k in range(1, K + 1)]
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1, momentum=0.9))
    ours = fdg_jax.Pipeline(stages, cross_entropy, optimizer, method, devices=devices(K, R), **options)
    return ours.init(jax.random.key(0), WIDE[0])


def fed(ours, data=WIDE):
    for batch in data:
        ours.step(batch)
    return [each.loss for each in ours.losses(wait=True)]


KINDS = {
    "bp": {"method": "bp"},
    "fdg": {"method": "fdg"},
    "forward-first": {"method": "fdg", "order": "forward-first"},
    "ddg": {"method": "ddg"},
    "gpipe": {"method": "gpipe", "micro_batches": 2},
    "fr": {"method": "fr"},
    "dgl": {"method": "dgl"},
    "dni": {"method": "dni"},
    "fa": {"method": "fa"},
    "dfa": {"method": "dfa"},
    "replay": {"method": "replay"},
    "scaled_bp": {"method": "scaled_bp", "scale": 0.5},
    "corrected": {"method": "fdg", "correct": "dc_asgd,rate", "learning_rate": 0.1, "beta": 0.5},
    "more": {"method": "fdg", "accumulate": 2, "guard": True, "gradient_norms": True, "ema": 0.9, "remat": "all"},
    "delay line": {"method": "fdg", "engine": "delay-line"},
}


@pytest.mark.slow
@pytest.mark.parametrize(("K", "kind"), [*((2, kind) for kind in KINDS), (1, "fdg"), (3, "fdg"), (3, "more")])
def test_replicas_change_no_number_beyond_rounding(K, kind):
    with jax.enable_x64(True):
        one = made(K, 1, **KINDS[kind])
        losses, close = fed(one), {**CLOSE, "atol": FLOAT32.get(kind, 1e-12)}
        for R in (2, 4) if K == 2 else (2,):
            ours = made(K, R, **KINDS[kind])
            np.testing.assert_allclose(fed(ours), losses, **close)
            assert ours.staleness == one.staleness and ours.updates == one.updates
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **close), ours.export(), one.export())
            np.testing.assert_allclose(ours.predict(WIDE[0][0]), one.predict(WIDE[0][0]), **close)
            assert ours.evaluate(WIDE).loss == pytest.approx(one.evaluate(WIDE).loss, abs=close["atol"])
            mine = [leaf for stage in ours.params for leaf in jax.tree.leaves(stage)]
            assert all(len(leaf.devices()) == R and leaf.sharding.is_fully_replicated for leaf in mine)


@pytest.mark.slow
def test_a_state_goes_on_with_another_number_of_replicas_and_a_smaller_last_batch():
    with jax.enable_x64(True):
        one, other = made(2, 1, "fdg"), made(2, 2, "fdg")
        fed(one, WIDE[:3]), fed(other, WIDE[:3])
        last = [*WIDE[3:6], tuple(array[:7] for array in WIDE[6])]  # 7 examples: every device computes all of them
        expected, again = fed(one, last), made(2, 1, "fdg")
        again.restore(other.state())
        np.testing.assert_allclose(fed(again, last), expected, **CLOSE)
        again = made(2, 4, "fdg")
        again.restore(other.state())
        np.testing.assert_allclose(fed(again, last), expected, **CLOSE)


@pytest.mark.parametrize(("method", "replicas", "message"), [
    ("bp", 3, "a batch of 16 examples cannot be cut over the 3 devices of stage k=1.* Use a multiple of 3"),
    ("data_parallel", 2, "data_parallel spreads every stage over the K devices by itself"),
])  # fmt: skip
def test_what_replicas_cannot_do_is_said(method, replicas, message):
    with pytest.raises(BadInput, match=message):
        made(2, replicas, method)


def collectives(text):
    """The collective operations in the text of a compiled program."""
    kinds = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")
    return {kind: text.count(f" {kind}(") for kind in kinds if f" {kind}(" in text}


def test_weights_and_activations_are_never_gathered():
    """Gradients and statistics are summed (all-reduce); nothing else goes between the devices of a stage."""
    ours = fdg_jax.Pipeline([nn.Dense(12), nn.Dense(CLASSES)], cross_entropy, optax.adam(1e-2), devices=devices(2, 2))
    x, y = batches(1)[0]
    ours.init(jax.random.key(0), (x, y))
    stage = ours.engine.stages[1]
    x = stage.place.put_batch(x)
    forward = stage._forward.lower(stage.state.params, stage.state.extra, x, None).compile()
    messages, _, closure = stage._forward(stage.state.params, stage.state.extra, x, None)
    backward = stage._backward.lower(closure, stage.state.params, x, messages["x"]).compile()
    grads, _ = stage._backward(closure, stage.state.params, x, messages["x"])
    update = stage._update.lower(stage.state.params, stage.state.opt_state, grads).compile()
    found = [collectives(program.as_text()) for program in (forward, backward, update)]
    assert found[0] == found[2] == {} and {*found[1]} == {"all-reduce"}
