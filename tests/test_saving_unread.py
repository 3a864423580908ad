"""A checkpoint that is damaged or cannot be read: nothing older is used unsaid, and nothing begins again by itself."""

import errno
import os
import resource
from pathlib import Path
from unittest import mock

import pytest
from test_saving import names, saved

from fdg_jax.errors import BadInput
from fdg_jax.runs import checkpoints
from fdg_jax.storage import checkpoint, durable, manifest


def damage(root, step):
    file = next(f for f in (root / f"step-{step:09d}").rglob("*") if f.is_file() and f.stat().st_size)
    file.write_bytes(b"x" + file.read_bytes()[1:])


def test_a_damaged_checkpoint_is_put_aside_aloud_and_the_one_before_is_used(tmp_path, capsys):
    saved(tmp_path, 1, 2)
    damage(tmp_path, 2)
    found = checkpoints.load_newest(tmp_path)
    assert found and found[1]["step"] == 1
    assert "Put aside as damaged-step-000000002" in capsys.readouterr().err
    assert names(tmp_path) == ["damaged-step-000000002", "step-000000001"]


def test_where_all_are_damaged_nothing_begins_anew_by_itself(tmp_path):
    saved(tmp_path, 1, 2)
    damage(tmp_path, 1), damage(tmp_path, 2)
    for _ in range(2):  # nor the second time
        with pytest.raises(BadInput, match=r"no checkpoint in .* is whole; 2 damaged ones were put aside"):
            checkpoints.load_newest(tmp_path)


def no_handles(patch):
    """The process may not open another file."""
    free = os.dup(0)
    os.close(free)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def failing(name, error):
    """Opening a file of that name fails."""

    def arrange(patch):
        opened = Path.open
        patch.setattr(Path, "open", lambda path, *a, **k: raised(error) if path.name == name else opened(path, *a, **k))

    return arrange


def raised(error):
    raise error


def failing_in_orbax(error):
    def arrange(patch):
        patch.setattr(checkpoint.ocp.Checkpointer, "restore", mock.Mock(side_effect=error))

    return arrange


PASSING = {
    "no handles": (no_handles, "Too many open files"),
    "stale": (failing("manifest.json", OSError(errno.ESTALE, "Stale file handle")), "Stale file handle"),
    "input": (failing("_METADATA", OSError(errno.EIO, "Input/output error")), "Input/output error"),
    "memory": (failing("manifest.json", MemoryError()), "MemoryError"),
    "denied": (failing("manifest.json", PermissionError(errno.EACCES, "Permission denied")), "Permission denied"),
    "within Orbax": (failing_in_orbax(ValueError("[OS error 24: EMFILE]")), "OS error 24"),
    "memory within Orbax": (failing_in_orbax(MemoryError("so many bytes")), "so many bytes"),
}


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """A run with two checkpoints."""
    run = tmp_path_factory.mktemp("two")
    saved(run / "checkpoints", 1, 2)
    return run


@pytest.mark.parametrize("kind", PASSING)
def test_what_cannot_be_read_at_the_moment_is_left_as_it_is_and_nothing_older_is_used(kind, two, capsys):
    root, (arrange, said) = two / "checkpoints", PASSING[kind]
    with pytest.MonkeyPatch.context() as patch:
        undo = arrange(patch) or (lambda: None)
        try:
            with pytest.raises(BadInput) as refused:
                checkpoints.load_newest(root)
        finally:
            undo()
    assert said in str(refused.value) and "\n" not in str(refused.value)
    assert not isinstance(refused.value, manifest.Damaged)
    assert names(root) == ["step-000000001", "step-000000002"] and "".join(capsys.readouterr()) == ""
    state, loop, _ = checkpoints.load_newest(root)  # type: ignore[misc]
    assert (loop["step"], state["a"].sum()) == (2, 100)


def test_a_checkpoint_of_another_format_is_refused_and_not_put_aside(tmp_path, monkeypatch):
    saved(tmp_path, 1)
    monkeypatch.setattr(manifest, "FORMAT", manifest.FORMAT + 1)
    with pytest.raises(BadInput, match="has format 1; this version reads 2"):
        checkpoints.load_newest(tmp_path)
    assert names(tmp_path) == ["step-000000001"]


def test_a_folder_that_cannot_be_listed_is_not_taken_for_one_without_checkpoints(tmp_path, monkeypatch):
    saved(tmp_path, 1)
    monkeypatch.setattr(os, "scandir", mock.Mock(side_effect=OSError(errno.EIO, "Input/output error")))
    with pytest.raises(BadInput, match=r"cannot be listed: Input/output error"):
        checkpoints.load_newest(tmp_path)


def test_what_is_damaged_and_cannot_be_put_aside_does_not_begin_anew_either(tmp_path, monkeypatch, capsys):
    saved(tmp_path, 1)
    damage(tmp_path, 1)
    monkeypatch.setattr(durable, "rename", mock.Mock(side_effect=PermissionError(errno.EACCES, "Permission denied")))
    with pytest.raises(BadInput, match=r"1 damaged ones are there"):
        checkpoints.load_newest(tmp_path)
    assert "It cannot be put aside (Permission denied)" in capsys.readouterr().err


@pytest.mark.parametrize("call", ["is_dir", "listdir"])
def test_a_file_system_that_is_away_ends_the_command_in_a_sentence(call, two, monkeypatch):
    """Also where it fails before the manifest is opened: when one looks whether there are folders, and remainders."""
    away = mock.Mock(side_effect=OSError(errno.ESTALE, "Stale file handle"))
    monkeypatch.setattr(*((Path, "is_dir", away) if call == "is_dir" else (os, "listdir", away)))
    checkpoints.sweep(two / "checkpoints")
    if call == "is_dir":
        with pytest.raises(manifest.Unreadable, match="Stale file handle"):
            checkpoint.load(two / "checkpoints" / "step-000000002")
