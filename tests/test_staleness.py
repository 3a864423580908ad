"""The staleness of every stage is data of the schedule, in updates, and what the engines measure."""

from itertools import product

import pytest
from small import batches, pipeline

from fdg_jax import methods
from fdg_jax.schedule.running import trace_run

OPTIONS = {"order": ("backward-first", "forward-first"), "accumulate": (1, 2, 3, 7), "accumulation": ("sum", "mean")}


def ways(name):
    """Every combination of a method's options that its staleness depends on."""
    own = [option for option in ("order", "accumulate") if option in methods.find(name).schedule_options]
    return [dict(zip(own, values, strict=True)) for values in product(*(OPTIONS[option] for option in own))]


@pytest.mark.parametrize("name", methods.names())
def test_the_updates_that_every_gradient_is_late_are_those_that_a_run_counts(name):
    for K, asked in product((1, 2, 3, 5), ways(name)):
        schedule = methods.find(name).schedule(K, **asked)
        n = 6 * K + 3 * schedule.accumulate
        for k, counted in enumerate(trace_run(schedule, n).staleness, 1):
            assert counted == [schedule.updates_late(k, batch) for batch in range(1, n * schedule.micro_batches + 1)]
            assert max(counted) == schedule.staleness[k - 1]
            full = slice(schedule.delays[k - 1], schedule.delays[k - 1] + schedule.accumulate)  # of a full pipeline
            assert sum(counted[full]) / schedule.accumulate == pytest.approx(schedule.mean_staleness[k - 1])


# Every other method and both orders: tests/test_methods.py and tests/test_engines.py.
@pytest.mark.parametrize(
    "asked",
    [
        {"method": "fdg", "accumulate": 2},
        pytest.param({"method": "fdg", "accumulate": 3, "order": "forward-first"}, marks=pytest.mark.slow),
        pytest.param({"method": "fdg", "accumulate": 2, "engine": "scan"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_the_engines_measure_what_the_schedule_says(asked):
    data = batches(14)
    made = pipeline(3, data[0], **asked)
    for batch in data:
        made.step(batch)
    assert made.staleness == list(made.schedule.staleness)
