"""The timing of a method as integers: which stage does what with which batch at which tick.

This module does not use JAX, devices or arrays, so a schedule can be printed, checked and tested by itself. The host
loop executes it. A tick is a tuple of operations in dispatch order. `F` is a stage's forward pass on a batch; `B` is
its backward pass on a batch and the update of its weights. FDG for K = 3, backward first:

    #      t=1   2     3     4     5     6     7
    # k=1  F1    F2    F3    F4    B1F5  B2F6  B3F7     4 ticks late; first update at t = 2K-1
    # k=2        F1    F2    B1F3  B2F4  B3F5  B4F6     2 ticks late
    # k=3              F1B1  F2B2  F3B3  F4B4  F5B5     never late

A tick is a function of t, not a generator with a state, so that a run can resume at any t. A schedule also says which
messages each operation reads and sends. The host loop needs nothing else from a method.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

from fdg_jax.errors import BadInput

Accumulation = Literal["sum", "mean"]


class Op(NamedTuple):
    """An operation of a stage in a tick. kind: `F`, `B` or a method's own kind. k: the stage, 1..K. batch: 1, 2, ..."""

    kind: str
    k: int
    batch: int

    def __str__(self) -> str:
        return f"{self.kind}{self.batch}"


class Address(NamedTuple):
    """The address of a message at stage k.

    what: "x" (input activations), "dy" (cotangents of the outputs), "labels" or "loss".
    """

    what: str
    k: int
    batch: int


Tick = tuple[Op, ...]


class Messages(NamedTuple):
    """The messages of a schedule, by their addresses.

    takes(op): the messages that an operation reads.
    gives(op): the messages that an operation sends.
    enters(batch): the messages that enter the pipeline with a batch.
    """

    takes: Callable[[Op], tuple[Address, ...]]
    gives: Callable[[Op], tuple[Address, ...]]
    enters: Callable[[int], tuple[Address, ...]]


def chain(K: int, local: bool = False) -> Messages:
    """The messages of back-propagation: activations go up, cotangents go down, stage K computes the loss.

    Arguments:
        K: number of stages.
        local: whether every stage gets the labels (for local losses), or only stage K.
    """
    labelled = range(1 if local else K, K + 1)

    def takes(op: Op) -> tuple[Address, ...]:
        k, batch = op.k, op.batch
        if op.kind == "F":
            return (Address("x", k, batch), Address("labels", k, batch)) if k in labelled else (Address("x", k, batch),)
        return (Address("dy", k, batch),) if k < K else ()  # stage K: the cotangent of the loss is 1

    def gives(op: Op) -> tuple[Address, ...]:
        k, batch = op.k, op.batch
        if op.kind == "F":
            return (Address("x", k + 1, batch) if k < K else Address("loss", K, batch),)
        return (Address("dy", k - 1, batch),) if k > 1 else ()

    def enters(batch: int) -> tuple[Address, ...]:
        return (Address("x", 1, batch), *[Address("labels", k, batch) for k in labelled])

    return Messages(takes, gives, enters)


class Schedule(NamedTuple):
    """The timing of a method for K stages.

    name: the method's name.
    K: number of stages.
    tick(t, last): the operations of tick t >= 1 in dispatch order; batch t enters at tick t. `last` is the number of
        the final batch once it is known (the drain), None while batches keep coming.
    delays: for k = 1..K, how many earlier batches have gradients that stage k has not used yet when it runs a forward
        pass in steady state.
    ticks(n): how many ticks n batches take until the last of them has updated every stage.
    messages: which messages operations read and send.
    accumulate: backward passes of a stage per update.
    accumulation: whether the gradients of these passes are summed or averaged.
    micro_batches: the number of parts into which a batch is split; operations are then numbered by part.
    waits: for k = 1..K, how many backward passes stage k itself waits before it uses a gradient; () if no stage waits.
        `delays` includes them.

    Example:
        >>> [str(op) for op in bp(2).tick(1, None)]
        ['F1', 'F1', 'B1', 'B1']
    """

    name: str
    K: int
    tick: Callable[[int, int | None], Tick]
    delays: tuple[int, ...]
    ticks: Callable[[int], int]
    messages: Messages
    accumulate: int = 1
    accumulation: Accumulation = "sum"
    micro_batches: int = 1
    waits: tuple[int, ...] = ()

    def updates_late(self, k: int, batch: int) -> int:
        """The number of updates that stage k makes between a batch's forward pass and the update by that batch. batch:
        from 1."""
        before = batch - 1
        return before // self.accumulate - max(0, before - self.delays[k - 1]) // self.accumulate

    def wait(self, k: int) -> int:
        """How many backward passes stage k itself waits before it uses a gradient."""
        return self.waits[k - 1] if self.waits else 0

    @property
    def staleness(self) -> tuple[int, ...]:
        """For k = 1..K, the most updates that stage k makes between a batch's forward pass and the batch's update."""
        return tuple(-(-gradients // self.accumulate) for gradients in self.delays)

    @property
    def mean_staleness(self) -> tuple[float, ...]:
        """For k = 1..K, the average staleness once the pipeline is full. With `accumulate` it may be a fraction."""
        return tuple(gradients / self.accumulate for gradients in self.delays)

    def run(self, batches: int) -> Iterator[tuple[int, Tick]]:
        """(t, operations) of each tick in a run over `batches` batches, fill and drain included."""
        for t in range(1, self.ticks(batches) + 1):
            yield t, self.tick(t, batches)


def existing_ops(ops: Sequence[Op], last: int | None) -> Tick:
    """Leaves out operations on batches that do not exist: below 1 (in the fill), or above `last` (in the drain)."""
    return tuple(op for op in ops if op.batch >= 1 and (last is None or op.batch <= last))


def check_K(K: int) -> None:
    """Raises BadInput for fewer than one stage."""
    if K < 1:
        raise BadInput(f"K={K} stages: a pipeline has at least one. Use --K 1 (plain BP) or more.")


def check_accumulation(accumulate: int, accumulation: str) -> None:
    """Raises BadInput if `accumulate` is below 1, or if `accumulation` is not known."""
    if not isinstance(accumulate, int) or accumulate < 1:
        raise BadInput(f"accumulate={accumulate!r}: an update needs a whole number of backward passes. Use 1 or more.")
    if accumulation not in ("sum", "mean"):
        raise BadInput(f"accumulation={accumulation!r} is not known. Use sum (ADL's) or mean.")


def bp(K: int) -> Schedule:
    """Back-propagation through K stages: one batch at a time, forward 1..K, backward K..1, staleness 0.

    Raises BadInput for fewer than one stage.
    """
    check_K(K)

    def tick(t: int, last: int | None = None) -> Tick:
        stages = range(1, K + 1)
        return existing_ops([Op("F", k, t) for k in stages] + [Op("B", k, t) for k in reversed(stages)], last)

    return Schedule("bp", K, tick, (0,) * K, lambda batches: batches, chain(K))
