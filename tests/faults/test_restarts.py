"""A run that is begun again for every batch: nothing is left over, nothing grows, and it ends as if never stopped."""

import os
import tempfile
import threading
from pathlib import Path

import pytest
from fault_runs import SMALL, summary

from fdg_jax.experiments import cifar

WARM = 2  # restarts after which a process has opened what it keeps open


def run(path, *more):
    assert cifar.main([*more, "--run-dir", str(path)]) == 0


def held():
    """(file descriptors, threads) of this process."""
    files = Path("/proc/self/fd")
    return len(os.listdir(files)) if files.is_dir() else 0, threading.active_count()


@pytest.mark.slow
def test_restarts_leave_nothing_over_and_drift_nowhere(all_of_them, tmp_path, monkeypatch, capsys, tell):
    restarts, path, temporary = 50 if all_of_them else 4, tmp_path / "run", tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("TMPDIR", str(temporary))
    small = f"{SMALL} --epochs 20 --model resnet8 --K 2 --evaluate-every 0 --resume auto".split()
    run(path, *small, "--steps", "1")
    files, seen = sorted(os.listdir(path)), []
    for step in range(2, restarts + 2):
        run(path, *small, "--steps", str(step))
        assert (summary(path)["steps"], summary(path)["sessions"]) == (step, step)
        assert sorted(os.listdir(path)) == files
        assert sorted(os.listdir(path / "checkpoints")) == [f"step-{n:09d}" for n in (step - 1, step)]
        seen.append(held())
    assert os.listdir(temporary) == []
    for late, early in zip(seen[-1], seen[WARM - 1], strict=True):
        assert late <= early, seen  # neither descriptors nor threads grow
    run(tmp_path / "whole", *small, "--steps", str(restarts + 1))
    for name in ("final_state_sha256", "final_parameters_sha256"):
        assert summary(path)[name] == summary(tmp_path / "whole")[name]
    tell(f"{restarts} restarts: (descriptors, threads) {seen[0]} after the first, {seen[-1]} after the last")
