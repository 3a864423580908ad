"""Delay lines on one accelerator: the data stay on the device, and one dispatch trains many batches."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fdg_jax.checkpoint import state as states
from fdg_jax.checkpoint.state import Reading, number
from fdg_jax.engine.evaluate import CompiledTransform, Evaluation, evaluate, fitting_inputs, tally
from fdg_jax.engine.interface import SCAN, Problem, check_signature, signature_entry
from fdg_jax.engine.losses import PendingLosses, Told
from fdg_jax.engine.unfinished import UnfinishedOperations
from fdg_jax.engine.unsound import Unsound, first_unsound
from fdg_jax.machine import programs
from fdg_jax.stage import delay_line
from fdg_jax.stage.evaluated_weights import evaluated
from fdg_jax.stage.functions import flax_variables, loss_of, make_stage_functions, metrics_of
from fdg_jax.stage.gradient_norms import first_refused, newest_norm, watch_updates

Tree = Any


class ScanEngine:
    """BP with a delay line for each stage's gradients (fdg_jax.stage.delay_line), under `lax.scan`.

    Its members are those of `Engine` (fdg_jax.engine.interface).

    run: the state of the run.
    one: one step, (run, inputs, labels) -> (run, (report, first refused updates or None, norms of gradients)).
    """

    def __init__(self, problem: Problem):
        self.problem = problem._replace(specs=[spec._replace(variables={}) for spec in problem.specs])
        self.device = problem.places[0].device
        stages = [
            watch_updates(*make_stage_functions(spec), spec.guard, spec.norms) for spec in problem.specs
        ]
        self.functions, states = zip(*stages, strict=True)
        functions, schedule = self.functions, problem.schedule
        lines = delay_line.LineOptions(
            schedule.behind,
            [spec.correction for spec in problem.specs],
            schedule.accumulate,
            schedule.accumulation == "mean",
            problem.specs[0].guard,
        )
        self.run = jax.device_put(delay_line.start(states, lines), self.device)
        self.run = jax.tree.map(jnp.copy, self.run)  # the arrays are donated, so they must not be the caller's
        self.losses = PendingLosses(problem.read_behind)
        self.entered = 0
        self.within_tick = False  # stays True after a call that was cut off while the run was donated
        self.unfinished: UnfinishedOperations | None = None
        self._resident: tuple[Any, Any, Tree] | None = None
        self._evaluated = CompiledTransform(self.evaluated)
        self._predicted = CompiledTransform(lambda transform: partial(self.outputs, transform=transform))

        def one(run, inputs, labels):
            x = problem.preprocess(inputs, run.entered) if problem.preprocess else inputs
            report, held = delay_line.forward(functions, lines, run.stages, x, labels)
            run = delay_line.backward(functions, lines, run, held)
            refused = bad(run)
            return run, (report, jnp.stack(refused) if refused else None, norms(run))

        def window(run, images, labels, indices):
            return jax.lax.scan(lambda run, row: one(run, images[row], labels[row]), run, indices)

        self.one = one
        self._step = programs.jit(one, donate_argnums=0)
        self._window = programs.jit(window, donate_argnums=0)
        self._drain = programs.jit(partial(delay_line.drain, functions, lines), donate_argnums=0)

    def watch(self) -> UnfinishedOperations:
        """From now on, notes every dispatch until it is finished."""
        self.unfinished = UnfinishedOperations()
        return self.unfinished

    def begin(self, batches: int) -> None:
        """Notes that a dispatch of so many batches begins."""
        if self.unfinished is not None:
            self.unfinished.begin("window", 0, self.entered + 1, self.entered + batches)

    def step(self, inputs: Tree, labels: Tree) -> None:
        """Enters one batch. Dispatches and does not wait."""
        arrays = jax.device_put((inputs, labels), self.device)
        self.begin(1)
        with self.tick():
            self.run, told = self._step(self.run, *arrays)
            self.advance(1, *told)

    def train(self, images: np.ndarray, labels: np.ndarray, indices: np.ndarray) -> None:
        """Enters the batches images[row], labels[row] for the rows of indices [W, batch], in one dispatch.

        images and labels stay on the device between calls, so they must not be changed in place. Other arrays are put
        there.
        """
        if not len(indices):
            return
        if self._resident is None or self._resident[0] is not images or self._resident[1] is not labels:
            self._resident = (images, labels, jax.device_put((images, labels), self.device))
        rows = jax.device_put(indices, self.device)
        self.begin(len(indices))
        with self.tick():
            self.run, (report, bad, norms) = self._window(self.run, *self._resident[2], rows)
            self.advance(len(indices), report, None if bad is None else bad[-1], norms)

    @contextmanager
    def tick(self) -> Iterator[None]:
        """Marks what must not be cut off. A program that failed to trace has changed nothing, and does no harm."""
        before, self.within_tick = self.run, True
        try:
            yield
        except Exception:
            donated = any(leaf.is_deleted() for leaf in jax.tree.leaves(before))
            self.within_tick = donated or self.run is not before
            raise
        self.within_tick = False

    def advance(self, batches: int, report: Tree, bad: jax.Array | None, norms: list[jax.Array]) -> None:
        """Notes the losses of a dispatch, and what comes with them."""
        if self.unfinished is not None:
            self.unfinished.end(loss_of(report))
        told = Told(() if bad is None else [bad], norms, metrics_of(report))
        self.losses.add(self.entered + 1, loss_of(report), told)
        self.entered += batches

    def drain(self) -> None:
        """Finishes what is in flight, so that every batch has updated every stage."""
        with self.tick():
            self.run = self._drain(self.run)

    def wait(self) -> None:
        """Blocks until everything that was dispatched has been computed."""
        jax.block_until_ready(self.run)

    def stage_variables(self) -> list[dict[str, Tree]]:
        """For each stage, the network's Flax variables."""
        pairs = [(evaluated(s.params, s.opt_state), s.extra) for s in self.run.stages]
        copies = jax.tree.map(jnp.copy, pairs)  # the next window donates these
        return [flax_variables(params, extra) for params, extra in copies]

    def auxiliary(self) -> list[Tree]:
        """For each stage (): none of the methods that are delay lines adds parameters."""
        return [() for _ in self.run.stages]

    def refused(self) -> tuple[int, ...]:
        """For each guarded stage, the number of its first refused update, 0 if none. Waits for the devices."""
        return tuple(map(int, jax.device_get(bad(self.run))))

    def gradient_norms(self) -> tuple[float, ...]:
        """For each stage the norm of its newest gradient, where they are measured. Waits for the devices."""
        return tuple(map(float, jax.device_get(norms(self.run))))

    def staleness(self) -> list[int]:
        """For each stage, the largest measured staleness, in updates."""
        return [int(value) for value in jax.device_get(self.run.staleness)]

    def updates(self) -> list[int]:
        """For each stage, the number of its updates."""
        return [int(value) for value in jax.device_get(self.run.updates)]

    def evaluated(self, transform: Callable[[Tree], Tree] | None) -> Callable:
        """Makes run(stages, inputs, labels) -> Tally for a transform."""

        def run(stages, inputs, labels):
            return tally(self.problem.specs[-1].report, self.outputs(stages, inputs, transform), labels)

        return run

    def outputs(self, stages: Any, inputs: Tree, transform: Callable[[Tree], Tree] | None) -> Tree:
        """The outputs of the whole network in evaluation mode. It can be traced."""
        x = transform(inputs) if transform else inputs
        for f, s in zip(self.functions, stages, strict=True):
            x = f.outputs(evaluated(s.params, s.opt_state), s.extra, x)
        return x

    def predict(self, inputs: Tree, transform: Callable[[Tree], Tree] | None) -> Tree:
        """The outputs of the last stage with the newest weights. transform: as in `evaluate`."""
        with fitting_inputs(inputs, self.problem.specs[0].x):
            return self._predicted(transform)(self.run.stages, jax.device_put(inputs, self.device))

    def evaluate(self, batches: Iterable, transform: Callable[[Tree], Tree] | None) -> Evaluation:
        """Loss and error with the newest weights. transform: takes inputs to what stage 1 takes; or None."""
        run = self._evaluated(transform)
        expected = self.problem.specs[0].x, self.problem.specs[-1].labels

        def on_device(inputs, labels):
            return run(self.run.stages, *jax.device_put((inputs, labels), self.device))

        return evaluate(on_device, batches, self.unfinished, expected)

    def unsound(self, inputs: Tree, labels: Tree, step: int) -> Unsound | None:
        """The first stage that produces a NaN or an infinity for a batch. step: number of batches before it."""
        x, labels = jax.device_put((inputs, labels), self.device)
        if self.problem.preprocess:
            x = programs.jit(self.problem.preprocess)(x, np.int32(step))
        place = self.problem.places[0]
        return first_unsound([(f, s, place) for f, s in zip(self.functions, self.run.stages, strict=True)], x, labels)

    def snapshot(self, own: bool = False) -> dict[str, Any]:
        """The exact state, gradients in the delay lines included, as {path: array} on the host.

        own: there is no other process.

        The next dispatch donates all arrays, so they are read now. A copy on the device would need twice the memory.
        """
        return signature_entry(self.problem, SCAN) | jax.device_get(states.flatten(self.run, "run/"))

    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of `snapshot`.

        Arguments:
            state: what `snapshot` returned.

        Raises:
            BadInput: it is of another model, split, method or engine. Nothing has changed then.
        """
        flat = Reading(state)
        check_signature(self.problem, SCAN, flat)
        run, entered = states.unflatten(self.run, flat, "run/"), number(flat, "run/.entered")
        flat.check_all_read()
        run = jax.device_put(run, self.device)
        self.within_tick = True
        self.run, self.entered, self.losses = run, entered, PendingLosses(self.problem.read_behind)
        self.within_tick = False


def bad(run: delay_line.DelayState) -> list[jax.Array]:
    """For each guarded stage, the number of its first refused update."""
    found = [first_refused(stage.opt_state) for stage in run.stages]
    return [count for count in found if count is not None]


def norms(run: delay_line.DelayState) -> list[jax.Array]:
    """For each stage whose gradients are measured, the norm of the newest."""
    found = [newest_norm(stage.opt_state) for stage in run.stages]
    return [norm for norm in found if norm is not None]
