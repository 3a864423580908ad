"""Hands on what the processes print: whole lines, each with the number of its process in front.

Nothing here stops a training. Lines that nobody can read any more are dropped, and the main thread, which has to end
the processes in time, never waits long for a reader that has fallen asleep.
"""

import os
import re
import sys
from collections.abc import Iterator
from threading import Lock, Thread
from typing import IO, Any

from fdg_jax.machine.output import Forgiving

PATIENCE_SECONDS = 1.0  # for which the main thread waits for the reader of a sentence


class Printer:
    """Writes whole lines to a stream, from any number of threads."""

    def __init__(self, stream: Any, lock: Lock):
        self.stream: Any = Forgiving(getattr(stream, "buffer", None))
        self.lock = lock

    def write(self, line: bytes) -> None:
        """Writes a line, given without its end."""
        with self.lock:
            self.stream.write(line + b"\n")
            self.stream.flush()

    def say(self, sentence: str) -> None:
        """Writes a sentence of the launcher itself, without waiting long for a reader."""
        thread = Thread(target=self.write, args=(sentence.encode("utf-8", "backslashreplace"),), daemon=True)
        thread.start()
        thread.join(PATIENCE_SECONDS)

    def forward(self, pipe: IO[bytes], prefix: bytes) -> None:
        """Writes what arrives through a pipe until it is closed at its other end."""
        for line in lines(pipe):
            self.write(prefix + line)


def lines(pipe: IO[bytes]) -> Iterator[bytes]:
    r"""The lines that arrive through a pipe, without their ends. \n, \r and \r\n end a line, and so does the end."""
    rest, last_end = b"", b"\n"
    while arrived := os.read(pipe.fileno(), 2**16):
        *pieces, rest = re.split(rb"([\r\n])", rest + arrived)
        for text, end in zip(pieces[::2], pieces[1::2], strict=True):
            if text or last_end == end == b"\n":  # \r leaves no empty lines: it stands before \n or new text
                yield text
            last_end = end
    if rest:
        yield rest


def printers() -> tuple[Printer, Printer]:
    """For stdout and stderr. Where both are one file, they take turns, so that their lines stay whole there too."""
    lock = Lock()
    return Printer(sys.stdout, lock), Printer(sys.stderr, lock if os.path.sameopenfile(1, 2) else Lock())
