"""docs/tutorial.md: its pieces, one after the other, are a program that prints what the page says."""

import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "tutorial.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.S | re.M)
ERRORS = re.compile(r"([\d.]+)% errors")


@pytest.mark.slow
def test_the_pieces_of_the_tutorial_are_a_program_that_prints_what_it_says(tmp_path):
    (tmp_path / "tutorial.py").write_text("\n\n".join(text for language, text in BLOCKS if language == "python"))
    done = subprocess.run([sys.executable, "tutorial.py"], cwd=tmp_path, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    pairs = itertools.pairwise(BLOCKS)
    said = "".join(text for (before, _), (language, text) in pairs if (before, language) == ("python", ""))
    assert ERRORS.sub("", done.stdout) == ERRORS.sub("", said)
    errors = [*zip(map(float, ERRORS.findall(done.stdout)), map(float, ERRORS.findall(said)), strict=True)]
    assert len(errors) == 5 and all(abs(found - told) < 6 for found, told in errors)  # points, on any processor


def test_the_flags_of_the_launcher_in_the_tutorial_are_those_of_the_page_about_processes():
    (command,) = [text for _, text in BLOCKS if "fdg_jax.launch" in text]
    assert command in (Path(__file__).resolve().parent.parent / "docs" / "several-processes.md").read_text()
