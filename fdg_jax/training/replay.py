"""Does a batch twice, now and then: a machine that computes something else the second time is not to be trusted.

Nothing else notices a number that is wrong and finite. One dispatch within every so many batches, chosen by the seed,
is remembered: the pipeline's state before it, a hash of every array after it. Later the same pipeline goes back there,
does it again, and returns to where it was, bit for bit, so that a run with these checks ends as one without.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np


class NotReproduced(Exception):
    """A batch done again from the same state gave another one."""


class Kept(NamedTuple):
    """A dispatch to be done again. step: batches before it; window: where in the run it was chosen."""

    step: int
    window: int
    work: Any
    before: Mapping[str, np.ndarray]
    after: dict[str, str]  # hashes of all arrays


class Replay:
    """every: batches of which one is checked."""

    def __init__(self, every: int, seed: int):
        self.every, self.seed = every, seed
        self.kept: Kept | None = None
        self.checked = 0

    def chosen(self, window: int) -> int:
        """Of the batches window * every + 1 to (window + 1) * every how many lie before the chosen one, from the run's
        beginning."""
        return window * self.every + int(np.random.default_rng((self.seed, window)).integers(self.every))

    def wants(self, step: int, batches: int) -> bool:
        """Whether a dispatch of so many batches after `step` is one to be done again."""
        windows = range(step // self.every, (step + batches - 1) // self.every + 1)
        return self.kept is None and any(step <= self.chosen(window) < step + batches for window in windows)

    def due(self, step: int) -> bool:
        """Whether the window of what was kept is over."""
        return self.kept is not None and step // self.every > self.kept.window

    def keep(self, step: int, work: Any, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        self.kept = Kept(step, step // self.every, work, before, hashes(after))

    def check(self, pipeline: Any) -> None:
        """Does the dispatch again. Raises NotReproduced, and then leaves the pipeline as it came out. Losses must have
        been read before, as restoring forgets them."""
        kept, self.kept = self.kept, None
        if kept is None:
            return
        present = pipeline.state()
        pipeline.restore(kept.before, finite=False)  # what was, is compared, whatever it is
        kept.work.enter(pipeline)
        again = hashes(pipeline.state())
        if again != kept.after:
            raise NotReproduced(difference(kept, again))
        pipeline.restore(present, finite=False)
        self.checked += 1


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
