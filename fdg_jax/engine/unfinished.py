"""Which operations have been dispatched and are not finished: what one asks when nothing moves, and nobody waits.

The host loop never waits, so it cannot notice that a stage has stopped; it goes on until some bound holds it, which is
elsewhere. But an operation depends only on earlier ones, so the earliest unfinished one is what all the others wait
for. To know it an engine notes, for every operation, a small array that it computes.
"""

import time
from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import Any, NamedTuple

import jax

from fdg_jax.machine import jax_internals

Tree = Any


class Dispatched(NamedTuple):
    """An operation of stage k (0: of all stages, or the host's own) on the batches first to last. since: when its
    dispatch began, on the clock of time.monotonic. returned: whether that dispatch has come back to the host."""

    kind: str
    k: int
    first: int
    last: int
    since: float
    returned: bool


class Trail:
    """Operations under way. Written by the thread that dispatches, read by any other; neither ever waits for a device.

    A stage's operations finish in the order of their dispatch, so finished ones are at the head of its queue. They are
    dropped at the next dispatch of any stage, and with them the arrays that told.
    """

    def __init__(self) -> None:
        self.lock = Lock()
        self.queues: dict[int, deque[tuple[Dispatched, Any]]] = {}
        self.entering: Dispatched | None = None

    def begin(self, kind: str, k: int, first: int, last: int) -> None:
        """The host is about to dispatch an operation."""
        self.entering = Dispatched(kind, k, first, last, time.monotonic(), False)

    def end(self, array: Any) -> None:
        """It has. array: something the operation computes, None where nothing can tell."""
        op = self.entering
        with self.lock:
            if op is not None:
                self.queues.setdefault(op.k, deque()).append((op._replace(returned=True), array))
            self.entering = None
            self.drop()

    def drop(self) -> None:
        for queue in self.queues.values():
            while queue and finished(queue[0][1]):
                queue.popleft()

    def oldest(self) -> Dispatched | None:
        """What everything else waits for; None if nothing is under way."""
        with self.lock:
            self.drop()
            heads = [queue[0][0] for queue in self.queues.values() if queue]
            entering = self.entering
        return min([*heads, *([entering] if entering else [])], key=lambda op: op.since, default=None)


def finished(array: Any) -> bool:
    """Whether it has been computed. An array that was given away tells nothing more, and counts as finished."""
    return array is None or array.is_deleted() or jax_internals.is_ready(array)


class Watched:
    """A stage whose operations leave a trail. whole: from the host loop's number of a batch to the batch's own."""

    def __init__(self, stage: Any, trail: Trail, whole: Callable[[int], int]):
        self.stage, self.trail, self.whole = stage, trail, whole
        self.extra, self.params = smallest(stage.state.extra), smallest(stage.state.params)

    def run(self, kind: str, batch: int, messages: dict[str, Tree]) -> dict[str, Tree]:
        number, updates = self.whole(batch), self.stage.updates
        self.trail.begin(kind, self.stage.k, number, number)
        array = None
        try:
            sent = self.stage.run(kind, batch, messages)
            array = self.telling(kind, sent, updates)
        finally:
            self.trail.end(array)
        return sent

    def telling(self, kind: str, sent: dict[str, Tree], updates: int) -> Any:
        """The smallest array at hand that the operation computes: of a forward pass a statistic, of a backward pass a
        weight, which are never given away; where there are none a message, which then lives until it is computed."""
        state = self.stage.state
        if kind == "F" and self.extra is not None:
            return self.extra(state.extra)
        if kind == "B" and self.stage.updates > updates and self.params is not None:
            return self.params(state.params)
        return next(iter(jax.tree.leaves(sent)), None)


def smallest(tree: Tree) -> Callable[[Tree], Any] | None:
    """A quick way to the smallest array of such a tree; None if it has none, or not below dictionaries and tuples."""
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
