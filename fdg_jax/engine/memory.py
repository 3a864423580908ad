"""Predicts the memory that each stage needs, before anything compiles, to help choose K and the batch size.

The prediction runs the schedule on integers to count what a stage holds, and takes sizes from shapes. Only the forward
pass is traced, and training uses this trace again. Stage k < K of FDG holds

    weights + optimizer + statistics + 2(K-k) stashes + old weights of the stashes + messages

This is true with stashed and with current weights, because a stash refers to its old weights in both cases (see
fdg_jax.stages.stage). `benchmarks/memory.py` measures the same from the arrays that exist.
"""

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding

from fdg_jax.engine.host_engine import HostEngine, message_shapes
from fdg_jax.engine.host_loop import HostLoop
from fdg_jax.engine.interface import Engine
from fdg_jax.engine.scan_engine import ScanEngine
from fdg_jax.schedule import Address, Op
from fdg_jax.stages.functions import Spec
from fdg_jax.stages.shapes import examples, with_examples
from fdg_jax.stages.stage import Stage
from fdg_jax.stages.weighted import bounds

Tree = Any


class Memory(NamedTuple):
    """The largest number of bytes that stage k holds between two operations of the host loop, on its device or on each
    of its devices.

    weights, statistics: the network's newest weights and running statistics.
    optimizer: the optimizer's state.
    auxiliary: arrays that the method adds (heads, synthesizers, feedback weights), and the state of a correction.
    stashes: activations, inputs and statistics that are kept until the gradients of their batches come.
    old_weights: earlier weights that stashes refer to.
    gradients: gradients in a sum over several batches or in a delay line.
    in_flight: messages that wait to be read, or have just been sent.
    kept: the number of batches in `stashes` (not bytes).
    stash: bytes of one stash; not part of the total.

    Each of several devices has its part of the batch and of sharded weights. If weights are sharded over other mesh
    axes than the batch, XLA may shard activations as well; the prediction assumes that it does not.

    The prediction leaves out arrays that exist only within a program or between backward pass and update: XLA's
    temporary buffers, and one gradient, as large as weights and auxiliary weights together.
    """

    k: int
    weights: int
    optimizer: int
    statistics: int
    auxiliary: int
    stashes: int = 0
    old_weights: int = 0
    gradients: int = 0
    in_flight: int = 0
    kept: int = 0
    stash: int = 0

    @property
    def total(self) -> int:
        """The sum of all bytes."""
        return sum(self[1:9])


def tree_bytes(tree: Tree) -> int:
    """Bytes of the arrays (or shapes) in a tree; for sharded arrays, the bytes on each device."""

    def here(leaf: Any) -> Sequence[int]:
        sharding = getattr(leaf, "sharding", None)
        return sharding.shard_shape(leaf.shape) if isinstance(sharding, NamedSharding) else leaf.shape

    arrays = (leaf for leaf in jax.tree.leaves(tree) if hasattr(leaf, "shape"))
    return sum(int(np.prod(here(leaf))) * np.dtype(leaf.dtype).itemsize for leaf in arrays)


def predict(engine: Engine) -> list[Memory]:
    """Predicts the memory of the stages k = 1..K, for batches as large as the example.

    If a batch is split into micro-batches of different sizes, each counts as large as the largest. Stages that share a
    device (the delay line) need at most the sum of their predictions.

    Arguments:
        engine: the engine.

    Returns: the memory of each stage of this process; [] if all stages share several devices (data parallel), because
    this case is not predicted.
    """
    if isinstance(engine, ScanEngine):
        lines = zip(jax.eval_shape(engine.unpacked, engine.run).lines, engine.run.sums, strict=True)
        waiting = [tree_bytes((line.grads, line.then, held.grads if held else ())) for line, held in lines]
        states = zip(engine.problem.specs, engine.run.stages, waiting, strict=True)
        return [initial(spec.k, s, tree_bytes(s.params))._replace(gradients=line) for spec, s, line in states]
    places = engine.problem.places
    shared = any(place.parts > 1 for place in places) and len({id(place) for place in places}) < len(places)
    if not isinstance(engine, HostEngine) or shared:
        return []
    peaks: dict[int, Memory] = {}
    for k, memory in over_time(engine):
        peaks[k] = max(peaks.get(k, memory), memory, key=lambda each: each.total)
    return [peaks[k] for k in engine.stages]


def initial(k: int, state: Any, weights: int) -> Memory:
    """The memory of stage k before its first batch. weights: bytes of the network's own weights, without auxiliary."""
    auxiliary = tree_bytes(state.params) - weights + tree_bytes((state.own, state.correction))
    return Memory(k, weights, tree_bytes(state.opt_state), tree_bytes(state.extra), auxiliary)


