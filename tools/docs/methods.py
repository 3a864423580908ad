"""One page per training method: its file's docstring, a drawing of its schedule, and the schedule's numbers."""

import sys
from collections.abc import Collection, Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from fdg_jax import methods
from fdg_jax.explorer import figure, timeline
from fdg_jax.methods.__main__ import Row, row, trains_more
from fdg_jax.methods.interface import Method
from fdg_jax.options.fields import Option
from fdg_jax.schedule import Schedule
from fdg_jax.schedule.ideal import formula
from tools.docs import docstrings

SHOWN_K, SHOWN_TICKS, COMPARED_K = 3, 10, (2, 3, 4, 8)
LOCKS = ("forward", "backward", "update")
LONGEST = 32  # forward passes of a stage; more would be too small to read
WEIGHTS = ("weights", "stashed, current", "stashed", "Which weights a late gradient is taken at: those of the batch's "
           "forward pass, or the newest ones.")  # fmt: skip
BETA = ("beta", "(0, 1]", "1.0", "The gradient of stage k is multiplied by beta^(K-k).")


def pages() -> dict[str, str]:
    """The pages by path; docs/methods.md lists them."""
    return {f"docs/methods/{name}.md": page(methods.find(name)) for name in methods.names()}


def pictures(folder: Path) -> None:
    """Writes the drawing of every method's schedule as FOLDER/<name>.svg."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in methods.names():
        method = methods.find(name)
        schedule = method.schedule(SHOWN_K)
        ticks = [each for each in range(2, SHOWN_TICKS + 1) if end(schedule, method, each) <= LONGEST]
        shown = timeline.timeline(schedule, method, ticks=max(ticks, default=2))
        spread = method.places is not None
        picture = figure.figure(shown, f"{name}, K={SHOWN_K}", SHOWN_K, method.words, spread=spread)
        (folder / f"{name}.svg").write_text(picture, encoding="utf-8")


def end(schedule: Schedule, method: Method, ticks: int) -> Fraction:
    """How long the first ticks take, in forward passes of a stage."""
    return max(op.end for op in timeline.timeline(schedule, method, ticks=ticks))


def said(method: Method) -> str:
    """The docstring of a method's file."""
    return sys.modules[f"fdg_jax.methods.{method.name}"].__doc__ or ""


def page(method: Method) -> str:
    """The page of a method."""
    name, rows = method.name, {K: row(method.name, K, 0, {}) for K in COMPARED_K}
    r = rows[SHOWN_K]
    more = " Its stages train auxiliary networks beside the network." if trains_more(name) else ""
    return f"""# {name}

*{docstrings.escaped(method.summary)}*

{docstrings.markdown(said(method), "equation", names=False)}

## Its schedule

![The schedule of {name} with three stages: which stage works on which batch when, when it waits, and which version of
its weights its latest gradient belongs to]({name}.svg)

{locking(r)}{more} `.venv/bin/python -m fdg_jax.schedule --method {name} --open` shows it with other stages and times.

## How late, how fast, how much memory

Staleness: the updates that a stage makes between the forward pass of a batch and the update by that batch, on average.
Stashes: the most batches of which a stage keeps something from tick to tick. Old weights: the most copies of its
weights, beside the newest, that a stage keeps for its stashes. Time per batch: in forward passes Tf, backward passes Tb
and auxiliary networks Taux of the whole network, if stages are even and sending takes no time; the speed-up is over BP
on one device at Tb = 2 Tf, Taux = 0. All of it is derived from the schedule.

{figures(rows)}

## Options

{options(method)}

The whole file: [fdg_jax/methods/{name}.py](../../fdg_jax/methods/{name}.py).
"""


def locked_in(r: Row) -> list[str]:
    """The names of the passes that wait for another stage."""
    return [name for name in LOCKS if getattr(r.locks, name)]


def locking(r: Row) -> str:
    """A sentence on which passes wait for which."""
    locked = locked_in(r)
    if not locked:
        return "Nothing is locked: within a tick no stage waits for another."
    free = [name for name in LOCKS if name not in locked]
    rest = f" Not locked: {', '.join(free)}." if free else ""
    return f"Locked: {', '.join(locked)}.{rest}"


def figures(rows: dict[int, Row]) -> str:
    """A table of the numbers that follow from the schedule, by K."""
    head = ["K", "staleness of stages 1..K", "stashes", "old weights", "time per batch", "speed-up"]
    lines = [cells(head), "|" + "---|" * len(head)]
    for K, r in rows.items():
        late = ", ".join(f"{n:.3g}" for n in r.staleness)
        lines.append(cells([K, late, r.stashes, r.old_weights, formula(r.free), f"{float(r.free_speed_up):.2f}"]))
    return "\n".join(lines)


def cells(row: Sequence[Any]) -> str:
    """A row of a table."""
    return f"| {' | '.join(map(str, row))} |"


def options(method: Method) -> str:
    """A table of the options: those of the method's file, and those common options that it uses."""
    found = option_table(method.declared.values(), method.takes)
    in_python = "\n\nIn Python they are keywords of `fdg_jax.Pipeline` with the same names, `_` for `-`."
    return f"{found}{in_python}" if found else "It has none."


def option_table(declared: Iterable[Option], takes: Collection[str]) -> str:
    """A table of a file's own options and of the common options in `takes`; "" if there are none."""
    rows = [*map(described, declared), *(each for each in (BETA, WEIGHTS) if each[0] in takes)]
    lines = ["| flag | values | default | |", "|---|---|---|---|"]
    for name, values, default, text in rows:
        lines.append(f"| `--{name.replace('_', '-')}` | {values} | `{default}` | {docstrings.escaped(text)} |")
    return "\n".join(lines) if rows else ""


def described(option: Option) -> tuple[str, str, str, str]:
    """An option's name, values, default and text."""
    choices = getattr(option.kind, "__args__", None)
    values = ", ".join(map(str, choices)) if choices else option.metavar or option.kind.__name__
    return option.name, values, str(option.default), option.help


def overview() -> str:
    """A table of all methods, for the page about them."""
    found = {name: methods.find(name) for name in methods.names()}
    rows = {name: row(name, SHOWN_K, 0, {}) for name in found}
    lines = ["| method | | staleness, K = 3 | locked | speed-up, K = 3 |", "|---|---|---|---|---|"]
    for name, method in found.items():
        r = rows[name]
        late = ", ".join(f"{n:.3g}" for n in r.staleness)
        link, said = f"[{name}](methods/{name}.md)", docstrings.escaped(method.summary)
        lines.append(cells([link, said, late, ", ".join(locked_in(r)) or "nothing", f"{float(r.free_speed_up):.2f}"]))
    return f"""{chr(10).join(lines)}

Staleness: the updates that each stage makes between the forward pass of a batch and the update by that batch, on
average. Locked: what waits for another stage within a tick of the full pipeline. Speed-up: over BP on one device
without a barrier between ticks, if stages are even, sending is free and a backward pass takes as long as two forward
passes.
"""
