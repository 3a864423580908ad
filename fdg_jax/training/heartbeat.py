"""The thread that writes `live.json` (fdg_jax.runs.live) while a run trains, and looks how busy its stages are.

It reads numbers that the training loop keeps anyway and never waits for a device, so the run computes the same bits.
What it costs: tests/test_heartbeat.py counts it.
"""

import contextlib
import random
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Any

from fdg_jax.engine.occupancy import Occupancy, StageNow
from fdg_jax.runs import live
from fdg_jax.runs.live import Live, LiveStage

LOOK_SECONDS, WRITE_SECONDS = 0.1, 1.0  # on average between two looks; between two writings
RECENT_SECONDS = 60.0


class Heartbeat:
    """A context within which `live.json` is kept up to date.

    Arguments:
        path: the run directory.
        occupancy: counts the looks at the stages; None if there are none to look at.
        numbers: what the training loop knows: the fields `doing` to `seconds_left` of `Live`.
        trains: whether training goes on at the moment, and neither compiles nor evaluates: only then a look counts.
        there: whether the run directory is still the run's.
        why: says what an exception that ends the training is.
    """

    def __init__(
        self,
        path: Path,
        occupancy: Occupancy | None,
        numbers: Callable[[], dict[str, Any]],
        trains: Callable[[], bool],
        there: Callable[[], bool],
        why: Callable[[BaseException], str],
    ):
        self.path, self.occupancy, self.numbers, self.trains = path, occupancy, numbers, trains
        self.there, self.why = there, why
        self.random = random.Random()  # its own, so that it changes no other random number
        self.now: list[StageNow] = []
        self.marks: deque[tuple[float, int, dict[int, int]]] = deque()  # (when, looks by then, busy ones by stage)
        self.leaving = Event()
        self.thread = Thread(target=self.beat, name="heartbeat", daemon=True)

    def __enter__(self) -> "Heartbeat":
        self.thread.start()
        return self

    def __exit__(self, _kind: Any, error: BaseException | None, _trace: Any) -> None:
        self.leaving.set()
        self.thread.join(5)  # a daemon: should it hang, the run ends all the same
        if not self.thread.is_alive():  # else this thread would hang there, too
            with contextlib.suppress(Exception):
                self.write(ended_by=self.why(error) if error else "")

    def beat(self) -> None:
        """The thread."""
        written = 0.0
        while not self.leaving.wait(self.random.uniform(0.5, 1.5) * LOOK_SECONDS):
            with contextlib.suppress(Exception):  # no run ends because nobody can watch it
                self.look()
                if time.monotonic() - written >= WRITE_SECONDS:
                    written = time.monotonic()
                    self.write()

    def look(self) -> None:
        """Looks once at every stage."""
        if self.occupancy is not None:
            self.now = self.occupancy.look(self.trains())

    def write(self, ended_by: str = "") -> None:
        """Writes the file. ended_by: what ended the training, in words."""
        if self.there():
            live.write(self.path, Live(**self.numbers(), ended_by=ended_by, stages=self.stages()))

    def stages(self) -> tuple[LiveStage, ...]:
        """What the stages do, with their busy shares over all looks and over those of the last minute."""
        if self.occupancy is None:
            return ()
        looks, counts, now = self.occupancy.looks, self.occupancy.counts(), time.monotonic()
        self.marks.append((now, looks, counts))
        while len(self.marks) > 2 and self.marks[1][0] < now - RECENT_SECONDS:
            self.marks.popleft()
        _, before, busy_before = self.marks[0]
        return tuple(
            LiveStage(
                **each._asdict(),
                busy_percent=percent(counts.get(each.k), looks),
                recent_busy_percent=percent(counts[each.k] - busy_before[each.k], looks - before)
                if each.k in counts
                else None,
                samples=looks,
            )
            for each in self.now
        )


def percent(part: int | None, whole: int) -> float | None:
    """A share; None where nothing was counted."""
    return round(100 * part / whole, 1) if whole and part is not None else None
