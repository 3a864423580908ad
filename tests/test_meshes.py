"""Stages on several devices each: the numbers of one device for each stage, except for the rounding of sums."""

import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import Mesh
from small import CLASSES, batches, cross_entropy

import fdg_jax
from fdg_jax.engine.memory import tree_bytes
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
    "scan": {"method": "fdg", "engine": "scan", "beta": 0.5, "guard": True},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("K", [1, 2, 3])
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
    ("bp", 3, "a batch of 16 examples cannot be divided among the 3 devices of stage k=1.* Use a multiple of 3"),
    ("data_parallel", 2, "data_parallel spreads every stage over the K devices by itself"),
])  # fmt: skip
def test_what_replicas_cannot_do_is_said(method, replicas, message):
    with pytest.raises(BadInput, match=message):
        made(2, replicas, method)


class Cut(nn.Module):
    """A dense layer whose arrays name their axes, and one that makes `width` of it."""

    width: int

    @nn.compact
    def __call__(self, x, train: bool):
        named, normal = nn.with_logical_partitioning, nn.initializers.lecun_normal()
        wide = nn.Dense(16, param_dtype=jnp.float64, kernel_init=named(normal, ("embed", "hidden")), name="wide")
        x = nn.Dropout(0.2, deterministic=not train)(jnp.tanh(wide(x)))
        back = named(normal, ("hidden", "classes" if self.width == CLASSES else "embed"))
        return nn.Dense(self.width, param_dtype=jnp.float64, kernel_init=back, name="back")(x)


LAYOUTS = {  # axes of each stage's mesh, rules, the part of a kernel of 16 rows that a device has
    "tensor": ((1, 2), (("hidden", "tensor"),), 2),
    "fsdp": ((2, 1), (("hidden", "data"),), 2),
    "both": ((2, 2), (("hidden", "tensor"), ("embed", "data")), 4),
}


def cut(layout, **options):
    shape, rules, _ = LAYOUTS[layout] if layout else ((), (), 1)
    n = int(np.prod(shape)) if layout else 1
    places = [np.array(jax.devices()[k * n : (k + 1) * n]) for k in range(2)]
    meshes = [Mesh(place.reshape(shape), ("data", "tensor")) if layout else place[0] for place in places]
    meshes = [meshes[0]] * 2 if options.get("engine") in ("scan", "delay-line") else meshes
    stages, optimizer = [Cut(12), Cut(CLASSES)], optax.adam(1e-2)
    ours = fdg_jax.Pipeline(stages, cross_entropy, optimizer, devices=meshes, axis_rules=rules, **options)
    return ours.init(jax.random.key(0), WIDE[0])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fdg", "gpipe", "corrected", "more", "delay line", "scan"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_weights_that_are_cut_train_as_whole_ones_and_each_device_has_its_part_of_them(layout, kind):
    with jax.enable_x64(True):
        one, ours = cut(None, **KINDS[kind]), cut(layout, **KINDS[kind])
        np.testing.assert_allclose(fed(ours), fed(one), **CLOSE)
        assert ours.staleness == one.staleness
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **CLOSE), ours.export(), one.export())
        assert ours.evaluate(WIDE).loss == pytest.approx(one.evaluate(WIDE).loss, abs=1e-12)
        held = [ours.engine.run] if kind == "scan" else [
            (s.state, s.sum, [grads for grads, *_ in s.line], [stash.params for stash in s.stashes])
            for s in ours.engine.stages.values()
        ]  # fmt: skip
        both_axes = ((8, 16), (16, 12), (12, 16))  # the last layer's second axis is that of the classes
        kernels = [leaf for leaf in jax.tree.leaves(held) if leaf.shape[-2:] in both_axes and leaf.size]
        shares = {leaf.size // leaf.addressable_shards[0].data.size for leaf in kernels}
        assert len(kernels) > 6 and shares == {LAYOUTS[layout][2]}
        again = cut(layout, **KINDS[kind])
        again.restore(one.state())  # another layout's
        ours.restore(one.state())
        assert fed(again, WIDE[:3]) == fed(ours, WIDE[:3])


class CutNNX(nnx.Module):
    """The same metadata as flax.nnx has them."""

    def __init__(self, width, rngs):
        named, normal = nnx.with_partitioning, nnx.initializers.lecun_normal()
        self.wide = nnx.Linear(8, 16, kernel_init=named(normal, (None, "hidden")), rngs=rngs)
        self.back = nnx.Linear(16, width, kernel_init=named(normal, ("hidden", None)), rngs=rngs)

    def __call__(self, x):
        return self.back(jnp.tanh(self.wide(x)))


@pytest.mark.slow
def test_modules_of_nnx_are_cut_too():
    found = []
    for device in jax.devices()[0], Mesh(np.array(jax.devices()[:2]).reshape(1, 2), ("data", "tensor")):
        stages, rules = [fdg_jax.from_nnx(CutNNX, CLASSES)], [("hidden", "tensor")]
        ours = fdg_jax.Pipeline(stages, cross_entropy, optax.sgd(0.1), "bp", devices=[device], axis_rules=rules)
        ours.init(jax.random.key(0), batches(1)[0])
        found.append((fed(ours, batches(4)), next(w for w in jax.tree.leaves(ours.params) if w.shape == (8, 16))))
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-6)  # sums over the parts, in float32
    assert found[1][1].addressable_shards[0].data.shape == (8, 8)


