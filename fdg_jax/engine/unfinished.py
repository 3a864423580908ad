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
MESSAGE = "message "  # begins the kind of what is awaited from another process, such as "message x"


class Dispatched(NamedTuple):
    """An operation that was dispatched.

    kind: "F", "B", a method's own, "E" (evaluation), "window" (a scan), what the host does itself, or a message from a
        stage of another process.
    k: the stage, for a message the one that sends it; 0 for all stages or for the host.
    first, last: the batches that it works on.
    since: when its dispatch began, in seconds of time.monotonic.
    returned: whether the dispatch has returned to the host.
    number: by which the schedule knows it, that of a micro-batch where batches are split; 0 where it knows none.
    sent: whether its messages are computed, though the rest of it is not: a backward pass sends before the update.
    """

    kind: str
    k: int
    first: int
    last: int
    since: float
    returned: bool
    number: int = 0
    sent: bool = False


class UnfinishedOperations:
    """Operations under way. The dispatching thread writes it and any other reads it; neither waits for a device.

    The operations of a stage finish in the order of their dispatch, so finished ones are at the head of the stage's
    queue. They are dropped at the next dispatch of any stage, together with their arrays.
    """

    def __init__(self) -> None:
        self.lock = Lock()
        self.queues: dict[int, deque[tuple[Dispatched, Any]]] = {}
        self.messages: dict[int, deque[Any]] = {}  # beside them: what each sends before it is finished, or None
        self.entering: Dispatched | None = None
        self.finished: dict[tuple[int, str], int] = {}  # by stage and kind: the newest batch of a finished operation

    def begin(self, kind: str, k: int, first: int, last: int, number: int = 0) -> None:
        """Notes that the host is about to dispatch an operation.

        Arguments:
            kind, k, first, last, number: as in `Dispatched`.
        """
        self.entering = Dispatched(kind, k, first, last, time.monotonic(), False, number)

    def add(self, kind: str, k: int, batch: int, array: Any, number: int = 0) -> None:
        """Notes a message that has been asked for, also while an operation is being dispatched.

        Arguments:
            kind, k, number: as in `Dispatched`. batch: its number. array: the message.
        """
        op = Dispatched(kind, k, batch, batch, time.monotonic(), True, number)
        with self.lock:
            self.put(op, array, None)

    def put(self, op: Dispatched, array: Any, message: Any) -> None:
        self.queues.setdefault(op.k, deque()).append((op, array))
        self.messages.setdefault(op.k, deque()).append(message)

    def end(self, array: Any, message: Any = None) -> None:
        """Notes that the dispatch has returned.

        Arguments:
            array: a result of the operation; None if there is none.
            message: what it sends, if that is computed before the array.
        """
        op = self.entering
        with self.lock:
            if op is not None:
                self.put(op._replace(returned=True), array, message)
            self.entering = None
            self.drop()

    def drop(self) -> None:
        """Forgets the operations that are finished, and the messages that are computed."""
        for k, queue in self.queues.items():
            messages = self.messages[k]
            while queue and finished(queue[0][1]):
                op, _ = queue.popleft()
                messages.popleft()
                self.finished[op.k, op.kind] = op.last
            if queue and messages[0] is not None and finished(messages[0]):
                op, array = queue[0]
                queue[0], messages[0] = (op._replace(sent=True), array), None

    def under_way(self) -> tuple[dict[int, list[Dispatched]], dict[tuple[int, str], int]]:
        """What is dispatched and not finished, by stage in the order of dispatch; by stage and kind of operation, the
        newest batch of a finished one."""
        with self.lock:
            self.drop()
            return {k: [op for op, _ in queue] for k, queue in self.queues.items() if queue}, dict(self.finished)

    def oldest(self) -> Dispatched | None:
        """The operation that everything waits for; None if nothing is under way."""
        with self.lock:
            self.drop()
            heads = [queue[0][0] for queue in self.queues.values() if queue]
            entering = self.entering
        return min([*heads, *([entering] if entering else [])], key=lambda op: op.since, default=None)


def finished(array: Any) -> bool:
    """Whether an array has been computed. One that was donated cannot be asked and counts as finished."""
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
        self.extra, self.params = getter_of_smallest(stage.state.extra), getter_of_smallest(stage.state.params)

    def run(self, kind: str, batch: int, messages: dict[str, Tree]) -> dict[str, Tree]:
        """As Stage.run."""
        number, updates = self.whole(batch), self.stage.updates
        self.unfinished.begin(kind, self.stage.k, number, number, batch)
        array = message = None
        try:
            sent = self.stage.run(kind, batch, messages)
            array = self.array_of(kind, sent, updates)
            if self.stage.updates > updates:
                message = next(iter(jax.tree.leaves(sent)), None)
        finally:
            self.unfinished.end(array, message)
        return sent

    def array_of(self, kind: str, sent: dict[str, Tree], updates: int) -> Any:
        """The smallest array at hand that an operation computes.

        For a forward pass that is a statistic, for a backward pass a weight, which are never donated. If there is none
        it is a message, which then stays in memory until it is computed.
        """
        state = self.stage.state
        if kind == "F" and self.extra is not None:
            return self.extra(state.extra)
        if kind == "B" and self.stage.updates > updates and self.params is not None:
            return self.params(state.params)
        return next(iter(jax.tree.leaves(sent)), None)


def getter_of_smallest(tree: Tree) -> Callable[[Tree], Any] | None:
    """A fast function that picks the smallest array of such a tree; None if it finds none."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    known = (jax.tree_util.DictKey, jax.tree_util.SequenceKey)
    ways = [(leaf.size, n, way) for n, (way, leaf) in enumerate(leaves) if all(isinstance(key, known) for key in way)]
    if not ways:
        return None
    keys = [key.key if isinstance(key, jax.tree_util.DictKey) else key.idx for key in min(ways)[2]]  # type: ignore

    def walk(tree: Tree) -> Any:
        for key in keys:
            tree = tree[key]
        return tree

    return walk
