"""How busy each stage is, by looking now and then: the share of looks at which it had work that nothing kept it from.

With asynchronous dispatch nobody on the host knows when a stage computes. But the operations under way are noted for
the watchdog (fdg_jax.engine.unfinished), and a device runs the operations of a stage one after the other. So at any
moment the oldest unfinished operation of a stage is computed, unless a message that it reads is made by an operation
which is not finished either. A look asks arrays whether they are ready, and waits for none: training computes the same
bits. Random times between looks keep them out of step with the pipeline's ticks.

What counts as computing, though it is not: waiting for a free core, and the copy of a message within this process.
What does not, though it is: an operation that leaves no array to ask, such as a synthesizer's step of `dni`.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fdg_jax.engine.host_engine import HostEngine
from fdg_jax.engine.interface import Engine
from fdg_jax.engine.unfinished import MESSAGE, Dispatched, UnfinishedOperations
from fdg_jax.schedule import Box, Messages, Op


class StageNow(NamedTuple):
    """What a stage did at a look.

    operation: that it computed, such as "F12"; None: none.
    forward, backward: the newest batch whose forward pass, whose backward pass is finished; None: not known yet.
    under_way: its operations that were dispatched and are not finished.
    staleness: the most updates between a batch's forward pass and the update by it, so far.
    """

    k: int
    operation: str | None
    forward: int | None
    backward: int | None
    under_way: int
    staleness: int


class Occupancy:
    """Counts looks at the stages of this process.

    looks: how many there were. busy: at how many of them a stage computed, by stage.
    """

    def __init__(self, engine: HostEngine, unfinished: UnfinishedOperations):
        self.stages, self.unfinished = engine.stages, unfinished
        self.messages: Messages = engine.problem.schedule.messages
        self.devices = {k: tuple(map(str, stage.place.devices)) for k, stage in engine.stages.items()}
        # Of these nothing is at hand that would tell when a backward pass without an update is finished.
        silent = {k for k in engine.stages if not self.messages.gives(Op("B", k, 1))}
        self.unseen = silent if engine.problem.schedule.accumulate > 1 else set[int]()
        self.looks, self.busy = 0, dict.fromkeys(engine.stages, 0)

    def look(self, counts: bool = True) -> list[StageNow]:
        """What each stage does now. counts: whether the look counts."""
        queues, finished = self.unfinished.under_way()
        computing = computed_now(queues, self.messages, self.devices)
        if counts:
            self.looks += 1
            for k in computing:
                self.busy[k] += 1
        found = []
        for k, stage in self.stages.items():
            op = computing.get(k)
            forward, backward = (finished.get((k, kind)) for kind in ("F", "B"))
            shown = f"{op.kind}{op.first}" if op else None
            found.append(StageNow(k, shown, forward, backward, len(queues.get(k, ())), int(stage.staleness)))
        return found

    def counts(self) -> dict[int, int]:
        """The busy looks of the stages for which they can be told."""
        return {k: n for k, n in self.busy.items() if k not in self.unseen}


def computed_now(
    queues: Mapping[int, Sequence[Dispatched]], messages: Messages, devices: Mapping[int, tuple[str, ...]]
) -> dict[int, Dispatched]:
    """The operations that are computed, by stage, of all that are under way.

    Arguments:
        queues: what is dispatched and not finished, by stage, in the order of dispatch.
        messages: who sends what to whom.
        devices: of each stage here. Stages with the same device take turns on it, in the order of dispatch.
    """
    computations = {k: (op for op in queues.get(k, ()) if not op.kind.startswith(MESSAGE)) for k in devices}
    oldest = {k: op for k, each in computations.items() if (op := next(each, None)) and op.number}
    needs = {k: messages.takes(Op(op.kind, k, op.number)) for k, op in oldest.items()}
    batches = {box.batch for boxes in needs.values() for box in boxes}
    awaited, made = set[tuple[str, int]](), set[Box]()
    for queue in queues.values():
        for op in queue:
            if op.number not in batches:  # a message has its sender's number; asking fewer makes a look cheap
                continue
            if op.kind.startswith(MESSAGE):
                awaited.add((op.kind.removeprefix(MESSAGE), op.number))
            elif not op.sent:
                made.update(messages.gives(Op(op.kind, op.k, op.number)))
    found: dict[tuple[str, ...], Dispatched] = {}
    for k, boxes in needs.items():
        op, where = oldest[k], devices[k]
        if any(box in made or (box.what, box.batch) in awaited for box in boxes):
            continue
        if where not in found or op.since < found[where].since:
            found[where] = op
    return {op.k: op for op in found.values()}


def occupancy(engine: Engine, unfinished: UnfinishedOperations) -> Occupancy | None:
    """What counts the looks at an engine's stages; None if it has none to look at."""
    return Occupancy(engine, unfinished) if isinstance(engine, HostEngine) else None
