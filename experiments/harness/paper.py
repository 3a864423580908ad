"""What the paper's tables of test errors share: the three runs behind a printed number, its row, its page.

A run is named by its setting (network, data, method, K, beta, order, seed), so that a setting which several tables
show is run once, and so that a number which two of them print differently is noticed and shown with both values.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from experiments.harness import markdown
from experiments.harness.intervals import by_seed_paragraph, carries, interval, paired
from experiments.harness.printed import Cell
from experiments.harness.run_table import Lines, Run, Table, command, shown

EPOCHS, SEEDS, SHARED = 300, (0, 1, 2), "paper"
TABLES = {
    "table3": "Table 3", "table4": "Table 4", "table5": "Table 5", "table6": "Table 6", "appendix_a": "Appendix A"
}  # fmt: skip
MODELS = {
    "ResNet-20": "resnet20", "ResNet-56": "resnet56", "ResNet-110": "resnet110", "ResNet-1202": "resnet1202",
    "ResNet-18": "resnet18", "WRN-28-10": "wrn28_10", "MobileNet v2": "mobilenet_v2",
}  # fmt: skip
PROGRAMS = {"tiny_imagenet": "fdg_jax.experiments.tiny_imagenet"}  # the others': that of Run
HEADS = ("network", "method", "K", "beta", "paper: test error %", "ours: test error %", "n", "command, S = 0, 1, 2")

WORDS = (
    "**Paper:** the test error after the last epoch, median of 3 runs. \\* marks numbers that the paper's authors "
    'measured again with their own recipe; "first published" is the error of the original publication. In brackets: '
    "what another table of the paper prints for the same setting. **Ours:** the median of the n finished seeds, in "
    "brackets the least and the most.",
    "**How we read the paper:** backward first unless the row says otherwise; gradients at the weights of the batch's "
    "own forward pass (stashed); the gradients still in flight at the end are used (drained). The learning rate is "
    "0.01 for the first 3 of 300 epochs for K = 3 and 4 and, with any K and with BP, for ResNet-110 and ResNet-1202. "
    "The paper has no validation set, so its betas, which are used here, were chosen on the test images.",
)


def trained(cell: Cell) -> Cell:
    """The setting whose runs the cell shows. With two stages, DDG is FDG without shrinking (a test checks that)."""
    return cell._replace(method="FDG", beta=1.0) if (cell.method, cell.K) == ("DDG", 2) else cell


def name(cell: Cell, seed: int | str) -> str:
    beta = "" if cell.beta is None else f"-beta{cell.beta:g}"
    order = f"-{cell.order}" if forward_first(cell) else ""
    return f"{MODELS[cell.network]}-{cell.dataset}-{cell.method.lower()}-K{cell.K}{beta}{order}-seed{seed}"


def forward_first(cell: Cell) -> bool:
    """Whether the cell names this order. Backward first is the default, and the run of tables that name no order."""
    return cell.order == "forward-first"


def run(cell: Cell, epochs: int, seed: int | str) -> Run:
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


def runs(cells: Iterable[Cell], epochs: int = EPOCHS) -> tuple[Run, ...]:
    """The runs of all cells and seeds, each once."""
    each = (run(cell, epochs, seed) for seed in SEEDS for cell in cells)
    return tuple({one.name: one for one in each}.values())


def errors(cell: Cell, lines: Lines) -> list[float]:
    """Our test errors, of the finished seeds."""
    return list(by_seed(cell, lines).values())


def by_seed(cell: Cell, lines: Lines) -> dict[int, float]:
    """Our test errors of the finished seeds, {seed: error}."""
    found = {seed: lines.get(name(trained(cell), seed)) for seed in SEEDS}
    return {seed: line["test_error_percent"] for seed, line in found.items() if line}


def how_far(cells: Sequence[Cell], lines: Lines) -> str:
    """How far our differences to BP carry, for every row that has a seed in common with BP's of its network."""
    said = []
    for cell in cells:
        one = next((c for c in cells if (c.method, c.network, c.dataset) == ("BP", cell.network, cell.dataset)), None)
        if one is None or cell.method == "BP":
            continue
        beta = "" if cell.beta is None else f", beta = {cell.beta:g}"
        order = f", {cell.order.replace('-', ' ')}" if cell.order else ""
        found = interval(list(paired(by_seed(cell, lines), by_seed(one, lines)).values()))
        said.append(carries(f"{cell.network}, {cell.method} with K = {cell.K}{beta}{order}, minus BP", found))
    return by_seed_paragraph(said)


