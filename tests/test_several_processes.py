"""The benchmark of a pipeline in several processes: what it counts, how it reads recorded times, and a short run."""


from benchmark_runs import COMMON

from benchmarks import network
from benchmarks.harness import side_specs, waiting
from benchmarks.harness.recording import Dispatched
from fdg_jax.schedule import Address
from fdg_jax.schedule.simulator import Event, Link, predict


def recorded():
    """Stage 2 waits for stage 1, for the message and for the host; then it has its next message before it is free."""
    x1, x2 = Address("x", 2, 1), Address("x", 2, 2)
    return [
        (Dispatched("F", 1, 1, 0.0, (), (x1,)), 3.0),
        (Dispatched("F", 1, 2, 0.1, (), (x2,)), 5.0),
        (Dispatched("B", 2, 0, 0.0), 1.0),
        (Dispatched("F", 2, 1, 4.5, (x1,)), 7.0),
        (Dispatched("F", 2, 2, 0.2, (x2,)), 9.0),
        (Dispatched("send", 1, 1, 0.1, (), (x1,), 2), 4.0),
        (Dispatched("send", 1, 2, 0.1, (), (x2,), 2), 5.5),
    ]


def test_a_stage_waits_for_a_computation_then_for_the_message_then_for_the_host():
    found = waiting.waits(recorded())
    assert found == [
        Event(waiting.UNMADE, 2, 1, 1.0, 3.0),
        Event(waiting.AWAY, 2, 1, 3.0, 4.0),
        Event(waiting.HOST, 2, 1, 4.0, 4.5),
    ]
    assert waiting.seconds_by_kind(found, 2) == {waiting.UNMADE: 2.0, waiting.AWAY: 1.0, waiting.HOST: 0.5}
    assert waiting.seconds_by_kind(found, 1) == {}


def test_a_message_is_on_its_way_from_the_end_of_its_computation_until_it_arrives():
    assert waiting.on_the_way(waiting.events(recorded())) == {(1, 2): [1.0, 0.5]}


# Networks between processes


# Seconds of the operations of two stages: F takes 1 and B takes 2, the half of all dispatches included.
TIMED = {
    "run_ahead": 8,
    "alone": {
        "host": {"F/1": 0.25, "F/2": 0.0, "send x/2": 0.25, "send dy/1": 0.25, "B/1": 0.5},
        "device": {"F/1": 0.5, "F/2": 0.75, "B/1": 1.25, "B/2": 1.75},
    },
}


def test_a_process_on_one_core_computes_for_as_long_as_its_host_and_its_device_together():
    side = side_specs.parse("fdg:processes=each", COMMON, "", "balanced")
    schedule = side_specs.schedule_of(side)
    free = network.machine(TIMED, side, Link(), {("x", 2): 1, ("dy", 1): 1})
    assert [free.seconds(kind, k) for k in (1, 2) for kind in "FB"] == [1, 2, 1, 2]
    assert predict(schedule, free).seconds == 3
    # The last boundary hides nothing (tests/test_simulator.py): 3, and a message each way in 2 ticks.
    slow = network.machine(TIMED, side, Link(1, 0.5), {("x", 2): 1, ("dy", 1): 3})
    assert predict(schedule, slow).seconds == 3 + (1.5 + 2.5) / 2
