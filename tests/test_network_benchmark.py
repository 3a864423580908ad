"""The benchmark of networks between processes: what it predicts from measured times, its page, and a short run."""

import os

import pytest
from benchmark_runs import COMMON, pins_cores, rows_of, run

from benchmarks import network
from benchmarks.harness import hosts, side_specs
from fdg_jax.schedule.simulator import Link, predict

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
    words = ["--model", "resnet8", "--batch-size", "4", "--steps", "2", "--settle", "6", "--batches", "1"]
    done = run("network", *words, "--rounds", "1", "--tries", "2", "--networks", "none", "30ms,1Gbit/s", "--json")
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