def median_line(cell: Cell, lines: Lines) -> Mapping[str, Any] | None:
    """The run in the middle (the better one of the two where n is 2), for a curve."""
    names = [name(trained(cell), seed) for seed in SEEDS]
    found = [lines[name] for name in names if name in lines]
    ranked = sorted(found, key=lambda line: line["test_error_percent"])
    return ranked[(len(ranked) - 1) // 2] if ranked else None


def ours(cell: Cell, lines: Lines) -> list[str]:
    """The cells `ours` and `n`."""
    found = errors(cell, lines)
    if not found:
        return ["", ""]
    spread = f" ({min(found):.2f} to {max(found):.2f})" if len(found) > 1 else ""
    return [f"{statistics.median(found):.2f}{spread}", str(len(found))]


def papers(cell: Cell, own: str) -> str:
    """The printed number, and what else the paper prints for it. own: the table that contains the cell."""
    if not cell.error:
        return ""
    rest = [f"first published: {cell.published}"] if cell.published else []
    rest += [f"{TABLES[table]}: {error}" for table, error in elsewhere(cell, own)]
    aside = f" ({', '.join(rest)})" if rest else ""
    return f"{cell.error}{aside}".replace("*", "\\*")


def elsewhere(cell: Cell, own: str) -> list[tuple[str, str]]:
    """(table, number) where another table prints this setting otherwise, differences in the * included."""
    others = [(table, other) for table in TABLES if table != own for other in printed(table)]
    same = [(table, other.error) for table, other in others if name(other, 0) == name(cell, 0)]
    return [(table, error) for table, error in dict.fromkeys(same) if error != cell.error]


def printed(table: str) -> tuple[Cell, ...]:
    return import_module(f"experiments.{table}").CELLS


def row(cell: Cell, lines: Lines, epochs: int, own: str, marks: Mapping[tuple, str]) -> list[str]:
    network = f"{cell.network} ({cell.parameters})" if cell.parameters else cell.network
    beta = "" if cell.beta is None else f"{cell.beta:g}"
    method = f"{cell.method}, {cell.order.replace('-', ' ')}" if cell.order else cell.method
    one = run(cell, epochs, "S")
    paper = f"{papers(cell, own)} {marks.get((cell.network, cell.method, cell.K, cell.beta), '')}".strip()
    words = f"`{shown(command(one, None, None))}`"
    network = f"{network} {marks.get((cell.network,), '')}".strip()
    return [network, method, str(cell.K), beta, paper, *ours(cell, lines), words]


def null_comparison(cells: Sequence[Cell]) -> tuple[str, ...]:
    """How far apart the paper prints DDG and FDG without shrinking where they are one algorithm; () if nowhere."""

    def two_stages(method: str, beta: float | None) -> dict[tuple[str, str], float]:
        found = [cell for cell in cells if (cell.method, cell.K, cell.beta) == (method, 2, beta)]
        return {(cell.network, cell.dataset): float(cell.error.rstrip("*")) for cell in found}

    ddg, fdg = two_stages("DDG", None), two_stages("FDG", 1.0)
    apart = {key[0]: (ddg[key], fdg[key]) for key in ddg if key in fdg}
    if not apart:
        return ()
    most = max(round(abs(one - two), 2) for one, two in apart.values())
    gained = gains(cells)
    chance, listed = sum(gain <= most for gain in gained), ", ".join(f"{gain:.2f}" for gain in gained)
    printed_errors = ", ".join(f"{network} {one:.2f} and {two:.2f}" for network, (one, two) in apart.items())
    return (
        "**A null comparison:** with K = 2, backward first, DDG and FDG with beta = 1 are one algorithm (also in the "
        f"authors' code). The paper prints different errors for them all the same: {printed_errors}, up to "
        f"{most:.2f} apart. Two results of the same training differ by that much there. Of the {len(gained)} "
        f"gains by shrinking in this table, {chance} are no larger than that ({listed}). "
        "Our rows of DDG and FDG show the same runs, those of FDG.",
    )


def gains(cells: Sequence[Cell]) -> list[float]:
    """For each network and K with both: the printed error of FDG without shrinking minus the one with it."""
    errors = {(c.network, c.K, c.beta == 1.0): float(c.error.rstrip("*")) for c in cells if c.method == "FDG"}
    pairs = [(key[:2], error) for key, error in errors.items() if key[2]]
    return [round(error - errors[*key, False], 2) for key, error in pairs if (*key, False) in errors]


class Plan(NamedTuple):
    """A table of the paper.

    notes: remarks on a printed number, by (network, method, K, beta), or on a network, by (network,).
    words: text of this table alone.
    draws: draw(cells, epochs, lines, path), if it has a picture. alt: the picture in words.
    rows: whether the page shows them, or another table's page does.
    """

    name: str
    title: str
    cells: Sequence[Cell]
    notes: Mapping[tuple, str] = {}
    words: tuple[str, ...] = ()
    draws: Callable[[Sequence[Cell], int, Lines, Path], None] | None = None
    alt: str = ""
    rows: bool = True


def table(plan: Plan, epochs: int = EPOCHS) -> Table:
    """The table with runs of so many epochs; the paper's has 300."""
    short = "" if epochs == EPOCHS else f"-{epochs}-epochs"
    return Table(
        name=plan.name + short,
        summary=plan.title,
        title=plan.title + (f", scaled to {epochs} epochs" if short else ""),
        runs=runs(plan.cells, epochs),
        document=partial(document, plan, epochs),
        picture=partial(plan.draws, plan.cells, epochs) if plan.draws else None,
        shares=SHARED + short,
        shortened=None if short else partial(table, plan),
    )


def document(plan: Plan, epochs: int, lines: Lines) -> str:
    total, short = len(runs(plan.cells)), epochs != EPOCHS
    finished = f"{len(lines) or 'None'} of its {total} runs {'is' if len(lines) < 2 else 'are'} finished."
    notes = [f"[{number}] {text}" for number, text in enumerate(dict.fromkeys(plan.notes.values()), 1)]
    picture = f"{plan.name}{f'-{epochs}-epochs' if short else ''}.png"
    parts = [
        f"**Scaled:** {epochs} epochs instead of the paper's {EPOCHS}, with a learning rate that falls at the same "
        "shares of the run. Ours can be compared with one another here, and not with the paper's." if short else "",
        f"![{plan.alt}]({picture})" if plan.draws else "",
        body(plan, epochs, lines) if plan.rows else "",
        finished,
        how_far(plan.cells, lines) if plan.rows else "",
        markdown.origin(lines) if lines else "",
        *notes,
        *(null_comparison(plan.cells) if plan.rows else ()),
        *plan.words,
        *(WORDS if plan.rows else WORDS[1:]),
    ]  # fmt: skip
    return "\n\n".join(part for part in parts if part)


def body(plan: Plan, epochs: int, lines: Lines) -> str:
    texts = list(dict.fromkeys(plan.notes.values()))
    marks = {key: f"[{texts.index(text) + 1}]" for key, text in plan.notes.items()}
    return markdown.table(HEADS, (row(cell, lines, epochs, plan.name, marks) for cell in plan.cells))
