"""Checkpoints are written beside the training, by one process or several; what goes wrong with one costs that one and
nothing else. Of damaged ones and those that cannot be read, nothing older is used silently."""

import errno
import os
import shutil
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from small import batches, pipeline
from test_agreement_of_processes import in_processes

from fdg_jax import durable
from fdg_jax.checkpoint import folder, manifest, run_checkpoints
from fdg_jax.checkpoint import state as states
from fdg_jax.checkpoint.run_checkpoints import NotFinite, SaveFailed, Saver
from fdg_jax.errors import BadInput

DATA = batches(6)


def saved(root, *steps, keep=2, best=None, value=1.0):
    saver = Saver(root, {}, keep)
    saver.best = best
    for step in steps:
        saver.save(step, {"a": np.full(100, value)}, {"step": step})
    saver.wait()
    return saver


def written(saver, step, **options):
    saver.save(step, {"a": np.full(3, step, np.float32)}, {"step": step}, **options)
    saver.wait()
    return [path.name[-1] for path in run_checkpoints.stored(saver.root)]


def newest(root) -> tuple[Any, int]:
    """(state, step) of the newest checkpoint."""
    found = run_checkpoints.load_newest(root)
    assert found is not None
    return found[0], int(found[1]["step"])


def names(root):
    return sorted(os.listdir(root))


def test_the_newest_stay_and_the_best_one(tmp_path):
    saved(tmp_path, 1, 2, 3, 999_999_999, 10_000_000_000, keep=2, best=2)
    assert names(tmp_path) == ["step-000000002", "step-10000000000", "step-999999999"]
    state, step = newest(tmp_path)
    assert (step, state["a"].sum()) == (10_000_000_000, 100)


@pytest.mark.slow
def test_a_pipeline_goes_on_while_its_checkpoint_is_written(tmp_path, monkeypatch):
    started, go, write = threading.Event(), threading.Event(), folder.save

    def slow(*arguments):
        started.set()
        assert go.wait(60)
        write(*arguments)

    monkeypatch.setattr(folder, "save", slow)
    ours = pipeline(2, DATA[0])
    for batch in DATA[:4]:
        ours.step(batch)
    before, saver = ours.state_sha256(), Saver(tmp_path, {}, 2)
    saver.save(4, ours.snapshot(), {"step": 4})
    assert started.wait(60)
    for batch in DATA[4:]:
        ours.step(batch)  # the writer still holds its arrays
    assert not saver.has_failed()
    go.set()
    saver.wait()
    assert states.sha256(newest(tmp_path)[0]) == before != ours.state_sha256()


def test_a_full_disk_is_noticed_before_anything_is_written(tmp_path, monkeypatch):
    saved(tmp_path, 1)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=2**20))
    monkeypatch.setattr(folder, "save", lambda *_: pytest.fail("it was written"))
    with pytest.raises(SaveFailed, match=r"after batch 2 .*No space .* \(it needs [\d.]+ MB, but 1.049 MB are"):
        saved(tmp_path, 2)
    assert names(tmp_path) == ["step-000000001"]


def test_everything_is_flushed_before_the_name_and_nothing_is_removed_before_that(tmp_path, monkeypatch):
    """On a system that cannot be cut off (tests/faults/test_power_cut.py), the order of what is done."""
    done, sync, rename, remove = [], os.fsync, durable.rename, shutil.rmtree
    root = tmp_path / "checkpoints"
    saver = Saver(root, {}, keep=1, flush=lambda: done.append("lines"))
    written(saver, 1)
    done.clear()

    def note_removal(path, **options):
        if os.path.exists(path):
            done.append(f"remove {Path(path).name}")
        remove(path, **options)

    def note_rename(old, new):
        done.append(f"name {new.name}")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", lambda handle: (done.append(os.readlink(f"/proc/self/fd/{handle}")), sync(handle)))
    monkeypatch.setattr(durable, "rename", note_rename)
    monkeypatch.setattr(shutil, "rmtree", note_removal)
    written(saver, 2)
    named = done.index("name step-000000002")
    new = root / "step-000000002"
    content = {str(new), *(str(each) for each in new.rglob("*"))}
    flushed = [name.replace("/.step-000000002.tmp", "/step-000000002") for name in done[1:named]]
    assert done[0] == "lines" and set(flushed) >= content
    assert done[named + 1 :] == [str(root), str(root), "remove .step-000000001.old"]


