"""Tracks dispatched operations until they are finished, so that a watchdog can name the one that all others wait for.

The host loop does not wait, so it does not notice when a stage hangs: it goes on with other stages until it reaches the
limit of unread losses. Operations depend only on earlier operations, so the earliest unfinished operation is the one
that all others wait for. To find it, an engine keeps a small result of every operation: an array that is ready when
the operation is finished.
"""

import time
from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import Any, NamedTuple

import jax

from fdg_jax.machine import jax_internals

Tree = Any
MESSAGE = "message "  # the beginning of the kind of a message from another process, such as "message x"


class Dispatched(NamedTuple):
    """A dispatched operation.

    kind: "F" (forward), "B" (backward), a method's own kind, "E" (evaluation), "window" (a scan), work of the host
        itself, or a message from a stage of another process.
    k: the stage; for a message, the stage that sends it; 0 for all stages or for the host.
    first, last: the first and last batch that it works on.
    since: when its dispatch began, in seconds of time.monotonic.
    returned: whether the dispatch has returned to the host.
    """

    kind: str
    k: int
    first: int
    last: int
    since: float
    returned: bool


class UnfinishedOperations:
    """The unfinished operations. The dispatching thread adds to them, and any other thread may read them; neither waits
    for a device.

    The operations of a stage finish in the order of their dispatch, so finished ones are at the head of the stage's
    queue. They are dropped at the next dispatch of any stage, together with their arrays.
    """

    def __init__(self) -> None:
        self.lock = Lock()
        self.queues: dict[int, deque[tuple[Dispatched, Any]]] = {}
        self.entering: Dispatched | None = None

    def begin(self, kind: str, k: int, first: int, last: int) -> None:
        """Notes that the host is about to dispatch an operation. Arguments as in `Dispatched`."""
        self.entering = Dispatched(kind, k, first, last, time.monotonic(), False)

    def add(self, kind: str, k: int, batch: int, array: Any) -> None:
        """Notes a message that is expected from another process. It may be called during a dispatch.

        Arguments:
            kind, k: as in `Dispatched`. batch: the batch's number. array: the message.
        """
        with self.lock:
            self.put(Dispatched(kind, k, batch, batch, time.monotonic(), True), array)

    def put(self, op: Dispatched, array: Any) -> None:
        self.queues.setdefault(op.k, deque()).append((op, array))

    def end(self, array: Any) -> None:
        """Notes that the dispatch has returned. array: a result of the operation; None if there is none."""
        op = self.entering
        with self.lock:
            if op is not None:
                self.put(op._replace(returned=True), array)
            self.entering = None
            self.drop()

    def drop(self) -> None:
        """Removes finished operations."""
        for queue in self.queues.values():
            while queue and finished(queue[0][1]):
                queue.popleft()

    def oldest(self) -> Dispatched | None:
        """The earliest unfinished operation, for which all others wait; None if all are finished."""
        with self.lock:
            self.drop()
            heads = [queue[0][0] for queue in self.queues.values() if queue]
            entering = self.entering
        return min([*heads, *([entering] if entering else [])], key=lambda op: op.since, default=None)


def finished(array: Any) -> bool:
    """Whether an array has been computed. A donated array counts as finished, as it cannot be queried."""
    return array is None or array.is_deleted() or jax_internals.is_ready(array)


class TrackedStage:
    """A stage whose operations are recorded.

    Arguments:
        stage: the stage.
        unfinished: records the operations.
        whole: whole(number) -> the batch to which the micro-batch with this number belongs.
    """

    def __init__(self, stage: Any, unfinished: UnfinishedOperations, whole: Callable[[int], int]):
        self.stage, self.unfinished, self.whole = stage, unfinished, whole

    def run(self, kind: str, batch: int, messages: dict[str, Tree]) -> dict[str, Tree]:
        """Runs the operation as Stage.run does, and records it."""
        number, updates = self.whole(batch), self.stage.updates
        self.unfinished.begin(kind, self.stage.k, number, number)
        array = None
        try:
            sent = self.stage.run(kind, batch, messages)
            array = self.array_of(kind, sent, updates)
        finally:
            self.unfinished.end(array)
        return sent

    def array_of(self, kind: str, sent: dict[str, Tree], updates: int) -> Any:
        """A small array that an operation computes, to tell when the operation is finished.

        After a forward pass this is a running statistic, after a backward pass a weight; neither is ever donated. If
        there is none, it is a message, which then stays in memory until it is computed.
        """
        state, changed = self.stage.state, None
        if kind == "F":
            changed = smallest(state.extra)
        elif kind == "B" and self.stage.updates > updates:
            changed = smallest(state.params)
        return next(iter(jax.tree.leaves(sent)), None) if changed is None else changed


def smallest(tree: Tree) -> Any:
    """The smallest array of a tree; None if it has none."""
    return min(jax.tree.leaves(tree), key=lambda leaf: leaf.size, default=None)
