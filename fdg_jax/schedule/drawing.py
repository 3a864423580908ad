"""Draws a schedule as text: a row a stage, a column a tick."""

from collections.abc import Sequence

from fdg_jax.schedule.core import Box, Op, Schedule, Tick


def columns(schedule: Schedule, tick: Tick) -> list[list[str]]:
    """Splits a tick into the sub-steps in which its operations can run at once: rows are stages.

    An operation that needs another stage's result of the same tick stands one column further right. FDG needs
    one column a tick; BP needs 2K-1, which is the lock drawn.
    """
    column: dict[Op, int] = {}
    sent: dict[Box, int] = {}
    for op in tick:
        # Micro-batches stand side by side, which shows the bubble; else a stage's operations share a cell.
        same_stage = [column[o] + (schedule.micro_batches > 1) for o in column if o.k == op.k]
        others = [sent[box] + 1 for box in schedule.messages.takes(op) if box in sent]
        column[op] = max([0, *same_stage, *others])
        sent |= dict.fromkeys(schedule.messages.gives(op), column[op])
    width = max(column.values(), default=0) + 1
    cells = [["" for _ in range(width)] for _ in range(schedule.K)]
    for op, c in column.items():
        cells[op.k - 1][c] += str(op)
    return cells


def render(schedule: Schedule, ticks: int) -> str:
    """Draws the first ticks: a column a tick (several where stages wait for each other), a row a stage."""
    K = schedule.K
    head: list[str] = []
    rows: list[list[str]] = [[] for _ in range(K)]
    for t in range(1, ticks + 1):
        cells = columns(schedule, schedule.tick(t, None))
        head += [f"t={t}" if t == 1 else f"{t}", *[""] * (len(cells[0]) - 1)]
        for row, new in zip(rows, cells, strict=True):
            row += new
    table = [["", *head]] + [[f"k={k}", *row] for k, row in enumerate(rows, 1)]
    return draw(table)


def draw(table: Sequence[Sequence[str]]) -> str:
    """Aligns a table of strings in columns two spaces apart."""
    widths = [max(len(row[c]) for row in table) for c in range(len(table[0]))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in table)
