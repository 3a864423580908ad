"""Delay lines on one accelerator: data resident on the device, a window of batches a dispatch."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fdg_jax.engine.evaluate import Compiled, Evaluation, evaluate, tally
from fdg_jax.engine.interface import SCAN, Parts, check_signature, signed
from fdg_jax.engine.losses import LossWindow
from fdg_jax.engine.unfinished import Trail
from fdg_jax.engine.unsound import Unsound, first_unsound
from fdg_jax.stage import delay_line
from fdg_jax.stage.functions import flax_variables, made
from fdg_jax.stage.nonfinite import Guarded, guarded
from fdg_jax.storage import checkpoint
from fdg_jax.storage.restoring import Reading, number

Tree = Any


class ScanEngine:
    """BP with a delay line on each stage's gradient (fdg_jax.stage.delay_line) under `lax.scan`."""

    def __init__(self, parts: Parts):
        self.parts = parts._replace(specs=[spec._replace(variables={}) for spec in parts.specs])
        self.device = parts.places[0].device
        stages = [guarded(*made(spec)) if spec.guard else made(spec) for spec in parts.specs]
        self.functions, states = zip(*stages, strict=True)
        functions, schedule = self.functions, parts.schedule
        lines = delay_line.Lines(
            schedule.behind,
            [spec.correction for spec in parts.specs],
            schedule.accumulate,
            schedule.accumulation == "mean",
            parts.specs[0].guard,
        )
        self.run = jax.device_put(delay_line.start(states, lines), self.device)
        self.run = jax.tree.map(jnp.copy, self.run)  # donated below: never the caller's arrays
        self.losses = LossWindow(parts.read_behind)
        self.entered = 0
        self.within_tick = False  # stays True after a call that was cut off while the run was given away
        self.trail: Trail | None = None
        self._resident: tuple[Any, Any, Tree] | None = None
        self._evaluated = Compiled(self.evaluated)

        def one(run, inputs, labels):
            x = parts.preprocess(inputs, run.entered) if parts.preprocess else inputs
            loss, held = delay_line.forward(functions, lines, run.stages, x, labels)
            run = delay_line.backward(functions, lines, run, held)
            refused = bad(run)
            return run, (loss, jnp.stack(refused) if refused else None)

        def window(run, images, labels, indices):
            return jax.lax.scan(lambda run, row: one(run, images[row], labels[row]), run, indices)

        self.one = one  # a step: (run, inputs, labels) -> (run, (loss, what was refused))
        self._step = jax.jit(one, donate_argnums=0)
        self._window = jax.jit(window, donate_argnums=0)
        self._drain = jax.jit(partial(delay_line.drain, functions, lines), donate_argnums=0)

    def watch(self) -> Trail:
        """From now on every dispatch leaves a trail."""
        self.trail = Trail()
        return self.trail

    def begin(self, batches: int) -> None:
        if self.trail is not None:
            self.trail.begin("window", 0, self.entered + 1, self.entered + batches)

    def step(self, inputs: Tree, labels: Tree) -> None:
        arrays = jax.device_put((inputs, labels), self.device)
        self.begin(1)
        with self.tick():
            self.run, (loss, bad) = self._step(self.run, *arrays)
            self.advance(1, loss, bad)

    def train(self, images: np.ndarray, labels: np.ndarray, indices: np.ndarray) -> None:
        """One dispatch for all W batches. images and labels stay on the device between calls, so they must not be
        changed in place; other arrays are put there anew."""
        if self._resident is None or self._resident[0] is not images or self._resident[1] is not labels:
            self._resident = (images, labels, jax.device_put((images, labels), self.device))
        rows = jax.device_put(indices, self.device)
        self.begin(len(indices))
        with self.tick():
            self.run, (losses, bad) = self._window(self.run, *self._resident[2], rows)
            self.advance(len(indices), losses, None if bad is None else bad[-1])

    @contextmanager
    def tick(self) -> Iterator[None]:
        """Marks what must not be cut off. A program that could not be traced was given nothing: that is no harm."""
        before, self.within_tick = self.run, True
        try:
            yield
        except Exception:
            given_away = any(leaf.is_deleted() for leaf in jax.tree.leaves(before))
            self.within_tick = given_away or self.run is not before
            raise
        self.within_tick = False

    def advance(self, batches: int, losses: jax.Array, bad: jax.Array | None) -> None:
        if self.trail is not None:
            self.trail.end(losses)
        self.losses.add(self.entered + 1, losses, () if bad is None else [bad])
        self.entered += batches

    def drain(self) -> None:
        with self.tick():
            self.run = self._drain(self.run)

    def wait(self) -> None:
        jax.block_until_ready(self.run)

    def stage_variables(self) -> list[dict[str, Tree]]:
        copies = jax.tree.map(jnp.copy, [(s.params, s.extra) for s in self.run.stages])  # the next window donates these
        return [flax_variables(params, extra) for params, extra in copies]

    def auxiliary(self) -> list[Tree]:
        return [() for _ in self.run.stages]  # none of the methods that are delay lines has any

    def refused(self) -> tuple[int, ...]:
        return tuple(map(int, jax.device_get(bad(self.run))))

    def staleness(self) -> list[int]:
        return [int(value) for value in jax.device_get(self.run.staleness)]

    def updates(self) -> list[int]:
        return [int(value) for value in jax.device_get(self.run.updates)]

    def evaluated(self, transform: Callable[[Tree], Tree] | None) -> Callable:
        def run(stages, inputs, labels):
            x = transform(inputs) if transform else inputs
            for f, s in zip(self.functions, stages, strict=True):
                x = f.outputs(s.params, s.extra, x)
            return tally(self.parts.specs[-1].loss, x, labels)

        return run

    def evaluate(self, batches: Iterable, transform: Callable[[Tree], Tree] | None) -> Evaluation:
        run = self._evaluated(transform)
        expected = self.parts.specs[0].x, self.parts.specs[-1].labels

        def on_device(inputs, labels):
            return run(self.run.stages, *jax.device_put((inputs, labels), self.device))

        return evaluate(on_device, batches, self.trail, expected)

    def unsound(self, inputs: Tree, labels: Tree, step: int) -> Unsound | None:
        """As that of the host loop."""
        x, labels = jax.device_put((inputs, labels), self.device)
        if self.parts.preprocess:
            x = jax.jit(self.parts.preprocess)(x, np.int32(step))
        place = self.parts.places[0]
        return first_unsound([(f, s, place) for f, s in zip(self.functions, self.run.stages, strict=True)], x, labels)

    def snapshot(self) -> dict[str, Any]:
        """Everything a resumed run needs; the gradients in the delay lines included. The next dispatch is given all of
        it, so it is read here and now: a copy on the device would need twice the memory."""
        return signed(self.parts, SCAN) | jax.device_get(checkpoint.flatten(self.run, "run/"))

    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of `snapshot`. BadInput where it is of another model, split, method or engine; then nothing has
        changed."""
        flat = Reading(state)
        check_signature(self.parts, SCAN, flat)
        run, entered = checkpoint.unflatten(self.run, flat, "run/"), number(flat, "run/.entered")
        flat.check_all_read()
        run = jax.device_put(run, self.device)
        self.within_tick = True
        self.run, self.entered, self.losses = run, entered, LossWindow(self.parts.read_behind)
        self.within_tick = False


def bad(run: delay_line.DelayState) -> list[jax.Array]:
    """Of guarded stages the numbers of their first refused updates."""
    return [stage.opt_state.bad for stage in run.stages if isinstance(stage.opt_state, Guarded)]
