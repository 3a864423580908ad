"""Messages and progress on stderr, so that they do not mix with a command's output."""

from __future__ import annotations

import sys
import time


def say(sentence: str) -> None:
    """Prints a line on stderr."""
    print(sentence, file=sys.stderr, flush=True)


class Progress:
    """A line on stderr about something slow: updated on a terminal, elsewhere printed once.

    total: how many units there are; unit: what they are, in the plural; what: what is being done.
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
            print(
                f"\r{self.what}: {self.done:,} of {self.total:,} {self.unit}",
                end=end,
                file=sys.stderr,
                flush=True,
            )
