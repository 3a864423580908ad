"""The engine of the host loop: K stages on K devices or, on a CPU, one device that stands in for them."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import jax
import numpy as np

from fdg_jax.engine.evaluate import CompiledTransform, Evaluation, evaluate, loss_and_errors
from fdg_jax.engine.host_loop import HostLoop
from fdg_jax.engine.interface import HOST_LOOP, Engine, Problem, check_signature, signature_entry
from fdg_jax.engine.losses import PendingLosses
from fdg_jax.engine.micro_batches import MicroBatches
from fdg_jax.engine.scan_engine import ScanEngine
from fdg_jax.engine.unfinished import TrackedStage, UnfinishedOperations
from fdg_jax.engine.unsound import Unsound, first_unsound
from fdg_jax.errors import BadInput
from fdg_jax.machine import programs
from fdg_jax.schedule import Box, bp
from fdg_jax.schedule.in_flight import InFlight, in_flight
from fdg_jax.stage.stage import Stage
from fdg_jax.storage import checkpoint
from fdg_jax.storage.plain import cotangent
from fdg_jax.storage.restoring import Reading, number
from fdg_jax.transport.in_process import InProcess

Tree = Any


class HostEngine:
    """Runs the stages on their devices by the host loop. Its members are those of `Engine` (fdg_jax.engine.interface).

    stages: {k: stage}.
    unfinished: the operations under way; None if nobody watches.
    """

    def __init__(self, problem: Problem):
        schedule, self.transport = problem.schedule, InProcess(problem.places)
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
        }
        self.problem = problem._replace(specs=[stage.spec for stage in self.stages.values()])
        self.first, self.last = problem.places[0], problem.places[-1]
        self.losses = PendingLosses(problem.read_behind)
        self.loop = HostLoop(schedule, self.stages, self.transport.send, self.on_loss)
        self.entered = 0
        self.within_tick = False  # stays True after a call that was cut off: stages are then at different batches
        self.unfinished: UnfinishedOperations | None = None
        self._before_drain = 0  # batches that entered before the pipeline was last empty
        platform = self.first.device.platform
        compiled = partial(programs.jit, platform=platform, reductions=False)
        self._preprocess = compiled(problem.preprocess) if problem.preprocess else None
        self._tally = compiled(partial(loss_and_errors, problem.specs[-1].loss))
        self._transform = CompiledTransform(lambda transform: transform)
        dtype = problem.specs[-1].value.dtype
        self._micro_batches = MicroBatches(schedule.micro_batches, self.first, self.last, dtype)

    def watch(self) -> UnfinishedOperations:
        """From now on, notes every operation until it is finished."""
        M = self.problem.schedule.micro_batches
        self.unfinished = unfinished = UnfinishedOperations()

        def whole(number: int) -> int:
            return self._before_drain + (number - 1) // M + 1

        self.loop.stages = {k: TrackedStage(stage, unfinished, whole) for k, stage in self.stages.items()}
        return unfinished

    def on_loss(self, number: int, loss: jax.Array) -> None:
        """Adds the loss of a whole batch, once all its micro-batches have one."""
        whole = self._micro_batches.loss(number, loss)
        if whole:
            self.losses.add(self._before_drain + whole[0], whole[1], self.bad())

    def step(self, inputs: Tree, labels: Tree) -> None:
        """Enters one batch. Dispatches and does not wait."""
        self._micro_batches.check(labels)
        x = self.first.put_batch(inputs)
        if self._preprocess:
            x = self._preprocess(x, self.first.put_weights(np.int32(self.entered)))
        parts = self._micro_batches.enter(x, labels)
        del x  # else a batch that was split would stay in memory during the tick
        self.within_tick = True
        self.entered += 1
        self.loop.step(parts)
        self.within_tick = False

    def train(self, images: np.ndarray, labels: np.ndarray, indices: np.ndarray) -> None:
        """Enters the batches images[row], labels[row] for the rows of indices [W, batch]."""
        for row in indices:
            self.step(images[row], labels[row])

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
        return [stage.variables() for stage in self.stages.values()]

    def auxiliary(self) -> list[Tree]:
        """For each stage, the trained parameters that the method adds to the network's."""
        return [stage.auxiliary() for stage in self.stages.values()]

    def bad(self) -> list[Any]:
        """For each guarded stage, the number of its first refused update, 0 if none: arrays that may be under way."""
        return [stage.bad for stage in self.stages.values() if stage.bad is not None]

    def refused(self) -> tuple[int, ...]:
        """For each guarded stage, the number of its first refused update, 0 if none. Waits for the devices."""
        return tuple(map(int, jax.device_get(self.bad())))

    def staleness(self) -> list[int]:
        """For each stage, the largest measured staleness, in updates."""
        return [stage.staleness for stage in self.stages.values()]

    def updates(self) -> list[int]:
        """For each stage, the number of its updates."""
        return [stage.updates for stage in self.stages.values()]

    def evaluate(self, batches: Iterable, transform: Callable[[Tree], Tree] | None) -> Evaluation:
        """Loss and error with the newest weights. transform: takes inputs to what stage 1 takes; or None."""

        def run(inputs, labels):
            x = self.first.put_batch(inputs)
            if transform:
                x = self._transform(transform)(x)
            for k, stage in self.stages.items():
                x = stage.outputs(x if k == 1 else self.transport.send(Box("x", k, 0), x))
            return self._tally(x, self.last.put_batch(labels))

        specs = self.problem.specs
        return evaluate(run, batches, self.unfinished, (specs[0].x, specs[-1].labels))

    def unsound(self, inputs: Tree, labels: Tree, step: int) -> Unsound | None:
        """The first stage that produces a NaN or an infinity for a batch. step: number of batches before it."""
        x = self.first.put_batch(inputs)
        if self._preprocess:
            x = self._preprocess(x, self.first.put_weights(np.int32(step)))
        stages = [(stage.functions, stage.state, stage.place) for stage in self.stages.values()]
        return first_unsound(stages, x, labels)

    def snapshot(self) -> dict[str, Any]:
        """The exact state, batches in flight included. Its arrays may be under way; no later dispatch touches them."""
        flat: dict[str, Any] = signature_entry(self.problem, HOST_LOOP)
        flat |= {"t": np.int64(self.loop.t), "entered": np.int64(self.entered)}
        for k, stage in self.stages.items():
            flat |= {f"stage{k}/{name}": value for name, value in stage.saved().items()}
        for box, message in self.loop.mail.items():
            flat |= checkpoint.flatten(message, f"mail/{box.what}/{box.k}/{box.batch}/")
        return flat

    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of `snapshot`.

        Arguments:
            state: what `snapshot` returned.

        Raises:
            BadInput: it is of another model, split, method or engine, or not whole. Nothing has changed then, since
                everything new is made first.
        """
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
        for box in sorted(under_way.mail):
            spec = self.problem.specs[box.k - 1]
            template = {"x": spec.x, "dy": cotangent(spec.y), "labels": spec.labels}[box.what]
            mail[box] = stages[box.k].restored_message(template, flat, f"mail/{box.what}/{box.k}/{box.batch}/")
        flat.check_all_read()
        self.within_tick = True
        for k, stage in stages.items():
            vars(self.stages[k]).update(vars(stage))  # the loop and a watchdog refer to these very objects
        self.loop.mail, self.loop.t, self.entered = mail, t, entered
        self._before_drain = entered - t
        self._micro_batches.forget()
        self.losses = PendingLosses(self.problem.read_behind)
        self.within_tick = False


def check_in_flight(stage: Stage, flat: Mapping[str, Any], under_way: InFlight) -> None:
    """Raises BadInput if a stage's saved state does not hold exactly what the schedule will ask for.

    Arguments:
        stage: the stage.
        flat: its saved state.
        under_way: what is in flight in the pipeline, by the schedule.
    """
    for name, kind in stage.keeps.items():
        found, needed = checkpoint.numbers(flat, f"{name}/"), sorted(under_way.kept.get((stage.k, kind), []))
        if found != needed:
            fact = f"the checkpoint holds {name}s of the batches {found} for stage k={stage.k}, and {needed} are needed"
            raise BadInput(f"{fact}: it is not whole.")
    passes, line = under_way.passes[stage.k - 1], checkpoint.numbers(flat, "line/")
    waiting = min(passes, stage.delay)
    summed = (passes - waiting) % stage.accumulate
    if (line, number(flat, "summed")) != (list(range(waiting)), summed):
        raise BadInput(
            f"the checkpoint holds {len(line)} gradients in the line of stage k={stage.k} and a sum of "
            f"{number(flat, 'summed')}, and {waiting} and {summed} are needed: it is not whole."
        )


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
    if place.device.platform != "cpu" and problem.stage is Stage:  # the scan has ordinary stages only
        return ScanEngine(problem)
    wanted = problem.schedule
    schedule = bp(K)._replace(
        name=f"{wanted.name} (delay line)", accumulate=wanted.accumulate, accumulation=wanted.accumulation
    )
    return HostEngine(problem._replace(schedule=schedule, delays=wanted.behind, places=[place] * K))
