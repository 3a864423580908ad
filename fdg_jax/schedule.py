"""Who forwards and backwards which batch at which tick: the whole of a method's timing, as integers.

Nothing here knows of JAX, devices or arrays. A schedule is printed, validated and tested by itself; the host
loop then does what it says. A tick is an ordered tuple of operations; `F` runs a stage forward on a batch,
`B` runs it backward on a batch and updates its weights. FDG for K = 3, backward first:

    #      t=1   2     3     4     5     6     7
    # k=1  F1    F2    F3    F4    B1F5  B2F6  B3F7     delay 4, first update at t = 2K-1
    # k=2        F1    F2    B1F3  B2F4  B3F5  B4F6     delay 2
    # k=3              F1B1  F2B2  F3B3  F4B4  F5B5     delay 0

A tick is a function of t (not a generator that remembers), so that a run resumes at any t for free. What an
operation reads and what it sends are part of the schedule too: this is all the host loop knows of a method.
"""

import argparse
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Literal, NamedTuple

from fdg_jax.errors import BadInput, ScheduleError

Order = Literal["backward-first", "forward-first"]
Accumulation = Literal["sum", "mean"]


class Op(NamedTuple):
    """One thing a stage does in a tick: kind `F`, `B` or a method's own, stage k in 1..K, batch in 1.. ."""

    kind: str
    k: int
    batch: int

    def __str__(self) -> str:
        return f"{self.kind}{self.batch}"


class Box(NamedTuple):
    """The address of a message: `what` is "x" (activations in), "dy" (cotangents in), "labels" or "loss"."""

    what: str
    k: int
    batch: int


Tick = tuple[Op, ...]


class Messages(NamedTuple):
    """Which boxes an operation reads, which it fills, and which are filled from outside as a batch enters."""

    takes: Callable[[Op], tuple[Box, ...]]
    gives: Callable[[Op], tuple[Box, ...]]
    enters: Callable[[int], tuple[Box, ...]]


def chain(K: int, local: bool = False) -> Messages:
    """Back-propagation's: activations up, cotangents down, the loss at stage K, and labels there or, for methods that
    learn locally, at every stage."""
    labelled = range(1 if local else K, K + 1)

    def takes(op: Op) -> tuple[Box, ...]:
        k, batch = op.k, op.batch
        if op.kind == "F":
            return (Box("x", k, batch), Box("labels", k, batch)) if k in labelled else (Box("x", k, batch),)
        return (Box("dy", k, batch),) if k < K else ()  # stage K: the loss's own cotangent is 1

    def gives(op: Op) -> tuple[Box, ...]:
        k, batch = op.k, op.batch
        if op.kind == "F":
            return (Box("x", k + 1, batch) if k < K else Box("loss", K, batch),)
        return (Box("dy", k - 1, batch),) if k > 1 else ()

    return Messages(takes, gives, lambda batch: (Box("x", 1, batch), *[Box("labels", k, batch) for k in labelled]))


