"""`fdg_jax.late` against the delay-line engine and against optimizers without it."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import serialization
from jax.sharding import NamedSharding, PartitionSpec
from small import CLASSES, batches, close, cross_entropy, jit, mostly_slow, pipeline, recipe

from fdg_jax import BadInput, late
from fdg_jax.errors import NoEffect
from fdg_jax.machine import programs
from fdg_jax.optimizers.rotation import rotation

K = 3
DATA = batches(9, features=CLASSES)


class Layer(nn.Module):
    @nn.compact
    def __call__(self, x):
        return jnp.tanh(nn.Dense(CLASSES)(x))


LAYER = Layer()
FIRST = {f"stage{k}": LAYER.init(jax.random.key(k), DATA[0][0])["params"] for k in range(1, K + 1)}


def loss(params, x, labels):
    for k in range(1, K + 1):
        x = LAYER.apply({"params": params[f"stage{k}"]}, x)
    return cross_entropy(x, labels)


def stage_of(path):
    return int(path.removeprefix("stage")[0])


def step(optimizer, params, state, batch, forward=late.forward_params):
    grads = jax.grad(loss)(forward(params, state), *batch)
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state


def trained(optimizer, params=FIRST, data=DATA, step=step):
    state = optimizer.init(params)
    for batch in data:
        params, state = step(optimizer, params, state, batch)
    return params, state


ASKED = [
    {"beta": 0.5}, {"order": "forward-first"},
    {"accumulate": 2, "accumulation": "mean", "beta": 0.3},
    {"method": "ddg"},
    {"method": "ddg", "accumulate": 4, "one_version": True},
    {"correct": "anticipate", "momentum": 0.9},
    {"correct": "dc_asgd", "guard": True},
    {"correct": "gap_aware,anticipate,rate", "momentum": 0.9, "learning_rate": 0.1},
    {"correct": "cosine"},
    {"optimizer": optax.contrib.muon(0.02)},
    {"optimizer": rotation(0.01)},
]
@pytest.mark.slow
@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: ",".join(map(str, asked)) + str(asked.get("method", "")))
def test_operation_by_operation_it_is_the_delay_line_engine_bit_for_bit(asked):
    """Without programs nothing is contracted, so that only what is computed counts. A loop is one operation."""
    options = dict(asked)
    chain = options.pop("optimizer", None) or recipe()
    with jax.disable_jit():
        stages, first = [Layer() for _ in FIRST], [{"params": FIRST[f"stage{k}"]} for k in range(1, K + 1)]
        engine = pipeline(K, DATA[0], chain, stages, first, engine="scan", **options)
        for batch in DATA:
            engine.step(batch)
        ours = late.optimizer(chain, stage_of, K=K, **options)
        ours = optax.GradientTransformation(ours.init, programs.jit(ours.update))
        params, state = trained(ours)
        same(params, engine)
        assert [each.staleness for each in late.report(state)] == engine.staleness
        engine.drain()
        params, state = programs.jit(late.drain)(params, state)
        same(params, engine)
        assert [each.updates for each in late.report(state)] == engine.updates


def same(params, engine):
    for k, variables in enumerate(engine.params, 1):
        jax.tree.map(np.testing.assert_array_equal, params[f"stage{k}"], variables["params"])


def test_without_lateness_it_is_the_optimizer_alone():
    late_step = jit(partial(step, ours := late.optimizer(recipe(), stage_of, method="bp", K=K)))
    params, _ = trained(ours, step=lambda _, *rest: late_step(*rest))
    alone, state = FIRST, (chain := recipe()).init(FIRST)
    alone_step = jit(partial(step, chain, forward=lambda params, state: params))
    for batch in DATA:
        alone, state = alone_step(alone, state, batch)
    close(params, alone, rtol=0, atol=1e-6)  # one program rounds otherwise than three


@pytest.mark.slow
def test_delays_may_be_any_and_staleness_is_measured():
    _, state = trained(late.optimizer(recipe(), stage_of, delay=[4, 2, 0], measure=True))
    told = late.report(state)
    assert [tuple(each)[:4] for each in told] == [(1, 4, 4, 5), (2, 2, 2, 7), (3, 0, 0, 9)]
    assert told[0].distance > 0 < told[1].distance and told[2].distance == 0
    assert -1 <= told[0].cosine < 1 and told[2].cosine == pytest.approx(1)


def test_while_a_queue_fills_neither_weights_nor_the_optimizers_state_move():
    optimizer = late.optimizer(optax.adamw(0.1), stage_of, delay=[4, 4, 0])
    compiled = jit(partial(step, optimizer))
    params, state = trained(optimizer, data=DATA[:4], step=lambda _, *rest: compiled(*rest))
    close(params["stage1"], FIRST["stage1"], rtol=0)
    first = optimizer.init(FIRST)
    close(state.stages[0].opt_state, first.stages[0].opt_state, rtol=0)
    assert [each.updates for each in late.report(state)] == [0, 0, 4]


@pytest.mark.slow
@pytest.mark.parametrize("asked", [{"correct": "anticipate", "momentum": 0.9}, {"accumulate": 2, "measure": True}])
def test_it_runs_under_jit_scan_vmap_and_donation(asked):
    optimizer = late.optimizer(recipe(), stage_of, K=K, **asked)
    expected, _ = trained(optimizer)
    x, labels = (np.stack(arrays) for arrays in zip(*DATA, strict=True))

    @partial(jax.jit, donate_argnums=(0, 1))
    def run(params, state, x, labels):
        return jax.lax.scan(lambda c, batch: (step(optimizer, *c, batch), ()), (params, state), (x, labels))[0]

    params = jax.tree.map(jnp.copy, FIRST)
    params, _ = run(params, optimizer.init(params), x, labels)
    close(params, expected, rtol=0, atol=1e-6)
    two = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), FIRST)
    both, states = jax.vmap(run, in_axes=(0, 0, None, None))(two, jax.vmap(optimizer.init)(two), x, labels)
    close(jax.tree.map(lambda leaf: leaf[0], both), expected, rtol=0, atol=1e-6)
    assert late.report(states)[0].staleness.tolist() == [late.report(trained(optimizer)[1])[0].staleness] * 2


@pytest.mark.slow
def test_parameters_that_are_hidden_from_it_stay():
    asked = {"correct": "anticipate", "momentum": 0.9}
    frozen = {name: name == "stage1" for name in FIRST}
    train = {name: not each for name, each in frozen.items()}
    optimizer = optax.chain(
        optax.masked(optax.set_to_zero(), frozen), optax.masked(late.optimizer(recipe(), stage_of, K=K, **asked), train)
    )
    with pytest.warns(NoEffect, match="stage k=1 has no parameters"):
        params, state = late.drain(*trained(optimizer))
    close(params["stage1"], FIRST["stage1"], rtol=0)
    assert [each.updates for each in late.report(state)] == [9, 9, 9]
    assert not np.array_equal(params["stage2"]["Dense_0"]["bias"], FIRST["stage2"]["Dense_0"]["bias"])


@pytest.mark.parametrize("kind", mostly_slow(["Auto", "Explicit"], "Auto"))
def test_queues_are_sharded_like_their_parameters(kind):
    axes = (getattr(jax.sharding.AxisType, kind),)
    mesh = jax.make_mesh((2,), ("data",), axis_types=axes, devices=jax.devices()[:2])
    expected = NamedSharding(mesh, PartitionSpec(None, "data"))
    optimizer = late.optimizer(recipe(), stage_of, delay=[3], measure=True)
    with jax.set_mesh(mesh):
        params = {"stage1": jax.device_put(jnp.ones((4, 2)), NamedSharding(mesh, PartitionSpec("data")))}
        state = optimizer.init(params)
        for _ in range(2):
            assert state.stages[0].line.grads["stage1"].sharding.is_equivalent_to(expected, 3)
            _, state = jax.jit(optimizer.update)(params, state, params)


@pytest.mark.slow
@pytest.mark.parametrize("asked", [{"accumulate": 2}, {"correct": "dc_asgd,rate", "beta": 0.5, "learning_rate": 0.01}])
def test_files_hold_its_state(asked, tmp_path):
    optimizer = late.optimizer(optax.adam(0.01), stage_of, K=K, **asked)
    params, state = trained(optimizer, data=DATA[:5])
    expected, _ = trained_on(optimizer, params, state)
    as_bytes = serialization.from_bytes(optimizer.init(params), serialization.to_bytes(state))
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", state)
        checkpointer.wait_until_finished()
        by_orbax = checkpointer.restore(tmp_path / "state", optimizer.init(params))
    for read in (as_bytes, by_orbax):
        close(trained_on(optimizer, params, read)[0], expected, rtol=0)


def trained_on(optimizer, params, state):
    for batch in DATA[5:]:
        params, state = step(optimizer, params, state, batch)
    return params, state


@pytest.mark.slow
def test_the_bytes_of_queues_are_known_before_any_array_is_made():
    optimizer = late.optimizer(recipe(), stage_of, K=K, correct="dc_asgd", dtype="bfloat16")
    size = CLASSES * CLASSES + CLASSES
    # Gradients in bfloat16, weights, their versions; one slot more than gradients wait.
    expected = [(D + 1) * (2 * size + 4 * size + 4) for D in (3, 1)] + [0]
    for state in (jax.eval_shape(optimizer.init, FIRST), trained(optimizer)[1]):
        assert [each.queue_bytes for each in late.report(state)] == expected


def made(stage_of=stage_of, K=3, **options):
    return late.optimizer(recipe(), stage_of, K=K, **options)


def used(optimizer, state, *params):
    return optimizer.update(FIRST, state, *params)


def serialized(written, reader):
    return serialization.from_bytes(reader.init(FIRST), serialization.to_bytes(written.init(FIRST)))


AHEAD = {"correct": "anticipate", "momentum": 0.9}
WRONG = {
    "no stage": (lambda: made(lambda path: None).init(FIRST), "stage1/Dense_0/bias has no stage"),
    "outside": (lambda: made(lambda path: 4).init(FIRST), "stages 1 to 3"),
    "layers": (lambda: made(late.Layers((1,))).init(FIRST), "has 5 layers"),
    "prefix": (lambda: made({"other": 1}).init(FIRST), "does not fit the tree of parameters"),
    "current": (lambda: made(weights="current"), "weights='current'"),
    "t2": (lambda: made(correct="t2"), "correction t2 takes gradients at other weights than those of the forward pass"),
    "method": (lambda: made(method="dgl"), "method dgl is not BP with late gradients"),
    "K": (lambda: made(K=None), "K=None"),
    "negative": (lambda: made(K=None, delay=[1, -1]), "delay has -1"),
    "momentum": (lambda: made(correct="anticipate"), "Add momentum="),
    "delay": (lambda: made(K=None, delay=2), "delay=2. Give a list"),
    "two delays": (lambda: made(K=None, delay=[1, 0], order="forward-first"), "both say how late"),
    "dtype": (lambda: made(dtype="int8"), "dtype='int8' cannot hold gradients"),
    "weights": (lambda: made(weights="curent"), "weights='curent' is not known"),
    "queues": (lambda: used(made(), serialized(made(K=None, delay=[4, 1, 0]), made()), FIRST), "4 gradients, not 3"),
    "behind": (lambda: late.drain(FIRST, optax.chain(made(), optax.scale(2)).init(FIRST)), "comes after late"),
    "state": (lambda: used(made(), made(delay=[1, 1, 0]).init(FIRST), FIRST), "delays (1, 1, 0), but this one has"),
    "no params": (lambda: used(made(), made().init(FIRST)), "needs the parameters"),
    "forward": (lambda: used(made(**AHEAD), made(**AHEAD).init(FIRST), FIRST), "late.forward_params(params, state)"),
    "not its state": (lambda: late.report(recipe().init(FIRST)), "0 states of late.optimizer"),
}


def test_wrong_use_is_one_sentence():
    for name, (run, words) in WRONG.items():
        with pytest.raises(BadInput) as told:
            run()
        assert words in str(told.value), name


@pytest.mark.slow
@pytest.mark.parametrize("prefix", [True, False])
def test_layers_on_a_first_axis_are_trained_as_separate_ones(prefix):
    """Muon sees matrices in both, and each layer has its stage."""
    make = lambda k: optax.contrib.muon(0.02 / k)  # noqa: E731
    separate, _ = trained(late.optimizer(make, stage_of, K=K))
    stacked = jax.tree.map(lambda *each: jnp.stack(each), *FIRST.values())

    def scanned(params, x, labels):
        return cross_entropy(jax.lax.scan(lambda x, p: (LAYER.apply({"params": p}, x), ()), x, params)[0], labels)

    cut = late.Layers((1, 2, 3)) if prefix else lambda path: late.LAYERS
    optimizer, params = late.optimizer(make, cut, K=K), stacked
    state = optimizer.init(params)
    for batch in DATA:
        updates, state = optimizer.update(jax.grad(scanned)(params, *batch), state, params)
        params = optax.apply_updates(params, updates)
    expected = jax.tree.map(lambda *each: jnp.stack(each), *separate.values())
    close(params, expected, rtol=0, atol=1e-6)  # gradients of a loop are rounded otherwise than those of a chain
