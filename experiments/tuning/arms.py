"""An arm of a comparison, the grid that it is tuned by, and its final runs, whose options come from the tuned results.

Every arm of a table has the same number of tuning runs: the same multiples of its optimizer's usual learning rate, each
with the same number of settings of its own. The choice is the run with the lowest error on the held-out examples; of
equals the first of the grid. An arm that is not tuned to the end has no choice, and so no final runs yet.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from experiments.harness.intervals import interval
from experiments.harness.run_table import Lines, Run, command, shown
from experiments.tuning import verdicts
from experiments.tuning.verdicts import Values, Verdict
from fdg_jax import methods
from fdg_jax.runs.options import words

Flags = Mapping[str, Any]

# What the pages on images and on text both say.
REPEAT = (
    "**To repeat** a row on a CPU, pin its command to one core (`taskset -c 0`), as `run --jobs 2` does. S is the seed."
)
HOURS = (
    "The hours compare no arms: they are of cores that were not alike, some with other work beside, or of a GPU that "
    "several runs shared."
)
CLAIMS = (
    "**At which weights errors are measured.** With `anticipate` at y, the weights that the optimizer updates, not at "
    "the forward point x = y + c d. The papers on spike compensation and on error feedback write x for the weights, so "
    "their own errors may be those at x.",
    "**Where claims are from:** the paper's text or its authors' code; where it says (abstract), the abstract alone; "
    "where it says (from memory), neither was found. Error feedback is published for a staleness of 1, and judged only "
    "where no gradient is later. PipeMare also begins with some synchronous epochs (its T3), which no arm here does. "
    "Asynchronous Nesterov is its form with stashed weights; that without them has rates and momenta by stage. The "
    "cosine gate is a rule of ours, so no claim stands beside it.",
    "**Sources:** staleness-aware SGD "
    "[1511.05950](https://arxiv.org/abs/1511.05950), DC-ASGD [1609.08326](https://arxiv.org/abs/1609.08326), Gap-Aware "
    "[1909.10802](https://arxiv.org/abs/1909.10802), PipeMare [1910.05124](https://arxiv.org/abs/1910.05124), spike "
    "compensation and linear weight prediction (LWP) [2003.11666](https://arxiv.org/abs/2003.11666), asynchronous "
    "Nesterov (AsyncPP) [2505.01099](https://arxiv.org/abs/2505.01099), basis rotation "
    "[2602.03515](https://arxiv.org/abs/2602.03515), error feedback [2606.30634](https://arxiv.org/abs/2606.30634); "
    "msnag: the code of [FTPipe](https://github.com/saareliad/FTPipe); XPipe and PipeOptim: that of "
    "[PipeOptim](https://github.com/guanleics/PipeOptim); marin: a "
    "[pull request](https://github.com/marin-community/marin/pull/6423).",
)


class Arm(NamedTuple):
    """One way to train.

    name: in the names of its runs. label: on the page.
    flags: what it differs in from the others, whatever the grid says.
    own: the settings of its own that are tried; as many as every other arm has.
    usual_rate: of its optimizer; the grid has multiples of it.
    claim: what was published of it, in a sentence. rule: how the page judges that (a key of the table's rules).
    most_late: the largest staleness that the claim is about.
    reference: the arm of plain BP that it is held against, and stale: the one without a correction.
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

    name: in the names of its runs. shared: flags of all runs. tuned: of the tuning runs only, final: of the others.
    multiples: of the usual learning rate. seeds: of the final runs; the tuning runs have seed 0.
    chosen_by: the arm of another part -> its choice holds here, and nothing is tuned.
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
        """Arm by arm, so that an arm that is tuned to the end can be trained."""
        return () if self.chosen_by else tuple(run for arm in self.arms for run in self.grid(arm))

    def grid(self, arm: Arm) -> tuple[Run, ...]:
        """The tuning runs of one arm."""
        return tuple(self.tune_run(arm, multiple, own) for own in arm.own for multiple in self.multiples)

    def rate(self, arm: Arm, multiple: float) -> float:
        return float(f"{arm.usual_rate * multiple:.6g}")  # 0.001 * 0.5, and no 0.00050000000000000001

    def tune_run(self, arm: Arm, multiple: float, own: Flags) -> Run:
        rate = self.rate(arm, multiple)
        said = "".join(f"-{name.replace('_', '-')}{value:g}" for name, value in own.items())
        flags = {**self.shared, **self.tuned, **arm.flags, "learning_rate": rate, **own, "seed": 0}
        return Run(f"tune-{self.name}-{arm.name}-rate{rate:g}{said}", flags, self.module)

    def choice(self, lines: Lines, arm: Arm) -> Flags | None:
        """The options that were chosen: learning rate and the arm's own. None if tuning is not finished, or if every
        run of the grid has diverged."""
        if self.chosen_by:
            (same,) = [other for other in self.chosen_by.arms if other.name == arm.name]
            return self.chosen_by.choice(lines, same)
        runs = self.grid(arm)
        if any(run.name not in lines for run in runs) or self.lost(lines, arm):
            return None
        finished = [run for run in runs if not lines[run.name].get("diverged")]
        best = min(finished, key=lambda run: self.judged(lines[run.name]))  # of equals the first
        return {name: best.flags[name] for name in ("learning_rate", *arm.own[0])}

    def lost(self, lines: Lines, arm: Arm) -> bool:
        """Whether every run of the arm's grid has diverged, so that there is nothing to train."""
        return all(lines.get(run.name, {}).get("diverged") for run in self.grid(arm))

    def judged(self, line: Mapping[str, Any]) -> float:
        """What tuning goes by: the loss of text, the error of images. A loss that is not finite is the largest."""
        found = line["test_loss" if self.shared["dataset"] == "text" else "test_error_percent"]
        return math.inf if found is None else found

    def final_run(self, arm: Arm, choice: Flags, seed: int) -> Run:
        flags = {**self.shared, **self.final, **arm.flags, **choice, "seed": seed}
        return Run(self.final_name(arm, seed), flags, self.module)

    def final_name(self, arm: Arm, seed: int) -> str:
        return f"final-{self.name}-{arm.name}-seed{seed}"

    def final_runs(self, lines: Lines) -> tuple[Run, ...]:
        """Seed by seed over all arms that are tuned, so that whatever is finished is balanced."""
        choices = {arm.name: self.choice(lines, arm) for arm in self.arms}
        found = ((arm, choices[arm.name], seed) for seed in self.seeds for arm in self.arms)
        return tuple(self.final_run(arm, choice, seed) for arm, choice, seed in found if choice is not None)

    def beyond(self, arm: Arm) -> Verdict | None:
        """What the page says in place of a verdict where gradients are later here than the arm's claim is about."""
        staleness = methods.find(arm.flags["method"]).schedule(self.shared["K"]).staleness
        return verdicts.beyond(max(staleness), arm.most_late)

    def finished(self, lines: Lines, arm: Arm) -> dict[int, Mapping[str, Any]]:
        """The lines of an arm's final runs by seed, those that have diverged included."""
        names = {seed: self.final_name(arm, seed) for seed in self.seeds}
        return {seed: lines[name] for seed, name in names.items() if name in lines}


def tune_runs(parts: Sequence[Part]) -> tuple[Run, ...]:
    return tuple(run for part in parts for run in part.tune_runs)


def final_runs(parts: Sequence[Part], lines: Lines) -> tuple[Run, ...]:
    return tuple(run for part in parts for run in part.final_runs(lines))


def hours(lines: Sequence[Mapping[str, Any]], unit: str = "core-hours") -> str:
    """`1.5 core-hours, 0.2 h on a shared GPU`: what runs took, evaluations included. On a CPU each had a core, on a GPU
    several shared the device. One that has diverged is not counted."""

    def took(gpu: bool) -> str:
        return f"{sum(line.get('seconds', 0.0) for line in lines if on_gpu(line) == gpu) / 3600:.1f}"

    places = {on_gpu(line) for line in lines} or {False}
    told = {False: f"{took(False)} {unit}", True: f"{took(True)} h on a shared GPU"}
    return ", ".join(told[place] for place in sorted(places))


def on_gpu(line: Mapping[str, Any]) -> bool:
    return line.get("hardware", {}).get("backend") == "gpu"


def progress(parts: Sequence[Part], lines: Lines) -> str:
    """How much of a table has run, in a paragraph; parts with one title count together."""
    said = []
    for title in dict.fromkeys(part.title for part in parts):
        alike = [part for part in parts if part.title == title]
        tuning, finals = tune_runs(alike), sum(len(part.arms) * len(part.seeds) for part in alike)
        tuned = [lines[run.name] for run in tuning if run.name in lines]
        done = [line for part in alike for arm in part.arms for line in part.finished(lines, arm).values()]
        first = f"{len(tuned)} of {len(tuning)} tuning runs ({hours(tuned)}), " if tuning else ""
        said.append(f"{title}: {first}{len(done)} of {finals} final runs ({hours(done)})")
    return f"**How much has run.** {'; '.join(said)}."


def tuning_cost(part: Part, lines: Lines, arm: Arm) -> str:
    """`6 of 6 runs, 1.0 h`: what choosing an arm's options took; "" where nothing has been tuned."""
    runs = part.grid(arm)
    found = [lines[run.name] for run in runs if run.name in lines]
    diverged = sum(bool(line.get("diverged")) for line in found)
    rest = f", {diverged} diverged" if diverged else ""
    return f"{len(found)} of {len(runs)} runs, {hours(found, 'h')}{rest}" if found else ""


def chosen_words(choice: Flags | None) -> str:
    """The choice as flags."""
    return "" if choice is None else " ".join(word for name, value in choice.items() for word in words(name, value))


def at_edges(parts: Sequence[Part], lines: Lines) -> str:
    """How many arms chose the smallest or the largest rate of their grid, in a paragraph; "" where none did."""
    choices = [(part, arm, part.choice(lines, arm)) for part in parts if not part.chosen_by for arm in part.arms]
    chosen = [(part, arm, choice) for part, arm, choice in choices if choice is not None]
    edges = [
        choice for part, arm, choice in chosen
        if choice["learning_rate"] in (part.rate(arm, min(part.multiples)), part.rate(arm, max(part.multiples)))
    ]  # fmt: skip
    if not edges:
        return ""
    told = f"{len(edges)} of {len(chosen)} arms chose the smallest or the largest rate of their grid"
    return f"**At the edge of the grid.** {told}; a better one may lie beyond."


def measured(part: Part, own: Values, digits: int) -> list[str]:
    """Cells of a row: n, mean and standard deviation of the runs that have not diverged, and each by seed."""
    found = interval(list(own.by_seed.values()))
    of = "" if own.n == len(part.seeds) else f" of {len(part.seeds)}"
    lost = f", {len(own.diverged)} diverged" if own.diverged else ""
    by_seed = [f"{seed}: {value:.{digits}f}" for seed, value in own.by_seed.items()]
    return [
        f"{own.n}{of}{lost}" if own.n else "",
        f"{found.mean:.{digits}f}" if found else "",
        f"{found.deviation:.{digits}f}" if found and found.deviation is not None else "",
        ", ".join([*by_seed, *(f"{seed}: diverged" for seed in own.diverged)]),
    ]


def how_made(part: Part, lines: Lines, arm: Arm) -> list[str]:
    """Cells of a row: what was chosen, what that took, and the command of the final runs; of the tuning runs, where
    nothing is chosen yet."""
    choice = part.choice(lines, arm)
    run = part.grid(arm)[0] if choice is None else part.final_run(arm, choice, 0)
    line = shown(command(run, None, None)).replace("--seed 0", "--seed S")
    return [chosen_words(choice), tuning_cost(part, lines, arm), f"`{line}`"]
