"""What only one of the processes meets: a full disk, others that never come, a port that another run has."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest
from cifar_processes import QUICK
from fault_runs import ROOT, Config, assert_same, newest
from launched_runs import EPOCHS, STEPS, Launched
from training_processes import each_needs_a_core

pytestmark = each_needs_a_core
FDG, BEGUN = Config("fdg", 2, "pipeline"), 4
# The folder of the checkpoints as the process sees it: what is there can be read; what is written goes to a small disk.
FULL = """
mount -t tmpfs -o size=64k tmpfs "$1" && mkdir "$1/new" "$1/work" &&
mount -t overlay overlay -o "lowerdir=$2,upperdir=$1/new,workdir=$1/work" "$2" && shift 2 && exec "$@"
"""


def begun_by_hand(number, words, coordinator, *before):
    """One of two processes, on a core of its own. before: words before those of the command."""
    core = sorted(os.sched_getaffinity(0))[number]
    joining = ["--coordinator", coordinator, "--processes", "2", "--process-id", str(number)]
    return subprocess.Popen(
        ["taskset", "-c", str(core), *before, sys.executable, *FDG.program, *words, *joining],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu", **QUICK},
    )


def ended(process, seconds=200) -> tuple[int, str]:
    """(exit code, what it printed on stderr)."""
    try:
        return process.wait(seconds), process.communicate()[1]
    finally:
        process.kill()


def mounts(disk, seen) -> bool:
    """Whether the small disk can be mounted here, which takes root."""
    for path in (disk, seen):
        path.mkdir()
    words = ["unshare", "-m", "sh", "-c", FULL, "sh", str(disk), str(seen), "true"]
    return subprocess.run(words, capture_output=True).returncode == 0


@pytest.mark.slow
def test_a_disk_that_is_full_for_one_process_only_costs_no_checkpoint(left_alone, cache, tmp_path, coordinator, tell):
    if not mounts(tmp_path / "disk", tmp_path / "seen"):
        pytest.skip("no small file system can be mounted here (that takes root)")
    path, whole = tmp_path / "run", left_alone(FDG, 2)
    with Launched(path, FDG, cache, 2, "--steps", str(BEGUN)) as run:
        assert run.finish() == 0, run.told()
    words = ["--run-dir", str(path), "--resume", "--steps", str(STEPS)]
    full = ["unshare", "-m", "sh", "-c", FULL, "sh", str(tmp_path / "disk"), str(path / "checkpoints")]
    both = [begun_by_hand(number, words, coordinator, *(full if number else [])) for number in range(2)]
    codes, said = zip(*map(ended, both), strict=True)
    tell(f"exit codes {codes}: {said[0].strip().splitlines()[-1]}")
    assert codes == (1, 1), said
    fact = rf"the checkpoint after batch {STEPS} could not be written: No space left on device \(.*\), in process 1"
    assert re.search(f"error: {fact}", said[0]) and "Traceback" not in "".join(said), said
    assert newest(path) == BEGUN
    with Launched(path, FDG, cache, 2) as run:
        assert run.finish() == 0, run.told()
    assert_same(path, whole.path)


@pytest.mark.slow
def test_a_second_run_at_the_same_port_is_refused_and_the_first_goes_on(left_alone, tmp_path, coordinator, tell):
    path, whole = tmp_path / "run", left_alone(FDG, 2)
    (tmp_path / "temporary").mkdir()
    words = [*FDG.words(), "--epochs", str(EPOCHS), "--run-dir"]
    first = [begun_by_hand(number, [*words, str(path)], coordinator) for number in range(2)]
    try:
        until = time.monotonic() + 120
        while not (path / "config.json").exists():  # so they have joined
            assert time.monotonic() < until
            time.sleep(0.1)
        second = [begun_by_hand(number, [*words, str(tmp_path / "second")], coordinator) for number in range(2)]
        codes, said = zip(*map(ended, second), strict=True)
        tell(f"exit codes {codes}: {' '.join(said)}")
        assert codes == (2, 2) and [each.count("\n") for each in said] == [1, 1], said
        assert f"error: process 0 cannot listen at {coordinator}: Address already in use" in said[0]
        assert f"error: another program listens at {coordinator}" in said[1]
        assert [ended(process)[0] for process in first] == [0, 0]
    finally:
        for process in first:
            process.send_signal(signal.SIGKILL)
    assert_same(path, whole.path)
