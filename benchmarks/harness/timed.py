"""A pipeline with the model's own stages on tiny images, every dispatch of which can be timed.

The host does all of its work; the devices do next to none.
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import fdg_jax
from fdg_jax import models, split
from fdg_jax.checks import configuration
from fdg_jax.data.augment import train_transform
from fdg_jax.data.sets import synthetic
from fdg_jax.engine import host_engine
from fdg_jax.recipe import paper_sgd
from fdg_jax.schedule import Box, Op
from fdg_jax.stage.shapes import zeros
from fdg_jax.stage.stage import Stage
from fdg_jax.training.setup import cross_entropy

Clock = Callable[[str, int, Callable[[], Any]], Any]


class TimedStage(Stage):
    """A stage that lets `clock(what, k, call)` make its dispatches."""

    clock: Clock = staticmethod(lambda what, k, call: call())

    def run(self, kind, batch, messages):
        return self.clock(kind, self.k, lambda: super(TimedStage, self).run(kind, batch, messages))

    def update(self):
        self.clock("U", self.k, super().update)


class Calls:
    """A clock that times every call alone. It waits for the results outside the measured time.

    The update is dispatched inside `backward`, so its time, and the waiting around it, are taken out of B's.
    """

    def __init__(self, wait: Callable[[], None]):
        self.wait, self.inside = wait, 0.0
        self.microseconds = defaultdict[tuple[str, int], list[float]](list)

    def __call__(self, what: str, k: int, call: Callable[[], Any]) -> Any:
        outer = time.perf_counter()
        self.wait()
        self.inside, start = 0.0, time.perf_counter()
        result = call()
        end = time.perf_counter()
        self.microseconds[what, k].append(1e6 * (end - start - self.inside))
        jax.block_until_ready(result)
        self.wait()
        self.inside = time.perf_counter() - outer  # for the call around this one
        return result


class Leaves(NamedTuple):
    """Counts arrays that go in and out of a stage's programs."""

    F: int
    B: int
    U: int


class Stopwatch:
    """Adds up the microseconds of calls. Their results are waited for outside the measured time."""

    def __init__(self) -> None:
        self.microseconds = 0.0

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> Any:
        start = time.perf_counter()
        result = function(*arguments)
        self.microseconds += 1e6 * (time.perf_counter() - start)
        return jax.block_until_ready(result)


def median_microseconds(tick: Callable[[Stopwatch, Any], Any], state: Any, ticks: int) -> float:
    """Median microseconds of the calls that state = tick(stopwatch, state) makes."""
    taken = []
    for _ in range(ticks):
        stopwatch = Stopwatch()
        state = tick(stopwatch, state)
        taken.append(stopwatch.microseconds)
    return statistics.median(taken)


def as_one(stage: Stage) -> Callable[..., Any]:
    """A stage's work of a tick (B, U and F) as one program. B and F are of different batches, as below stage K."""
    functions, first = stage.functions, stage.k == 1

    def tick(closure, old, x, dy, state, next_x, labels):
        grads, dx = functions.backward(closure, old, x, dy)
        params, opt_state = functions.update(state.params, state.opt_state, grads)
        messages, extra, closure = functions.forward(params, state.extra, next_x, labels)
        return closure, state._replace(params=params, extra=extra, opt_state=opt_state), messages, None if first else dx

    return jax.jit(tick)


def count_leaves(stage: Stage, K: int) -> Leaves:
    """Counts the arrays of a stage's programs, on a stage that holds a memo (stage K: that made one just now)."""
    last, first = stage.k == K, stage.k == 1

    def count(tree: Any) -> int:
        return len(jax.tree.leaves(tree))

    params, extra, optimizer, *_ = map(count, stage.state)
    closure = count(stage.memos[0].closure)
    return Leaves(
        F=params + extra + 1 + last + 1 + extra + closure,
        B=closure + params + 1 + (not last) + params + (not first),
        U=params + optimizer + params + params + optimizer,
    )


