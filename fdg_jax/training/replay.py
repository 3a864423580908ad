"""Repeats a batch now and then, to find a machine that does not compute the same result twice (`--replay-check`).

Nothing else notices a number that is wrong but finite. One dispatch within every so many batches, chosen by the seed,
is remembered: the pipeline's state before it, and a hash of every array after it. Later the same pipeline goes back
there, repeats it, and returns to where it was, bit for bit. So a run with these checks ends as one without.
"""

import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fdg_jax.training.feeding import Work
from fdg_jax.training.record import Record


class NotReproduced(Exception):
    """A batch repeated from the same state gave another result."""


class Kept(NamedTuple):
    """A dispatch to be repeated. step: batches before it; window: number of the `every` batches it was chosen from."""

    step: int
    window: int
    work: Any
    before: Mapping[str, np.ndarray]
    after: dict[str, str]  # hashes of all arrays


class Replay:
    """Chooses, remembers and repeats dispatches of a pipeline. every: batches of which one is checked."""

    def __init__(self, every: int, seed: int):
        self.every, self.seed = every, seed
        self.kept: Kept | None = None
        self.checked = 0

    def chosen(self, window: int) -> int:
        """How many batches of the run come before the one that is chosen of the batches window * every + 1 to
        (window + 1) * every."""
        return window * self.every + int(np.random.default_rng((self.seed, window)).integers(self.every))

    def wants(self, step: int, batches: int) -> bool:
        """Whether a dispatch of so many batches after `step` is to be repeated."""
        windows = range(step // self.every, (step + batches - 1) // self.every + 1)
        return self.kept is None and any(step <= self.chosen(window) < step + batches for window in windows)

    def due(self, step: int) -> bool:
        """Whether the window of the remembered dispatch is over."""
        return self.kept is not None and step // self.every > self.kept.window

    def keep(self, step: int, work: Any, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        self.kept = Kept(step, step // self.every, work, before, hashes(after))

    def check(self, pipeline: Any) -> None:
        """Repeats the remembered dispatch. Raises NotReproduced, and then leaves the pipeline as the repetition left
        it. Losses must have been read before, as restoring forgets them."""
        kept, self.kept = self.kept, None
        if kept is None:
            return
        present = pipeline.state()
        pipeline.restore(kept.before, finite=False)  # a state that is not finite is compared like any other
        kept.work.enter(pipeline)
        again = hashes(pipeline.state())
        if again != kept.after:
            raise NotReproduced(difference(kept, again))
        pipeline.restore(present, finite=False)
        self.checked += 1


class ReplayCheck:
    """The checks of one training loop.

    Arguments:
        every: batches of which one is checked; 0: none.
        paused: calls a function while the clock of images/s or tokens/s stands.
    """

    def __init__(
        self, every: int, seed: int, pipeline: Any, record: Record, paused: Callable[[Callable[[], Any]], None]
    ):
        self.replay = Replay(every, seed) if every else None
        self.pipeline, self.record, self.paused = pipeline, record, paused

    def enter(self, work: Work) -> None:
        """Makes the dispatch after the record's step, and remembers it if it is chosen."""
        replay, step = self.replay, self.record.step
        if replay is None or not replay.wants(step, work.shape[0]):
            work.enter(self.pipeline)
            return
        before: dict[str, Any] = {}
        self.paused(lambda: before.update(self.pipeline.state()))
        work.enter(self.pipeline)
        self.paused(lambda: replay.keep(step, work, before, self.pipeline.state()))

    def check(self, due: bool = True) -> None:
        """Repeats the remembered dispatch if `due`, or if its window is over. Raises NotReproduced."""
        if self.replay and self.replay.kept and (due or self.replay.due(self.record.step)):
            self.record.losses(self.pipeline.losses(wait=True))
            self.paused(partial(self.replay.check, self.pipeline))

    def forget(self) -> None:
        """The pipeline has gone back to a checkpoint, so what was remembered is of another state."""
        if self.replay:
            self.replay.kept = None


def hashes(state: Mapping[str, Any]) -> dict[str, str]:
    """sha256 of every array, its dtype and shape."""

    def one(value: np.ndarray) -> str:
        return hashlib.sha256(f"{value.dtype} {value.shape} ".encode() + value.tobytes()).hexdigest()

    return {name: one(np.asarray(value)) for name, value in state.items()}


def difference(kept: Kept, again: Mapping[str, str]) -> str:
    first, last = kept.step + 1, kept.step + kept.work.shape[0]
    batches = f"batch {first:,}" if first == last else f"batches {first:,} to {last:,}"
    names = sorted(kept.after.keys() | again.keys())
    other = [name for name in names if kept.after.get(name) != again.get(name)]
    more = f" and {len(other) - 3} more" if len(other) > 3 else ""
    return (
        f"the machine or a program did not compute the same twice: {batches}, done again from the same state, gave "
        f"other values in {len(other)} of {len(names)} arrays: {', '.join(other[:3])}{more}"
    )