def test_the_best_checkpoint_stays_until_a_better_one_is_written(tmp_path, monkeypatch):
    saver = Saver(tmp_path, {}, keep=1)
    assert written(saver, 1, best=True) == ["1"]
    assert written(saver, 2) == ["1", "2"]
    with monkeypatch.context() as patch:
        patch.setattr(folder, "save", mock.Mock(side_effect=OSError(28, "No space left on device")))
        with pytest.raises(SaveFailed, match=r"after batch 3 could not be written: No space left on device\."):
            written(saver, 3, best=True)
    assert written(saver, 4) == ["1", "4"]
    assert written(saver, 5, best=True) == ["5"]
    for name in (".step-000000004.old", ".step-000000006.tmp", "step-000000003", "mine"):  # left by a killed process
        (tmp_path / name / "deep").mkdir(parents=True)
    run_checkpoints.sweep(tmp_path)
    saver.prune()
    assert names(tmp_path) == ["mine", "step-000000005"]
    run_checkpoints.sweep(tmp_path / "none")  # a new run has no checkpoints yet


def test_what_is_not_finite_is_never_written_and_arrays_that_are_used_up_are_no_lasting_loss(tmp_path):
    bad, saver = np.full(2, np.nan, np.float32), Saver(tmp_path, {}, keep=1)
    for lost, lasting in {
        ("mail/x/2/7/", "stage1/sum/['a']"): False,
        ("stage1/line/0/['a']", "run/.lines[0].grads['a']", "stage1/memo/3/x"): False,
        ("mail/x/2/7/", "stage2/state/.params['a']"): True,
        ("run/.stages[0].params['a']",): True,
    }.items():
        saver.save(1, dict.fromkeys(lost, bad), {})
        with pytest.raises(NotFinite, match=" is not finite after batch 1, so no") as found:
            saver.wait()
        assert found.value.lasting is lasting and names(tmp_path) == []
    saver.save(1, {}, {"unread/4": bad, "error": np.nan}, refused=None)
    saver.wait()
    saver.save(2, {}, {"unread/4": bad, "error": np.nan}, refused=())
    with pytest.raises(NotFinite, match="unread/4 is not finite"):
        saver.wait()


def damage(root, step):
    file = next(f for f in (root / f"step-{step:09d}").rglob("*") if f.is_file() and f.stat().st_size)
    file.write_bytes(b"x" + file.read_bytes()[1:])


def test_where_all_are_damaged_nothing_begins_anew_by_itself(tmp_path, monkeypatch, capsys):
    saved(tmp_path, 1, 2)
    damage(tmp_path, 1)
    damage(tmp_path, 2)
    with monkeypatch.context() as patch:
        patch.setattr(durable, "rename", mock.Mock(side_effect=PermissionError(errno.EACCES, "Permission denied")))
        with pytest.raises(BadInput, match=r"all checkpoints in .* are damaged \(2\)"):
            newest(tmp_path)
    assert "It cannot be put aside (Permission denied)" in capsys.readouterr().err
    for _ in range(2):  # nor the second time
        with pytest.raises(BadInput, match=r"all checkpoints in .* are damaged \(2\)"):
            newest(tmp_path)
    assert names(tmp_path) == ["damaged-step-000000001", "damaged-step-000000002"]


def failing(owner, call, error, name=None):
    """A call fails; only for the file of a name, if one is given."""

    def arrange(patch):
        real = getattr(owner, call)

        def fails(path, *arguments, **options):
            if name is None or path.name == name:
                raise error
            return real(path, *arguments, **options)

        patch.setattr(owner, call, fails)

    return arrange


STALE = OSError(errno.ESTALE, "Stale file handle")
PASSING = {
    "stale": (failing(Path, "open", STALE, "manifest.json"), "Stale file handle"),
    "within Orbax": (failing(folder.ocp.Checkpointer, "restore", ValueError("[OS error 24: EMFILE]")), "OS error 24"),
    "list": (failing(os, "scandir", OSError(errno.EIO, "Input/output error")), "cannot be listed: Input/output error"),
    "format": (lambda patch: patch.setattr(manifest, "FORMAT", 2), "has format 1; this version reads 2"),
}


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """A run with two checkpoints."""
    run = tmp_path_factory.mktemp("two")
    saved(run / "checkpoints", 1, 2)
    return run


