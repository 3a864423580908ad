"""The training command in several processes that the launcher starts, each on a core of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cifar_processes import QUICK, ROOT, read

PROGRAM = ("-m", "fdg_jax.experiments.cifar")
SECONDS = 300  # a hang ends
each_needs_a_core = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="each process needs a core"
)


def started(count, *words, flags=(), program=PROGRAM):
    """The launcher with so many processes on two cores. All have as many threads as stages (`prepare_cpu`)."""
    cores = map(str, sorted(os.sched_getaffinity(0))[:2])
    command = [sys.executable, "-m", "fdg_jax.launch", "--processes", str(count), "--cores", *cores, *flags, "--"]
    settings = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", **QUICK}
    return subprocess.Popen(
        [*command, *program, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env=settings,
    )


def finish(process):
    out, _ = process.communicate(timeout=SECONDS)
    return process.returncode, out


def trained(run, count, *words, summary_of=None, program=PROGRAM):
    """summary.json of a run that went well. summary_of: its directory, if --run-dir is another one's."""
    code, out = finish(started(count, "--run-dir", str(run), *words, program=program))
    assert code == 0, out
    return read((summary_of or run) / "summary.json")


def same(one, other):
    """Raises AssertionError where two runs did not end alike, bit for bit."""
    for name in ("final_parameters_sha256", "final_state_sha256", "test_error_percent", "test_loss", "train_loss"):
        assert one[name] == other[name], name
    assert (one["staleness"], one["updates"]) == (other["staleness"], other["updates"])


def pids(launcher):
    """The processes that a launcher has started: their pids, in the order of their numbers."""
    found = {}
    for entry in os.listdir("/proc"):
        try:
            words = Path(f"/proc/{entry}/cmdline").read_text().split("\0")
            parent = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        if parent == launcher.pid and "--process-id" in words:
            found[int(words[words.index("--process-id") + 1])] = int(entry)
    return [found[number] for number in sorted(found)]
