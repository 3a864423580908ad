"""Checkpoints are written beside the training; what goes wrong with one costs that one and nothing else."""

import errno
import os
import shutil
from unittest import mock

import numpy as np
import pytest
from small import batches, pipeline

from fdg_jax import checkpoint
from fdg_jax.errors import BadInput
from fdg_jax.experiments import saving

DATA = batches(6)


def saved(root, *steps, keep=2, best=None, value=1.0):
    saver = saving.Saver(root, {}, keep)
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
    state, loop, _ = saving.load_newest(tmp_path)  # type: ignore[misc]
    assert (loop["step"], state["a"].sum()) == (4, 100)


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
    before, saver = ours.state_sha256(), saving.Saver(tmp_path, {}, 2)
    saver.save(4, ours.snapshot(), {"step": 4})
    assert started.wait(60)
    for batch in DATA[4:]:
        ours.step(batch)  # the writer still holds its arrays
    saver.check()
    go.set()
    saver.wait()
    state, _, _ = saving.load_newest(tmp_path)  # type: ignore[misc]
    assert checkpoint.sha256(state) == before != ours.state_sha256()


def test_what_is_not_finite_is_never_written(tmp_path):
    saved(tmp_path, 1)
    with pytest.raises(saving.NotFinite, match="after batch 2 a is not finite"):
        saved(tmp_path, 2, value=np.nan)
    assert names(tmp_path) == ["step-000000001"]


def test_a_full_disk_is_noticed_before_anything_is_written(tmp_path, monkeypatch):
    saved(tmp_path, 1)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(saving.shutil, "disk_usage", lambda path: usage._replace(free=2**20))
    monkeypatch.setattr(checkpoint, "save", lambda *_: pytest.fail("it was written"))
    with pytest.raises(saving.SaveFailed, match=r"after batch 2 .*No space .* \(it needs [\d.]+ MB, 1.049 MB are free"):
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
        with pytest.raises(saving.SaveFailed, match=r"after batch 2 could not be written: No space left on device\."):
            saver.wait()
    assert names(tmp_path) == ["step-000000001"] and saver.step == -1
    saver.save(3, {"a": np.zeros(3)}, {"step": 3})  # there is room again
    saver.wait()
    assert names(tmp_path) == ["step-000000001", "step-000000003"]


def damage(root, step):
    file = next(f for f in (root / f"step-{step:09d}").rglob("*") if f.is_file() and f.stat().st_size)
    file.write_bytes(b"x" + file.read_bytes()[1:])


def test_a_damaged_checkpoint_is_put_aside_aloud_and_the_one_before_is_used(tmp_path, capsys):
    saved(tmp_path, 1, 2)
    damage(tmp_path, 2)
    found = saving.load_newest(tmp_path)
    assert found and found[1]["step"] == 1
    assert "Put aside as damaged-step-000000002" in capsys.readouterr().err
    assert names(tmp_path) == ["damaged-step-000000002", "step-000000001"]


def test_where_all_are_damaged_nothing_begins_anew_by_itself(tmp_path):
    saved(tmp_path, 1, 2)
    damage(tmp_path, 1), damage(tmp_path, 2)
    for _ in range(2):  # nor the second time
        with pytest.raises(BadInput, match=r"no checkpoint in .* is whole; 2 damaged ones were put aside"):
            saving.load_newest(tmp_path)


def written(saver, step, **options):
    saver.save(step, {"a": np.full(3, step, np.float32)}, {"step": step}, **options)
    saver.wait()
    return [path.name[-1] for path in saving.stored(saver.root)]


def test_the_best_checkpoint_stays_until_a_better_one_is_there(tmp_path, monkeypatch):
    saver = saving.Saver(tmp_path, {}, keep=1)
    assert written(saver, 1, best=True) == ["1"]
    assert written(saver, 2) == ["1", "2"]
    with monkeypatch.context() as patch:
        patch.setattr(saving, "check_room", mock.Mock(side_effect=OSError(28, "No space left on device")))
        with pytest.raises(saving.SaveFailed):
            written(saver, 3, best=True)
    assert written(saver, 4) == ["1", "4"]
    assert written(saver, 5, best=True) == ["5"]
    for name in (".step-000000004.old", "step-000000003"):  # as a process that was killed leaves them
        (tmp_path / name).mkdir()
    saving.sweep(tmp_path)
    saver.prune()
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000005"]


def test_arrays_that_are_used_up_are_no_lasting_loss(tmp_path):
    bad, saver = np.full(2, np.nan, np.float32), saving.Saver(tmp_path, {}, keep=1)
    for lost, lasting in {
        ("mail/x/2/7/", "stage1/sum/['a']"): False,
        ("stage1/line/0/['a']", "run/.lines[0].grads['a']", "stage1/memo/3/x"): False,
        ("mail/x/2/7/", "stage2/state/.params['a']"): True,
        ("run/.stages[0].params['a']",): True,
    }.items():
        saver.save(1, dict.fromkeys(lost, bad), {})
        with pytest.raises(saving.NotFinite) as found:
            saver.wait()
        assert found.value.lasting is lasting
    saver.save(1, {}, {"unread/4": bad, "error": np.nan}, refused=None)
    saver.wait()
    saver.save(2, {}, {"unread/4": bad, "error": np.nan}, refused=())
    with pytest.raises(saving.NotFinite, match="unread/4 is not finite"):
        saver.wait()