@pytest.mark.parametrize("kind", PASSING)
def test_what_cannot_be_read_at_the_moment_is_left_as_it_is_and_nothing_older_is_used(kind, two, capsys):
    root, (arrange, text) = two / "checkpoints", PASSING[kind]
    with pytest.MonkeyPatch.context() as patch:
        arrange(patch)
        with pytest.raises(BadInput) as refused:
            newest(root)
    assert text in str(refused.value) and "\n" not in str(refused.value)
    assert not isinstance(refused.value, manifest.Damaged)
    assert names(root) == ["step-000000001", "step-000000002"] and "".join(capsys.readouterr()) == ""
    state, step = newest(root)
    assert (step, state["a"].sum()) == (2, 100)


def state_of(process):
    return {f"stage{process + 1}/state/weights": np.full((2, 3), process, np.float32), "t": np.int64(4)}


def saved_by(count, root, change=lambda process, state: state) -> list[Any]:
    def run(peers):
        saver = Saver(root, {"about": "a run"}, 2, peers=peers)
        saver.save(7, change(peers.process, state_of(peers.process)), {"step": 7})
        saver.wait()
        return saver.step

    return in_processes(count, run)


@pytest.fixture(scope="module")
def of_three(tmp_path_factory):
    """A checkpoint that three processes have written."""
    root = tmp_path_factory.mktemp("processes") / "checkpoints"
    assert saved_by(3, root) == [7, 7, 7]
    (path,) = run_checkpoints.stored(root)
    return path


def test_parts_become_one_checkpoint_and_what_is_said_about_it_can_be_changed(of_three, tmp_path):
    """Read as that of one process, with what each of them has."""
    assert names(of_three) == ["manifest.json", "process0", "process1", "process2"]
    path = shutil.copytree(of_three, tmp_path / "copy")
    manifest.change_about(path, {"about": "the same run, with repaired images"})
    for each, about in ((of_three, "a run"), (path, "the same run, with repaired images")):
        state, loop, found = run_checkpoints.load(each)
        assert sorted(state) == ["stage1/state/weights", "stage2/state/weights", "stage3/state/weights", "t"]
        np.testing.assert_array_equal(state["stage3/state/weights"], np.full((2, 3), 2, np.float32))
        assert state["t"] == 4 and loop["step"] == 7 and found == {"about": about}


@pytest.mark.parametrize(("of_process_1", "kind", "text"), [
    ({"unwritable": np.array([object()])}, SaveFailed, "in process 1"),
    ({"stage2/state/weights": np.full(3, np.nan)}, NotFinite, "stage k=2"),
])  # fmt: skip
def test_what_one_process_cannot_write_fails_in_all(of_process_1, kind, text, tmp_path):
    root = tmp_path / "checkpoints"
    found = saved_by(3, root, lambda process, state: state | (of_process_1 if process == 1 else {}))
    assert [type(error) for error in found] == [kind] * 3
    assert all(text in str(error) for error in found)
    assert not root.exists() or names(root) == []


def test_room_is_looked_for_for_all_parts_before_any_is_written(tmp_path, monkeypatch):
    """A file system that has room for one part, and not for three."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: mock.Mock(free=3 * 2**20))
    found = saved_by(3, tmp_path / "checkpoints", lambda *_: {"stage1/state/weights": np.zeros(2**18, np.float32)})
    assert all("it needs 4.352 MB, but 3.146 MB are free" in str(error) for error in found) and len(found) == 3
    assert names(tmp_path / "checkpoints") == []


@pytest.mark.parametrize("file", ["manifest.json", "process1/manifest.json", "process1/npy/00000.npy"])
def test_damage_of_a_part_is_noticed(file, of_three, tmp_path):
    path = shutil.copytree(of_three, tmp_path / "copy")
    content = bytearray((path / file).read_bytes())
    content[-2] ^= 1
    (path / file).write_bytes(content)
    with pytest.raises(manifest.Damaged):
        run_checkpoints.load(path)


def test_a_part_that_is_missing_or_too_many_is_noticed(of_three, tmp_path):
    path = shutil.copytree(of_three, tmp_path / "copy")
    shutil.copytree(path / "process2", path / "process3")
    with pytest.raises(manifest.Damaged, match=r"manifest\.json does not list process3/manifest\.json"):
        run_checkpoints.load(path)
    (path / "process1" / "manifest.json").unlink()
    with pytest.raises(manifest.Damaged, match=r"process1/manifest\.json is missing"):
        run_checkpoints.load(path)