class Small:
    """The model's pipeline on tiny images, filled, with its stages under a clock. packs: whether arrays are packed."""

    def __init__(self, model: str, K: int, cut: str, batch_size: int, size: int, packs: bool = True):
        meta = synthetic.load()
        self.images, self.labels = meta.train_images[:256, :size, :size], meta.train_labels[:256]
        blocks = models.blocks(model, meta.classes)
        cuts = split.parse(cut, model, K, len(blocks))
        self.K, self.row, self.leaves = K, np.arange(batch_size)[None], dict[int, Leaves]()
        stages, transform = split.stages(blocks, cuts), train_transform(meta, 0)
        self.pipeline = fdg_jax.Pipeline(stages, cross_entropy, paper_sgd(0.01), preprocess=transform)
        example = (self.images[self.row[0]], self.labels[self.row[0]])
        with mock.patch.object(configuration, "Stage", TimedStage), mock.patch.object(Stage, "packs", packs):
            self.pipeline.init(jax.random.key(0), example)
        assert isinstance(self.pipeline.engine, host_engine.HostEngine)
        self.runner = self.pipeline.engine
        self.send, self.on_loss = self.runner.loop.send, self.runner.loop.on_loss
        self.set_clock(self.count)
        for _ in range(2 * K):
            self.tick()
        self.wait()

    def set_clock(self, clock: Clock) -> None:
        for stage in self.runner.stages.values():
            stage.clock = clock  # type: ignore[attr-defined]

        def send(box: Box, message: Any, giver: Op | None) -> Any:
            kind = "send" if giver else f"fill {box.what}"
            return clock(kind, 0, lambda: self.send(box, message, giver))

        self.runner.loop.send = send
        self.runner.loop.on_loss = lambda batch, loss: clock("loss", 0, lambda: self.on_loss(batch, loss))

    def count(self, what: str, k: int, call: Callable[[], Any]) -> Any:
        result = call()
        if what == "F":
            self.leaves[k] = count_leaves(self.runner.stages[k], self.K)
        return result

    def wait(self) -> None:
        """Waits until everything is computed, including gradients that have not been used yet."""
        jax.block_until_ready([(stage.state, list(stage.line)) for stage in self.runner.stages.values()])

    def tick(self) -> None:
        self.runner.train(self.images, self.labels, self.row)

    def calls(self, ticks: int) -> dict[tuple[str, int], float]:
        """Median microseconds of each dispatch, by (what, k).

        Beside those of a stage k there are ("send", 0), from any stage to another; ("fill x", 0) and ("fill labels",
        0), of a batch to where it enters; ("loss", 0), of a loss to its reader.
        """
        clock = Calls(self.wait)
        self.set_clock(clock)
        for _ in range(ticks):
            self.tick()
        return {key: statistics.median(values) for key, values in clock.microseconds.items()}

    def programs(self, ticks: int) -> dict[int, tuple[float, float]]:
        """Median microseconds of the dispatches of stage k's B, U and F: its three programs, and all as one program.

        They are the bare calls, without what the stage does around them. The one program gets the same closure every
        time. A closure that it returns has another type (that of its own tracing), with which it would be compiled
        again each time.
        """
        found = {}
        for k, stage in self.runner.stages.items():
            params, extra, place, run = stage.state.params, stage.state.extra, stage.place, as_one(stage)
            x, labels = place.put_batch(zeros((stage.spec.x, stage.spec.labels if k == self.K else None)))
            dy = None if k == self.K else place.put_batch(zeros(stage.spec.y))
            closure = stage._forward(params, extra, x, labels)[2]
            state = stage.state._replace(opt_state=jax.tree.map(jnp.copy, stage.state.opt_state))  # given away below

            def three(call, state, stage=stage, closure=closure, params=params, x=x, dy=dy, labels=labels):
                grads, _ = call(stage._backward, closure, params, x, dy)
                new, opt_state, _ = call(stage._update, state.params, state.opt_state, grads)
                _, extra, _ = call(stage._forward, new, state.extra, x, labels)
                return state._replace(params=new, opt_state=opt_state, extra=extra)

            def one(call, state, run=run, closure=closure, params=params, x=x, dy=dy, labels=labels):
                return call(run, closure, params, x, dy, state, x, labels)[1]

            found[k] = tuple(median_microseconds(tick, state, ticks) for tick in (one, three))[::-1]
        return found

    def ticks(self, ticks: int) -> tuple[float, float]:
        """Median microseconds of (a whole tick, its part before the host loop: the entry of a batch)."""
        self.set_clock(lambda what, k, call: call())
        whole, entry, step = [], [], self.runner.loop.step
        entered = 0.0

        def timed_step(parts):
            nonlocal entered
            entered = time.perf_counter()
            step(parts)

        with mock.patch.object(self.runner.loop, "step", timed_step):
            for _ in range(ticks):
                start = time.perf_counter()
                self.tick()
                end = time.perf_counter()
                self.wait()
                whole.append(1e6 * (end - start))
                entry.append(1e6 * (entered - start))
        return statistics.median(whole), statistics.median(entry)
