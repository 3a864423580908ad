"""A full disk, a real one: what was saved stays, the failure is told within a step, and the run obeys the policy."""

import contextlib
import os
import re
import subprocess

import pytest
from fault_runs import SMALL, STEPS, assert_same, newest

from fdg_jax.checkpoint import run_checkpoints
from fdg_jax.experiments import cifar
from fdg_jax.runs import progress
from fdg_jax.runs.run_files import read_metrics
from fdg_jax.training import loop

SIZE = 24  # MB; a checkpoint of the run below has less than two
AT = 3  # the disk fills up before this batch enters


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "run"
    assert cifar.main(words(path, 1)) == 0
    (path.parent / "temporary").mkdir()
    return path


@pytest.fixture
def disk(tmp_path):
    """A file system of its own with little room."""
    path = tmp_path / "disk"
    path.mkdir()
    with contextlib.suppress(OSError):
        mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}m", "tmpfs", str(path)]
        mounted = subprocess.run(mount, capture_output=True)
        if mounted.returncode == 0:
            (path / "temporary").mkdir()
            yield path
            subprocess.run(["umount", str(path)], check=True)
            return
    pytest.skip("no small file system can be mounted here (that takes root)")


def words(path, every, policy="go-on"):
    small = SMALL.replace("--checkpoint-every 1", f"--checkpoint-every {every}")
    return f"{small} --model resnet8 --K 2 --keep 9 --on-failed-save {policy} --run-dir {path}".split()


def fill(disk, spare):
    """Leaves so many bytes free."""
    with (disk / "filler").open("wb") as file:
        while (free := os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize) > spare:
            file.write(bytes(min(free - spare, 2**20)))
            file.flush()


@pytest.fixture
def fills_up(monkeypatch):
    """fills_up(disk, spare) -> [(step at the time, warning)]: the disk fills up in the middle of the run."""

    def arrange(disk, spare, patch=monkeypatch):
        window, say, loops, told = loop.Loop.dispatch, progress.Progress.say, [], []

        def filling(loop):
            loops[:] = [loop]
            if loop.record.step == AT - 1:
                loop.saving.check()  # what came before is saved
                fill(disk, spare)
            return window(loop)

        def saying(self, line):
            if "WARNING" in line:
                told.append((loops[0].record.step, line))
            say(self, line)

        patch.setattr(loop.Loop, "dispatch", filling)
        patch.setattr(progress.Progress, "say", saying)
        return told

    return arrange


def goes_on_exactly_once_there_is_room(disk, whole, monkeypatch, *more):
    monkeypatch.undo()
    (disk / "filler").unlink()
    assert cifar.main(["--run-dir", str(disk / "run"), "--resume", *more]) == 0
    assert_same(disk / "run", whole)


@pytest.mark.slow
@pytest.mark.parametrize("noticed", ["before", "under way"])
@pytest.mark.parametrize("policy", ["go-on", "stop"])
def test_saves_beside_the_training_fail_and_cost_nothing_old(
    noticed, policy, disk, whole, fills_up, monkeypatch, capsys, tell
):
    path, told = disk / "run", fills_up(disk, 2**19)
    if noticed == "under way":
        monkeypatch.setattr(run_checkpoints, "check_room", lambda *_: None)
    code = cifar.main(words(path, 1, policy))
    said = "".join(capsys.readouterr())
    tell(f"policy {policy}, noticed {noticed}: exit code {code}, told after batches {[step for step, _ in told]}")
    assert "Traceback" not in said
    assert newest(path) == AT - 1
    assert [run_checkpoints.load(each)[1]["step"] for each in run_checkpoints.stored(path / "checkpoints")] == list(
        range(1, AT)
    )
    assert all(name.startswith("step-") for name in os.listdir(path / "checkpoints"))
    failed = AT if policy == "stop" else STEPS  # the last has to succeed
    assert code == 1 and f"error: the checkpoint after batch {failed} could not be written" in said
    if policy == "go-on":
        steps = [int(re.search(r"after batch (\d+) could not be written", line)[1]) for _, line in told]  # type: ignore
        assert steps == list(range(AT, STEPS + 1))  # the last is tried once more, at the end
        assert all(when <= step + 1 for step, (when, _) in zip(steps, told, strict=True))
        evaluated = read_metrics(path / "metrics.jsonl")[-1]  # whatever became of the weights
        assert evaluated == read_metrics(whole / "metrics.jsonl")[-1] and evaluated["step"] == STEPS
    assert not (path / "summary.json").exists()
    goes_on_exactly_once_there_is_room(disk, whole, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["go-on", "stop"])
def test_the_save_at_the_end_has_to_succeed(policy, disk, whole, fills_up, monkeypatch, capsys, tell):
    fills_up(disk, 2**19)
    assert cifar.main(words(disk / "run", 0, policy)) == 1
    said = "".join(capsys.readouterr())
    tell(f"policy {policy}: exit code 1")
    assert f"the checkpoint after batch {STEPS} could not be written: No space left on device" in said
    assert "from the beginning." in said and newest(disk / "run") == -1
    goes_on_exactly_once_there_is_room(disk, whole, monkeypatch, "--checkpoint-every", "1")


@pytest.mark.slow
def test_a_disk_without_room_for_a_line_ends_the_run_in_one_sentence(disk, whole, fills_up, monkeypatch, capsys, tell):
    fills_up(disk, 0)
    code = cifar.main(words(disk / "run", 1))
    said = capsys.readouterr().err
    tell(f"exit code {code}: {said.strip()}")
    assert code == 1 and said.count("\n") == 1 and "No space left on device" in said
    goes_on_exactly_once_there_is_room(disk, whole, monkeypatch)
