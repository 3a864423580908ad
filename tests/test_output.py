"""Nothing that cannot be printed reaches the training, whatever is wrong with stdout and stderr."""

import contextlib
import errno
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fdg_jax.machine import output
from fdg_jax.machine.output import Forgiving

ROOT = Path(__file__).parents[1]


class Failing(io.StringIO):
    """A stream that takes so many texts, and then fails."""

    def __init__(self, error: Exception, after: int = 0):
        super().__init__()
        self.error, self.left, self.asked = error, after, 0

    def write(self, text: str) -> int:
        self.asked += 1
        if not self.left:
            raise self.error
        self.left -= 1
        return super().write(text)


LOST = [OSError(number, os.strerror(number)) for number in (errno.EPIPE, errno.ENOSPC)]


@pytest.mark.parametrize("error", [*LOST, ValueError("I/O operation on closed file.")], ids=str)
def test_a_stream_that_fails_is_lost_and_not_asked_again(error):
    stream = Failing(error, after=1)
    forgiving = Forgiving(stream)
    for text in ("one\n", "two\n", "three\n"):
        assert forgiving.write(text) == len(text)
        forgiving.flush()
    assert stream.getvalue() == "one\n" and stream.asked == 2
    assert forgiving.lost and not forgiving.isatty()


def test_a_stream_that_is_full_for_a_moment_is_not_lost():
    stream = Failing(BlockingIOError())
    forgiving = Forgiving(stream)
    forgiving.write("lost")
    stream.left = 1
    forgiving.write("kept")
    assert stream.getvalue() == "kept"


def test_what_the_encoding_does_not_have_is_shown_as_its_number():
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", errors="strict")
    with contextlib.redirect_stdout(stream), output.forgiving():
        print("FDG, β=0.5, \udcff")
    stream.flush()
    assert raw.getvalue() == b"FDG, \\u03b2=0.5, \\udcff\n"


CODE = """
import os, sys
from fdg_jax.experiments import command; from fdg_jax.machine import output
output.open_closed_files()
from rich.progress import Progress
import warnings
with output.forgiving():
    bar = Progress()
    bar.start()
    task = bar.add_task("x", total=3)
    for n in range(3):
        print("β" * 5000)
        print("error", file=sys.stderr, flush=True)
        warnings.warn(f"number {n}")
        bar.console.print("line")
        bar.update(task, completed=n)
    bar.stop()
    file = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
    output.write_to_stderr("in C\\n")
    os.write(1, b"in C\\n") if "head" not in sys.argv else None
assert file > 2
assert os.path.getsize(sys.argv[1]) == 0
print("at the very end")
command.leave(7)
"""


@pytest.mark.parametrize("words", [
    pytest.param("fdg_jax", marks=pytest.mark.slow), "fdg_jax.schedule --K 4", "fdg_jax.schedule --K 0",
])  # fmt: skip
def test_a_command_whose_output_nobody_reads_ends_quietly(words):
    reader, writer = os.pipe()
    os.close(reader)  # as after `| head -1`
    try:
        done = subprocess.run(
            [sys.executable, "-m", *words.split()], cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    finally:
        os.close(writer)
    wrong = words.endswith("--K 0")
    assert done.returncode == (2 if wrong else 0), done.stderr
    assert done.stderr.startswith("error: K=0") if wrong else done.stderr == ""


@pytest.mark.slow
@pytest.mark.parametrize("how", [
    "| head -1", "<&- >&- 2>&-", ">/dev/full 2>&1", ">/dev/full", ">&-", "2>&-", ">&- 2>&-",
])  # fmt: skip
def test_a_process_ends_with_its_own_exit_code_without_its_output(how, tmp_path):
    if "/dev/full" in how and not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    if how.startswith("|"):  # the exit code of the command itself, and not that of head
        script = f'set -o pipefail; "$0" -c "$1" "$2" head {how} >/dev/null; exit ${{PIPESTATUS[0]}}'
    else:
        script = f'"$0" -c "$1" "$2" {how}'
    done = subprocess.run(
        ["bash", "-c", script, sys.executable, CODE, str(tmp_path / "file")],
        cwd=ROOT, capture_output=True, text=True, env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert done.returncode == 7, done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
