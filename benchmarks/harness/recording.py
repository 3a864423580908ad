"""Records when each operation of a real run began and ended, without extra work for the devices.

When an operation is dispatched, its results go to a thread of its stage, which waits for the results one by one.
"""

import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks.harness.hooks import Call, around, is_operation
from fdg_jax.engine.host_engine import HostEngine
from fdg_jax.machine import jax_internals
from fdg_jax.schedule import Address, Op


class Dispatched(NamedTuple):
    """An operation, or a message, that was dispatched.

    what: an operation's kind, "enter", "U" or "send".
    k: the stage (for "send", the sender).
    batch: the batch's number.
    at: when it was dispatched, in seconds of time.perf_counter.
    takes, gives: the messages that it reads and sends.
    to: for "send", the receiving stage.
    """

    what: str
    k: int
    batch: int
    at: float
    takes: tuple[Address, ...] = ()
    gives: tuple[Address, ...] = ()
    to: int = 0


class Watcher:
    """A thread that waits for the results of one stage (or link), in the order in which they were dispatched."""

    def __init__(self) -> None:
        self.queue: queue.SimpleQueue[tuple[Dispatched, Any] | None] = queue.SimpleQueue()
        self.ended: list[tuple[Dispatched, float]] = []
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def watch(self) -> None:
        """The thread."""
        while (item := self.queue.get()) is not None:
            dispatched, arrays = item
            jax.block_until_ready(arrays)
            self.ended.append((dispatched, time.perf_counter()))
            del item, arrays  # else memory is held until the next item comes

    def stop(self) -> list[tuple[Dispatched, float]]:
        """Ends the thread. Returns the dispatched items, each with the time when its end was seen."""
        self.queue.put(None)
        self.thread.join()
        return self.ended


class Recording:
    """Adds watchers to the stages and links of an engine, from now until `stop`."""

    def __init__(self, engine: HostEngine):
        self.engine, self.watchers, self.stack = engine, dict[Any, Watcher](), ExitStack()
        self.computing = dict[int, Any]()  # by stage, the operation that is being dispatched
        self.stack.enter_context(around(engine, self.hook))

    def tell(self, where: Any, dispatched: Dispatched, arrays: Any) -> None:
        """Hands the results of a dispatch to the watcher of a stage or link."""
        if where not in self.watchers:
            self.watchers[where] = Watcher()
        self.watchers[where].queue.put((dispatched, arrays))

    def hook(self, call: Call, dispatch: Callable[[], Any]) -> Any:
        """Makes a dispatch and hands its results on."""
        at, k = time.perf_counter(), call.k
        stage: Any = self.engine.stages.get(k)
        if is_operation(call):
            takes, gives, _ = self.engine.loop.schedule.messages
            op = Op(call.what, k, call.batch)
            self.computing[k] = Dispatched(*op, at, takes(op), gives(op))
            given = dispatch()
            if (one := self.computing[k]) is not None:  # else the update has reported it
                self.tell(k, one, (given, stage.sum if call.what == "B" else stage.state.extra))
            return given
        if call.what == "enter" and stage:
            self.tell(1, Dispatched("enter", 1, call.batch, at), call.message)
        if call.what == "U":
            self.tell(k, self.computing[k], stage.sum)
            self.computing[k], at = None, time.perf_counter()
        given = dispatch()
        if call.what == "U":
            self.tell(k, Dispatched("U", k, call.batch, at), stage.state.params)
        if call.sender and call.address and given is not None:  # None: another process receives and records it
            sent = Dispatched("send", call.sender.k, call.batch, at, (), (call.address,), k)
            self.tell((call.sender.k, k), sent, given)
        return given

    def stop(self) -> list[tuple[Dispatched, float]]:
        """Removes the watchers. Returns the dispatched items, each with the time when its end was seen."""
        self.stack.close()
        return [each for watcher in self.watchers.values() for each in watcher.stop()]


@contextmanager
def quick_threads() -> Iterator[None]:
    """A context in which threads ask for Python's lock every 0.1 ms instead of every 5 ms."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def lateness(tries: int = 40) -> list[float]:
    """For each try, the delay in seconds with which a watcher sees an end, relative to a thread that polls without
    pause."""
    watcher, found = Watcher(), []
    step = jax.jit(lambda x: jax.lax.fori_loop(0, 60, lambda i, x: x @ x / 300, x))
    x = jax.device_put(np.ones((300, 300), np.float32))
    step(x).block_until_ready()
    for n in range(tries):
        y = step(x)
        watcher.queue.put((Dispatched("F", 1, n, 0.0), y))
        while not jax_internals.is_ready(y):
            pass
        seen = time.perf_counter()
        while len(watcher.ended) <= n:
            pass
        found.append(max(0.0, watcher.ended[-1][1] - seen))
    watcher.stop()
    return found
