"""The results of a few seeds, their cells in a table, and differences with Student's intervals."""

import statistics
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fdg_jax.report.comparison import Interval, interval, paired

MIN_SEEDS = 3  # with fewer seeds nothing is decided


class Seeds(NamedTuple):
    """The results of one way to train. by_seed: errors or losses. diverged: the seeds whose runs have diverged."""

    by_seed: Mapping[int, float]
    diverged: tuple[int, ...] = ()

    @property
    def n(self) -> int:
        """The number of finished and diverged runs."""
        return len(self.by_seed) + len(self.diverged)

    @property
    def mean(self) -> float:
        return statistics.fmean(self.by_seed.values())

    def minus(self, other: "Seeds") -> "Seeds":
        """The difference for every seed that both results have, in the order of the seeds."""
        return Seeds(paired(self.by_seed, other.by_seed), self.diverged)

    def interval(self) -> Interval | None:
        return interval(list(self.by_seed.values()))

    def told(self, digits: int = 2) -> str:
        """The mean with its interval; "" without values."""
        found = self.interval()
        return found.told(digits) if found else ""

    def cells(self, planned: int, marks: Mapping[int, str], digits: int = 2) -> list[str]:
        """Cells of a row: n, mean, standard deviation, and the values by seed. planned: how many seeds there will be.
        marks: {seed: text after its value}."""
        found = self.interval()
        of = "" if self.n == planned else f" of {planned}"
        lost = f", {len(self.diverged)} diverged" if self.diverged else ""
        by_seed = [f"{seed}: {value:.{digits}f}{marks.get(seed, '')}" for seed, value in self.by_seed.items()]
        return [
            f"{self.n}{of}{lost}" if self.n else "",
            f"{found.mean:.{digits}f}" if found else "",
            f"{found.deviation:.{digits}f}" if found and found.deviation is not None else "",
            ", ".join([*by_seed, *(f"{seed}: diverged" for seed in self.diverged)]),
        ]


def error(line: Mapping[str, Any]) -> float | None:
    """The test error in percent."""
    return line["test_error_percent"]


def of_runs(
    lines: Mapping[str, Mapping[str, Any]], names: Mapping[int, str],
    value: Callable[[Mapping[str, Any]], float | None] = error,
) -> Seeds:  # fmt: skip
    """The results of runs that have ended. names: seed -> run. value(line): the result; None if it is not finite."""
    found = {seed: lines[name] for seed, name in names.items() if name in lines}
    values = {seed: None if line.get("diverged") else value(line) for seed, line in found.items()}
    finite = {seed: each for seed, each in values.items() if each is not None}
    return Seeds(finite, tuple(seed for seed in values if seed not in finite))
