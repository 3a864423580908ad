"""The current speed in images or tokens per second: over the last ten seconds of training, without pauses and
compilation.

A pipeline only dispatches, so finished batches, not dispatched ones, are counted; on a CPU they come in bursts,
which is why a shorter stretch of time would tell little.
"""

import time
from collections import deque

HORIZON_SECONDS, SHORTEST_SECONDS = 10.0, 0.25


class Speed:
    """Call finished() whenever losses were read, and paused() after everything that was not training."""

    def __init__(self) -> None:
        self.marks: deque[tuple[float, int]] = deque()  # (seconds of training so far, what was finished by then)
        self.not_training, self.units = 0.0, 0

    def seconds(self) -> float:
        return time.monotonic() - self.not_training

    def finished(self, units: int) -> None:
        """So many images or tokens have been finished since the last call."""
        self.units += units
        self.marks.append((self.seconds(), self.units))
        while len(self.marks) > 2 and self.marks[1][0] < self.marks[-1][0] - HORIZON_SECONDS:
            self.marks.popleft()

    def paused(self, seconds: float) -> None:
        """The last `seconds` were evaluation or a checkpoint; a mark made meanwhile belongs to their beginning."""
        self.not_training += seconds
        now = self.seconds()
        self.marks = deque((min(then, now), units) for then, units in self.marks)

    def compiled(self) -> None:
        """Forgets what was measured so far, as the last dispatch may have compiled."""
        self.marks.clear()

    def now(self) -> float | None:
        """Images or tokens per second; None while too little has been measured."""
        if not self.marks:
            return None
        (start, before), (end, after) = self.marks[0], self.marks[-1]
        return (after - before) / (end - start) if end - start >= SHORTEST_SECONDS else None
