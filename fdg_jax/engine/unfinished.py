"""Tracks operations that were dispatched and are not finished. A watchdog names the one that all others wait for.

The host loop never waits, so it does not notice that a stage has stopped: it runs on until it reaches a limit,
somewhere else. But an operation depends on earlier ones only. So the earliest unfinished operation is the one that
everything waits for. To find it, an engine keeps a small result of every operation: an array that is ready when the
operation is finished.
"""

import time
from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import Any, NamedTuple

import jax

from fdg_jax.machine import jax_internals

Tree = Any
MESSAGE = "message "  # how the kind of a message from another process begins, such as "message x"


class Dispatched(NamedTuple):
    """An operation that was dispatched.

    kind: "F", "B", a method's own, "E" (evaluation), "window" (a scan), what the host does itself, or a message from a
        stage of another process.
    k: the stage, for a message the one that sends it; 0 for all stages or for the host.
    first, last: the batches that it works on.
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
    """Operations under way. The dispatching thread writes it and any other reads it; neither waits for a device.

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
        """Notes a message that is awaited, even while an operation is being dispatched.

        Arguments:
            kind, k: as in `Dispatched`. batch: its number. array: the message.
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
        """Forgets the operations that are finished."""
        for queue in self.queues.values():
            while queue and finished(queue[0][1]):
                queue.popleft()

    def oldest(self) -> Dispatched | None:
        """The operation that everything waits for; None if nothing is under way."""
        with self.lock:
            self.drop()
            heads = [queue[0][0] for queue in self.queues.values() if queue]
            entering = self.entering
        return min([*heads, *([entering] if entering else [])], key=lambda op: op.since, default=None)


def finished(array: Any) -> bool:
    """Whether an array has been computed. A donated array counts as finished, as it cannot be queried."""
    return array is None or array.is_deleted() or jax_internals.is_ready(array)


class TrackedStage:
    """A stage whose operations are noted.

    Arguments:
        stage: the stage.
        unfinished: where they are noted.
        whole: whole(number) -> the batch to which a micro-batch of that number belongs.
    """

    def __init__(self, stage: Any, unfinished: UnfinishedOperations, whole: Callable[[int], int]):
        self.stage, self.unfinished, self.whole = stage, unfinished, whole

    def run(self, kind: str, batch: int, messages: dict[str, Tree]) -> dict[str, Tree]:
        """As Stage.run."""
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
        """The smallest array at hand that an operation computes.

        For a forward pass this is a statistic, for a backward pass a weight; neither is ever donated. If there is none,
        it is a message, which then stays in memory until it is computed.
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
