"""Data parallelism: the numbers are the oracle's and BP's, and the work really lies on K devices."""

import re
import subprocess
import sys
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import method_oracles as oracles
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from small import CLASSES, Part, as_functions, batches, cross_entropy, leaves, mostly_slow, parts, pipeline, recipe
from test_engines import ROUNDING, Two

from fdg_jax import models, split
from fdg_jax.data.augment import train_transform
from fdg_jax.data.sets import digits
from fdg_jax.errors import BadInput
from fdg_jax.methods.data_parallel import Spread, cut

Ks = [2, 3, 4]
NORMS = ["local", "sync"]
SIZE = 24  # which 2, 3 and 4 divide


def replicated(K, example, **options):
    return pipeline(K, example, method="data_parallel", **options)


def trained(ours, data):
    """The pipeline's first variables; it has been trained on the data afterwards."""
    start = jax.device_get(ours.params)
    for batch in data:
        ours.step(batch)
    ours.drain()
    return start


def alike(ours, theirs, tolerance):
    for a, b in zip(leaves(ours), leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, **tolerance)


def losses(ours):
    return [m.loss for m in ours.losses(wait=True)]


def statistics(ours):
    """Of every stage the running statistics, as they lie there: for local batch norms [K, ...]."""
    return [stage.state.extra for stage in ours.engine.stages.values()]


# The numbers.


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("K", Ks)
def test_data_parallel_is_its_oracle(K, norm):
    data = batches(8, SIZE)
    ours = replicated(K, data[0], batch_norm=norm)
    start = trained(ours, data)
    modules = as_functions(parts(K))
    truth, true_losses, _ = oracles.data_parallel(modules, cross_entropy, recipe(), start, data, K, norm)
    alike([v["params"] for v in ours.params], [v["params"] for v in truth], ROUNDING)
    alike([extra["batch_stats"] for extra in statistics(ours)], [v["batch_stats"] for v in truth], ROUNDING)
    np.testing.assert_allclose(losses(ours), true_losses, **ROUNDING)
    if norm == "local":
        assert {leaf.shape[0] for leaf in leaves(statistics(ours))} == {K}
        assert any(np.abs(leaf[0] - leaf[1]).max() > 0.01 for leaf in leaves(statistics(ours)))


def train_the_same(ours, true, data):
    trained(ours, data)
    trained(true, data)
    alike(ours.params, true.params, ROUNDING)  # a sum over the batch is made of K sums
    np.testing.assert_allclose(losses(ours), losses(true), **ROUNDING)


@pytest.mark.parametrize("K", [2])
def test_without_batch_norm_it_is_backprop(K):
    data = batches(8, SIZE)
    stages = [Two(CLASSES if k == K else 12) for k in range(1, K + 1)]
    ours, true = replicated(K, data[0], stages=stages), pipeline(K, data[0], stages=stages, method="bp")
    train_the_same(ours, true, data)


def test_a_batch_that_is_spread_is_augmented_where_its_images_are():
    images, place = np.zeros((8, 16, 16, 3), np.uint8), Spread(jax.devices()[:2])
    transform = jax.jit(train_transform(digits.load()._replace(flip=True), 0))
    program = transform.lower(place.batch(images), place.weights(np.int32(1))).compile()
    assert program.output_shardings.spec == P("replica")
    assert not re.search("all-|collective|permute", program.as_text())


@pytest.mark.slow
@pytest.mark.parametrize("K", [3])
def test_with_synchronised_batch_norm_it_is_backprop_for_any_batch_size(K):
    data = batches(6, SIZE)
    data[2:4] = [(x[:13], y[:13]) for x, y in data[2:4]]  # 13 is no multiple of K: computed on every device
    ours, true = replicated(K, data[0], batch_norm="sync"), pipeline(K, data[0], method="bp")
    train_the_same(ours, true, data)


