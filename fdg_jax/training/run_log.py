"""What a run writes while it trains: lines of metrics.jsonl, and their curves in TensorBoard and in trackers."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fdg_jax.runs.run_files import METRICS, MetricsLog, newest_points
from fdg_jax.runs.tensorboard import Scalars
from fdg_jax.runs.trackers import NO_TRACKERS, Trackers


class RunLog:
    """The open files of a run directory.

    Arguments:
        run: the run directory.
        lines: how many lines of metrics.jsonl the checkpoint counts; later ones are dropped.
        step: the batch at which TensorBoard's curves begin.
        tensorboard: whether there are curves.
        trackers: that get the same curves. They outlive the log.
    """

    def __init__(self, run: Path, lines: int, step: int, tensorboard: bool, trackers: Trackers = NO_TRACKERS):
        self.trackers, newest = trackers, newest_points(run)
        self.metrics = MetricsLog(run / METRICS, lines)
        if self.metrics.lines < lines:
            fact = f"{run / METRICS} has {self.metrics.lines} of the {lines} lines that it had at the checkpoint"
            print(f"warning: {fact}. The others are lost; the run itself is whole.", file=sys.stderr, flush=True)
        self.curves = Scalars(run / "tensorboard" if tensorboard else None, step, newest)

    @property
    def lines(self) -> int:
        """Lines of metrics.jsonl so far."""
        return self.metrics.lines

    def append(self, event: Mapping[str, Any], curves: Mapping[str, float | None]) -> None:
        """Adds a line, and a point to each curve at the event's step."""
        self.metrics.append(event)
        self.curves.add(event["step"], curves)
        self.trackers.add(event["step"], curves)

    def flush(self) -> None:
        """Brings everything so far to the disk. The thread that writes checkpoints calls it."""
        self.metrics.flush()
        self.curves.flush()

    def close(self) -> None:
        self.metrics.close()
        self.curves.close()


class CountedLog:
    """The log of a process that writes no files. Its members are those of `RunLog`."""

    def __init__(self, lines: int):
        self.lines = lines

    def append(self, event: Mapping[str, Any], curves: Mapping[str, float | None]) -> None:
        """Counts a line."""
        self.lines += 1

    def flush(self) -> None: ...

    def close(self) -> None: ...
