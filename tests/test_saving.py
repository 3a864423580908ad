"""Checkpoints are written beside the training; what goes wrong with one costs that one and nothing else."""

import errno
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from small import batches, pipeline

from fdg_jax.runs import checkpoints
from fdg_jax.storage import checkpoint, durable, manifest

DATA = batches(6)


def saved(root, *steps, keep=2, best=None, value=1.0):
    saver = checkpoints.Saver(root, {}, keep)
    saver.best = best
    for step in steps:
        saver.save(step, {"a": np.full(100, value)}, {"step": step})
    saver.wait()
    return saver


def names(root):
    return sorted(os.listdir(root))


def test_the_newest_stay_and_the_best_one(tmp_path):
    saved(tmp_path, 1, 2, 3, 4, keep=2, best=2)
    assert names(tmp_path) == ["step-000000002", "step-000000003", "step-000000004"]
    state, loop, _ = checkpoints.load_newest(tmp_path)  # type: ignore[misc]
    assert (loop["step"], state["a"].sum()) == (4, 100)


def test_checkpoints_from_batch_1_000_000_000_on_are_the_newest(tmp_path):
    saved(tmp_path, 999_999_998, 999_999_999, 1_000_000_000, 10_000_000_000)
    assert names(tmp_path) == ["step-1000000000", "step-10000000000"]
    assert checkpoints.load_newest(tmp_path)[1]["step"] == 10_000_000_000  # type: ignore[index]


def test_a_pipeline_goes_on_while_its_checkpoint_is_written(tmp_path, monkeypatch):
    import threading

    started, go = threading.Event(), threading.Event()
    write = checkpoint.save

    def slow(*arguments):
        started.set()
        assert go.wait(60)
        write(*arguments)

    monkeypatch.setattr(checkpoint, "save", slow)
    ours = pipeline(2, DATA[0])
    for batch in DATA[:4]:
        ours.step(batch)
    before, saver = ours.state_sha256(), checkpoints.Saver(tmp_path, {}, 2)
    saver.save(4, ours.snapshot(), {"step": 4})
    assert started.wait(60)
    for batch in DATA[4:]:
        ours.step(batch)  # the writer still holds its arrays
    assert not saver.has_failed()
    go.set()
    saver.wait()
    state, _, _ = checkpoints.load_newest(tmp_path)  # type: ignore[misc]
    assert checkpoint.sha256(state) == before != ours.state_sha256()


def test_what_is_not_finite_is_never_written(tmp_path):
    saved(tmp_path, 1)
    with pytest.raises(checkpoints.NotFinite, match="after batch 2 a is not finite"):
        saved(tmp_path, 2, value=np.nan)
    assert names(tmp_path) == ["step-000000001"]


def test_a_full_disk_is_noticed_before_anything_is_written(tmp_path, monkeypatch):
    saved(tmp_path, 1)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(checkpoints.shutil, "disk_usage", lambda path: usage._replace(free=2**20))
    monkeypatch.setattr(checkpoint, "save", lambda *_: pytest.fail("it was written"))
    with pytest.raises(
        checkpoints.SaveFailed, match=r"after batch 2 .*No space .* \(it needs [\d.]+ MB, 1.049 MB are free"
    ):
        saved(tmp_path, 2)
    assert names(tmp_path) == ["step-000000001"]


def test_a_disk_that_fills_up_under_way_costs_the_one_checkpoint(tmp_path, monkeypatch):
    saver = saved(tmp_path, 1)

    def full(path, *_):
        (path.parent / f".{path.name}.tmp").mkdir()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", full)
        saver.save(2, {"a": np.zeros(3)}, {"step": 2})
        with pytest.raises(
            checkpoints.SaveFailed, match=r"after batch 2 could not be written: No space left on device\."
        ):
            saver.wait()
    assert names(tmp_path) == ["step-000000001"] and saver.step == -1
    saver.save(3, {"a": np.zeros(3)}, {"step": 3})  # there is room again
    saver.wait()
    assert names(tmp_path) == ["step-000000001", "step-000000003"]


def test_a_checkpoint_for_which_there_is_no_thread_fails_as_others_do(tmp_path, monkeypatch):
    saver = saved(tmp_path, 1)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints.Thread, "start", mock.Mock(side_effect=RuntimeError("can't start new thread")))
        saver.save(2, {"a": np.zeros(3)}, {"step": 2})
        with pytest.raises(
            checkpoints.SaveFailed, match=r"after batch 2 could not be written: .*can't start new thread"
        ):
            saver.wait()
        saver.save(2, {"a": np.zeros(3)}, {"step": 2})
        with pytest.raises(checkpoints.SaveFailed):
            saver.save(3, {"a": np.zeros(3)}, {"step": 3})
        saver.close()
    assert written(saver, 4) == ["1", "4"]


