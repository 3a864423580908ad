"""What killed processes left under temporary names is swept away."""

import os
import time

import pytest

from fdg_jax.durable import replacing


def left_behind(path, hours):
    """A temporary file of a process that was killed so many hours ago."""
    with pytest.raises(KeyboardInterrupt), replacing(path) as left:
        raise KeyboardInterrupt
    left.write_text("")
    os.utime(left, (time.time() - 3600 * hours,) * 2)
    return left


def test_what_a_killed_process_left_is_removed_after_a_day_when_the_file_is_written_next(tmp_path):
    new, other = left_behind(tmp_path / "a", 1), left_behind(tmp_path / "b", 25)
    old = left_behind(tmp_path / "a", 25)
    with replacing(tmp_path / "a") as temporary:
        temporary.write_text("whole")
        assert not (tmp_path / "a").exists()
    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "a", new, other]) and not old.exists()


def test_a_file_that_cannot_be_written_leaves_nothing_and_what_was_there_stays(tmp_path):
    (tmp_path / "a").write_text("before")

    def fail():
        with replacing(tmp_path / "a") as temporary:
            temporary.write_text("half")
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        fail()
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("a", "before")]