class StageContents:
    """Replaces a stage in the host loop and counts the bytes that the stage holds. Messages are numbers of bytes.

    kept: {kind of operation: the weight versions of the stashes that wait for this operation}.
    waiting: the weight versions of the gradients in the delay line.
    mail: bytes of messages that wait.
    sent: {kind of message: bytes} of the last operation's messages. They stay on this device until they have arrived.
    seen: (k, memory of stage k) is appended after every change.
    """

    def __init__(self, stage: Stage, x: Tree, labels: Tree, seen: list[tuple[int, Memory]]):
        self.seen = seen
        self.k, self.delay, self.accumulate = stage.k, stage.delay, stage.accumulate
        kept = stage.kept_shapes(x, labels)
        stash = kept["B"]
        self.old = tree_bytes(stage.state.params) if hasattr(stash, "params") else 0
        self.gradient = tree_bytes(stage.state.params)
        self.sizes = {kind: tree_bytes(tree) for kind, tree in kept.items()}
        self.sizes["B"] -= self.old
        self.kept: dict[str, deque[int]] = {kind: deque() for kind in kept}
        self.ahead, self.corrected = bool(stage.spec.correction.forward), bool(stage.spec.correction.gradient)
        self.waiting: deque[int] = deque()
        self.shown: int | None = None  # the version whose corrected weights the stage keeps for its next forward passes
        self.updates, self.passes, self.mail, self.sent = 0, 0, 0, dict[str, int]()
        own = tree_bytes(jax.eval_shape(stage.variables)["params"])  # as if no weights were sharded
        self.base = initial(stage.k, stage.state, min(own, tree_bytes(stage.state.params)))

    def run(self, kind: str, batch: int, messages: dict[str, int]) -> dict[str, int]:
        """Counts an operation of the stage. The sizes of its messages are counted in `over_time`, which sends them."""
        self.mail -= sum(messages.values())
        self.sent = {}
        if kind == "F":
            for pile in self.kept.values():
                pile.append(self.updates)
            self.shown = self.updates
        else:
            self.go_back(kind)
        self.note()
        return defaultdict(int)

    def go_back(self, kind: str) -> None:
        """Counts a backward pass, or an operation of the method's own."""
        version = self.kept[kind].popleft()
        if kind == "B":
            self.passes += 1
            self.waiting.append(version)
            if len(self.waiting) > self.delay:
                self.waiting.popleft()
            before, self.updates = self.updates, max(0, self.passes - self.delay) // self.accumulate
            self.shown = None if self.updates > before else self.shown

    def note(self, sent: int = 0) -> None:
        """Records the memory of the stage. sent: bytes of sent messages that are still on this device as well."""
        versions = {*self.kept["B"], *(self.waiting if self.corrected else ())}
        shown = set() if self.shown is None else {self.shown}
        # The newest weights are already counted, but not the weights that a correction predicts from them.
        versions = versions | shown if self.ahead else versions - {self.updates}
        under_way = len(self.waiting) + (max(0, self.passes - self.delay) % self.accumulate > 0)
        now = self.base._replace(
            stashes=sum(len(pile) * self.sizes[kind] for kind, pile in self.kept.items()),
            old_weights=len(versions) * self.old,
            gradients=under_way * self.gradient,
            in_flight=self.mail + sent,
            kept=len(self.kept["B"]),
            stash=self.sizes["B"],
        )
        self.seen.append((self.k, now))


def over_time(engine: HostEngine) -> Iterator[tuple[int, Memory]]:
    """Yields (k, memory of stage k) after every change. The host loop itself runs, long enough for the steady state."""
    schedule, specs = engine.loop.schedule, engine.problem.specs
    places, seen = dict(enumerate(engine.problem.places, 1)), list[tuple[int, Memory]]()
    parts = {k: micro_batch_specs(specs, schedule.micro_batches, place.parts) for k, place in places.items()}
    held = {
        k: StageContents(stage, parts[k][k - 1].x, labels_at(parts[k][k - 1], engine), seen)
        for k, stage in engine.stages.items()
    }

    def send(address: Address, _: Any, sender: Op | None) -> int | None:
        size = message_bytes(address, sender, parts[address.k])
        # A message to another device is a copy; a message on the same device is the same array.
        if sender and sender.k in held and places[address.k].device is not places[sender.k].device:
            # An array that is sent to several stages is on this device only once.
            held[sender.k].sent[address.what] = message_bytes(address, sender, parts[sender.k])
            held[sender.k].note(sum(held[sender.k].sent.values()))
        if address.k not in held:
            return None
        held[address.k].mail += size
        held[address.k].note()
        return size

    loop = HostLoop(schedule, held, send, lambda batch, loss: None)
    for _ in range(4 * schedule.K + 2 * schedule.accumulate + max(engine.problem.waits) + 2):
        loop.feed([defaultdict(int)] * schedule.micro_batches)
        yield from seen
        seen.clear()


def message_bytes(address: Address, sender: Op | None, specs: Sequence[Spec]) -> int:
    """Bytes of a message.

    Arguments:
        address: the message's address.
        sender: the operation that sends it; None if it enters with a batch (a cotangent is then a micro-batch's share).
        specs: the specs of the stages.
    """
    if sender is None:
        return tree_bytes({"x": specs[0].x, "labels": specs[0].labels, "dy": specs[-1].value}[address.what])
    return tree_bytes(message_shapes(address, sender, specs))


def labels_at(spec: Spec, engine: HostEngine) -> Tree:
    """The labels that stage k takes in its forward pass; None if it takes none."""
    taken = {address.what for address in engine.loop.schedule.messages.takes(Op("F", spec.k, 1))}
    return spec.labels if "labels" in taken else None


def micro_batch_specs(specs: Sequence[Spec], M: int, parts: int = 1) -> list[Spec]:
    """The specs of the stages for the largest of a batch's M micro-batches, on each device.

    parts: over how many devices a micro-batch is sharded, if this number divides its size.
    """
    batch = examples(specs[0].x)
    part = bounds(batch, M)[1]
    part = part if part % parts else part // parts
    if part == batch:
        return list(specs)
    names = ("x", "y", "outputs", "labels")
    return [s._replace(**{name: with_examples(getattr(s, name), part, batch) for name in names}) for s in specs]
