"""docs/several-processes.md: its program works, what it shows can be read, and its bounds are those of the code."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fdg_jax.transport.joining import HEARTBEAT_SECONDS, JOINING_SECONDS

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "several-processes.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.S | re.M)
SECONDS = 300  # a hang ends


def run(*words: str) -> str:
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_program_shown_trains_in_two_processes_and_its_state_goes_on_in_one(tmp_path):
    (shown,) = [text for language, text in BLOCKS if language == "python" and "fdg_jax.Pipeline(" in text]
    file, of_run = tmp_path / "train.py", ("--K", "2", "--run-dir", str(tmp_path / "run"))
    file.write_text(shown)
    out = run("-m", "fdg_jax.launch", "--processes", "2", "--", str(file), *of_run)
    printed = [line.removeprefix("[0] ") for line in out.splitlines() if line.startswith("[0] ")]
    assert "[1]" not in out and len(printed) == 1
    found = re.search(r"error_percent=([\d.]+).*\) \[1, 0\] [0-9a-f]{64}$", printed[0])
    assert found and float(found[1]) < 10
    assert [each.name for each in (tmp_path / "run").iterdir()] == ["state.npz"]
    assert run(str(file), *of_run, "--resume", "auto").splitlines() == printed


def test_every_program_and_command_shown_can_be_read():
    assert {language for language, _ in BLOCKS} == {"", "bash", "python", "yaml"}
    for language, text in BLOCKS:
        if language == "python":
            compile(text, "shown", "exec")
        elif language != "yaml":
            read = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
            assert (read.returncode, read.stderr) == (0, ""), text


def test_the_bounds_named_are_those_of_the_code():
    rows = dict(re.findall(r"^\| (a .*?) \| .* \| (.*?) \|$", PAGE, re.M))
    assert rows["a host is gone, or a process stands still"].startswith(f"{HEARTBEAT_SECONDS} s;")
    assert rows["a process does not come at the start"] == f"{JOINING_SECONDS} s"


def test_every_page_that_the_documentation_links_to_exists():
    for page in (ROOT / "docs").glob("*.md"):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert target.startswith("https://") or (page.parent / target).exists(), (page.name, target)
