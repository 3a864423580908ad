"""The time that each operation of a real pipeline takes by itself: the input of the simulator.

The pipeline trains as usual, except that each dispatch is waited for before the next. So F, B, U and a method's own
operations are the same programs as in the run, with the same shapes, in the same process with the same threads. (A
micro-batch is measured, not computed from a batch.) On several cores, each operation is measured twice: alone, when it
may use all cores, and crowded, while other threads keep the devices of other stages computing, one for each further
core.
"""

import itertools
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from fdg_jax.engine.host_engine import HostEngine
from fdg_jax.schedule import Box, Op
from fdg_jax.stage.stage import Stage
from fdg_jax.transport.devices import Place


class Clock:
    """Adds up seconds by (what, k): of the host, in a dispatch, and of the device, from there until all is computed.

    The update is dispatched inside B, so its shares are taken out of B's.
    """

    def __init__(self) -> None:
        self.host = defaultdict[tuple[str, int], list[float]](list)
        self.device = defaultdict[tuple[str, int], list[float]](list)
        self.nested, self.waited = 0.0, 0.0

    def __call__(self, what: str, k: int, call: Callable[[], Any], held: Callable[[], Any] = tuple) -> Any:
        """Makes the call, then waits for its result and for what `held` returns."""
        self.nested = self.waited = 0.0
        start = time.perf_counter()
        result = call()
        called = time.perf_counter()
        jax.block_until_ready((result, held()))
        end = time.perf_counter()
        self.host[what, k].append(called - start - self.nested)
        self.device[what, k].append(end - called + self.waited)
        return result

    def inside(self, what: str, k: int, call: Callable[[], Any], before: Any, held: Callable[[], Any]) -> None:
        """A dispatch within another call. `before` is what that call has dispatched so far."""
        outer = time.perf_counter()
        jax.block_until_ready(before)
        start = time.perf_counter()
        call()
        called = time.perf_counter()
        jax.block_until_ready(held())
        end = time.perf_counter()
        self.host[what, k].append(called - start)
        self.device[what, k].append(end - called)
        self.waited += start - outer
        self.nested += end - outer

    def forget(self) -> None:
        self.host.clear()
        self.device.clear()

    def means(self) -> dict[str, dict[str, float]]:
        """{"host": ..., "device": ...}: seconds by "what/k"."""
        both = {"host": self.host, "device": self.device}
        return {name: {f"{what}/{k}": statistics.fmean(taken) for (what, k), taken in found.items()}
                for name, found in both.items()}  # fmt: skip


@contextmanager
def clocked(engine: HostEngine, clock: Clock) -> Iterator[None]:
    """The engine, with every dispatch timed by the clock."""
    loop, send = engine.loop, engine.loop.send
    for stage in engine.stages.values():
        watch(stage, clock)
    # Boxes that are filled from outside are of kind "fill"; what an operation sends is of its kind of message.

    def clocked_send(box: Box, message: Any, giver: Op | None) -> Any:
        kind = f"send {box.what}" if giver else "fill"
        return clock(kind, box.k, lambda: send(box, message, giver))

    loop.send = clocked_send
    try:
        yield
    finally:
        loop.send = send
        for stage in engine.stages.values():
            for name in ("run", "update"):
                vars(stage).pop(name, None)


def watch(stage: Stage, clock: Clock) -> None:
    """Times every dispatch of a stage by a clock."""
    run, update = stage.run, stage.update

    def held() -> Any:
        return stage.state, stage.sum, stage.bad, list(stage.line), list(stage.memos)[-1:]

    def clocked_run(kind: str, batch: int, messages: dict[str, Any]) -> dict[str, Any]:
        return clock(kind, stage.k, lambda: run(kind, batch, messages), held)

    stage.run = clocked_run
    stage.update = lambda: clock.inside("U", stage.k, update, stage.sum, held)


