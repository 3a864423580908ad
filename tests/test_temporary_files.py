"""What killed processes left under temporary names is swept away."""

import os
import subprocess
import time

import pytest

from fdg_jax import durable


@pytest.mark.parametrize(("dead", "age", "stays"), [(True, 120, False), (True, 5, True), (False, 120, True)])
def test_what_a_killed_process_of_this_machine_left_is_removed_after_a_minute(dead, age, stays, tmp_path):
    ended = subprocess.Popen(["true"])
    ended.wait()
    process = ended.pid if dead else os.getpid()
    archive = tmp_path / "archive"
    first = f".archive.{durable.host()}-{process}-1.tmp"
    left = [tmp_path / first, tmp_path / f".{first}.{durable.host()}-{process}-2.tmp"]
    then = time.time() - age
    for file in left:
        file.write_text("")
        os.utime(file, (then, then))
    durable.temporary_beside(archive)
    assert [file.exists() for file in left] == [stays, stays]


def test_the_names_that_are_swept_are_those_that_are_given(tmp_path):
    first = durable.temporary_beside(tmp_path / "archive")
    second = durable.temporary_beside(first)
    long_ago = time.time() - 25 * 3600
    for file in (first, second):
        file.write_text("")
        os.utime(file, (long_ago, long_ago))
    durable.temporary_beside(tmp_path / "archive")
    assert list(tmp_path.iterdir()) == []
