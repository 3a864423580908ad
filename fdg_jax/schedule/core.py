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

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

from fdg_jax.errors import BadInput

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

    @property
    def mean_staleness(self) -> tuple[float, ...]:
        """For k = 1..K, the average number of those updates once the pipeline is full: a fraction with `accumulate`."""
        return tuple(gradients / self.accumulate for gradients in self.behind)

    def run(self, batches: int) -> Iterator[tuple[int, Tick]]:
        """Every (t, tick) of a run over that many batches, fill and drain included."""
        for t in range(1, self.ticks(batches) + 1):
            yield t, self.tick(t, batches)


def existing_ops(ops: Sequence[Op], last: int | None) -> Tick:
    """Those of the operations whose batch exists: fill and drain. last: the final batch, if it is known."""
    return tuple(op for op in ops if op.batch >= 1 and (last is None or op.batch <= last))


def check_K(K: int) -> None:
    if K < 1:
        raise BadInput(f"K={K} stages: a pipeline has at least one. Use --K 1 (plain BP) or more.")


def bp(K: int) -> Schedule:
    """Back-propagation through K stages: one batch at a time, forward 1..K, backward K..1, staleness 0."""
    check_K(K)

    def tick(t: int, last: int | None = None) -> Tick:
        stages = range(1, K + 1)
        return existing_ops([Op("F", k, t) for k in stages] + [Op("B", k, t) for k in reversed(stages)], last)

    return Schedule("bp", K, tick, (0,) * K, lambda batches: batches, chain(K))
