"""The output of commands. A failure to print never ends a run: after a closed pipe, a lost terminal or a full disk only
the output is missing. Messages and progress go to stderr, so that they do not mix with a command's output.

The files of a run contain everything that its command prints. So a long run goes on without its terminal, and its exit
code is that of the training.
"""

import argparse
import contextlib
import errno
import functools
import os
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fdg_jax.errors import BadInput

STANDARD = (0, 1, 2)  # the numbers of stdin, stdout and stderr
LABEL = re.compile(r"\s*\S+( k=\d+)? {2,}")  # "method     ", "stage k=1  ", "  memory   "
NARROWEST = 40  # columns that a terminal is assumed to have at least


class Forgiving:
    """A text stream to which writing never fails. After the first failure, everything is dropped.

    Characters that the stream's encoding does not have are written as \\x.., \\u.... or \\U........
    """

    def __init__(self, stream: Any):
        self.stream = stream
        self.lost = stream is None  # Python has None if the file was closed when the process started

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Writes the text, with escapes for characters that the stream cannot show; nothing once the stream is lost.
        Returns the number of characters."""
        if not self.lost:
            with self.losing():
                try:
                    self.stream.write(text)
                except UnicodeEncodeError as error:
                    self.stream.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))
        return len(text)

    def flush(self) -> None:
        if not self.lost:
            with self.losing():
                self.stream.flush()

    def isatty(self) -> bool:
        try:
            return not self.lost and self.stream.isatty()
        except (OSError, ValueError):
            return False

    @contextlib.contextmanager
    def losing(self) -> Iterator[None]:
        """A context in which a failure to write marks the stream as lost."""
        try:
            yield
        except BlockingIOError:  # the reader of a non-blocking pipe is slow: only this text is lost
            pass
        except (OSError, ValueError):  # ValueError: the stream has been closed
            self.lost = True
            self.replace_file()

    def replace_file(self) -> None:
        """Replaces the file behind stdout or stderr by the null device.

        Then Python's flush at the end of the process, C code and child processes can still write there. Files with
        other numbers are left alone.
        """
        with contextlib.suppress(OSError, ValueError, AttributeError):
            number = self.stream.fileno()
            if number in STANDARD:
                null = os.open(os.devnull, os.O_RDWR)
                os.dup2(null, number)
                os.close(null)


class Quiet:
    """A stream that drops what is printed to it. `loud` is the stream behind it."""

    encoding = "utf-8"

    def __init__(self, loud: Any):
        self.loud = loud

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None: ...

    def isatty(self) -> bool:
        return False


def loud() -> Any:
    """The stdout for lines that a quiet run prints as well: warnings, and how the run ended."""
    return sys.stdout.loud if isinstance(sys.stdout, Quiet) else sys.stdout


def bold(text: str) -> str:
    """A text in bold where stdout is a terminal."""
    return f"\x1b[1m{text}\x1b[0m" if loud().isatty() else text


@contextlib.contextmanager
def quiet(wanted: bool) -> Iterator[None]:
    """A context in which stdout shows only the lines printed to `loud`, if `wanted`."""
    before = sys.stdout
    if wanted:
        sys.stdout = Quiet(before)
    try:
        yield
    finally:
        sys.stdout = before


@contextlib.contextmanager
def forgiving() -> Iterator[None]:
    """A context in which printing raises no exception."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = Forgiving(before[0]), Forgiving(before[1])
    try:
        yield
    finally:
        flush()
        sys.stdout, sys.stderr = before


def command(main: Callable[..., int]) -> Callable[..., int]:
    """Makes a command from a function that returns an exit code: printing raises no exception, and bad input gives one
    message on stderr and exit code 2."""

    @functools.wraps(main)
    def answered(*arguments: Any) -> int:
        with forgiving():
            try:
                return main(*arguments)
            except BadInput as error:
                print(f"error: {error}", file=sys.stderr)
                return 2

    return answered


def flush() -> None:
    """Flushes stdout and stderr, if they can be written."""
    for stream in (sys.stdout, sys.stderr):
        (stream if isinstance(stream, Forgiving) else Forgiving(stream)).flush()


def open_closed_files() -> None:
    """Opens the null device as stdin, stdout and stderr if they are closed.

    Call it before opening any file. Otherwise the opened file, perhaps a checkpoint, would get a standard number, and C
    code would print into it.
    """
    for number in STANDARD:
        try:
            os.fstat(number)
        except OSError as error:
            if error.errno == errno.EBADF:
                os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
                os.set_inheritable(number, True)


def write_to_stderr(text: str) -> None:
    """Prints without buffers and without exceptions: for signal handlers, which may interrupt other printing."""
    with contextlib.suppress(OSError):
        os.write(2, text.encode("utf-8", "backslashreplace"))


def file_named(*endings: str) -> Callable[[str], Path]:
    """Returns a parser for a flag's file name, which must have one of these endings. If a user forgets the value, the
    flag would take the next word, such as the name of a run. The parser refuses such a word."""

    def file(word: str) -> Path:
        if Path(word).suffix.lower() not in endings:
            raise argparse.ArgumentTypeError(f"{word} is not a name that ends in {endings[0]}")
        return Path(word)

    return file


def write_file(flag: str, file: Path, content: str) -> None:
    """Writes the file that a flag names, and prints its name. Raises BadInput if the file cannot be written."""
    try:
        file.write_text(content, encoding="utf-8")
    except OSError as error:
        fact = f"{flag} {file} cannot be written: {error.strerror or error}"
        raise BadInput(f"{fact}. Name a file in a folder that you can write.") from None
    print(file)


def say(sentence: str) -> None:
    """Prints a line on stderr."""
    print(sentence, file=sys.stderr, flush=True)


class Progress:
    """A progress line on stderr: updated in a terminal, elsewhere printed once.

    total: how many units there are; unit: their name in the plural; what: the activity.
    """

    def __init__(self, total: int, unit: str, what: str):
        self.total, self.unit, self.what = total, unit, what
        self.done, self.shown = 0, 0.0
        self.terminal = sys.stderr.isatty()
        if not self.terminal:
            say(f"{what}: {total:,} {unit} ...")

    def advance(self, count: int) -> None:
        """Reports that `count` more units are done."""
        self.done += count
        now = time.monotonic()
        if self.terminal and (now - self.shown > 0.2 or self.done == self.total):
            self.shown = now
            end = "\n" if self.done == self.total else ""
            print(f"\r{self.what}: {self.done:,} of {self.total:,} {self.unit}", end=end, file=sys.stderr, flush=True)


def columns() -> int | None:
    """The width of the terminal; None if stdout is a file, a pipe or closed."""
    try:
        terminal = sys.stdout is not None and sys.stdout.isatty()
    except ValueError:  # stdout has been closed
        return None
    return max(NARROWEST, shutil.get_terminal_size().columns) if terminal else None


def wrapped(line: str, width: int | None) -> str:
    """Wraps a line. Words longer than the width, such as paths, are not broken.

    Arguments:
        line: the text.
        width: in columns; None: no wrapping, so that in a file every fact is one line.
    """
    if width is None or len(line) <= width:
        return line
    label = LABEL.match(line)
    indent = " " * len(label[0]) if label else ""
    return textwrap.fill(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False,
        replace_whitespace=False, expand_tabs=False,
    )  # fmt: skip
