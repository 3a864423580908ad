"""The benchmark of a pipeline in several processes: what it counts, how it reads recorded times, and a short run."""



from benchmarks.harness import waiting
from benchmarks.harness.recording import Dispatched
from fdg_jax.schedule import Address
from fdg_jax.schedule.simulator import Event


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
    found = [event for event in waiting.events(recorded()) if event.what in waiting.WAITING]
    assert found == [
        Event(waiting.UNMADE, 2, 1, 1.0, 3.0),
        Event(waiting.AWAY, 2, 1, 3.0, 4.0),
        Event(waiting.HOST, 2, 1, 4.0, 4.5),
    ]
    assert waiting.seconds_by_kind(found, 2) == {waiting.UNMADE: 2.0, waiting.AWAY: 1.0, waiting.HOST: 0.5}
    assert waiting.seconds_by_kind(found, 1) == {}


def test_a_message_is_on_its_way_from_the_end_of_its_computation_until_it_arrives():
    assert waiting.on_the_way(waiting.events(recorded())) == {(1, 2): [1.0, 0.5]}
