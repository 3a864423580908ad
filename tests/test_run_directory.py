"""The files of a run, without running one: whole or not at all, cut back on resume, never mixed up."""

import errno
import os
import subprocess
import sys
from unittest import mock

import pytest
from stored_runs import stored_run

from fdg_jax import strict_json
from fdg_jax.errors import BadInput
from fdg_jax.experiments import cifar
from fdg_jax.runs import locking


def test_a_directory_that_is_made_stays_once_something_is_in_it(tmp_path):
    path = tmp_path / "a" / "b"
    with pytest.raises(BadInput, match="no data"), locking.claim(path, resume=False):
        raise BadInput("no data")
    assert not path.parent.exists()
    with locking.claim(path, resume=False):
        (path / "notes.txt").write_text("keep")
    with locking.claim(path, resume=False):  # other people's files are no run
        pass
    assert (path / "notes.txt").exists()
    with locking.claim(tmp_path / "a", resume=False), locking.claim(tmp_path, resume=False):
        pass
    assert path.is_dir()


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "summary.json", "checkpoints"])
def test_a_directory_with_any_file_of_a_run_holds_a_run(tmp_path, name):
    (tmp_path / name).write_text("")
    with (
        pytest.raises(BadInput, match=r"already holds a run\. Add --resume"),
        locking.claim(tmp_path, resume=False),
    ):
        pass


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/nowhere/run", "n" * 256, "b\udcff"])
def test_an_impossible_place_is_refused_in_one_sentence_before_anything_is_made(place, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert cifar.main(["--dataset", "digits", "--model", "resnet8", "--run-dir", str(tmp_path / place)]) == 2
    err = capsys.readouterr().err
    assert "Choose another --run-dir" in err and err.count("\n") == 1
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


@pytest.mark.slow
def test_a_second_process_cannot_write_the_same_run(tmp_path):
    stored_run(tmp_path)
    code = (
        "import pathlib, sys; from fdg_jax.runs import locking\n"
        "with locking.claim(pathlib.Path(sys.argv[1]), resume=True): print('in', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "in\n"
        with pytest.raises(BadInput, match="another process"), locking.claim(tmp_path, resume=True):
            pass
    finally:
        other.communicate("")
    with locking.claim(tmp_path, resume=True):
        pass


@pytest.mark.parametrize("unreadable", ["config.json", "checkpoints"])
def test_auto_begins_nothing_where_there_may_be_a_run_that_cannot_be_read_now(unreadable, tmp_path, monkeypatch):
    stored_run(tmp_path)
    (tmp_path / "checkpoints" / "step-000000001").mkdir(parents=True)
    away = mock.Mock(side_effect=OSError(errno.EIO, "Input/output error"))
    if unreadable == "config.json":
        monkeypatch.setattr(strict_json, "read", away)
    else:
        (tmp_path / "config.json").write_text("{")
        monkeypatch.setattr(os, "listdir", away)
    with pytest.raises(BadInput, match="Input/output error"), locking.claim(tmp_path, resume="auto"):
        pass


@pytest.mark.parametrize(("files", "resumes"), [
    ({}, False),
    ({"config.json.part": "{"}, False),
    ({"config.json": ""}, False),  # after a power cut
    ({"config.json": "", "metrics.jsonl": ""}, False),
    ({"config.json": None}, True),
    ({"config.json": None, "metrics.jsonl": "", "tensorboard/events.1": ""}, True),
    ({"config.json": None, "checkpoints/.step-000000001.tmp/manifest.json": ""}, True),
    ({"config.json": None, "checkpoints/step-000000001/manifest.json": ""}, True),
    ({"config.json": None, "summary.json": "{}"}, True),
    ({"config.json": "", "checkpoints/step-000000001/manifest.json": ""}, True),  # and then refused: it is damaged
    ({"config.json": "", "checkpoints/damaged-step-000000001/manifest.json": ""}, True),
])  # fmt: skip
def test_auto_goes_on_with_what_can_be_gone_on_with(files, resumes, tmp_path):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        stored_run(tmp_path) if content is None else (tmp_path / name).write_text(content)
    with locking.claim(tmp_path, "auto") as (path, found):
        assert found is resumes and locking.resumes(path) is resumes
    assert not locking.resumes(tmp_path / "none")


def test_resuming_nothing_names_the_way_out(tmp_path):
    with pytest.raises(BadInput, match="--resume auto resumes or starts"), locking.claim(tmp_path, resume=True):
        pass
