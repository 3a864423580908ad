"""An arm of a comparison, its tuning grid, and its final runs, whose options come from the results of tuning.

Every arm of a table has the same number of tuning runs. They have the same multiples of its optimizer's usual learning
rate, each with the same number of settings of the arm's own options. The choice is the run with the lowest error on the
held-out examples. If several runs have this error, the first in the grid is chosen. An arm with unfinished tuning has
no choice, so it has no final runs yet.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from experiments.harness import markdown
from experiments.harness.intervals import Seeds
from experiments.harness.run_table import Lines, Run
from experiments.tuning import verdicts
from experiments.tuning.verdicts import Verdict
from fdg_jax import methods
from fdg_jax.options.fields import words

Flags = Mapping[str, Any]

class Arm(NamedTuple):
    """One way to train.

    name: stands in the names of the runs. label: its name on the page.
    flags: the options that define the arm, outside of the grid.
    own: the settings of its own options to try. Every arm has the same number of settings.
    usual_rate: the usual learning rate of its optimizer; the grid has multiples of it.
    claim: the published claim, in a sentence. rule: how the page judges the claim (a key of the table's rules).
    most_late: the largest staleness that the claim is about.
    reference: the arm of plain BP to compare with. stale: the arm without a correction to compare with.
    """

    name: str
    label: str
    flags: Flags
    own: tuple[Flags, ...]
    usual_rate: float
    claim: str = ""
    rule: str = ""
    reference: str = "bp"
    stale: str = "fdg"
    most_late: float = math.inf


class Part(NamedTuple):
    """Arms that are trained alike.

    name: stands in the names of the runs.
    shared, tuned, final: flags of all runs, of the tuning runs only, and of the final runs only.
    multiples: the grid, as multiples of the usual learning rate.
    seeds: those of the final runs; the tuning runs have seed 0.
    chosen_by: another part, whose choices are used here without tuning.
    """

    name: str
    title: str
    arms: tuple[Arm, ...]
    shared: Flags
    tuned: Flags
    final: Flags
    multiples: tuple[float, ...]
    seeds: tuple[int, ...]
    module: str = "fdg_jax.experiments.cifar"
    chosen_by: "Part | None" = None

    @property
    def tune_runs(self) -> tuple[Run, ...]:
        """The tuning runs, arm by arm, so that the final runs of a tuned arm can begin early."""
        return () if self.chosen_by else tuple(run for arm in self.arms for run in self.grid(arm))

    def grid(self, arm: Arm) -> tuple[Run, ...]:
        """The tuning runs of one arm."""
        return tuple(self.tune_run(arm, multiple, own) for own in arm.own for multiple in self.multiples)

    def rate(self, arm: Arm, multiple: float) -> float:
        return float(f"{arm.usual_rate * multiple:.6g}")  # 0.0005 rather than 0.00050000000000000001

    def tune_run(self, arm: Arm, multiple: float, own: Flags) -> Run:
        rate = self.rate(arm, multiple)
        said = "".join(f"-{name.replace('_', '-')}{value:g}" for name, value in own.items())
        flags = {**self.shared, **self.tuned, **arm.flags, "learning_rate": rate, **own, "seed": 0}
        return Run(f"tune-{self.name}-{arm.name}-rate{rate:g}{said}", flags, self.module)

    def choice(self, lines: Lines, arm: Arm) -> Flags | None:
        """The chosen options: the learning rate and the arm's own options. None if tuning is not finished, or if every
        run of the grid has diverged."""
        if self.chosen_by:
            (same,) = [other for other in self.chosen_by.arms if other.name == arm.name]
            return self.chosen_by.choice(lines, same)
        runs = self.grid(arm)
        finished = [run for run in runs if run.name in lines and not lines[run.name].get("diverged")]
        if any(run.name not in lines for run in runs) or not finished:
            return None
        best = min(finished, key=lambda run: self.judged(lines[run.name]))  # the first of equal ones
        return {name: best.flags[name] for name in ("learning_rate", *arm.own[0])}

    def judged(self, line: Mapping[str, Any]) -> float:
        """The measure for tuning: loss for text, error for images. A loss that is not finite counts as infinite."""
        found = line["test_loss" if self.shared["dataset"] == "text" else "test_error_percent"]
        return math.inf if found is None else found

    def final_run(self, arm: Arm, choice: Flags, seed: int) -> Run:
        flags = {**self.shared, **self.final, **arm.flags, **choice, "seed": seed}
        return Run(self.final_name(arm, seed), flags, self.module)

    def final_name(self, arm: Arm, seed: int) -> str:
        return f"final-{self.name}-{arm.name}-seed{seed}"

    def final_runs(self, lines: Lines) -> tuple[Run, ...]:
        """The final runs of all tuned arms, seed by seed, so that unfinished tables are balanced."""
        choices = {arm.name: self.choice(lines, arm) for arm in self.arms}
        found = ((arm, choices[arm.name], seed) for seed in self.seeds for arm in self.arms)
        return tuple(self.final_run(arm, choice, seed) for arm, choice, seed in found if choice is not None)

    def beyond(self, arm: Arm) -> Verdict | None:
        """The page's text in place of a verdict if gradients are staler here than in the arm's claim; else None."""
        staleness = methods.find(arm.flags["method"]).schedule(self.shared["K"]).staleness
        return verdicts.beyond(max(staleness), arm.most_late)

    def final_names(self, arm: Arm) -> dict[int, str]:
        """The names of an arm's final runs by seed."""
        return {seed: self.final_name(arm, seed) for seed in self.seeds}

    def finished(self, lines: Lines, arm: Arm) -> dict[int, Mapping[str, Any]]:
        """The lines of an arm's final runs by seed, diverged ones included."""
        return {seed: lines[name] for seed, name in self.final_names(arm).items() if name in lines}

    def cells(self, lines: Lines, arm: Arm, own: Seeds, digits: int) -> list[str]:
        """Cells of a row: n, mean, standard deviation, and the values by seed. own: the results of the arm."""
        marks = markdown.marks(lines)
        return own.cells(
            len(self.seeds), {seed: marks.get(name, "") for seed, name in self.final_names(arm).items()}, digits
        )

    def how_made(self, lines: Lines, arm: Arm) -> list[str]:
        """Cells of a row: the choice, the cost of tuning, and the command of the final runs (of the tuning runs, if
        there is no choice yet)."""
        choice, grid = self.choice(lines, arm), self.grid(arm)
        if choice is None:
            return ["", self.tuning_cost(lines, arm), grid[0].cell("S")]
        edges = (self.rate(arm, multiple) for multiple in (min(self.multiples), max(self.multiples)))
        chosen = [word for name, value in choice.items() for word in words(name, value)]
        chosen += ["(edge)"] * (choice["learning_rate"] in edges)
        return [" ".join(chosen), self.tuning_cost(lines, arm), self.final_run(arm, choice, 0).cell("S")]

    def tuning_cost(self, lines: Lines, arm: Arm) -> str:
        """`6 of 6 runs, 1.0 core-hours`: the cost of tuning an arm; "" if no tuning run is finished."""
        runs = self.grid(arm)
        found = [lines[run.name] for run in runs if run.name in lines]
        diverged = sum(bool(line.get("diverged")) for line in found)
        told = [f"{len(found)} of {len(runs)} runs", markdown.hours(found), f"{diverged} diverged" if diverged else ""]
        return ", ".join(filter(None, told)) if found else ""


def tune_runs(parts: Sequence[Part]) -> tuple[Run, ...]:
    return tuple(run for part in parts for run in part.tune_runs)


def final_runs(parts: Sequence[Part], lines: Lines) -> tuple[Run, ...]:
    return tuple(run for part in parts for run in part.final_runs(lines))
