"""The engine of the host loop: K stages on K devices or, on a CPU, one device that stands in for them."""

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from fdg_jax.arrays import cotangent
from fdg_jax.checkpoint import state as states
from fdg_jax.checkpoint.state import Reading, number
from fdg_jax.engine.evaluate import CompiledTransform, Evaluation, evaluate, fitting_inputs, tally
from fdg_jax.engine.host_loop import HostLoop
from fdg_jax.engine.interface import HOST_LOOP, Engine, Problem, check_signature, signature_entry
from fdg_jax.engine.losses import PendingLosses, Told
from fdg_jax.engine.message_shapes import with_examples
from fdg_jax.engine.micro_batches import MicroBatches
from fdg_jax.engine.saved_state import batch_sizes, check_in_flight, of_stage
from fdg_jax.engine.scan_engine import ScanEngine
from fdg_jax.engine.transports import transport
from fdg_jax.engine.unfinished import MESSAGE, TrackedStage, UnfinishedOperations
from fdg_jax.engine.unsound import WHAT, Unsound, look
from fdg_jax.errors import BadInput
from fdg_jax.machine import programs
from fdg_jax.schedule import Box, Op, bp
from fdg_jax.schedule.in_flight import in_flight
from fdg_jax.stage.functions import loss_of, metrics_of
from fdg_jax.stage.stage import Stage
from fdg_jax.transport.devices import all_here

Tree = Any
COUNT = jax.ShapeDtypeStruct((), np.int32)
NORM = jax.ShapeDtypeStruct((), np.float32)


