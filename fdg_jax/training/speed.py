"""The current speed in images or tokens per second: over the last ten seconds of training, without pauses and
compilation.

A pipeline only dispatches, so finished batches, not dispatched ones, are counted; on a CPU they come in bursts,
which is why a shorter stretch of time would tell little.
"""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

HORIZON_SECONDS, SHORTEST_SECONDS = 10.0, 0.25


class Speed:
    """Call finished() whenever losses were read, and do within pause() whatever is not training."""

    def __init__(self) -> None:
        self.marks: deque[tuple[float, int]] = deque()  # (seconds of training so far, what was finished by then)
        self.not_training, self.units = 0.0, 0
        self.paused_at: float | None = None

    def seconds(self) -> float:
        """Of training so far. It stands during a pause, in which losses may be read, too."""
        now = time.monotonic() if self.paused_at is None else self.paused_at
        return now - self.not_training

    def finished(self, units: int) -> None:
        """So many images or tokens have been finished since the last call."""
        self.units += units
        self.marks.append((self.seconds(), self.units))
        while len(self.marks) > 2 and self.marks[1][0] < self.marks[-1][0] - HORIZON_SECONDS:
            self.marks.popleft()

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Time that counts for nothing: an evaluation, a checkpoint. One within another is part of it."""
        outer = self.paused_at
        self.paused_at = start = time.monotonic() if outer is None else outer
        try:
            yield
        finally:
            self.paused_at = outer
            if outer is None:
                self.not_training += time.monotonic() - start

    def compiled(self) -> None:
        """Forgets what was measured so far, as the last dispatch may have compiled."""
        self.marks.clear()

    def now(self) -> float | None:
        """Images or tokens per second; None while too little has been measured."""
        if not self.marks:
            return None
        (start, before), (end, after) = self.marks[0], self.marks[-1]
        return (after - before) / (end - start) if end - start >= SHORTEST_SECONDS else None
