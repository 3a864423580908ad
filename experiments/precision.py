"""Does bfloat16 train as well as float32? FDG and BP in the runs of 20 epochs of `decisive`, with three seeds.

A CPU emulates bfloat16: it rounds as a GPU does, and is slower. The page has the rule, which was fixed before the first
run. Both tables keep their runs in one place.
"""

import sys

from experiments import decisive
from experiments.decision.rules import BP, SHRUNK
from experiments.harness import markdown
from experiments.harness.intervals import of_runs
from experiments.harness.run_table import Lines, Run, Table
from experiments.harness.table_command import main
from experiments.tuning.verdicts import Scale, judged, lost

PART, SEEDS, ARMS, MOST = decisive.PARTS[0], (0, 1, 2), (SHRUNK, BP), 1.0
HEADS = ("arm", "float32: by seed", "n", "bfloat16: mean", "standard deviation", "by seed", "trains as well", "command")


def run(arm: str, seed: int) -> Run:
    name, flags = PART.name(arm, seed).replace("-seed", "-bfloat16-seed"), PART.run(arm, seed).flags
    return Run(name, {**flags, "precision": "bfloat16", "dtype": "bfloat16"})


def row(lines: Lines, arm: str) -> list[str]:
    own, float32 = (of_runs(lines, {seed: of(arm, seed).name for seed in SEEDS}) for of in (run, PART.run))
    more = "Its error is larger by", own.minus(float32), Scale("points", MOST, digits=2)
    said = lost(own, float32) or judged(*more, lambda by: by.high < MOST, lambda by: by.low > MOST)
    cells = float32.cells(len(SEEDS), {})[3], *own.cells(len(SEEDS), {})
    return [decisive.LABELS[arm], *cells, f"{said.word}. {said.why}", run(arm, 0).cell("S")]


TABLE = Table(
    "precision", tuple(of(arm, seed) for arm in ARMS for seed in SEEDS for of in (PART.run, run)),
    lambda lines: {"table": markdown.table(HEADS, (row(lines, arm) for arm in ARMS)), "most": f"{MOST:g}"},
    diverging=True, shares=decisive.TABLE.home,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(TABLE))
