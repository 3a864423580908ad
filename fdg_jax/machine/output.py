"""Printing that never ends a run: a closed pipe, a hung-up terminal or a full disk behind the output costs only the
output.

Everything that a command says is in the files of the run as well, so a run of days goes on without its terminal. Its
exit code is that of the training.
"""

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from typing import Any

STANDARD = (0, 1, 2)  # the numbers of stdin, stdout and stderr


class Forgiving:
    """A text stream to which writing never fails. What cannot be written is dropped, and so is all that follows.

    Characters that the stream's encoding does not have are written as \\x.., \\u.... or \\U........
    """

    def __init__(self, stream: Any):
        self.stream = stream
        self.lost = stream is None  # as Python has it where the file was closed when the process began

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        if not self.lost:
            with self.losing():
                try:
                    self.stream.write(text)
                except UnicodeEncodeError as error:
                    self.stream.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

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
        """Turns a failure to write into the loss of the stream."""
        try:
            yield
        except BlockingIOError:  # somebody reads too slowly from what must not block: only this text is lost
            pass
        except (OSError, ValueError):  # ValueError: the stream has been closed
            self.lost = True
            self.replace_file()

    def replace_file(self) -> None:
        """Puts the null device behind stdout or stderr, so that Python's own flush at the end of the process, code
        in C and child processes can write there. Files with other numbers belong to somebody else."""
        with contextlib.suppress(OSError, ValueError, AttributeError):
            number = self.stream.fileno()
            if number in STANDARD:
                null = os.open(os.devnull, os.O_RDWR)
                os.dup2(null, number)
                os.close(null)


@contextlib.contextmanager
def forgiving() -> Iterator[None]:
    """As a context: nothing that is printed within it raises an exception."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = Forgiving(before[0]), Forgiving(before[1])
    try:
        yield
    finally:
        flush()
        sys.stdout, sys.stderr = before


def flush() -> None:
    """Writes what is still in the buffers of stdout and stderr, if it can be written."""
    for stream in (sys.stdout, sys.stderr):
        (stream if isinstance(stream, Forgiving) else Forgiving(stream)).flush()


def open_closed_files() -> None:
    """Puts the null device in the place of stdin, stdout and stderr where they are closed.

    Call it before anything else is opened: the next file, a checkpoint perhaps, would get the free number, and what
    code in C prints would be written into it.
    """
    for number in STANDARD:
        try:
            os.fstat(number)
        except OSError as error:
            if error.errno == errno.EBADF:
                os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free, which is this one
                os.set_inheritable(number, True)


def write_to_stderr(text: str) -> None:
    """For signal handlers, which may interrupt the printing of something else: past all buffers, and without an
    exception."""
    with contextlib.suppress(OSError):
        os.write(2, text.encode("utf-8", "backslashreplace"))