class HostEngine:
    """Runs the stages on their devices by the host loop. Its members are those of `Engine` (fdg_jax.engine.interface).

    stages: {k: stage}.
    unfinished: the operations under way; None if nobody watches.
    """

    def __init__(self, problem: Problem):
        schedule, self.transport = problem.schedule, transport(problem)
        local = self.transport.places
        self.stages = {
            spec.k: problem.stage(
                spec,
                place,
                # If nothing is late and no correction changes them, the newest weights are those of the forward pass.
                stashed=problem.weights == "stashed" and bool(schedule.behind[spec.k - 1] or spec.correction.forward),
                accumulate=schedule.accumulate,
                mean=schedule.accumulation == "mean",
                delay=delay,
            )
            for spec, place, delay in zip(problem.specs, problem.places, problem.delays, strict=True)
            if spec.k in local
        }
        self.problem = problem._replace(specs=[spec._replace(variables={}) for spec in problem.specs])
        # Where batches enter; None if that is in another process.
        self.first, self.last = local.get(1), local.get(schedule.K)
        self.alone = len(local) == schedule.K  # whether no stage is in another process
        self.losses = PendingLosses(problem.read_behind, early=self.alone)
        self.loop = HostLoop(schedule, self.stages, self.transport.send, self.on_loss)
        self.entered = 0
        self.within_tick = False  # stays True after a call that was cut off: stages are then at different batches
        self.unfinished: UnfinishedOperations | None = None
        self._before_drain = 0  # batches that entered before the pipeline was last empty
        self._preprocess = programs.jit(problem.preprocess) if problem.preprocess else None
        self._tally = programs.jit(partial(tally, problem.specs[-1].report))
        self._transform = CompiledTransform(lambda transform: transform)
        dtype = problem.specs[-1].value.dtype
        self._micro_batches = MicroBatches(schedule.micro_batches, self.last, self.transport.here, dtype)

    def watch(self) -> UnfinishedOperations:
        """From now on, notes every operation until it is finished."""
        M = self.problem.schedule.micro_batches
        self.unfinished = unfinished = UnfinishedOperations()

        def whole(number: int) -> int:
            return self._before_drain + (number - 1) // M + 1

        def note(what: str, k: int, number: int, message: Tree) -> None:
            batch = whole(number) if number else 0
            unfinished.add(f"{MESSAGE}{what}", k, batch, next(iter(jax.tree.leaves(message)), None))

        self.loop.stages = {k: TrackedStage(stage, unfinished, whole) for k, stage in self.stages.items()}
        self.transport.watch(note)
        return unfinished

    def on_loss(self, number: int, report: Tree) -> None:
        """Adds the loss of a whole batch, once all its micro-batches have one. report: None in other processes."""
        spec = self.problem.specs[-1]
        whole = self._micro_batches.loss(number, self.transport.tell(spec.k, report, spec.reported))
        if whole:
            batch, report = whole
            told = Told(self.bad(), self.norms(), metrics_of(report))
            self.losses.add(self._before_drain + batch, loss_of(report), told)

    def step(self, inputs: Tree, labels: Tree) -> None:
        """Enters one batch. Dispatches and does not wait."""
        self._micro_batches.check(labels)
        for part, size in enumerate(self._micro_batches.sizes(labels), self.loop.t * self._micro_batches.M + 1):
            self.transport.enter(part, size)
        parts = self._micro_batches.enter(self.stage_1_inputs(inputs, self.entered), labels)
        self.within_tick = True
        self.entered += 1
        self.loop.step(parts)
        self.within_tick = False

    def stage_1_inputs(self, inputs: Tree, step: int) -> Tree:
        """What stage 1 takes, on its device; None if that is in another process. step: number of batches before it."""
        if self.first is None:
            return None
        x = self.first.put_batch(inputs)
        return self._preprocess(x, self.first.put_weights(np.int32(step))) if self._preprocess else x

    def train(self, images: np.ndarray, labels: np.ndarray, indices: np.ndarray) -> None:
        """Enters the batches images[row], labels[row] for the rows of indices [W, batch]."""
        for row in indices:
            # A process without stage 1 needs no input, and reads none where they are on a disk.
            self.step(images[row] if self.first else None, labels[row])

    def drain(self) -> None:
        """Finishes what is in flight, so that every batch has updated every stage."""
        self.within_tick = True
        self.loop.drain()
        for stage in self.stages.values():
            stage.drain()
        self._before_drain = self.entered
        self.within_tick = False

    def wait(self) -> None:
        """Blocks until everything that was dispatched has been computed."""
        under_way = [(stage.state, stage.sum, list(stage.line)) for stage in self.stages.values()]
        jax.block_until_ready((under_way, list(self.loop.mail.values())))

    def stage_variables(self) -> list[dict[str, Tree]]:
        """For each stage, the network's Flax variables."""
        return self.of_all_stages(lambda stage: stage.variables())

    def auxiliary(self) -> list[Tree]:
        """For each stage, the trained parameters that the method adds to the network's."""
        return self.of_all_stages(lambda stage: stage.auxiliary())

    def bad(self) -> list[Any]:
        """For each guarded stage, the number of its first refused update, 0 if none: arrays that may be under way."""
        guarded = [spec.k for spec in self.problem.specs if spec.guard]
        bad = {k: stage.bad for k, stage in self.stages.items()}
        return [self.transport.tell(k, bad.get(k), COUNT) for k in guarded]

    def norms(self) -> list[Any]:
        """For each stage the norm of its newest gradient, where they are measured: arrays that may be under way."""
        measured = [spec.k for spec in self.problem.specs if spec.norms]
        norms = {k: stage.norm for k, stage in self.stages.items()}
        return [self.transport.tell(k, norms.get(k), NORM) for k in measured]

    def refused(self) -> tuple[int, ...]:
        """For each guarded stage, the number of its first refused update, 0 if none. Waits for the devices."""
        return tuple(map(int, jax.device_get(self.bad())))

    def gradient_norms(self) -> tuple[float, ...]:
        """For each stage the norm of its newest gradient, where they are measured. Waits for the devices."""
        return tuple(map(float, jax.device_get(self.norms())))

    def staleness(self) -> list[int]:
        """For each stage, the largest measured staleness, in updates."""
        return [int(number) for number in self.of_all_stages(lambda stage: np.int64(stage.staleness))]

    def updates(self) -> list[int]:
        """For each stage, the number of its updates."""
        return [int(number) for number in self.of_all_stages(lambda stage: np.int64(stage.updates))]

    def of_all_stages(self, get: Callable[[Stage], Tree]) -> list[Tree]:
        """What `get` returns of each stage k = 1..K, as host arrays where other processes have stages, too."""
        found = {k: get(stage) for k, stage in self.stages.items()}
        if self.alone:
            return list(found.values())
        flat = flatten_dict({str(k): {"of": tree} for k, tree in found.items()}, sep="/")
        gathered = unflatten_dict(self.transport.gather(flat), sep="/")
        return [gathered.get(str(k), {}).get("of", {}) for k in range(1, self.problem.schedule.K + 1)]

    def evaluate(self, batches: Iterable, transform: Callable[[Tree], Tree] | None) -> Evaluation:
        """Loss and error with the newest weights. transform: takes inputs to what stage 1 takes; or None."""

        def run(inputs, labels):
            outputs = self.outputs(inputs, len(jax.tree.leaves(labels)[0]), transform)
            result = self._tally(outputs, self.last.put_batch(labels)) if self.last else None
            return self.transport.tell(self.problem.schedule.K, result, self._tally_shapes)

        specs = self.problem.specs
        return evaluate(run, batches, self.unfinished, (specs[0].x, specs[-1].labels))

    def predict(self, inputs: Tree, transform: Callable[[Tree], Tree] | None) -> Tree:
        """The outputs of stage K with the newest weights, in every process. transform: as in `evaluate`."""
        n, last = len(jax.tree.leaves(inputs)[0]), self.problem.specs[-1]
        with fitting_inputs(inputs, self.problem.specs[0].x):
            return self.transport.tell(last.k, self.outputs(inputs, n, transform), with_examples(last.outputs, n))

    def outputs(self, inputs: Tree, n: int, transform: Callable[[Tree], Tree] | None) -> Tree:
        """The outputs of stage K for n examples, in evaluation mode; None if stage K is in another process."""
        self.transport.enter(0, n)
        x = self.first.put_batch(inputs) if self.first else None
        if transform and self.first:
            x = self._transform(transform)(x)
        for k in range(1, self.problem.schedule.K + 1):
            x = x if k == 1 else self.transport.send(Box("x", k, 0), x, Op("F", k - 1, 0))
            x = self.stages[k].outputs(x) if k in self.stages else None
        return x

    @cached_property
    def _tally_shapes(self) -> Tree:
        last = self.problem.specs[-1]
        return jax.eval_shape(partial(tally, last.report), last.outputs, last.labels)

    def unsound(self, inputs: Tree, labels: Tree, step: int) -> Unsound | None:
        """The first stage that produces a NaN or an infinity for a batch. step: number of batches before it."""
        self.transport.enter(0, len(jax.tree.leaves(labels)[0]))
        x = self.stage_1_inputs(inputs, step)
        for k in range(1, self.problem.schedule.K + 1):
            number, stage = 0, self.stages.get(k)
            if k > 1:
                x = self.transport.send(Box("x", k, 0), x, Op("F", k - 1, 0))
            if stage:
                number, x = look(stage.functions, stage.state, stage.place, x, labels)
            number = int(jax.device_get(self.transport.tell(k, np.int32(number) if stage else None, COUNT)))
            if number:
                return Unsound(k, WHAT[number])
        return None

    def snapshot(self, own: bool = False) -> dict[str, Any]:
        """The exact state, batches in flight included. Its arrays may be under way; no later dispatch touches them.

        Between processes it waits for all of them, and each gets the whole state; but not if it is asked for its own
        part only.
        """
        flat: dict[str, Any] = signature_entry(self.problem, HOST_LOOP)
        flat |= {"t": np.int64(self.loop.t), "entered": np.int64(self.entered)}
        for k, stage in self.stages.items():
            flat |= {f"stage{k}/{name}": value for name, value in stage.saved().items()}
        for box, message in self.loop.mail.items():
            flat |= states.flatten(message, f"mail/{box.what}/{box.k}/{box.batch}/")
        return flat if own else self.transport.gather(flat)

    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of `snapshot`.

        Arguments:
            state: what `snapshot` returned.

        Raises:
            BadInput: it is of another model, split, method or engine, or not whole. Nothing has changed then, in no
                process, since everything new is made first.
        """
        made, refusal = None, None
        try:
            made = self.read(state)
        except BadInput as error:
            refusal = error
        self.transport.agree(refusal)
        assert made
        stages, mail, t, entered = made
        self.within_tick = True
        for k, stage in stages.items():
            vars(self.stages[k]).update(vars(stage))  # the loop and a watchdog refer to these very objects
        self.loop.mail, self.loop.t, self.entered = mail, t, entered
        for batch, size in batch_sizes(state).items():
            self.transport.enter(batch, size)
        self._before_drain = entered - t
        self._micro_batches.forget()
        self.losses = PendingLosses(self.problem.read_behind, early=self.alone)
        self.within_tick = False

    def read(self, state: Mapping[str, Any]) -> tuple[dict[int, Stage], dict[Box, Tree], int, int]:
        """Makes what a saved state holds: (this process's stages, its mail, ticks done, batches entered)."""
        flat = Reading(state)
        check_signature(self.problem, HOST_LOOP, flat)
        t, entered = number(flat, "t"), number(flat, "entered")
        if t > entered:
            raise BadInput(f"the checkpoint is damaged: {entered} batches have entered, {t} since the last drain.")
        under_way = in_flight(self.problem.schedule, t)
        stages = {k: stage.empty_copy() for k, stage in self.stages.items()}
        for k, stage in stages.items():
            check_in_flight(stage, flat.below(f"stage{k}/"), under_way)
            stage.restore(flat.below(f"stage{k}/"))
        mail = {}
        for box in sorted(box for box in under_way.mail if box.k in stages):
            spec = self.problem.specs[box.k - 1]
            template = {"x": spec.x, "dy": cotangent(spec.y), "labels": spec.labels}[box.what]
            mail[box] = stages[box.k].restored_message(template, flat, f"mail/{box.what}/{box.k}/{box.batch}/")
        elsewhere = set(range(1, self.problem.schedule.K + 1)) - stages.keys()
        flat.read |= {name for name in flat if of_stage(name) in elsewhere}  # other processes read them
        flat.check_all_read()
        return stages, mail, t, entered


def delay_line_engine(problem: Problem) -> Engine:
    """Makes the engine that trains on one device: BP with a delay line for each stage's gradients.

    On an accelerator, many batches are one dispatch (`lax.scan`). On a CPU, the host loop runs BP's schedule over
    delayed stages. There XLA runs a convolution inside a loop over 40 times slower (jax issue 12868). Also, the stage
    programs are then the pipeline's own, so that both engines agree bit for bit.

    Arguments:
        problem: what to train, with the schedule of the pipeline.

    Returns: the engine. Why this is the same training: fdg_jax.stage.delay_line.
    """
    place, K = problem.places[0], problem.schedule.K
    if not all_here(problem.places):
        raise BadInput("engine delay-line trains on one device of one process. Use engine pipeline, or one process.")
    if place.device.platform != "cpu" and problem.stage is Stage:  # the scan has ordinary stages only
        return ScanEngine(problem)
    wanted = problem.schedule
    schedule = bp(K)._replace(
        name=f"{wanted.name} (delay line)", accumulate=wanted.accumulate, accumulation=wanted.accumulation
    )
    return HostEngine(problem._replace(schedule=schedule, delays=wanted.behind, places=[place] * K))
