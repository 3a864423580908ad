"""What a stage will hold, predicted from shapes and the schedule, is what lies on its device."""

import flax.linen as nn
import jax
import pytest
import small

from benchmarks import memory as benchmark
from benchmarks.harness import live_bytes
from fdg_jax.engine import memory
from fdg_jax.engine.host_engine import HostEngine
from fdg_jax.training import opening

# Beside a stage's own arrays a device has the loss (4 bytes) and, the first one, a random key of each stage (8).
SCALARS = 4 + 8 * 4


def predicted_and_live(K, data=None, stages=None, **options):
    """([Memory of stage k], [bytes on its device], pipeline), over a run long enough to be full."""
    data = data or small.batches(4 * K + 2)
    batches = iter(data)

    def make():
        return small.pipeline(K, data[0], stages=stages, **options)

    pipeline, live, _ = benchmark.live(make, lambda pipeline: pipeline.step(next(batches)), len(data))
    return memory.predict(pipeline.engine), live, pipeline


@pytest.mark.slow
@pytest.mark.parametrize(("K", "weights"), [(1, "stashed"), (2, "current"), (3, "stashed")])
def test_a_stage_of_fdg_holds_to_the_byte_what_was_predicted(K, weights):
    predicted, live, _ = predicted_and_live(K, stages=small.parts(K, small.CurrentPart), weights=weights)
    for stage, here in zip(predicted, live, strict=True):
        assert 0 <= here - stage.total <= SCALARS, stage


@pytest.mark.slow
@pytest.mark.parametrize("options", [
    {"order": "forward-first"},
    {"accumulate": 3},
    {"method": "ddg"},
    {"method": "fr"},
    *[{"method": name, "K": 3} for name in ("fa", "dgl", "dfa")],
], ids=str)  # fmt: skip
def test_other_orders_and_methods_hold_to_the_byte_what_was_predicted(options):
    predicted, live, _ = predicted_and_live(data=small.batches(14), **{"K": 2, **options})
    for stage, here in zip(predicted, live, strict=True):
        assert 0 <= here - stage.total <= SCALARS, stage


@pytest.mark.slow
@pytest.mark.parametrize("weights", [1, 2])
def test_each_of_two_devices_holds_its_part_of_the_batch_and_of_weights_that_are_cut(weights):
    """weights: into how many parts they are cut. Arrays in the pipeline's own programs are counted, too: within 5%."""
    named = nn.with_partitioning(nn.initializers.lecun_normal(), (None, "hidden"))
    of, stages = jax.devices(), [nn.Dense(64, kernel_init=named), nn.Dense(small.CLASSES + 1, kernel_init=named)]
    predicted, live, _ = predicted_and_live(
        2, small.batches(14, size=64), stages,
        devices=[of[:2], of[2:4]], axis_rules=[("hidden", "data")] if weights == 2 else [],
    )  # fmt: skip
    alone, _, _ = predicted_and_live(2, small.batches(14, size=32), [nn.Dense(64), nn.Dense(small.CLASSES + 1)])
    for ours, here, one in zip(predicted, live, alone, strict=True):
        assert abs(here - ours.total) < 0.05 * ours.total + SCALARS
        assert (ours.stashes, ours.in_flight) == (one.stashes, one.in_flight)  # half of the batch
        kernels = one.weights - 4 * (64 if ours.k == 1 else small.CLASSES + 1)
        assert ours.weights == one.weights - kernels + kernels // weights
        assert ours.optimizer - ours.weights == one.optimizer - one.weights  # momentum, and a count
        assert ours.old_weights == ours.weights * (ours.k == 1)  # of one update


@pytest.mark.slow
def test_gpipe_holds_what_was_predicted_and_its_micro_batches_labels():
    data = small.batches(14)
    predicted, live, _ = predicted_and_live(3, data, method="gpipe", micro_batches=4)
    of_parts = data[0][1].nbytes + 4 * 4  # the labels until the tick's end, and of each part its share of the batch
    for stage, here in zip(predicted, live, strict=True):
        assert 0 <= here - stage.total <= SCALARS + (of_parts if stage.k == 3 else 0), stage


