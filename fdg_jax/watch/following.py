"""Follows a file of lines that another process is writing: complete lines once each, and anew where the file was cut.

A run that goes back to a checkpoint cuts `metrics.jsonl` back, and a run that is resumed may have another file there.
"""

import os
import stat
from pathlib import Path
from typing import NamedTuple

MOST_BYTES = 4 * 2**20  # that are read at once
LONGEST = 2**20  # bytes of a line: whatever is longer is damage, and skipped
TAIL = 256  # bytes before the place that was read to, which tell whether this is still the same file


class News(NamedTuple):
    """What is new in a file. anew: it has begun anew, so all earlier lines are void. lines: each with its end."""

    anew: bool
    lines: list[bytes]


class Following:
    """A file that may grow, be cut, be replaced, or not be there at all."""

    def __init__(self, path: Path):
        self.path = path
        self.place, self.read_to, self.tail = (0, 0), 0, b""  # (device, inode); bytes read; the last of these
        self.rest = b""  # of a line whose end has not been written yet
        self.too_long = False  # whether that line is skipped

    def news(self) -> News:
        """What has been written since the last call. It never raises: what cannot be read is no news."""
        try:
            handle = os.open(self.path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # a pipe would be waited for
        except (OSError, ValueError):
            return News(False, [])
        try:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode):
                return News(False, [])
            anew = not self.is_same(handle, found)
            if anew:
                self.place, self.read_to, self.tail = (found.st_dev, found.st_ino), 0, b""
                self.rest, self.too_long = b"", False
            return News(anew, self.lines(read(handle, self.read_to, MOST_BYTES)))
        except OSError:
            return News(False, [])
        finally:
            os.close(handle)

    def is_same(self, handle: int, found: os.stat_result) -> bool:
        """Whether an open file is the one that was read before, and has what was read."""
        if (found.st_dev, found.st_ino) != self.place or found.st_size < self.read_to:
            return False
        return read(handle, self.read_to - len(self.tail), len(self.tail)) == self.tail

    def lines(self, content: bytes) -> list[bytes]:
        """The lines that are complete with this content. Keeps the rest for the next time."""
        self.read_to += len(content)
        self.tail = (self.tail + content)[-TAIL:]
        found = (self.rest + content).splitlines(keepends=True)
        self.rest = found.pop() if found and not found[-1].endswith(b"\n") else b""
        if found and self.too_long:
            found[0], self.too_long = b"\n", False
        found = [line if len(line) <= LONGEST else b"\n" for line in found]
        if len(self.rest) > LONGEST:
            self.rest, self.too_long = b"", True
        return found


def read(handle: int, start: int, most: int) -> bytes:
    """So many bytes of a file, or those that there are."""
    parts, at = [], start
    while most > 0 and (part := os.pread(handle, most, at)):
        parts.append(part)
        at, most = at + len(part), most - len(part)
    return b"".join(parts)
