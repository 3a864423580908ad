"""How much memory every stage will need, before anything compiles: what one has to know to choose K and a batch size.

What a stage holds is counted by running its schedule on integers, how large the things are is known from shapes; only
the forward pass is traced (which the training would do anyway, and does not do again). For stage k < K of FDG, with
stashed weights or current ones (a memo refers to its old weights in both cases, see fdg_jax.stage.stage):

    weights + optimizer + statistics + 2(K-k) memos + the weights of as many updates as lie between + messages

`benchmarks/memory.py` measures the same by looking at the arrays that are there.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fdg_jax.engine.host_engine import HostEngine
from fdg_jax.engine.interface import Engine
from fdg_jax.engine.micro_batches import bounds
from fdg_jax.engine.scan_engine import ScanEngine
from fdg_jax.schedule import Box, Op
from fdg_jax.stage.functions import Spec
from fdg_jax.stage.stage import Stage
from fdg_jax.transport.devices import Place

Tree = Any


class Memory(NamedTuple):
    """Bytes of stage k on its device, between two operations of the host loop, when they are the most.

    weights, statistics: the network's newest. auxiliary: what the method adds (heads, synthesizers, feedback weights),
    and what a correction remembers.
    memos: what is kept of batches until their gradients come (activations, inputs, statistics); kept: of how many
    batches, and memo: of one. old_weights: earlier weights that memos refer to. gradients: waiting in ADL's sum or in a
    delay line. in_flight: messages that wait to be read, and that have just been sent.

    Not in it is what lives within a program or between backward pass and update: XLA's temporary buffers, and one
    gradient, as large as weights and auxiliary weights are.
    """

    k: int
    weights: int
    optimizer: int
    statistics: int
    auxiliary: int
    memos: int = 0
    old_weights: int = 0
    gradients: int = 0
    in_flight: int = 0
    kept: int = 0
    memo: int = 0

    @property
    def total(self) -> int:
        return sum(self[1:9])


def size(tree: Tree) -> int:
    """Bytes of the arrays (or shapes) in a tree."""
    arrays = (leaf for leaf in jax.tree.leaves(tree) if hasattr(leaf, "shape"))
    return sum(int(np.prod(leaf.shape)) * np.dtype(leaf.dtype).itemsize for leaf in arrays)


def predicted(engine: Engine) -> list[Memory]:
    """Of the stages k = 1..K, for batches as large as the example. [] where a stage is spread over several devices
    (data parallel), which is not counted.

    A batch cut into micro-batches of different sizes counts as if all were as large as the largest. With stages that
    share a device (the delay line) it needs no more than the sum of what they need.
    """
    if isinstance(engine, ScanEngine):
        lines = zip(engine.run.lines, engine.run.sums, strict=True)
        waiting = [size((line.grads, line.then, held.grads if held else ())) for line, held in lines]
        states = zip(engine.parts.specs, engine.run.stages, waiting, strict=True)
        return [newest(spec.k, s, size(s.params))._replace(gradients=line) for spec, s, line in states]
    if not isinstance(engine, HostEngine) or any(type(stage.place) is not Place for stage in engine.stages.values()):
        return []
    peaks: dict[int, Memory] = {}
    for k, memory in moments(engine):
        if k not in peaks or memory.total > peaks[k].total:
            peaks[k] = memory
    return [peaks[k] for k in engine.stages]


def newest(k: int, state: Any, weights: int) -> Memory:
    """What a stage holds from the beginning. weights: bytes of the network's own."""
    auxiliary = size(state.params) - weights + size((state.own, state.correction))
    return Memory(k, weights, size(state.opt_state), size(state.extra), auxiliary)


