"""The time that each operation of a real pipeline takes by itself: the input of the simulator.

The pipeline trains as usual, except that the host waits for each dispatch before the next. So F, B, U and a method's
own operations are the same programs as in a run. Shapes, process and threads are the same, too. (A micro-batch is
measured, not computed from a batch.) On several cores, each operation is measured twice. When it is "alone", it may use
all cores. When it is "crowded", other threads keep the devices of other stages busy, one thread for each further core.
"""

import itertools
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import Any
from unittest import mock

import jax
import numpy as np

from benchmarks.harness.hooks import Call, around, is_operation
from fdg_jax.engine.host_engine import HostEngine
from fdg_jax.transport.devices import Place


class Clock:
    """Adds up seconds by (what, k). The host's time is that of a dispatch; the device's time is from then until all is
    computed.

    It is a hook (benchmarks.harness.hooks). The update is dispatched inside B, so the update's times are subtracted
    from B's times.
    crowded(k, batch): a context in which an operation of stage k runs.
    """

    def __init__(self, engine: HostEngine, crowded: Callable[[int, int], Any] = lambda k, batch: nullcontext()) -> None:
        self.engine, self.crowded = engine, crowded
        self.host = defaultdict[tuple[str, int], list[float]](list)
        self.device = defaultdict[tuple[str, int], list[float]](list)
        self.within = 0.0, 0.0  # (seconds of the last call, seconds of it spent waiting before the dispatch)

    def held(self, k: int) -> Any:
        """The arrays of a stage that its last dispatch made or changed."""
        stage = self.engine.stages.get(k)
        return (stage.state, stage.sum, stage.bad, list(stage.line), list(stage.stashes)[-1:]) if stage else ()

    def __call__(self, call: Call, dispatch: Callable[[], Any]) -> Any:
        if call.what == "enter":
            self.entered(call.message)
        if call.what in ("enter", "tell"):
            return dispatch()
        with self.crowded(call.k, call.batch) if is_operation(call) else nullcontext():
            entered = time.perf_counter()
            jax.block_until_ready(self.held(call.k))
            start, self.within = time.perf_counter(), (0.0, 0.0)
            result = dispatch()
            called, (inside, waited) = time.perf_counter(), self.within
            jax.block_until_ready((result, self.held(call.k)))
            end = time.perf_counter()
        key = (f"{call.what} {call.address.what}" if call.address else call.what), call.k
        self.host[key].append(called - start - inside)
        self.device[key].append(end - called + waited)
        self.within = end - entered, start - entered
        return result

    def train(self, images: np.ndarray, labels: np.ndarray, row: np.ndarray) -> None:
        """Lets a batch enter. The work on the batch before the host loop is timed as well."""
        self.began = time.perf_counter()
        self.engine.train(images, labels, row[None])

    def entered(self, parts: Any) -> None:
        called = time.perf_counter()
        jax.block_until_ready(parts)
        self.host["enter", 1].append(called - self.began)
        self.device["enter", 1].append(time.perf_counter() - called)

    def forget(self) -> None:
        self.host.clear()
        self.device.clear()

    def means(self) -> dict[str, dict[str, float]]:
        """{"host": ..., "device": ...}: seconds by "what/k" of every stage k."""
        both = {"host": self.host, "device": self.device}
        return {name: {f"{what}/{k}": statistics.fmean(taken) for (what, k), taken in found.items() if k}
                for name, found in both.items()}  # fmt: skip


class Recorder:
    """A program that remembers its last arguments."""

    def __init__(self, program: Callable):
        self.program, self.arguments = program, ()

    def __call__(self, *arguments: Any) -> Any:
        self.arguments = arguments
        return self.program(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.program, name)


@contextmanager
def recorded(engine: HostEngine) -> Iterator[dict[int, list[Recorder]]]:
    """A context with each stage's forward and backward programs, {k: programs}. They donate nothing, so they can run
    again at any time."""
    found: dict[int, list[Recorder]] = {}
    with ExitStack() as stack:
        for k, stage in engine.stages.items():
            found[k] = [Recorder(stage._forward), Recorder(stage._backward)]
            stack.enter_context(mock.patch.multiple(stage, _forward=found[k][0], _backward=found[k][1]))
        yield found


@contextmanager
def crowd(stages: Sequence[Sequence[Recorder]]) -> Iterator[None]:
    """A context in which these stages permanently repeat their operations on their last batch. The results are
    dropped."""
    stop, begun = threading.Event(), threading.Barrier(len(stages) + 1)

    def fill(programs: Sequence[Recorder]) -> None:
        try:
            for number, program in enumerate(itertools.cycle(programs)):
                working = program.program(*program.arguments)
                if number == 0:
                    begun.wait()  # the timed operation begins while this computes
                jax.block_until_ready(working)
                if stop.is_set():
                    return
        except BaseException:
            begun.abort()
            raise

    with ThreadPoolExecutor(len(stages)) as pool:
        filling = [pool.submit(fill, programs) for programs in stages]
        try:
            with suppress(threading.BrokenBarrierError):
                begun.wait()
                yield
        finally:
            stop.set()
    for one in filling:
        one.result()  # raises its error


def measure(
    engine: HostEngine, images: np.ndarray, labels: np.ndarray, indices: np.ndarray, cores: int
) -> dict[str, Any]:
    """Measures the mean times over the batches; they add up to a run's time.

    The pipeline must be full, and stays full. The first row of `indices` is not timed: the process has slept while
    other processes used the caches, and the arrays that are kept for repetitions take new memory.

    Returns: {"alone": {"host": ..., "device": ...}, "crowded": like "device" of "alone", "run_ahead": unread losses},
    where ... is seconds by "what/k" (F/1, U/2, "send x/2", "enter/1"). crowded is None if no two stages can compute at
    once.
    """

    def times(clock: Clock) -> dict[str, dict[str, float]]:
        with around(engine, clock):
            for number, row in enumerate(indices):
                clock.train(images, labels, row)
                if number == 0:
                    clock.forget()
        return clock.means()

    spread = any(type(stage.place) is not Place for stage in engine.stages.values())
    others = 0 if spread else min(len(engine.stages), cores) - 1
    with recorded(engine) as programs:

        def crowded(k: int, batch: int) -> Any:
            busy = [programs[j] for j in programs if j != k][:others]
            # The timed operation competes with their forward and backward passes in turn.
            return crowd([[*each[batch % 2 :], *each[: batch % 2]] for each in busy])

        alone = times(Clock(engine))
        beside = times(Clock(engine, crowded))["device"] if others else None
    return {"run_ahead": engine.losses.limit, "alone": alone, "crowded": beside}
