"""The common code of the paper's tables of test errors: the three runs for a printed number, the table's rows, and its
page.

A run is named by its setting (network, data, method, K, beta, order, seed). So a setting in several tables is run only
once. If two tables print different numbers for a setting, both are shown.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from experiments.harness import markdown
from experiments.harness.intervals import Seeds, of_runs
from experiments.harness.printed import Cell
from experiments.harness.run_table import Lines, Run, Table

EPOCHS, SEEDS, SHARED = 300, (0, 1, 2), "paper"
MORE = range(3, 32)  # seeds of runs that `experiments.gpu` may have made as well
TABLES = {
    "table3": "Table 3", "table4": "Table 4", "table5": "Table 5", "table6": "Table 6", "appendix_a": "Appendix A"
}  # fmt: skip
MODELS = {
    "ResNet-20": "resnet20", "ResNet-56": "resnet56", "ResNet-110": "resnet110", "ResNet-1202": "resnet1202",
    "ResNet-18": "resnet18", "WRN-28-10": "wrn28_10", "MobileNet v2": "mobilenet_v2",
}  # fmt: skip
PROGRAMS = {"tiny_imagenet": "fdg_jax.experiments.tiny_imagenet"}  # for other data: the default of Run
HEADS = (
    "network", "method", "K", "beta", "paper: test error %", "ours: test error %", "n",
    "minus BP, by seed: mean (95% interval)", "command, S = 0, 1, 2",
)  # fmt: skip
SHORTER = (
    "**Scaled:** {} epochs instead of the paper's 300, with a learning rate that falls at the same shares of the run. "
    "Ours can be compared with one another here, and not with the paper's."
)


def trained(cell: Cell) -> Cell:
    """The setting of the runs in this cell. With two stages, DDG is FDG without shrinking (a test checks that)."""
    return cell._replace(method="FDG", beta=1.0) if (cell.method, cell.K) == ("DDG", 2) else cell


def name(cell: Cell, seed: int) -> str:
    beta = "" if cell.beta is None else f"-beta{cell.beta:g}"
    order = f"-{cell.order}" if forward_first(cell) else ""
    return f"{MODELS[cell.network]}-{cell.dataset}-{cell.method.lower()}-K{cell.K}{beta}{order}-seed{seed}"


def forward_first(cell: Cell) -> bool:
    """Whether the cell has the order forward first. Backward first is the default, also for tables without an order."""
    return cell.order == "forward-first"


def run(cell: Cell, epochs: int, seed: int) -> Run:
    cell = trained(cell)
    flags: dict[str, Any] = {
        "dataset": cell.dataset, "model": MODELS[cell.network], "epochs": epochs, "batch_size": 128,
        "method": cell.method.lower(), "K": cell.K,
    }  # fmt: skip
    flags |= {"beta": cell.beta} if cell.beta is not None else {}
    flags |= {"order": cell.order} if forward_first(cell) else {}
    flags |= {"seed": seed}
    made = Run(name(cell, seed), flags)
    return made._replace(module=PROGRAMS[cell.dataset]) if cell.dataset in PROGRAMS else made


def runs(cells: Iterable[Cell], epochs: int = EPOCHS, seeds: Sequence[int] = SEEDS) -> tuple[Run, ...]:
    """The runs of all cells and seeds, each once."""
    each = (run(cell, epochs, seed) for seed in seeds for cell in cells)
    return tuple({one.name: one for one in each}.values())


def errors(cell: Cell, lines: Lines) -> Seeds:
    """The measured test errors of the finished seeds."""
    return of_runs(lines, {seed: name(trained(cell), seed) for seed in (*SEEDS, *MORE)})


def median_line(cell: Cell, lines: Lines) -> Mapping[str, Any] | None:
    """The run with the median error, for a curve. Of two runs it is the better one."""
    names = [name(trained(cell), seed) for seed in SEEDS]
    found = [lines[name] for name in names if name in lines]
    ranked = sorted(found, key=lambda line: line["test_error_percent"])
    return ranked[(len(ranked) - 1) // 2] if ranked else None


def ours(found: Seeds) -> list[str]:
    """The cells `ours` and `n`."""
    values = [*found.by_seed.values()]
    if not values:
        return ["", ""]
    spread = f" ({min(values):.2f} to {max(values):.2f})" if len(values) > 1 else ""
    return [f"{statistics.median(values):.2f}{spread}", str(len(values))]


def papers(cell: Cell, own: str) -> str:
    """The printed number, and other numbers that the paper prints for the same setting. own: the table of the cell."""
    if not cell.error:
        return ""
    rest = [f"first published: {cell.published}"] if cell.published else []
    rest += [f"{TABLES[table]}: {error}" for table, error in elsewhere(cell, own)]
    aside = f" ({', '.join(rest)})" if rest else ""
    return f"{cell.error}{aside}".replace("*", "\\*")


def elsewhere(cell: Cell, own: str) -> list[tuple[str, str]]:
    """(table, number) for each other table that prints another number (or another *) for this setting."""
    others = [(table, other) for table in TABLES if table != own for other in printed(table)]
    same = [(table, other.error) for table, other in others if name(other, 0) == name(cell, 0)]
    return [(table, error) for table, error in dict.fromkeys(same) if error != cell.error]


def printed(table: str) -> tuple[Cell, ...]:
    return import_module(f"experiments.{table}").CELLS


class Plan(NamedTuple):
    """A table of the paper.

    notes: marks on a printed number, by (network, method, K, beta), or on a network, by (network,). The table's page
        explains the marks.
    draws: draw(cells, epochs, lines, path), if it has a picture.
    """

    name: str
    cells: Sequence[Cell]
    notes: Mapping[tuple, str] = {}
    draws: Callable[[Sequence[Cell], int, Lines, Path], None] | None = None

    def row(self, cell: Cell, lines: Lines, epochs: int) -> list[str]:
        beta = "" if cell.beta is None else f"{cell.beta:g}"
        method = f"{cell.method}, {cell.order.replace('-', ' ')}" if cell.order else cell.method
        size = f"({cell.parameters})" if cell.parameters else ""
        setting = (cell.network, cell.method, cell.K, cell.beta)
        paper = f"{papers(cell, self.name)} {self.notes.get(setting, '')}".strip()
        network = " ".join(filter(None, (cell.network, size, self.notes.get((cell.network,)))))
        found, bp = errors(cell, lines), [c for c in self.cells if (c.method, *c[:2]) == ("BP", *cell[:2])]
        minus = found.minus(errors(bp[0], lines)).told() if bp and cell.method != "BP" else ""
        return [network, method, str(cell.K), beta, paper, *ours(found), minus, run(cell, epochs, 0).cell("S")]


def table(plan: Plan, epochs: int = EPOCHS) -> Table:
    """The table with runs of so many epochs; the paper's has 300."""
    short = "" if epochs == EPOCHS else f"-{epochs}-epochs"

    def blocks(lines: Lines) -> Mapping[str, str]:
        return {
            "scaled": f", scaled to {epochs} epochs" if short else "",
            "shorter": SHORTER.format(epochs) if short else "",
            "table": markdown.table(HEADS, (plan.row(cell, lines, epochs) for cell in plan.cells)),
        }

    return Table(
        name=plan.name + short,
        page=plan.name,
        runs=runs(plan.cells, epochs),
        blocks=blocks,
        picture=partial(plan.draws, plan.cells, epochs) if plan.draws else None,
        shares=SHARED + short,
        then=lambda lines: tuple(run for run in runs(plan.cells, epochs, MORE) if run.name in lines),
        shortened=None if short else partial(table, plan),
    )
