"""Draws a schedule as text: a row for each stage, a column for each tick."""

from collections.abc import Sequence

from fdg_jax.schedule import Op, Schedule, Tick
from fdg_jax.schedule.walk import walk


def columns(schedule: Schedule, tick: Tick) -> list[list[str]]:
    """Splits a tick into sub-steps whose operations can run at the same time.

    An operation that needs another stage's result of the same tick is placed one column to the right of it. So FDG
    needs one column per tick and BP needs 2K-1, which shows BP's locking.

    Returns: text [K][columns], a row for each stage.
    """
    column: dict[Op, int] = {}
    for step in (step for _, steps in walk(schedule, [(1, tick)]) for step in steps):
        # Micro-batches are placed side by side, which shows the bubble. Otherwise operations of a stage share a cell.
        after = 0 if step.previous is None else column[step.previous] + (schedule.micro_batches > 1)
        column[step.op] = max([after, *(column[sender] + 1 for sender in step.inputs)])
    width = max(column.values(), default=0) + 1
    cells = [["" for _ in range(width)] for _ in range(schedule.K)]
    for op, c in column.items():
        cells[op.k - 1][c] += str(op)
    return cells


def render(schedule: Schedule, ticks: int) -> str:
    """Draws the first ticks: a column for each tick (several if stages wait for each other), a row for each stage.

    Arguments:
        schedule: the schedule.
        ticks: how many ticks to draw, from t = 1.

    Returns: the drawing, as several lines.
    """
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
    """Aligns the columns of a table of strings (rows of equal length), two spaces apart."""
    widths = [max(len(row[c]) for row in table) for c in range(len(table[0]))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in table)
