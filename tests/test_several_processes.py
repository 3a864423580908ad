"""The benchmark of a pipeline in several processes: what it counts, how it reads recorded times, and a short run."""

import os
from collections import Counter
from unittest import mock

import jax
import pytest
import small
from benchmark_runs import COMMON, pins_cores, rows_of, run

from benchmarks import network
from benchmarks.harness import hosts, message_counts, side_specs, waiting
from benchmarks.harness.recording import Dispatched
from fdg_jax.engine.host_engine import HostEngine
from fdg_jax.schedule import Address
from fdg_jax.schedule.simulator import Event, Link, predict

two_cores = pytest.mark.skipif(
    len(getattr(os, "sched_getaffinity", lambda _: [0])(0)) < 2, reason="K = 2 wants two cores"
)


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


@pytest.mark.slow
@pytest.mark.parametrize("process", [0, 1])
def test_what_is_counted_in_a_process_is_what_shapes_predict(process):
    """Both stages are in this process. Counting is told that stage k is in process k-1, and that it is one of them."""
    data = small.batches(6)
    made = small.pipeline(2, data[0], guard=True)
    assert isinstance(made.engine, HostEngine)
    ticks = len(data) - 3
    with (
        mock.patch.object(message_counts, "process_of", lambda engine, k: k - 1),
        mock.patch.object(jax, "process_index", return_value=process),
    ):
        expected = {message[:3]: message.size for message in message_counts.predicted(made.engine)}
        for batch in data[:3]:
            made.step(batch)
        with message_counts.counting(made.engine) as counted:
            for batch in data[3:]:
                made.step(batch)
    made.step(data[0])  # counts no more
    assert {key[0] for key in expected} == {"x", "dy", message_counts.LOSS, message_counts.REFUSED}
    seen = {key: message_counts.SENT if key[1] - 1 == process else message_counts.ARRIVED for key in expected}
    assert Counter(counted) == {(*key, seen[key], size): ticks for key, size in expected.items()}
    assert expected["loss", 2, 0] == 4 and expected["x", 1, 1] > 100


@pytest.mark.slow
@pins_cores
@two_cores
def test_several_processes_are_compared_counted_and_drawn(tmp_path):
    file = tmp_path / "rows.jsonl"
    short = ("--models", "resnet8:4", "--rounds", "1", "--starts", "2", "--steps", "2", "--python", "/bin/false")
    done = run("several_processes", *short, "--out", str(tmp_path), "--json", str(file))
    assert done.returncode == 0, done.stderr
    *sides, exchange = rows_of(file.read_text())
    assert [row["side"] for row in sides] == ["fdg:processes=each", "fdg", "bp-on-each-core", "bp"]
    assert all(len(row["images_per_second_windows"]) == 2 for row in sides)  # a round of each start
    assert [row["staleness"] for row in sides] == [[1, 0], [1, 0], [0], [0]]
    assert sides[2]["over"]["bp-on-each-core"] == sides[3]["over"]["bp"] == [1.0, 1.0]
    assert sides[2]["batches_per_window"] == 2 * sides[3]["batches_per_window"] == 4
    assert {(m["what"], m["k"], m["to"]) for m in exchange["messages"]} == {
        ("x", 1, 1), ("dy", 2, 0), ("loss", 2, 0), ("refused", 1, 1), ("refused", 2, 0),
    }  # fmt: skip
    for message in exchange["messages"]:
        assert message["predicted"] == message["sent"] == message["arrived"] == 1
        assert message["predicted_bytes"] == message["sent_bytes"] == message["arrived_bytes"] > 0
    content = sum(message["sent_bytes"] for message in exchange["messages"])
    assert exchange["loopback_bytes_per_tick"] is None or exchange["loopback_bytes_per_tick"] > content
    for stage in exchange["stage_ms_per_tick"]:
        assert stage["F"] > 0 and stage["B"] > 0
        assert sum(stage.values()) <= 1.001 * exchange["tick_ms"]
    assert exchange["on_the_way_ms"].keys() == {"1 to 2", "2 to 1"}
    assert exchange["bound_over_bp"] == 100 / max(exchange["share_percent"]) <= 2
    assert len(exchange["block_seconds"]) == sides[0]["blocks"]
    assert (tmp_path / "several_processes_resnet8.png").read_bytes().startswith(b"\x89PNG")
    assert done.stdout.count("Side torch-ddp is skipped: /bin/false has no PyTorch.") == 1


# Networks between processes


NO_HOSTS = hosts.relay_missing()
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


@pins_cores
@pytest.mark.slow
@pytest.mark.skipif(bool(NO_HOSTS), reason=NO_HOSTS or "hosts can be made")
def test_it_measures_networks_and_leaves_no_host_behind():
    words = ["--model", "resnet8", "--batch-size", "4", "--steps", "2", "--batches", "1"]
    done = run("network", *words, "--rounds", "1", "--networks", "none", "30ms,1Gbit/s", "--json")
    assert done.returncode == 0, done.stderr
    free, far = rows_of(done.stdout)
    assert (free["network"], far["network"]) == ("none", "30ms,1Gbit/s")
    assert far["message_seconds"].keys() == {"x to 2", "dy to 1"}
    assert all(0.03 <= seconds < 0.5 for each in far["message_seconds"].values() for seconds in each)
    assert 0.06 <= far["round_trip_seconds"] < 0.1
    # A tick has a message's way at least, in this order (tests/test_simulator.py).
    assert far["images_per_second"][0] < 4 / 0.03 and far["predicted_of_link"][0] < 4 / 0.03
    owners = {path.name.split("-")[1] for path in hosts.NAMES.glob(f"{hosts.NAMED}-*")}
    assert all(os.path.exists(f"/proc/{owner}") for owner in owners)  # its own are gone
