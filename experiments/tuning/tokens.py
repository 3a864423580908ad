"""The tokens that an arm on text needs, divided by the tokens that BP needs for the same loss."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.harness.intervals import Seeds, interval, of_runs
from experiments.harness.run_table import Lines
from experiments.tuning.arms import Arm, Part
from experiments.tuning.texts import PARTS, STEPS, TARGET_STEPS

TIMES = STEPS / TARGET_STEPS  # larger ratios are not measured


def at_target(line: Mapping[str, Any]) -> float | None:
    """The test loss after TARGET_STEPS, the steps of BP; None if it was not finite."""
    return next(test["test_loss"] for test in line["evaluations"] if test["step"] == TARGET_STEPS)


def values(lines: Lines, part: Part, arm: Arm) -> Seeds:
    """The arm's test losses after TARGET_STEPS."""
    return of_runs(lines, part.final_names(arm), at_target)


def named(part: Part, name: str) -> tuple[Part, Arm]:
    """The arm of this name with the same K and network, and its part."""
    return next((each, arm) for each in PARTS if each.name == part.name for arm in each.arms if arm.name == name)


def of_name(lines: Lines, part: Part, name: str) -> Seeds:
    """The test losses after TARGET_STEPS of the arm of this name, with the same K and network."""
    return values(lines, *named(part, name))


def steps_to(evaluations: Sequence[Mapping[str, Any]], loss: float) -> float | None:
    """The steps after which a run first reaches a loss, interpolated between two tests linearly in log(steps). None if
    it never does. If the first test has reached the loss already, the steps of this test are returned; fewer may have
    been enough."""
    before = None
    for test in evaluations:
        if test["test_loss"] is None:  # it was not finite
            continue
        if test["test_loss"] <= loss:
            if before is None:
                return test["step"]
            part = (before["test_loss"] - loss) / (before["test_loss"] - test["test_loss"])
            return math.exp(math.log(before["step"]) + part * math.log(test["step"] / before["step"]))
        before = test
    return None


def times_bp(lines: Lines, part: Part, arm: Arm, reference: str | None = None) -> dict[int, float | None]:
    """The tokens that the arm needs to reach BP's loss, divided by BP's tokens, for every seed that both have. None if
    the loss is not reached. reference: the name of the BP arm, by default the arm's own reference."""
    bp = of_name(lines, part, reference or arm.reference).by_seed
    found = {}
    for seed, line in part.finished(lines, arm).items():
        if seed in bp:
            steps = None if line.get("diverged") else steps_to(line["evaluations"], bp[seed])
            found[seed] = steps and steps / TARGET_STEPS
    return found


def times_words(times: Mapping[int, float | None]) -> str:
    """`1.22 (1.02 to 1.42)`, or `more than 1.5 (1 of 3 seeds reach it)`."""
    reached = [each for each in times.values() if each is not None]
    if not times:
        return ""
    if len(reached) < len(times):
        return f"more than {TIMES:g} ({len(reached)} of {len(times)} seeds reach it)"
    return spread(reached)


def spread(numbers: Sequence[float]) -> str:
    """The mean of one or more numbers, and its 95% interval if there are several."""
    found = interval(numbers)
    assert found is not None
    return f"{found.mean:.2f}" + ("" if found.deviation is None else f" ({found.low:.2f} to {found.high:.2f})")


def times_at_end(lines: Lines, part: Part, arm: Arm) -> str:
    """An arm's tokens divided by the tokens that BP needed for the arm's final loss: `2.17 (1.70 to 2.65)`. If BP has
    reached this loss at its first test already, the ratio is a lower bound."""
    where, bp = named(part, arm.reference)
    own, bps = (
        {seed: line["evaluations"] for seed, line in found.items() if not line.get("diverged")}
        for found in (part.finished(lines, arm), where.finished(lines, bp))
    )
    ends = {seed: tests[-1]["test_loss"] for seed, tests in own.items()}
    seeds = [seed for seed in ends if seed in bps and ends[seed] is not None]
    if not seeds:
        return ""
    first = max(bps[seed][0]["step"] for seed in seeds)
    needed = [steps_to(bps[seed], ends[seed]) for seed in seeds]
    reached = [steps for steps in needed if steps is not None]
    if below := len(needed) - len(reached):
        return f"less than 1 ({below} of {len(seeds)} seeds)"
    if at_first := reached.count(first):
        return f"{STEPS / first:g} or more ({at_first} of {len(seeds)} seeds)"
    return spread([STEPS / steps for steps in reached])