def test_an_axis_that_the_devices_do_not_divide_is_said():
    mesh, rules = Mesh(np.array(jax.devices()[:3]).reshape(1, 3), ("data", "tensor")), [("hidden", "tensor")]
    ours = fdg_jax.Pipeline([Cut(CLASSES)], cross_entropy, optax.sgd(0.1), "bp", devices=[mesh], axis_rules=rules)
    with jax.enable_x64(True), pytest.raises(BadInput, match=r"axis 0 \('hidden'\) of .* has length 16, .* of the 3"):
        ours.init(jax.random.key(0), batches(1)[0])


def collectives(program):
    """{kind of collective operation in a compiled program: the shapes of its results}."""
    kinds = "all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter"
    found = {}
    for results, kind in re.findall(rf" = (.*?) ({kinds})(?:-start)?\(", program.as_text()):
        found.setdefault(kind, []).extend(re.findall(r"\[([\d,]*)\]", results))
    return found


class Bare(nn.Module):
    """Two matrices that name their axes."""

    @nn.compact
    def __call__(self, x):
        named, normal = nn.with_logical_partitioning, nn.initializers.lecun_normal()
        x = nn.Dense(32, use_bias=False, kernel_init=named(normal, ("embed", "hidden")))(x)
        return nn.Dense(8, use_bias=False, kernel_init=named(normal, ("hidden", "embed")))(jnp.tanh(x))


KERNELS = {"8,32", "32,8"}


@pytest.mark.parametrize("layout", [
    "replicas", *[pytest.param(layout, marks=pytest.mark.slow) for layout in ("tensor", "fsdp")]
])  # fmt: skip
def test_what_goes_between_the_devices_of_a_stage_and_between_stages(layout):
    """Replicas: gradients are summed (all-reduce), nothing else. Tensor parallel: one sum of activations a pass. FSDP:
    weights are gathered where they are needed. No layout gathers activations, or weights that are whole everywhere.

    With 24 examples instead of 240 the activations are smaller than FSDP's weights, and XLA gathers them instead."""
    shape, rules, _ = LAYOUTS.get(layout, ((2, 1), (), 1))
    meshes = [Mesh(np.array(jax.devices()[2 * k : 2 * k + 2]).reshape(shape), ("data", "tensor")) for k in range(3)]
    stages = [Bare(), Bare(), nn.Dense(CLASSES)]
    ours = fdg_jax.Pipeline(stages, cross_entropy, optax.adam(1e-2), devices=meshes, axis_rules=rules)
    x, y = batches(1, size=240)[0]
    ours.init(jax.random.key(0), (x, y))
    stage = ours.engine.stages[2]
    x, params = stage.place.put_batch(x), stage.state.params
    forward = stage._forward.lower(params, stage.state.extra, x, None).compile()
    messages, _, closure = stage._forward(params, stage.state.extra, x, None)
    backward = stage._backward.lower(closure, params, x, messages["x"]).compile()
    grads, dx = stage._backward(closure, params, x, messages["x"])
    update = stage._update.lower(params, stage.state.opt_state, grads).compile()
    up, back, new = map(collectives, (forward, backward, update))
    assert new == {}
    if layout == "replicas":
        assert up == {} and {*back} == {"all-reduce"} and {*back["all-reduce"]} <= KERNELS
    if layout == "tensor":
        assert (up, back) == ({"all-reduce": ["240,8"]}, {"all-reduce": ["240,8"]})
    if layout == "fsdp":
        assert {*up} == {"all-gather"} and {*up["all-gather"]} == {*back["all-gather"]} == KERNELS
    for message, spec in ((messages["x"], stage.spec.y), (dx, stage.spec.x)):  # what each device sends
        sent = message.addressable_shards[0].data.nbytes
        assert sent == tree_bytes(spec) // stage.place.parts and len(message.addressable_shards) == 2
