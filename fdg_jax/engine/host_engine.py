"""The engine of the host loop: K stages on K devices, or on a CPU one device that stands in for them."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import jax
import numpy as np

from fdg_jax.engine.evaluate import Compiled, Evaluation, evaluate, tally
from fdg_jax.engine.host_loop import HostLoop
from fdg_jax.engine.interface import HOST_LOOP, Engine, Parts, check_signature, signed
from fdg_jax.engine.losses import LossWindow
from fdg_jax.engine.micro_batches import MicroBatches
from fdg_jax.engine.scan_engine import ScanEngine
from fdg_jax.engine.unfinished import Trail, Watched
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
    """K stages on their devices, driven by the host loop."""

    def __init__(self, parts: Parts):
        schedule, self.transport = parts.schedule, InProcess(parts.places)
        self.stages = {
            spec.k: parts.stage(
                spec,
                place,
                # Where nothing is late and no correction looks ahead, the weights of now are those of the forward pass.
                stashed=parts.weights == "stashed" and bool(schedule.behind[spec.k - 1] or spec.correction.forward),
                accumulate=schedule.accumulate,
                mean=schedule.accumulation == "mean",
                delay=delay,
            )
            for spec, place, delay in zip(parts.specs, parts.places, parts.delays, strict=True)
        }
        self.parts = parts._replace(specs=[stage.spec for stage in self.stages.values()])
        self.first, self.last = parts.places[0], parts.places[-1]
        self.losses = LossWindow(parts.read_behind)
        self.loop = HostLoop(schedule, self.stages, self.transport.send, self.on_loss)
        self.entered = 0
        self.within_tick = False  # stays True after a call that was cut off: then the stages do not fit together
        self.trail: Trail | None = None
        self._before_drain = 0  # batches that entered before the pipeline was last empty
        platform = self.first.device.platform
        compiled = partial(programs.jit, platform=platform, reductions=False)
        self._preprocess = compiled(parts.preprocess) if parts.preprocess else None
        self._tally = compiled(partial(tally, parts.specs[-1].loss))
        self._transform = Compiled(lambda transform: transform)
        dtype = parts.specs[-1].value.dtype
        self._micro_batches = MicroBatches(schedule.micro_batches, self.first, self.last, dtype)

    def watch(self) -> Trail:
        """From now on every operation leaves a trail."""
        M = self.parts.schedule.micro_batches
        self.trail = trail = Trail()

        def whole(number: int) -> int:
            return self._before_drain + (number - 1) // M + 1

        self.loop.stages = {k: Watched(stage, trail, whole) for k, stage in self.stages.items()}
        return trail

    def on_loss(self, number: int, loss: jax.Array) -> None:
        whole = self._micro_batches.loss(number, loss)
        if whole:
            self.losses.add(self._before_drain + whole[0], whole[1], self.bad())

    def step(self, inputs: Tree, labels: Tree) -> None:
        self._micro_batches.check(labels)
        x = self.first.batch(inputs)
        if self._preprocess:
            x = self._preprocess(x, self.first.weights(np.int32(self.entered)))
        parts = self._micro_batches.enter(x, labels)
        del x  # else a batch that has been cut would live on through the tick
        self.within_tick = True
        self.entered += 1
        self.loop.step(parts)
        self.within_tick = False

    def train(self, images: np.ndarray, labels: np.ndarray, indices: np.ndarray) -> None:
        for row in indices:
            self.step(images[row], labels[row])

    def drain(self) -> None:
        self.within_tick = True
        self.loop.drain()
        for stage in self.stages.values():
            stage.drain()
        self._before_drain = self.entered
        self.within_tick = False

    def wait(self) -> None:
        under_way = [(stage.state, stage.sum, list(stage.line)) for stage in self.stages.values()]
        jax.block_until_ready((under_way, list(self.loop.mail.values())))

    def stage_variables(self) -> list[dict[str, Tree]]:
        return [stage.variables() for stage in self.stages.values()]

    def auxiliary(self) -> list[Tree]:
        return [stage.auxiliary() for stage in self.stages.values()]

    def bad(self) -> list[Any]:
        return [stage.bad for stage in self.stages.values() if stage.bad is not None]

    def refused(self) -> tuple[int, ...]:
        return tuple(map(int, jax.device_get(self.bad())))

    def staleness(self) -> list[int]:
        return [stage.staleness for stage in self.stages.values()]

    def updates(self) -> list[int]:
        return [stage.updates for stage in self.stages.values()]

    def evaluate(self, batches: Iterable, transform: Callable[[Tree], Tree] | None) -> Evaluation:
        def run(inputs, labels):
            x = self.first.batch(inputs)
            if transform:
                x = self._transform(transform)(x)
            for k, stage in self.stages.items():
                x = stage.outputs(x if k == 1 else self.transport.send(Box("x", k, 0), x))
            return self._tally(x, self.last.batch(labels))

        specs = self.parts.specs
        return evaluate(run, batches, self.trail, (specs[0].x, specs[-1].labels))

    def unsound(self, inputs: Tree, labels: Tree, step: int) -> Unsound | None:
        """The first stage in which that batch is lost (see fdg_jax.engine.unsound). step: batches before it."""
        x = self.first.batch(inputs)
        if self._preprocess:
            x = self._preprocess(x, self.first.weights(np.int32(step)))
        stages = [(stage.functions, stage.state, stage.place) for stage in self.stages.values()]
        return first_unsound(stages, x, labels)

    def snapshot(self) -> dict[str, Any]:
        """Everything a resumed run needs, batches in flight included (a stage knows how to save its memos), as arrays
        that may still be under way and that no later dispatch touches."""
        flat: dict[str, Any] = signed(self.parts, HOST_LOOP)
        flat |= {"t": np.int64(self.loop.t), "entered": np.int64(self.entered)}
        for k, stage in self.stages.items():
            flat |= {f"stage{k}/{name}": value for name, value in stage.saved().items()}
        for box, message in self.loop.mail.items():
            flat |= checkpoint.flatten(message, f"mail/{box.what}/{box.k}/{box.batch}/")
        return flat

    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of `snapshot`. BadInput where it is of another model, split, method or engine, or not whole;
        then nothing has changed: all that is new is made first."""
        flat = Reading(state)
        check_signature(self.parts, HOST_LOOP, flat)
        t, entered = number(flat, "t"), number(flat, "entered")
        if t > entered:
            raise BadInput(f"the checkpoint is damaged: {entered} batches have entered, {t} since the last drain.")
        under_way = in_flight(self.parts.schedule, t)
        stages = {k: stage.anew() for k, stage in self.stages.items()}
        for k, stage in stages.items():
            check_in_flight(stage, flat.below(f"stage{k}/"), under_way)
            stage.restore(flat.below(f"stage{k}/"))
        mail = {}
        for box in sorted(under_way.mail):
            spec = self.parts.specs[box.k - 1]
            template = {"x": spec.x, "dy": cotangent(spec.y), "labels": spec.labels}[box.what]
            mail[box] = stages[box.k].restored(template, flat, f"mail/{box.what}/{box.k}/{box.batch}/")
        flat.check_all_read()
        self.within_tick = True
        for k, stage in stages.items():
            vars(self.stages[k]).update(vars(stage))  # the very objects that the loop, and who watches it, know
        self.loop.mail, self.loop.t, self.entered = mail, t, entered
        self._before_drain = entered - t
        self._micro_batches.forget()
        self.losses = LossWindow(self.parts.read_behind)
        self.within_tick = False


def check_in_flight(stage: Stage, flat: Mapping[str, Any], under_way: InFlight) -> None:
    """Raises BadInput where a state does not hold, of a stage, what the schedule will ask for."""
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


def delay_line_engine(parts: Parts) -> Engine:
    """The same training on one device: BP with a delay line on each stage's gradient (see fdg_jax.stage.delay_line).

    On an accelerator many batches are one dispatch (`scan`). On a CPU the host loop runs BP's schedule over delayed
    stages: XLA runs a convolution inside a loop over 40 times slower there (jax issue 12868), and the stage programs
    are the pipeline's own, so that the two engines agree bit for bit.
    """
    place, K = parts.places[0], parts.schedule.K
    if place.device.platform != "cpu" and parts.stage is Stage:  # a scan knows ordinary stages only
        return ScanEngine(parts)
    wanted = parts.schedule
    schedule = bp(K)._replace(
        name=f"{wanted.name} (delay line)", accumulate=wanted.accumulate, accumulation=wanted.accumulation
    )
    return HostEngine(parts._replace(schedule=schedule, delays=wanted.behind, places=[place] * K))