@pytest.mark.slow
@pytest.mark.parametrize("allowed", [1, 2, 6])
def test_threads_that_orbax_does_not_get_cost_one_checkpoint(allowed, tmp_path, monkeypatch, capfd):
    saver, start, begun = saved(tmp_path, 1), threading.Thread.start, []

    def limited(thread):
        begun.append(thread)
        if len(begun) > allowed:
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", limited)
        saver.save(2, {"a": np.zeros(3)}, {"step": 2})
        with pytest.raises(checkpoints.SaveFailed, match="after batch 2 could not be written"):
            saver.wait()
    assert len(begun) > allowed and "".join(capfd.readouterr()) == ""
    assert written(saver, 3) == ["1", "3"]


def test_a_limit_on_the_size_of_files_is_told_in_one_sentence(tmp_path):
    """In a process of its own: what is left of failed tasks is told whenever memory is cleared up."""
    code = """if True:
        import gc, resource, sys, pathlib
        import numpy as np
        from fdg_jax.runs import checkpoints as saving
        saver = saving.Saver(pathlib.Path(sys.argv[1]), {}, 2)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        saver.save(1, {str(i): np.random.default_rng(i).normal(size=20_000) for i in range(8)}, {})
        try:
            saver.wait()
        except saving.SaveFailed as failed:
            print(failed)
        gc.collect()"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert "the checkpoint after batch 1 could not be written" in done.stdout and done.stdout.count("\n") == 1
    assert "File too large" in done.stdout
    assert done.stderr == "" and names(tmp_path) == []


def test_everything_is_flushed_before_the_name_and_nothing_is_removed_before_that(tmp_path, monkeypatch):
    """On a system that cannot be cut off (tests/faults/test_power_cut.py), the order of what is done."""
    done, sync, rename, remove = [], os.fsync, durable.rename, shutil.rmtree
    root = tmp_path / "checkpoints"
    saver = checkpoints.Saver(root, {}, keep=1, flush=lambda: done.append("lines"))
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


def written(saver, step, **options):
    saver.save(step, {"a": np.full(3, step, np.float32)}, {"step": step}, **options)
    saver.wait()
    return [path.name[-1] for path in checkpoints.stored(saver.root)]


def test_the_best_checkpoint_stays_until_a_better_one_is_there(tmp_path, monkeypatch):
    saver = checkpoints.Saver(tmp_path, {}, keep=1)
    assert written(saver, 1, best=True) == ["1"]
    assert written(saver, 2) == ["1", "2"]
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "check_room", mock.Mock(side_effect=OSError(28, "No space left on device")))
        with pytest.raises(checkpoints.SaveFailed):
            written(saver, 3, best=True)
    assert written(saver, 4) == ["1", "4"]
    assert written(saver, 5, best=True) == ["5"]
    for name in (".step-000000004.old", "step-000000003"):  # as a process that was killed leaves them
        (tmp_path / name).mkdir()
    checkpoints.sweep(tmp_path)
    saver.prune()
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000005"]


def test_arrays_that_are_used_up_are_no_lasting_loss(tmp_path):
    bad, saver = np.full(2, np.nan, np.float32), checkpoints.Saver(tmp_path, {}, keep=1)
    for lost, lasting in {
        ("mail/x/2/7/", "stage1/sum/['a']"): False,
        ("stage1/line/0/['a']", "run/.lines[0].grads['a']", "stage1/memo/3/x"): False,
        ("mail/x/2/7/", "stage2/state/.params['a']"): True,
        ("run/.stages[0].params['a']",): True,
    }.items():
        saver.save(1, dict.fromkeys(lost, bad), {})
        with pytest.raises(checkpoints.NotFinite) as found:
            saver.wait()
        assert found.value.lasting is lasting
    saver.save(1, {}, {"unread/4": bad, "error": np.nan}, refused=None)
    saver.wait()
    saver.save(2, {}, {"unread/4": bad, "error": np.nan}, refused=())
    with pytest.raises(checkpoints.NotFinite, match="unread/4 is not finite"):
        saver.wait()


def test_a_checkpoint_that_could_not_be_replaced_stays(tmp_path, monkeypatch):
    """A save of a step that is there already: the second rename fails, or the process ends before it."""
    saved(tmp_path, 1, 2, keep=1)
    rename = durable.rename

    def fails_once(old, new):
        monkeypatch.setattr(durable, "rename", rename)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(durable, "rename", fails_once)
    saver = checkpoints.Saver(tmp_path, {}, 1)
    saver.save(2, {"a": np.zeros(100)}, {"step": 2})
    with pytest.raises(checkpoints.SaveFailed, match="Input/output error"):
        saver.wait()
    assert names(tmp_path) == ["step-000000002"]
    (tmp_path / "step-000000002").rename(tmp_path / f".step-000000002{manifest.REPLACED}")
    checkpoints.sweep(tmp_path)
    state, _, _ = checkpoints.load_newest(tmp_path)  # type: ignore[misc]
    assert state["a"].sum() == 100