class Held:
    """What stage k holds, counted as operations come. kept[kind]: (batch, weight version) of each thing kept until an
    operation of that kind uses it up; mail: bytes of messages that wait."""

    def __init__(self, stage: Stage, x: Tree, labels: Tree):
        self.k, self.delay, self.accumulate = stage.k, stage.delay, stage.accumulate
        kept = stage.kept(x, labels)
        memo = kept["B"]
        self.old = size(stage.state.params) if hasattr(memo, "params") else 0
        self.gradient = size(stage.state.params)
        self.sizes = {kind: size(tree) for kind, tree in kept.items()}
        self.sizes["B"] -= self.old
        self.kept: dict[str, deque[tuple[int, int]]] = {kind: deque() for kind in kept}
        self.ahead, self.corrected = bool(stage.spec.correction.forward), bool(stage.spec.correction.gradient)
        self.waiting: deque[int] = deque()  # the weight versions of gradients in the line
        self.updates, self.passes, self.mail = 0, 0, 0
        self.base = newest(stage.k, stage.state, size(jax.eval_shape(stage.variables)["params"]))

    def run(self, op: Op) -> None:
        if op.kind == "F":
            for pile in self.kept.values():
                pile.append((op.batch, self.updates))
            return
        _, version = self.kept[op.kind].popleft()
        if op.kind == "B":
            self.passes += 1
            self.waiting.append(version)
            if len(self.waiting) > self.delay:
                self.waiting.popleft()
            self.updates = max(0, self.passes - self.delay) // self.accumulate

    def now(self, sent: int) -> Memory:
        """sent: bytes of messages of its last operation that are still on this device as well."""
        versions = {version for _, version in self.kept["B"]} | (set(self.waiting) if self.corrected else set())
        versions -= set() if self.ahead else {self.updates}  # the newest weights are counted already
        under_way = len(self.waiting) + (max(0, self.passes - self.delay) % self.accumulate > 0)
        return self.base._replace(
            memos=sum(len(pile) * self.sizes[kind] for kind, pile in self.kept.items()),
            old_weights=len(versions) * self.old,
            gradients=under_way * self.gradient,
            in_flight=self.mail + sent,
            kept=len(self.kept["B"]),
            memo=self.sizes["B"],
        )


def moments(engine: HostEngine) -> Iterator[tuple[int, Memory]]:
    """(k, what stage k holds) after every operation that made it more, until the pipeline runs steadily."""
    schedule, specs = engine.loop.schedule, engine.parts.specs
    of_part = parts_of(specs, schedule.micro_batches)
    held = {spec.k: Held(engine.stages[spec.k], spec.x, labels_at(spec, engine)) for spec in of_part}
    devices = {k: stage.place.device for k, stage in engine.stages.items()}
    sizes: dict[Box, int] = {}

    def post(box: Box, giver: Op | None) -> int:
        sizes[box] = message(box, giver, of_part)
        held[box.k].mail += sizes[box]
        return sizes[box]

    takes, gives, enters = schedule.messages
    for t in range(1, 4 * schedule.K + 2 * schedule.accumulate + max(engine.parts.delays) + 3):
        for part in range((t - 1) * schedule.micro_batches + 1, t * schedule.micro_batches + 1):
            for box in enters(part):
                post(box, None)
                yield box.k, held[box.k].now(0)
        for op in schedule.tick(t, None):
            for box in takes(op):
                held[box.k].mail -= sizes.pop(box)
            held[op.k].run(op)
            boxes = [box for box in gives(op) if box.what != "loss"]
            posted = {box: post(box, op) for box in boxes}
            # To another device a message is copied, on the same one it is the very array.
            away = {box.what: n for box, n in posted.items() if devices[box.k] is not devices[op.k]}
            yield op.k, held[op.k].now(sum(away.values()))
            yield from ((box.k, held[box.k].now(0)) for box in boxes)


def message(box: Box, giver: Op | None, specs: Sequence[Spec]) -> int:
    """Bytes of a message. giver: None as it comes from outside, cotangents then as shares of a batch."""
    if giver is None:
        return size({"x": specs[0].x, "labels": specs[0].labels, "dy": specs[-1].value}[box.what])
    spec = specs[giver.k - 1]
    if giver.kind == "F":
        return size(spec.y if box.what == "x" else spec.outputs)  # direct feedback sends the error at the outputs
    return size(spec.x)


def labels_at(spec: Spec, engine: HostEngine) -> Tree:
    """The labels as stage k takes them in its forward pass; None where it has no use for them."""
    taken = {box.what for box in engine.loop.schedule.messages.takes(Op("F", spec.k, 1))}
    return spec.labels if "labels" in taken else None


def parts_of(specs: Sequence[Spec], M: int) -> list[Spec]:
    """The specs of a batch's largest micro-batch."""
    if M == 1:
        return list(specs)
    part = bounds(len_of(specs[0].labels), M)[1]

    def first(tree: Tree) -> Tree:
        return jax.tree.map(lambda s: jax.ShapeDtypeStruct((part, *s.shape[1:]), s.dtype), tree)

    return [s._replace(x=first(s.x), y=first(s.y), outputs=first(s.outputs), labels=first(s.labels)) for s in specs]


def len_of(tree: Tree) -> int:
    return jax.tree.leaves(tree)[0].shape[0]