@pytest.mark.slow
def test_of_dni_the_output_is_predicted_twice_and_held_once():
    """As a question to the synthesizer and as a message to the next stage, which are one array."""
    predicted, live, pipeline = predicted_and_live(3, method="dni")
    assert isinstance(pipeline.engine, HostEngine)
    for stage, here in zip(predicted, live, strict=True):
        spec = pipeline.engine.stages[stage.k].spec
        twice = 0 if spec.last else memory.tree_bytes(spec.y)
        assert 0 <= here + twice - stage.total <= SCALARS, stage


@pytest.mark.slow
def test_on_one_device_the_stages_hold_no_more_than_was_predicted_of_them():
    predicted, live, pipeline = predicted_and_live(3, engine="delay-line")
    assert len(set(live)) == 1
    total = sum(stage.total for stage in predicted)
    assert 0.75 * total < live[0] <= total  # their peaks are not at the same moment
    assert isinstance(pipeline.engine, HostEngine)
    assert 0 <= live[0] - live_bytes.predicted(pipeline.engine) <= SCALARS  # at one moment they hold this


@pytest.mark.parametrize("order", ["backward-first", "forward-first"])
def test_the_number_of_stashes_and_old_weights_is_the_schedules(order):
    K = 3
    pipeline = small.pipeline(K, small.batches(1)[0], order=order)
    for stage in memory.predict(pipeline.engine):
        delay = 2 * (K - stage.k)
        # Forward first, stage k < K goes forward before it gives up the oldest stash; stage K's lives within the tick.
        assert stage.kept == max(1, delay + (order == "forward-first" and stage.k < K))
        assert stage.old_weights == stage.weights * pipeline.schedule.staleness[stage.k - 1]


def test_predicting_compiles_nothing_and_the_forward_pass_is_traced_once_for_both():
    traced = []

    class Told(nn.Module):
        @nn.compact
        def __call__(self, x, train: bool):
            traced.append(train)
            return nn.Dense(small.CLASSES)(x)

    data = small.batches(1)[0]
    pipeline = small.pipeline(1, data, stages=[Told()])
    stage = pipeline.engine.stages[1]  # type: ignore[union-attr]
    assert stage._forward._cache_size() == 0
    memory.predict(pipeline.engine)
    before = len(traced)
    assert stage._forward._cache_size() == 0  # nothing compiled
    pipeline.step(data)
    assert len(traced) == before


def test_a_stages_memory_is_told_in_megabytes_without_parts_below_1_percent():
    stage = dict.fromkeys(opening.PARTS, 0) | {"weights": 300_000, "optimizer": 20_000, "stashes": 6_400_000}
    stage |= {"in_flight": 66_000, "total": 6_786_000, "kept": 2, "stash": 3_200_000}
    parts = "(weights 0.3, optimizer 0.02, 2 stashes of 3.2), and XLA's buffers"
    assert opening.memory_words(stage, "") == f"6.8 MB {parts}"
    assert opening.memory_words(stage, " on each device") == f"6.8 MB on each device {parts}"


def test_a_scan_holds_its_lines_and_no_stashes():
    pipeline = small.pipeline(3, small.batches(1)[0], engine="scan")
    first, second, last = memory.predict(pipeline.engine)
    # 3 and 1 gradients wait, in one slot more.
    assert [first.gradients, second.gradients, last.gradients] == [4 * first.weights, 2 * second.weights, 0]
    assert (first.stashes, first.old_weights) == (0, 0)


def test_a_stage_on_several_devices_is_not_predicted():
    assert memory.predict(small.pipeline(2, small.batches(1)[0], method="data_parallel").engine) == []
