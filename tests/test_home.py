"""A run directory that is deleted, renamed or replaced while its run is under way."""

import errno
import shutil
from unittest import mock

import numpy as np
import pytest

from fdg_jax.engine.losses import Metrics
from fdg_jax.runs import locking, run_files
from fdg_jax.runs.checkpoints import SaveFailed
from fdg_jax.training.live_directory import DirectoryGone, LiveDirectory, OthersDirectory
from fdg_jax.training.record import Record

CONFIG = {"K": 2, "note": "as it was"}


@pytest.fixture
def run(tmp_path):
    """A claimed run directory with config.json."""
    with locking.claim(tmp_path / "run", resume=False) as (path, _):
        run_files.write_json(path / "config.json", CONFIG)
        yield path


@pytest.fixture
def record(run):
    made = Record(examples=32, batch_size=8, log_every=1, learning_rates=np.full(9, 0.1, np.float32))
    made.open(run, tensorboard=True)
    made.losses([Metrics(1, 0.5)])
    yield made
    made.close()


@pytest.fixture
def directory(run, record):
    made = LiveDirectory(run, tensorboard=True)
    yield made
    made.close()


def take_away(run, how):
    shutil.rmtree(run) if how == "delete" else run.rename(run.with_name("elsewhere"))


def test_where_everything_is_there_nothing_is_said_or_done(directory, record):
    assert directory.missing() is None and directory.prepare_save(record, recreate=True) is None


@pytest.mark.parametrize("how", ["delete", "rename"])
def test_a_directory_that_is_gone_is_made_anew_with_all_that_a_resume_needs(how, run, directory, record):
    take_away(run, how)
    said = directory.prepare_save(record, recreate=True)
    assert said is not None and "is gone: it was deleted or renamed. It is made again" in said
    record.losses([Metrics(2, 0.25)])
    record.flush()
    assert run_files.read_json(run / "config.json") == CONFIG
    assert [event["step"] for event in run_files.read_metrics(run / "metrics.jsonl")] == [1, 2]
    assert list((run / "tensorboard").iterdir())
    assert record.log.lines == 2 and directory.prepare_save(record, recreate=True) is None
    with pytest.raises(Exception, match="another process"), locking.claim(run, resume=True):
        pass


def test_the_processes_beside_the_first_write_into_their_own_runs_directory_only(run, directory):
    others = OthersDirectory(run)
    assert others.is_ours() and directory.is_ours()
    take_away(run, "rename")
    run.mkdir()
    assert not others.is_ours() and not directory.is_ours()


def test_the_policy_to_stop_makes_nothing(run, directory, record):
    take_away(run, "delete")
    with pytest.raises(DirectoryGone, match="is gone: it was deleted or renamed"):
        directory.prepare_save(record, recreate=False)
    assert not run.exists()


def test_nothing_is_written_where_another_run_is_by_now(run, directory, record):
    take_away(run, "rename")
    run.mkdir()
    (run / "config.json").write_text("{}")
    with pytest.raises(
        DirectoryGone, match=r"another one is in its place\. It holds another run, so nothing is written there"
    ):
        directory.prepare_save(record, recreate=True)
    assert (run / "config.json").read_text() == "{}" and len(list(run.iterdir())) == 1


def test_nothing_is_written_where_another_process_is_about_to_begin(run, directory, record):
    take_away(run, "rename")
    with locking.claim(run, resume=False):
        with pytest.raises(DirectoryGone, match="another process is writing the run"):
            directory.prepare_save(record, recreate=True)
        assert list(run.iterdir()) == []


def test_a_config_that_was_deleted_is_written_again(run, directory, record):
    (run / "config.json").unlink()
    said = directory.prepare_save(record, recreate=False)
    assert said is not None and "config.json was gone. It was written again" in said
    assert run_files.read_json(run / "config.json") == CONFIG


def test_a_directory_that_comes_back_is_used_again(run, directory, record):
    take_away(run, "rename")
    assert directory.missing() is not None
    run.with_name("elsewhere").rename(run)
    assert directory.missing() is None and directory.prepare_save(record, recreate=False) is None


def test_what_could_not_be_moved_at_once_is_moved_by_the_next_save(run, directory, record, monkeypatch):
    take_away(run, "delete")
    move = record.move
    monkeypatch.setattr(record, "move", mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(SaveFailed, match="No space left on device"):
        directory.prepare_save(record, recreate=True)
    monkeypatch.setattr(record, "move", move)
    said = directory.prepare_save(record, recreate=True)
    assert said is not None and "It is made again" in said
    assert [event["step"] for event in run_files.read_metrics(run / "metrics.jsonl")] == [1]