@pytest.mark.slow
@pytest.mark.parametrize("K", [3])
def test_a_batch_that_K_does_not_divide_is_filled_up_with_its_first_examples(K):
    data = batches(4, 2 * SIZE)
    data[1:3] = [(x[:37], y[:37]) for x, y in data[1:3]]
    ours = replicated(K, data[0])
    start = trained(ours, data)
    whole = [np.arange(-(-len(y) // K) * K) % len(y) for _, y in data]
    filled = [(x[i], y[i]) for (x, y), i in zip(data, whole, strict=True)]
    assert len(filled[1][1]) == {2: 38, 3: 39}[K]
    modules = as_functions(parts(K))
    truth, true_losses, _ = oracles.data_parallel(modules, cross_entropy, recipe(), start, filled, K, "local")
    alike([v["params"] for v in ours.params], [v["params"] for v in truth], ROUNDING)
    np.testing.assert_allclose(losses(ours), true_losses, **ROUNDING)


def test_a_batch_smaller_than_K_is_repeated():
    np.testing.assert_array_equal(cut(jnp.arange(3), 8), [[0], [1], [2], [0], [1], [2], [0], [1]])
    np.testing.assert_array_equal(cut(jnp.arange(5), 2), [[0, 1, 2], [3, 4, 0]])
    np.testing.assert_array_equal(cut(jnp.arange(4), 2), [[0, 1], [2, 3]])


@pytest.mark.slow
def test_replicas_that_share_devices_have_the_numbers_of_those_that_do_not():
    data = batches(5, SIZE)
    a, b, *_ = jax.devices()
    results = []
    for devices in (None, [a] * 4, [a, a, b, b]):
        ours = replicated(4, data[0], devices=devices)
        trained(ours, data)
        results.append((ours.params, statistics(ours), losses(ours)))
    for result in results[1:]:
        alike(result, results[0], ROUNDING)  # the mean over K replicas is summed in other parts


def test_a_device_has_as_many_replicas_as_any_other():
    a, b, c = jax.devices()[:3]
    sizes = [Spread(devices).mesh.size for devices in ([a], [a, a], [a, b], [a, a, b], [a, a, b, b], [a, b, c, c])]
    assert sizes == [1, 1, 2, 1, 2, 2]


@pytest.mark.parametrize("norm", mostly_slow(NORMS, "local"))
def test_evaluation_and_variables_are_those_of_replica_1(norm):
    data = batches(4, SIZE)
    ours = replicated(2, data[0], batch_norm=norm)
    trained(ours, data)
    x, labels = data[0]
    for module, variables, extra in zip(parts(2), ours.params, statistics(ours), strict=True):
        replica_1 = jax.tree.map(lambda a: a[0] if norm == "local" else a, extra["batch_stats"])
        alike(variables["batch_stats"], replica_1, {"rtol": 0})
        x = module.apply(jax.device_get(variables), x, train=False)
    found = ours.evaluate(data[:1])
    np.testing.assert_allclose(found.loss, cross_entropy(x, labels), rtol=1e-5)  # summed in other parts
    assert found.error_percent == 100 * np.sum(np.argmax(x, -1) != labels) / SIZE


class Masked(nn.Module):
    """Ones that survived dropout, so that what it gives tells the key."""

    @nn.compact
    def __call__(self, x, train: bool):
        scale = self.param("scale", nn.initializers.ones, ())
        return scale * nn.Dropout(0.5, deterministic=not train)(jnp.ones_like(x))


def masks(ours, batch, steps=3):
    """What stage 1 gives in each of several steps."""
    given, stage = [], ours.engine.stages[1]
    forward = stage.forward

    def recording(*arguments, **messages):
        messages = forward(*arguments, **messages)
        given.append(np.asarray(messages["x"]))
        return messages

    stage.forward = recording
    for _ in range(steps):
        ours.step(batch)
    return np.array(given)


@pytest.mark.slow
def test_each_replica_draws_from_a_key_of_its_own_and_replica_1_from_backprops():
    x, y = batches(1, 8)[0]
    stages, optimizer = [Masked(), Part(CLASSES)], recipe()
    ours = masks(replicated(2, (x, y), stages=stages, optimizer=optimizer), (x, y)) > 0
    true = masks(pipeline(2, (x[:4], y[:4]), stages=stages, optimizer=optimizer, method="bp"), (x[:4], y[:4])) > 0
    np.testing.assert_array_equal(ours[:, :4], true)
    masks_of = [ours[step, half : half + 4].tobytes() for step in range(3) for half in (0, 4)]
    assert len(set(masks_of)) == 6  # no replica repeats another's, now or later


@pytest.mark.slow
def test_synchronised_replicas_draw_what_backprop_draws():
    x, y = batches(1, 8)[0]
    stages = [Masked(), Part(CLASSES)]
    ours, true = (masks(pipeline(2, (x, y), stages=stages, **options), (x, y)) > 0 for options in
                  ({"method": "data_parallel", "batch_norm": "sync"}, {"method": "bp"}))  # fmt: skip
    np.testing.assert_array_equal(ours, true)


@pytest.mark.slow
@pytest.mark.parametrize("norm", NORMS)
def test_a_run_with_dropout_goes_on_where_it_was(norm):
    data, stages = batches(6, SIZE), [Masked(), Part(CLASSES)]
    whole, first, second = (replicated(2, data[0], stages=stages, batch_norm=norm) for _ in range(3))
    trained(whole, data)
    trained(first, data[:3])
    second.restore(first.state())
    assert devices_of(statistics(second)) == devices_of(statistics(first))
    trained(second, data[3:])
    assert second.parameters_sha256() == whole.parameters_sha256()
    alike(statistics(second), statistics(whole), {"rtol": 0})  # keys and running statistics of every replica


def test_a_checkpoint_of_local_statistics_does_not_fit_synchronised_ones():
    example = batches(1, SIZE)[0]
    with pytest.raises(BadInput, match="this run needs"):
        replicated(2, example, batch_norm="sync").restore(replicated(2, example).state())


@pytest.mark.parametrize("K", [1, 2])
def test_another_kind_of_batch_norm_is_refused(K):
    with pytest.raises(BadInput, match=r"batch_norm='ghost' is not known\. Use local .* or sync"):
        replicated(K, batches(1)[0], batch_norm="ghost")


# The devices.


def recorded(ours, batch):
    """{(what, k): (program, its arguments)} of a step, what being "F", "B" or "update"."""
    seen = {}

    def recording(name, program):
        def run(*arguments):
            seen[name] = program, jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding),
                                               arguments)  # fmt: skip
            return program(*arguments)

        return run

    for k, stage in ours.engine.stages.items():
        for what, attribute in (("F", "_forward"), ("B", "_backward"), ("update", "_update")):
            setattr(stage, attribute, recording((what, k), getattr(stage, attribute)))
    ours.step(batch)
    return seen


def devices_of(tree):
    """The numbers of devices that the leaves of a tree are cut over (1: whole on each)."""
    return {leaf.size // leaf.addressable_shards[0].data.size for leaf in jax.tree.leaves(tree)}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("K", Ks)
def test_a_batch_is_spread_over_K_devices_and_weights_are_whole_on_each(K, norm):
    data = batches(3, SIZE)
    ours = replicated(K, data[0], batch_norm=norm)
    messages = []
    for stage in ours.engine.stages.values():

        def recording(kind, batch, given, run=stage.run):
            sent = run(kind, batch, given)
            messages.extend([given, {what: m for what, m in sent.items() if what != "loss"}])
            return sent

        stage.run = recording
    trained(ours, data)
    assert len(messages) == 2 * 2 * K * 3
    assert devices_of(messages) == {K}
    assert {leaf.shape[0] for leaf in jax.tree.leaves(messages)} == {SIZE}
    states = [stage.state for stage in ours.engine.stages.values()]
    everything = jax.tree.leaves(states)
    assert {frozenset(leaf.sharding.device_set) for leaf in everything} == {frozenset(jax.devices()[:K])}
    assert all(leaf.is_fully_replicated for leaf in jax.tree.leaves([(s.params, s.opt_state) for s in states]))
    assert devices_of([s.extra for s in states]) == ({K} if norm == "local" else {1})


@pytest.mark.parametrize("norm", NORMS)
def test_every_program_is_compiled_once(norm):
    """Else what one operation gives would not lie where the next one expects it."""
    data = batches(4, SIZE)
    ours = replicated(2, data[0], batch_norm=norm)
    trained(ours, data)
    for stage in ours.engine.stages.values():
        assert [f._cache_size() for f in (stage._forward, stage._backward, stage._update)] == [1, 1, 1]


def collectives(text):
    """[(operation, shapes of its results)] of a compiled program's communication."""
    kinds = "all-reduce|all-gather|all-to-all|collective-permute|collective-broadcast|reduce-scatter"
    found = re.findall(rf"= (.*?) ({kinds})(?:-start)?\(", text)
    return [(kind, [dimensions(shape) for shape in re.findall(r"\[([\d,]*)\]", results)]) for results, kind in found]


def dimensions(shape):
    """Of `64,5` or (5, 64), in ascending order, as XLA may transpose."""
    return tuple(sorted(map(int, filter(None, shape.split(","))) if isinstance(shape, str) else shape))


def residual(K, size=20):
    """(stages of ResNet-8, an example batch of small images)."""
    rng = np.random.default_rng(0)
    images = rng.normal(size=(size, 8, 8, 3)).astype(np.float32)
    blocks = models.blocks("resnet8", CLASSES)
    cuts = split.parse("even", "resnet8", K, len(blocks))
    return split.stages(blocks, cuts), (images, rng.integers(0, CLASSES, size).astype(np.int32))


@pytest.mark.slow
@pytest.mark.parametrize("norm", NORMS)
def test_only_gradients_and_statistics_travel_between_devices(norm):
    stages, batch = residual(K=2)
    ours = replicated(2, batch, stages=stages, batch_norm=norm)
    seen = recorded(ours, batch)
    texts = {name: program.lower(*arguments).compile().as_text() for name, (program, arguments) in seen.items()}
    channels = {(16,), (32,), (64,)}  # a batch norm's sums
    for k, stage in ours.engine.stages.items():
        parameters = sorted(dimensions(leaf.shape) for leaf in jax.tree.leaves(stage.state.params))
        forward, backward, update = (collectives(texts[what, k]) for what in ("F", "B", "update"))
        assert {kind for kind, _ in forward + backward} <= {"all-reduce"}
        assert update == []
        travelled = sorted(shape for _, shapes in backward for shape in shapes)
        there = [shape for _, shapes in forward for shape in shapes if shape != ()]  # (): the loss
        if norm == "local":
            assert travelled == parameters
            assert there == []
        else:
            assert set(there) <= channels
            assert set(travelled) == set(parameters)  # the sums of batch norms are of their parameters' shapes
            assert len(travelled) < 2 * len(parameters)
        # Every device has half of the batch and nowhere the whole.
        for text in (texts["F", k], texts["B", k]):
            assert re.search(r"f32\[10,\d", text)
            assert not re.search(r"f32\[20,\d", text)


# Observed after three steps of a residual network: 2e-7 at most, well within ROUNDING; local and synchronised batch
# norms are 3e-2 apart there.


@pytest.mark.slow
def test_a_residual_network_with_synchronised_batch_norm_is_backprops():
    stages, batch = residual(K=2)
    ours, true = replicated(2, batch, stages=stages, batch_norm="sync"), pipeline(2, batch, stages=stages, method="bp")
    trained(ours, [batch] * 3)
    trained(true, [batch] * 3)
    alike(ours.params, true.params, ROUNDING)
    np.testing.assert_allclose(losses(ours), losses(true), **ROUNDING)


@pytest.mark.slow
def test_a_residual_network_with_local_batch_norm_is_its_oracle():
    stages, batch = residual(K=2)
    ours = replicated(2, batch, stages=stages)
    start = trained(ours, [batch] * 3)
    truth, true_losses, _ = oracles.data_parallel(
        as_functions(stages), cross_entropy, recipe(), start, [batch] * 3, 2, "local"
    )
    alike([v["params"] for v in ours.params], [v["params"] for v in truth], ROUNDING)
    alike([extra["batch_stats"] for extra in statistics(ours)], [v["batch_stats"] for v in truth], ROUNDING)
    np.testing.assert_allclose(losses(ours), true_losses, **ROUNDING)


LONG_RUN = """
from small import *
data = batches(2, 16)
ours = pipeline(8, data[0], method="data_parallel", batch_norm="sync", read_behind=1000)
for i in range(60):
    ours.step(data[i % 2])
print(ours.evaluate(data * 30).images)
"""


@pytest.mark.slow
def test_as_many_devices_as_threads_do_not_wait_for_each_other_forever():
    """Where the host runs ahead on fewer than 8 cores XLA stops the whole process, so it has one of its own."""
    before = f"import sys; sys.path[:0] = {sys.path!r}\nimport fdg_jax.transport.devices as d; d.emulate_cpu(8)\n"
    here = Path(__file__).resolve().parent
    done = subprocess.run(
        [sys.executable, "-c", before + LONG_RUN], cwd=here, capture_output=True, text=True, timeout=240, check=False
    )
    assert (done.returncode, done.stdout) == (0, "960\n"), done.stderr[-2000:]
