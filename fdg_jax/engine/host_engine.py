"""The engine around the host loop: K stages on K devices. It also runs the delay-line engine on a CPU."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from fdg_jax.arrays import cotangent
from fdg_jax.checkpoint import state as states
from fdg_jax.checkpoint.state import Reading, number
from fdg_jax.engine.host_loop import HostLoop
from fdg_jax.engine.interface import (
    HOST_LOOP,
    WHAT,
    Engine,
    Nonfinite,
    Problem,
    check_signature,
    look,
    signature_entry,
)
from fdg_jax.engine.losses import Results
from fdg_jax.engine.micro_batches import MicroBatches
from fdg_jax.engine.saved_state import batch_sizes, check_in_flight, in_flight, of_stage
from fdg_jax.engine.scan_engine import ScanEngine
from fdg_jax.engine.unfinished import MESSAGE, TrackedStage, UnfinishedOperations
from fdg_jax.errors import BadInput
from fdg_jax.schedule import Address, Op, bp
from fdg_jax.stages.functions import Spec, loss_of, metrics_of
from fdg_jax.stages.shapes import examples, with_examples
from fdg_jax.stages.stage import OneProgramStage, Stage
from fdg_jax.transport.across_processes import AcrossProcesses
from fdg_jax.transport.devices import all_here
from fdg_jax.transport.in_process import InProcess

Tree = Any
COUNT = jax.ShapeDtypeStruct((), np.int32)
NORM = jax.ShapeDtypeStruct((), np.float32)


def transport(problem: Problem) -> InProcess | AcrossProcesses:
    """How messages get from stage to stage: within this process, or also between processes."""
    schedule, specs = problem.schedule, problem.specs
    if all_here(problem.places):
        return InProcess(problem.places)

    def shapes(address: Address, sender: Op, n: int) -> Tree:
        return with_examples(message_shapes(address, sender, specs), n, examples(specs[0].x))

    return AcrossProcesses(problem.places, shapes, window=(schedule.ticks(1) + 1) * schedule.micro_batches)


def message_shapes(address: Address, sender: Op, specs: Sequence[Spec]) -> Tree:
    """The shapes and dtypes of a message, for a batch of the same shapes as the example batch.

    Arguments:
        address: the message's address.
        sender: the operation that sends it.
        specs: the specs of the stages.
    """
    spec = specs[sender.k - 1]
    if sender.kind == "F":  # direct feedback methods send the error at the outputs (a cotangent) from a forward pass
        return spec.y if address.what == "x" else cotangent(spec.outputs)
    return cotangent(spec.x)


class HostEngine(Engine):
    """Runs the stages on their devices with the host loop.

    stages: {k: stage} of this process.
    """

    def __init__(self, problem: Problem):
        super().__init__(problem)
        schedule, self.transport = problem.schedule, transport(problem)
        local, kind = self.transport.places, OneProgramStage if in_one_program(problem) else problem.stage
        self.stages = {
            spec.k: kind(
                spec,
                place,
                # If no gradient is late and no correction changes the weights, the newest weights are those of the
                # forward pass and need no stash.
                stashed=problem.weights == "stashed" and bool(schedule.delays[spec.k - 1] or spec.correction.forward),
                accumulate=schedule.accumulate,
                mean=schedule.accumulation == "mean",
                delay=delay,
            )
            for spec, place, delay in zip(problem.specs, problem.places, problem.waits, strict=True)
            if spec.k in local
        }
        # The places of stage 1 and stage K; None if the stage is in another process.
        self.first, self.last = local.get(1), local.get(schedule.K)
        self.alone = len(local) == schedule.K  # whether no stage is in another process
        # The place where this process makes labels; None if it needs none. With micro-batches every process needs
        # labels, for the shares.
        takers = {address.k for address in schedule.messages.enters(1) if address.what == "labels"}
        needed = schedule.micro_batches > 1 or not takers.isdisjoint(self.stages)
        self.labels_made = self.transport.here if needed else None
        self.losses = self.no_losses()
        self.loop = HostLoop(schedule, self.stages, self.transport.send, self.on_loss)
        self._before_drain = 0  # batches that entered before the pipeline was last empty
        dtype = problem.specs[-1].value.dtype
        self._guard, self._norms = problem.specs[0].guard, problem.specs[0].norms
        self._numbers = range(1, schedule.K + 1)
        self._micro_batches = MicroBatches(schedule.micro_batches, self.last, self.transport.here, dtype)

    def watch(self) -> UnfinishedOperations:
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
        """Takes the loss of a micro-batch; adds the batch's loss to `losses` after its last micro-batch. report: None
        if stage K is in another process."""
        spec = self.problem.specs[-1]
        whole = self._micro_batches.loss(number, self.transport.tell(spec.k, report, spec.reported))
        if whole:
            batch, report = whole
            results = Results(loss_of(report), self.bad(), self.norms(), metrics_of(report))
            self.losses.add(self._before_drain + batch, results)

    def train_batch(self, inputs: Tree, labels: Tree) -> None:
        self.enter(inputs, labels, examples(inputs))

    def enter(self, inputs: Tree, labels: Tree, n: int) -> None:
        """Enters one batch of n examples. inputs: None if this process does not use them."""
        for part, size in enumerate(self._micro_batches.sizes(n), self.loop.t * self._micro_batches.M + 1):
            self.transport.enter(part, size)
        batch = inputs, labels, self.entered
        # A variable for the inputs would keep the whole batch on the device beside its parts.
        parts = self._micro_batches.enter(self.stage_1_inputs(*batch), self.loss_labels(*batch), n)
        self.within_tick = True
        self.entered += 1
        self.loop.feed(parts)
        self.within_tick = False

    def stage_1_inputs(self, inputs: Tree, labels: Tree, step: int) -> Tree:
        """The inputs of stage 1, on its device; None if stage 1 is in another process. step: number of earlier
        batches."""
        here = self.first
        if here is None:
            return None
        x = here.put_batch(inputs)
        if self._make_inputs is None:
            return x
        labels = here.put_batch(labels) if self._make_labels else None
        return self._make_inputs(x, labels, here.put_weights(np.int32(step)))

    def loss_labels(self, inputs: Tree, labels: Tree, step: int) -> Tree:
        """The labels of the loss, as preprocess makes them. If this process needs none, the labels are returned
        unchanged. step: as in `stage_1_inputs`."""
        here = self.labels_made
        if here is None or self._make_labels is None:
            return labels
        return self._make_labels(here.put_batch(inputs), here.put_batch(labels), here.put_weights(np.int32(step)))

    def train(self, images: np.ndarray, labels: np.ndarray | None, indices: np.ndarray) -> None:
        # Only processes that use the inputs read them from a disk.
        reads = self.first or (self._make_labels and self.labels_made)
        for row in indices:
            self.enter(images[row] if reads else None, None if labels is None else labels[row], len(row))

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

    def stage_variables(self, ema: bool = False) -> list[dict[str, Tree]]:
        return self.of_all_stages(lambda stage: (stage.averaged() if ema else stage).variables())

    def optimizer_states(self) -> list[Tree]:
        return [self.stages[k].optimizer_state() if k in self.stages else None for k in self._numbers]

    def set_hyperparameters(self, values: Mapping[str, Any], stages: Collection[int]) -> None:
        changed, refusal = {}, None
        try:
            changed = {k: self.stages[k].with_hyperparameters(values) for k in stages if k in self.stages}
        except BadInput as error:
            refusal = error
        self.transport.agree(refusal)
        for k, state in changed.items():
            self.stages[k].state = state

    def auxiliary(self) -> list[Tree]:
        return self.of_all_stages(lambda stage: stage.auxiliary())

    def bad(self) -> list[Any]:
        return self.everywhere("bad", COUNT) if self._guard else []

    def norms(self) -> list[Any]:
        return self.everywhere("norm", NORM) if self._norms else []

    def everywhere(self, name: str, like: Any) -> list[Any]:
        """The attribute `name` of every stage, in every process. like: its shape and dtype."""
        return [self.transport.tell(k, getattr(self.stages.get(k), name, None), like) for k in self._numbers]

    def staleness(self) -> list[int]:
        return [int(number) for number in self.of_all_stages(lambda stage: np.int64(stage.staleness))]

    def updates(self) -> list[int]:
        return [int(number) for number in self.of_all_stages(lambda stage: np.int64(stage.updates))]

    def of_all_stages(self, get: Callable[[Stage], Tree]) -> list[Tree]:
        """The results of get(stage) for the stages k = 1..K; host arrays if other processes have stages, too."""
        found = {k: get(stage) for k, stage in self.stages.items()}
        if self.alone:
            return list(found.values())
        flat = flatten_dict({str(k): {"of": tree} for k, tree in found.items()}, sep="/")
        gathered = unflatten_dict(self.transport.gather(flat), sep="/")
        return [gathered.get(str(k), {}).get("of", {}) for k in range(1, self.problem.schedule.K + 1)]

    def from_last(self, value: Tree, like: Tree) -> Tree:
        return self.transport.tell(self.problem.schedule.K, value, like)

    def holding(self, variables: Sequence[Mapping[str, Tree]] | None) -> Mapping[int, Stage]:
        if variables is None:
            return self.stages
        return {k: stage.holding(variables[k - 1]) for k, stage in self.stages.items()}

    def outputs(
        self,
        held: Mapping[int, Stage],
        inputs: Tree,
        n: int,
        transform: Callable[[Tree], Tree] | None,
        keys: Sequence[Any],
    ) -> Tree:
        self.transport.enter(0, n)
        x = self.transformed(self.first.put_batch(inputs), transform) if self.first else None
        for k in range(1, self.problem.schedule.K + 1):
            x = x if k == 1 else self.transport.send(Address("x", k, 0), x, Op("F", k - 1, 0))
            x = held[k].outputs(x, keys[k - 1]) if k in held else None
        return x

    def first_nonfinite(self, inputs: Tree, labels: Tree, step: int) -> Nonfinite | None:
        self.transport.enter(0, examples(inputs))
        x, labels = self.stage_1_inputs(inputs, labels, step), self.loss_labels(inputs, labels, step)
        for k in range(1, self.problem.schedule.K + 1):
            number, stage = 0, self.stages.get(k)
            if k > 1:
                x = self.transport.send(Address("x", k, 0), x, Op("F", k - 1, 0))
            if stage:
                number, x = look(stage._forward, stage.state, stage.place, x, labels)
            number = int(jax.device_get(self.transport.tell(k, np.int32(number) if stage else None, COUNT)))
            if number:
                return Nonfinite(k, WHAT[number])
        return None

    def snapshot(self, own: bool = False) -> dict[str, Any]:
        flat: dict[str, Any] = signature_entry(self.problem, HOST_LOOP)
        flat |= {"t": np.int64(self.loop.t), "entered": np.int64(self.entered)}
        for k, stage in self.stages.items():
            flat |= {f"stage{k}/{name}": value for name, value in stage.saved().items()}
        for address, message in self.loop.mail.items():
            flat |= states.flatten(message, f"mail/{address.what}/{address.k}/{address.batch}/")
        return flat if own else self.transport.gather(flat)

    def restore(self, state: Mapping[str, Any]) -> None:
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
            vars(self.stages[k]).update(vars(stage))  # in place: the loop and a watchdog refer to these objects
        self.loop.mail, self.loop.t, self.entered = mail, t, entered
        for batch, size in batch_sizes(state).items():
            self.transport.enter(batch, size)
        self._before_drain = entered - t
        self._micro_batches.forget()
        self.losses = self.no_losses()
        self.within_tick = False

    def read(self, state: Mapping[str, Any]) -> tuple[dict[int, Stage], dict[Address, Tree], int, int]:
        """Reads a saved state. Returns (this process's stages, its mail, ticks done, batches entered)."""
        flat = Reading(state)
        check_signature(self.problem, HOST_LOOP, flat)
        t, entered = number(flat, "t"), number(flat, "entered")
        if t > entered:
            raise BadInput(f"the checkpoint is damaged: {entered} batches in all, but {t} since the last drain.")
        under_way = in_flight(self.problem.schedule, t)
        stages = {k: stage.empty_copy() for k, stage in self.stages.items()}
        for k, stage in stages.items():
            check_in_flight(stage, flat.below(f"stage{k}/"), under_way)
            stage.restore(flat.below(f"stage{k}/"))
        mail = {}
        for address in sorted(address for address in under_way.mail if address.k in stages):
            spec = self.problem.specs[address.k - 1]
            template = {"x": spec.x, "dy": cotangent(spec.y), "labels": spec.labels}[address.what]
            path = f"mail/{address.what}/{address.k}/{address.batch}/"
            mail[address] = stages[address.k].restored_message(template, flat, path)
        elsewhere = set(range(1, self.problem.schedule.K + 1)) - stages.keys()
        flat.read |= {name for name in flat if of_stage(name) in elsewhere}  # other processes read them
        flat.check_all_read()
        return stages, mail, t, entered


def in_one_program(problem: Problem) -> bool:
    """Whether one program computes a whole batch: K = 1 on an accelerator, where every batch makes an update."""
    schedule, place = problem.schedule, problem.places[0]
    plain = problem.stage is Stage and schedule.accumulate == 1 and not any(problem.waits)
    return schedule.K == 1 and plain and place.device.platform != "cpu"


def delay_line_engine(problem: Problem) -> Engine:
    """Makes the engine that trains on one device: BP with a delay line for each stage's gradients.

    On an accelerator, one dispatch trains many batches (`lax.scan`). On a CPU, the host loop runs BP's schedule over
    stages with delay lines, because XLA on a CPU runs a convolution over 40 times slower inside a loop (jax issue
    12868). The stage programs are then those of the pipeline, so both engines agree bit for bit.

    Arguments:
        problem: the problem, with the schedule of the pipeline.

    Returns: the engine. fdg_jax.stages.delay_line says why this is the same training.
    """
    place, K = problem.places[0], problem.schedule.K
    if not all_here(problem.places):
        raise BadInput("engine delay-line trains on one device in one process. Use engine pipeline, or one process.")
    if place.device.platform != "cpu" and problem.stage is Stage:  # the scan has ordinary stages only
        return ScanEngine(problem)
    wanted = problem.schedule
    schedule = bp(K)._replace(
        name=f"{wanted.name} (delay line)", accumulate=wanted.accumulate, accumulation=wanted.accumulation
    )
    return HostEngine(problem._replace(schedule=schedule, waits=wanted.delays, places=[place] * K))
