"""The delay-line training on one accelerator: the data stay on the device, and one dispatch trains many batches."""

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fdg_jax.checkpoint import state as states
from fdg_jax.checkpoint.state import Reading, number
from fdg_jax.engine.interface import SCAN, WHAT, Engine, Nonfinite, Problem, check_signature, look, signature_entry
from fdg_jax.engine.losses import Results
from fdg_jax.engine.unfinished import UnfinishedOperations
from fdg_jax.machine import programs
from fdg_jax.stages import delay_line, flat, hyperparameters
from fdg_jax.stages.functions import (
    StageState,
    drawing_key,
    flax_variables,
    loss_of,
    make_stage_functions,
    metrics_of,
    split_variables,
)
from fdg_jax.stages.nonfinite import guard_statistics
from fdg_jax.stages.packing import Packing, shapes_of
from fdg_jax.stages.preprocessing import Preprocess
from fdg_jax.stages.update import UpdateRule, average, evaluated, first_refused, newest_norm
from fdg_jax.transport.devices import Place

Tree = Any


class ScanEngine(Engine):
    """BP with a delay line for each stage's gradients (fdg_jax.stages.delay_line), under `lax.scan`. The delay lines
    are ring buffers ("rings").

    run: the state of the run.
    step: one step, (run, inputs of stage 1, labels of the loss, optionally other `functions` and `lines`) -> (run,
        (report, first skipped updates or None, norms of gradients)).
    packed, unpacked: convert a state to the form with packed gradients in the rings, or with gradients as trees (as in
        checkpoints).
    flattened: converts a state to the form that a window takes from batch to batch (fdg_jax.stages.flat); `flat.plain`
        is the inverse.
    within: the last arguments of a step on such a state.
    seeds: the `Seeds` (fdg_jax.engine.seeds) that trains this run together with others and then owns its state; None
        for a run by itself.
    """

    seeds: Any = None
    _run: Any

    def __init__(self, problem: Problem):
        super().__init__(problem)
        self.place = self.last = problem.places[0]
        made, states = zip(*map(make_stage_functions, problem.specs), strict=True)
        guard = problem.specs[0].guard
        guarded = lambda f: f._replace(forward=guard_statistics(f.forward)) if guard else f  # noqa: E731
        self.functions = list(map(guarded, made))
        functions, schedule = self.functions, problem.schedule
        self.takes = [list(state.extra) for state in states]
        rules = list(map(UpdateRule.of, problem.specs))
        mean = schedule.accumulation == "mean"
        self.lines = lines = delay_line.LineOptions(schedule.delays, rules, schedule.accumulate, mean)
        self.flattened, self.within = flat.carried, (functions, lines)
        if type(self.place) is Place:  # arrays sharded over several devices are not packed
            rings = jax.eval_shape(lambda: delay_line.start(states, lines).lines)  # shapes: nothing is allocated
            kept = [jax.eval_shape(lambda ring: jax.tree.map(lambda leaf: leaf[0], ring), ring) if D else None
                    for D, ring in zip(schedule.delays, rings, strict=True)]  # fmt: skip
            self.lines = lines = lines._replace(packings=[Packing(gradient) for gradient in kept])
            alike = [flat.is_alike(rule, state.params) for rule, state in zip(rules, states, strict=True)]
            own = [guarded(flat.functions(f)) if whole else guarded(f) for f, whole in zip(made, alike, strict=True)]
            packings = [flat.packing(gradient, whole) for gradient, whole in zip(kept, alike, strict=True)]
            self.within = own, lines._replace(packings=packings)
            self.flattened = partial(flat.carried, rules=rules, alike=alike)
        self.run = self.begun(states)
        self.unpacked, self.packed = (programs.jit(partial(lines.rings, way)) for way in (lines.unpack, lines.pack))
        self._resident: tuple[Any, Any, Tree] | None = None
        self._evaluated = programs.jit(evaluated)
        self._outputs = programs.jit(self.whole)

        def step(run, x, labels, functions=functions, lines=lines):
            report, held = delay_line.forward(functions, lines, run.stages, x, labels)
            run = delay_line.backward(functions, lines, run, held)
            refused = bad(run)
            return run, (report, jnp.stack(refused) if refused else None, norms(run))

        def one(run, inputs, labels, *within):
            return step(run, *self.preprocessed(inputs, labels, run.entered), *within)

        def window(run, images, labels, indices):
            def of_row(carried, row):
                batch = self.place.cut(jax.tree.map(lambda array: array[row], (images, labels)))
                run, told = one(carried.unpack(), *batch, *self.within)
                return flat.carried(run), told

            carried, told = jax.lax.scan(of_row, self.flattened(run), indices)
            return flat.plain(carried), told

        self.step = step
        shapes = shapes_of(self.run)
        self._step = programs.jit(one, donate_argnums=0, **self.place.results([shapes, None]))
        self._window = programs.jit(window, donate_argnums=0, **self.place.results([shapes, None]))
        self._drain = programs.jit(partial(delay_line.drain, lines), donate_argnums=0, **self.place.results([shapes]))

    @property
    def run(self) -> delay_line.DelayState:
        return self.seeds.state_of(self) if self.seeds else self._run

    @run.setter
    def run(self, run: delay_line.DelayState) -> None:
        if self.seeds:
            self.seeds.replace(self, run)
        else:
            self._run = run

    def preprocessed(self, inputs: Tree, labels: Tree, step: Any) -> tuple[Tree, Tree]:
        """(inputs of stage 1, labels of the loss) of a batch. Traceable. step: number of earlier batches."""
        batch = inputs, labels, step
        x = self._make_inputs(*batch) if self._make_inputs else inputs
        return x, self._make_labels(*batch) if self._make_labels else labels

    def again(self, key: jax.Array, variables: Sequence[Mapping[str, Tree]], preprocess: Preprocess) -> "ScanEngine":
        """An engine with other initial variables and the same programs, for a run with another seed."""
        other = copy.copy(self)
        first = [self.first_state(k, key, *split_variables(each)) for k, each in enumerate(variables, 1)]
        other.losses, other.entered, other.unfinished = self.no_losses(), 0, None
        other._make_inputs = programs.jit(preprocess.inputs)
        other.run = self.begun(first)
        return other

    def first_state(self, k: int, key: jax.Array, params: Tree, extra: dict[str, Tree]) -> StageState:
        """The initial state of stage k, as `Pipeline.init` makes it from a key and the stage's variables."""
        drawn = {"rng": drawing_key(jax.random.fold_in(key, k))}
        return StageState(params, {**extra, **(drawn if "rng" in self.takes[k - 1] else {})})

    def begun(self, states: Sequence[StageState]) -> delay_line.DelayState:
        """The state of a run before its first batch. It has copies of the arrays, because they will be donated and may
        belong to the caller."""
        run = self.lines.rings(self.lines.pack, delay_line.start(states, self.lines))
        return jax.tree.map(jnp.copy, self.place.put_weights(run))

    def watch(self) -> UnfinishedOperations:
        self.unfinished = UnfinishedOperations()
        return self.unfinished

    def begin(self, batches: int) -> None:
        """Notes that the dispatch of `batches` batches begins."""
        if self.unfinished is not None:
            self.unfinished.begin("window", 0, self.entered + 1, self.entered + batches)

    def train_batch(self, inputs: Tree, labels: Tree) -> None:
        arrays = self.place.put_batch((inputs, labels))
        self.begin(1)
        with self.tick():
            self.run, told = self._step(self.run, *arrays)
            self.advance(1, *told)

    def train(self, images: np.ndarray, labels: np.ndarray | None, indices: np.ndarray) -> None:
        if not len(indices):
            return
        if self.seeds:
            self.seeds.enter(self, images, labels, indices)
            return
        if len(indices) == 1 and self.place.device.platform == "cpu":  # XLA on a CPU slows down convolutions in loops
            self.train_batch(images[indices[0]], None if labels is None else labels[indices[0]])
            return
        if self._resident is None or self._resident[0] is not images or self._resident[1] is not labels:
            self._resident = (images, labels, self.place.put_weights((images, labels)))
        rows = self.place.put_weights(indices)
        self.begin(len(indices))
        with self.tick():
            self.run, (report, bad, norms) = self._window(self.run, *self._resident[2], rows)
            self.advance(len(indices), report, None if bad is None else bad[-1], norms)

    @contextmanager
    def tick(self) -> Iterator[None]:
        """Sets `within_tick` during a dispatch. If the dispatch fails before the state has changed, as in tracing,
        `within_tick` becomes False again."""
        before, self.within_tick = self.run, True
        try:
            yield
        except Exception:
            donated = any(leaf.is_deleted() for leaf in jax.tree.leaves(before))
            self.within_tick = donated or self.run is not before
            raise
        self.within_tick = False

    def advance(self, batches: int, report: Tree, bad: jax.Array | None, norms: list[jax.Array]) -> None:
        """Adds the results of a dispatch to `losses`, and counts its batches."""
        if self.unfinished is not None:
            self.unfinished.end(loss_of(report))
        results = Results(loss_of(report), () if bad is None else [bad], norms, metrics_of(report))
        self.losses.add(self.entered + 1, results)
        self.entered += batches

    def drain(self) -> None:
        with self.tick():
            self.run = self._drain(self.run)

    def wait(self) -> None:
        jax.block_until_ready(self.seeds.run if self.seeds else self.run)

    def stage_variables(self, ema: bool = False) -> list[dict[str, Tree]]:
        weights = average if ema else evaluated
        pairs = [(weights(s.params, s.opt_state), s.extra) for s in self.run.stages]
        copies = jax.tree.map(jnp.copy, pairs)  # the next window donates the originals
        return [flax_variables(params, extra) for params, extra in copies]

    def optimizer_states(self) -> list[Tree]:
        return [hyperparameters.of_user(jax.tree.map(jnp.copy, s.opt_state)) for s in self.run.stages]

    def set_hyperparameters(self, values: Mapping[str, Any], stages: Collection[int]) -> None:
        changed = list(self.run.stages)
        for k in stages:
            state = changed[k - 1]
            opt_state = self.place.put_weights(hyperparameters.with_values(state.opt_state, values, k))
            changed[k - 1] = state._replace(opt_state=opt_state)
        self.run = self.run._replace(stages=tuple(changed))

    def auxiliary(self) -> list[Tree]:
        return [() for _ in self.run.stages]

    def bad(self) -> list[jax.Array]:
        return bad(self.run)

    def norms(self) -> list[jax.Array]:
        return norms(self.run)

    def staleness(self) -> list[int]:
        return [int(value) for value in jax.device_get(self.run.staleness)]

    def updates(self) -> list[int]:
        return [int(value) for value in jax.device_get(self.run.updates)]

    def holding(self, variables: Sequence[Mapping[str, Tree]] | None) -> list[tuple[Tree, Tree]]:
        if variables is None and self.seeds:
            return self.seeds
        if variables is None:
            return [(self._evaluated(s.params, s.opt_state), s.extra) for s in self.run.stages]
        given = self.place.put_weights([split_variables(each) for each in variables])
        return [(params, {**s.extra, **extra}) for (params, extra), s in zip(given, self.run.stages, strict=True)]

    def evaluate(self, held: Any, batches: Iterable, transform: Callable[[Tree], Tree] | None, key: Any = None) -> Any:
        if held is not None and held is self.seeds:
            return self.seeds.evaluate(self, batches, transform)
        return super().evaluate(held, batches, transform, key)

    def whole(self, held: Any, x: Tree, keys: Sequence[Any]) -> Tree:
        """The outputs of the whole network in evaluation mode. Traceable."""
        for f, (params, extra), key in zip(self.functions, held, keys, strict=True):
            x = f.outputs(params, extra, x, key)
        return x

    def outputs(
        self, held: Any, inputs: Tree, n: int, transform: Callable[[Tree], Tree] | None, keys: Sequence[Any]
    ) -> Tree:
        x = self.transformed(self.place.put_batch(inputs), transform)
        return self._outputs(held, x, self.place.put_weights(keys))

    def first_nonfinite(self, inputs: Tree, labels: Tree, step: int) -> Nonfinite | None:
        inputs, labels = self.place.put_batch((inputs, labels))
        x, labels = self.preprocessed(inputs, labels, np.int32(step))
        for k, (functions, state) in enumerate(zip(self.functions, self.run.stages, strict=True), 1):
            number, x = look(programs.jit(functions.forward), state, self.place, x, labels)
            if number:
                return Nonfinite(k, WHAT[number])
        return None

    def snapshot(self, own: bool = False) -> dict[str, Any]:
        return signature_entry(self.problem, SCAN) | jax.device_get(states.flatten(self.unpacked(self.run), "run/"))

    def restore(self, state: Mapping[str, Any]) -> None:
        flat = Reading(state)
        check_signature(self.problem, SCAN, flat)
        # Shapes only: after a call that was cut off, the arrays may have been donated.
        like = jax.eval_shape(self.unpacked, self.run) if self.lines.packings else self.run
        run, entered = states.unflatten(like, flat, "run/"), number(flat, "run/.entered")
        flat.check_all_read()
        run = self.packed(self.place.put_weights(run, like))
        self.within_tick = True
        self.run, self.entered, self.losses = run, entered, self.no_losses()
        self.within_tick = False


def bad(run: delay_line.DelayState) -> list[jax.Array]:
    """For each guarded stage, the number of its first skipped update."""
    found = [first_refused(stage.opt_state) for stage in run.stages]
    return [count for count in found if count is not None]


def norms(run: delay_line.DelayState) -> list[jax.Array]:
    """For each stage whose gradient norms are measured, the norm of the newest gradient."""
    found = [newest_norm(stage.opt_state) for stage in run.stages]
    return [norm for norm in found if norm is not None]