class Schedule(NamedTuple):
    """The timing of a method for K stages.

    tick(t, last): the operations of tick t >= 1 in dispatch order; batch t enters at tick t. `last` is the
        number of the final batch once it is known (the drain); None while batches keep coming.
    behind: for k = 1..K, the gradients of earlier batches that stage k has not yet got when it goes forward on a
        batch, once the pipeline is full.
    ticks(n): how many ticks n batches take until the last of them has updated every stage.
    messages: what operations read and send.
    accumulate: backward passes of a stage per update; accumulation: what becomes of their gradients.
    micro_batches: the parts a batch is cut into; operations are then numbered by part.
    """

    name: str
    K: int
    tick: Callable[[int, int | None], Tick]
    behind: tuple[int, ...]
    ticks: Callable[[int], int]
    messages: Messages
    accumulate: int = 1
    accumulation: Accumulation = "sum"
    micro_batches: int = 1

    @property
    def staleness(self) -> tuple[int, ...]:
        """For k = 1..K, the most weight updates stage k makes between a batch's forward pass and the update that
        batch causes."""
        return tuple(-(-gradients // self.accumulate) for gradients in self.behind)

    def run(self, batches: int) -> Iterator[tuple[int, Tick]]:
        """Every (t, tick) of a run over that many batches, fill and drain included."""
        for t in range(1, self.ticks(batches) + 1):
            yield t, self.tick(t, batches)


def there_are(ops: Sequence[Op], last: int | None) -> Tick:
    """Those of the operations whose batch exists: fill and drain. last: the final batch, if it is known."""
    return tuple(op for op in ops if op.batch >= 1 and (last is None or op.batch <= last))


def check_K(K: int) -> None:
    if K < 1:
        raise BadInput(f"K={K} stages: a pipeline has at least one. Use --K 1 (plain BP) or more.")


def fdg(K: int, order: Order = "backward-first", accumulate: int = 1, accumulation: Accumulation = "sum") -> Schedule:
    """Algorithm I: at tick t stage k forwards batch t-k+1 and backwards batch t-2K+k+1.

    Stage K takes the loss of the batch it forwards in the same tick, so it is exempt from the order. The
    gradient delay is 2(K-k) ticks; with the backward pass first one of the gradients in between has already been
    used when the forward pass runs, so the staleness in updates is 2(K-k)-1 (and 2(K-k) forward first).
    accumulate = M > 1 is ADL: one update every M backward passes, by the sum or the mean of their gradients.
    """
    check_K(K)
    if order not in ("backward-first", "forward-first"):
        raise BadInput(f"order={order!r} is not known. Use backward-first (the paper's) or forward-first.")
    if not isinstance(accumulate, int) or accumulate < 1:
        raise BadInput(f"accumulate={accumulate!r}: an update takes a whole number of backward passes. Use 1 or more.")
    if accumulation not in ("sum", "mean"):
        raise BadInput(f"accumulation={accumulation!r} is not known. Use sum (ADL's) or mean.")

    def tick(t: int, last: int | None = None) -> Tick:
        ops: list[Op] = []
        for k in range(1, K + 1):
            forward, backward = Op("F", k, t - k + 1), Op("B", k, t - 2 * K + k + 1)
            pair = (forward, backward) if k == K or order == "forward-first" else (backward, forward)
            ops += pair
        return there_are(ops, last)

    early = 1 if order == "backward-first" else 0
    behind = tuple(2 * (K - k) - early if k < K else 0 for k in range(1, K + 1))
    ticks = lambda batches: batches + 2 * (K - 1) if batches else 0  # noqa: E731
    return Schedule("fdg", K, tick, behind, ticks, chain(K), accumulate, accumulation)


def bp(K: int) -> Schedule:
    """Back-propagation through K stages: one batch at a time, forward 1..K, backward K..1, staleness 0."""
    check_K(K)

    def tick(t: int, last: int | None = None) -> Tick:
        stages = range(1, K + 1)
        return there_are([Op("F", k, t) for k in stages] + [Op("B", k, t) for k in reversed(stages)], last)

    return Schedule("bp", K, tick, (0,) * K, lambda batches: batches, chain(K))


class Trace(NamedTuple):
    """What happens when a schedule runs: per stage, what is measured rather than derived.

    version[op]: the weight version (updates already made) that stage op.k uses in that operation; tick[op]: when.
    staleness[k-1]: the updates between a batch's forward pass and the update it causes, batch by batch.
    memos[k-1]: the most batches of which stage k keeps something at the end of a tick, having gone forward on them
    and not yet done all that it does; first_update[k-1]: the tick of its first update.
    """

    version: dict[Op, int]
    tick: dict[Op, int]
    staleness: tuple[list[int], ...]
    memos: tuple[int, ...]
    first_update: tuple[int, ...]


def simulate(schedule: Schedule, batches: int) -> Trace:
    """Runs the schedule on integers. Raises ScheduleError where it uses what does not exist or sends what no one
    reads."""
    K, M, done, version = schedule.K, schedule.accumulate, dict[Op, int](), dict[Op, int]()
    updates, passes, held, memos, first = [0] * K, [0] * K, [0] * K, [0] * K, [0] * K
    staleness: tuple[list[int], ...] = tuple([] for _ in range(K))
    last = {(op.k, op.batch): op for _, tick in schedule.run(batches) for op in tick}
    mail = set[Box]()
    for t, tick in schedule.run(batches):
        entering = range((t - 1) * schedule.micro_batches + 1, t * schedule.micro_batches + 1) if t <= batches else ()
        mail |= {box for batch in entering for box in schedule.messages.enters(batch)}
        for op in tick:
            forward, i = Op("F", op.k, op.batch), op.k - 1
            missing = [f"{box.what} of batch {box.batch}" for box in schedule.messages.takes(op) if box not in mail]
            if op.kind != "F" and forward not in done:
                missing.append(f"its own {forward}")
            if missing:
                raise ScheduleError(
                    f"{schedule.name}: at t={t} stage k={op.k} does {op}, which needs {' and '.join(missing)}, "
                    f"and that has not happened.\n{render(schedule, t)}"
                )
            if op in done:
                raise ScheduleError(f"{schedule.name}: at t={t} stage k={op.k} does {op} a second time.")
            mail -= set(schedule.messages.takes(op))
            mail |= {box for box in schedule.messages.gives(op) if box.what != "loss"}
            done[op], version[op] = t, updates[i]
            held[i] += (op == forward) - (op == last[op.k, op.batch])
            if op.kind == "B":
                # The update comes after M backward passes; until then `updates` does not move.
                staleness[i].append(updates[i] - version[forward])
                passes[i] += 1
                if passes[i] % M == 0:
                    updates[i] += 1
                    first[i] = first[i] or t
        memos = [max(pair) for pair in zip(memos, held, strict=True)]
    if mail:
        raise ScheduleError(f"{schedule.name}: sent and never read: {sorted(mail)[:5]}")
    return Trace(version, done, staleness, tuple(memos), tuple(first))


def validate(schedule: Schedule, batches: int) -> Trace:
    """Checks a schedule over a whole run and returns what was measured.

    Every batch is forwarded and backwarded exactly once by every stage, in order, nothing is used before it
    exists, and the staleness of every single batch is as derived: with n gradients behind and an update every M,
    b // M - max(0, b - n) // M for the b-th batch from 0, which for M = 1 is min(b, n).
    """
    trace = simulate(schedule, batches)
    K, parts = schedule.K, batches * schedule.micro_batches
    wanted = {Op(kind, k, b) for kind in "FB" for k in range(1, K + 1) for b in range(1, parts + 1)}
    found = {op for op in trace.version if op.kind in ("F", "B")}
    missing, extra = wanted - found, found - wanted
    if missing or extra:
        raise ScheduleError(f"{schedule.name}: never done {sorted(missing)[:5]}, too much {sorted(extra)[:5]}")
    for kind in {op.kind for op in trace.tick}:
        for k in range(1, K + 1):
            order = [op.batch for op in trace.tick if (op.kind, op.k) == (kind, k)]
            if order != sorted(order):
                raise ScheduleError(f"{schedule.name}: stage k={k} does {kind} of the batches in the order {order}")
    M = schedule.accumulate
    for k, behind in enumerate(schedule.behind, 1):
        expected = [b // M - max(0, b - behind) // M for b in range(parts)]
        if trace.staleness[k - 1] != expected:
            raise ScheduleError(
                f"{schedule.name}: stage k={k} has staleness {trace.staleness[k - 1]}, derived {expected}"
            )
    return trace


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


def describe(schedule: Schedule, ticks: int | None = None, words: Mapping[str, str] | None = None) -> str:
    """The drawing, then per stage: delay, staleness, first update, memos, and weight versions by batch.

    ticks: how many are drawn, by default until all stages have all they do, and then two more (one, where that is so
    from the first). words: what operations do that are neither F nor B.
    """
    K = schedule.K
    batches = 4 * K + 2  # enough to fill the pipeline and see it run steadily
    trace = validate(schedule, batches)
    if ticks is None:
        steady = len(schedule.tick(batches, None))
        full = next(t for t, tick in schedule.run(batches) if len(tick) == steady)
        ticks = full + min(full, 2)
    shown = min(batches, max(1, ticks - K + 1))
    table = [["stage", "delay", "staleness", "first update", "memos", f"weight version at F1..F{shown}"]]
    for k in range(1, K + 1):
        versions = " ".join(str(trace.version[Op("F", k, b)]) for b in range(1, shown + 1))
        delay = trace.tick[Op("B", k, batches)] - trace.tick[Op("F", k, batches)]
        row = [f"k={k}", str(delay), str(max(trace.staleness[k - 1])), f"t={trace.first_update[k - 1]}"]
        table.append([*row, str(trace.memos[k - 1]), versions])
    M, part = schedule.accumulate, schedule.micro_batches > 1
    sentences = [
        f"F3: forward of {'micro-' if part else ''}batch 3.",
        f"B3: its backward{'' if M > 1 else ' and the update'}.",
        *[f"{kind}3: {text}." for kind, text in (words or {}).items()],
        *([f"A batch is {M} micro-batches."] if part else []),
        *([f"A stage updates after every {M} of its backward passes."] if M > 1 else []),
        "Delay: the ticks between F and B; staleness: the stage's own updates between the forward pass and the update "
        "by that batch.",
        "Weight version: updates already made. Memos: batches that a stage keeps at the end of a tick.",
    ]
    return f"{render(schedule, ticks)}\n\n{draw(table)}\n\n{textwrap.fill(' '.join(sentences), 110)}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m fdg_jax.schedule",
        description="Draw a method's schedule: who forwards (F) and backwards (B) which batch at which tick t.",
    )
    parser.add_argument("--K", type=int, default=3, help="number of stages (default 3)")
    parser.add_argument("--method", default="fdg", help="fdg, bp or any file of fdg_jax/methods (default fdg)")
    parser.add_argument("--ticks", type=int, help="ticks to draw (default: until the pipeline is full)")
    parser.add_argument("--order", help="fdg: backward-first (the paper's, default) or forward-first")
    parser.add_argument("--accumulate", type=int, metavar="M", help="fdg: backward passes an update (ADL; default 1)")
    parser.add_argument("--micro-batches", type=int, metavar="M", help="gpipe: parts of a batch (default 4)")
    given = parser.parse_args(arguments)
    try:
        check_K(given.K)
        if given.ticks is not None and given.ticks < 1:
            raise BadInput(f"--ticks {given.ticks}: there is nothing to draw. Use --ticks 1 or more.")
        method = import_module("fdg_jax.methods").find(given.method)
        asked = {name: getattr(given, name) for name in ("order", "accumulate", "micro_batches")}
        options = {name: value for name, value in asked.items() if value is not None}
        schedule = method.schedule(given.K, **method.accepted(options)[0])
        print(describe(schedule, given.ticks, method.words))
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