def enter(engine: HostEngine, clock: Clock, images: np.ndarray, labels: np.ndarray, row: np.ndarray) -> None:
    """The entry of a batch: what is done to it before the host loop is timed as well."""
    step, start = engine.loop.step, time.perf_counter()

    def timed_step(parts: Any) -> None:
        called = time.perf_counter()
        jax.block_until_ready(parts)
        clock.host["enter", 1].append(called - start)
        clock.device["enter", 1].append(time.perf_counter() - called)
        step(parts)

    engine.loop.step = timed_step
    try:
        engine.train(images, labels, row[None])
    finally:
        del engine.loop.step


class Recorder:
    """A program that remembers its last arguments."""

    def __init__(self, program: Callable):
        self.program, self.arguments = program, ()

    def __call__(self, *arguments: Any) -> Any:
        self.arguments = arguments
        return self.program(*arguments)

    def again(self) -> Any:
        return self.program(*self.arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.program, name)


@contextmanager
def recorded(engine: HostEngine) -> Iterator[dict[int, list[Recorder]]]:
    """By stage, its forward and backward programs. They donate nothing, so they can run again at any time."""
    found: dict[int, list[Recorder]] = {}
    for k, stage in engine.stages.items():
        found[k] = [Recorder(stage._forward), Recorder(stage._backward)]
        vars(stage).update(zip(("_forward", "_backward"), found[k], strict=True))
    try:
        yield found
    finally:
        for k, stage in engine.stages.items():
            vars(stage).update(_forward=found[k][0].program, _backward=found[k][1].program)


@contextmanager
def crowd(stages: Sequence[Sequence[Recorder]]) -> Iterator[None]:
    """Lets these stages repeat their operations on their last batch all the time. The results are dropped."""
    stop, errors = threading.Event(), list[BaseException]()
    begun = threading.Barrier(len(stages) + 1)

    def fill(programs: Sequence[Recorder]) -> None:
        try:
            for number, program in enumerate(itertools.cycle(programs)):
                working = program.again()
                if number == 0:
                    begun.wait()  # what is timed begins while this computes
                jax.block_until_ready(working)
                if stop.is_set():
                    return
        except BaseException as error:
            errors.append(error)
            begun.abort()

    threads = [threading.Thread(target=fill, args=(programs,), daemon=True) for programs in stages]
    for thread in threads:
        thread.start()
    try:
        begun.wait()
        yield
    except threading.BrokenBarrierError:
        pass
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]


def measure(
    engine: HostEngine, images: np.ndarray, labels: np.ndarray, indices: np.ndarray, cores: int
) -> dict[str, Any]:
    """Measures the mean times over the batches; they add up to a run's time.

    The pipeline has to be full, and it stays so. The first row of `indices` is not timed: the process has slept while
    others used the caches, and what is kept here for repeating takes memory that the process may not have had.

    Returns: {"alone": {"host": ..., "device": ...}, "crowded": like "device" of "alone", "run_ahead": unread losses},
    where ... is seconds by "what/k" (F/1, U/2, "send x/2", "enter/1"). crowded is None if no two stages can compute at
    once.
    """

    def train(clock: Clock) -> None:
        for number, row in enumerate(indices):
            enter(engine, clock, images, labels, row)
            if number == 0:
                clock.forget()

    spread = any(type(stage.place) is not Place for stage in engine.stages.values())
    others = 0 if spread else min(len(engine.stages), cores) - 1
    alone, crowded = Clock(), Clock()
    with recorded(engine) as programs:
        with clocked(engine, alone):
            train(alone)
        if others:
            with clocked(engine, crowded):
                for k, stage in engine.stages.items():
                    busy = [programs[j] for j in programs if j != k][:others]
                    stage.run = in_crowd(stage.run, busy)
                train(crowded)
    crowded_means = crowded.means()["device"] if others else None
    return {"run_ahead": engine.losses.limit, "alone": alone.means(), "crowded": crowded_means}


def in_crowd(run: Callable, busy: Sequence[Sequence[Recorder]]) -> Callable:
    def crowded(kind: str, batch: int, messages: dict[str, Any]) -> dict[str, Any]:
        # It meets their forward and their backward passes in turn.
        with crowd([[*programs[batch % 2 :], *programs[: batch % 2]] for programs in busy]):
            return run(kind, batch, messages)

    return crowded
