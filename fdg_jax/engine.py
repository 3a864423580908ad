"""The two ways to run the same training: K stages on K devices, or one device with delay lines.

Both have the same verbs (step, train, drain, evaluate, state, restore), so that whoever drives them need not know
which it is. `fdg_jax.Pipeline` is the front door; it checks everything before one of these is made.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fdg_jax import checkpoint, compat, delay_line
from fdg_jax.errors import BadInput
from fdg_jax.evaluate import Evaluation, evaluate, tally
from fdg_jax.pipeline import Box, HostLoop
from fdg_jax.schedule import Schedule, bp
from fdg_jax.stage import Functions, Stage, StageState

Tree = Any


class Metrics(NamedTuple):
    """step: batches that had entered, this one included. loss: of that batch, at the weights it met."""

    step: int
    loss: float


class LossWindow:
    """Reads losses late: only what is finished, or, beyond `limit` dispatches, the oldest one.

    The bound keeps the run-ahead on an accelerator finite; nothing else in the loop ever waits.
    """

    def __init__(self, limit: int):
        self.limit, self.pending, self.finished = limit, deque[tuple[int, jax.Array]](), list[Metrics]()

    def add(self, step: int, losses: jax.Array) -> None:
        """losses [] of batch `step`, or [W] of the batches from `step` on."""
        self.pending.append((step, losses))
        while self.pending and (len(self.pending) > self.limit or compat.is_ready(self.pending[0][1])):
            self.read()

    def read(self) -> None:
        step, losses = self.pending.popleft()
        values = np.atleast_1d(jax.device_get(losses))
        self.finished += [Metrics(step + i, float(value)) for i, value in enumerate(values)]

    def read_all(self) -> None:
        while self.pending:
            self.read()

    def take(self) -> list[Metrics]:
        taken, self.finished = self.finished, []
        return taken


class Parts(NamedTuple):
    """A checked training problem, ready to be run by either engine."""

    schedule: Schedule
    functions: Sequence[Functions]
    states: Sequence[StageState]
    loss: Callable[[Tree, Tree], jax.Array]
    preprocess: Callable[[Tree, jax.Array], Tree] | None
    inputs: Sequence[Tree]  # of each stage, as shapes
    labels: Tree  # as shapes
    devices: Sequence[Any]
    delays: Sequence[int]  # of each stage's gradient, in updates; 0 where the schedule itself is the delay
    weights: str
    read_behind: int


def signature(parts: Parts, engine: str) -> str:
    """What a state belongs to, beside its shapes."""
    return f"{parts.schedule.name}, K={parts.schedule.K}, {parts.weights} weights, {engine}"


def check_signature(parts: Parts, engine: str, flat: checkpoint.Flat) -> None:
    ours, theirs = signature(parts, engine), bytes(flat.get("of", np.zeros(0, np.uint8))).decode()
    if ours != theirs:
        raise BadInput(f"the checkpoint is of another run ({theirs or 'unknown'}); this one is {ours}.")


def signed(parts: Parts, engine: str) -> dict[str, np.ndarray]:
    return {"of": np.frombuffer(signature(parts, engine).encode(), np.uint8)}


class PipelineEngine:
    """K stages on their devices, driven by the host loop."""

    def __init__(self, parts: Parts):
        self.parts = parts
        self.stages = {
            k: Stage(
                k,
                parts.functions[k - 1],
                parts.states[k - 1],
                parts.devices[k - 1],
                stashed=parts.weights == "stashed" and parts.schedule.staleness[k - 1] > 0,
                delay=parts.delays[k - 1],
            )
            for k in range(1, parts.schedule.K + 1)
        }
        self.first, self.last = parts.devices[0], parts.devices[-1]
        self.losses = LossWindow(parts.read_behind)
        self.loop = HostLoop(parts.schedule, self.stages, self.send, self.on_loss)
        self.entered = 0
        self._before_drain = 0  # batches that entered before the pipeline was last empty
        self._preprocess = jax.jit(parts.preprocess) if parts.preprocess else None
        self._tally = jax.jit(partial(tally, parts.loss))
        self._transforms: dict[Callable, Callable] = {}
        self.templates: dict[str, Callable[[int], Tree]] = {
            "x": lambda k: parts.inputs[k - 1],
            "dy": lambda k: parts.inputs[k],
            "labels": lambda k: parts.labels,
        }

    def send(self, array: Tree, k: int) -> Tree:
        return jax.device_put(array, self.stages[k].device)

    def on_loss(self, batch: int, loss: jax.Array) -> None:
        self.losses.add(self._before_drain + batch, loss)

    def step(self, inputs: Tree, labels: Tree) -> None:
        x = jax.device_put(inputs, self.first)
        if self._preprocess:
            x = self._preprocess(x, jax.device_put(np.int32(self.entered), self.first))
        self.entered += 1
        self.loop.step(x, jax.device_put(labels, self.last))

    def train(self, images: np.ndarray, labels: np.ndarray, indices: np.ndarray) -> None:
        for row in indices:
            self.step(images[row], labels[row])

    def drain(self) -> None:
        self.loop.drain()
        for stage in self.stages.values():
            stage.drain()
        self._before_drain = self.entered

    def wait(self) -> None:
        jax.block_until_ready([stage.state for stage in self.stages.values()])

    def stage_states(self) -> list[StageState]:
        return [stage.state for stage in self.stages.values()]

    def staleness(self) -> list[int]:
        return [stage.staleness for stage in self.stages.values()]

    def updates(self) -> list[int]:
        return [stage.updates for stage in self.stages.values()]

    def evaluate(self, batches: Iterable, transform: Callable[[Tree], Tree] | None) -> Evaluation:
        def run(inputs, labels):
            x = jax.device_put(inputs, self.first)
            if transform:
                x = self._transforms.setdefault(transform, jax.jit(transform))(x)
            for k, stage in self.stages.items():
                x = stage.outputs(x if k == 1 else self.send(x, k))
            return self._tally(x, jax.device_put(labels, self.last))

        return evaluate(run, batches)

    def state(self) -> dict[str, Any]:
        """Everything a resumed run needs, batches in flight included. A memo is stored as its input and its weights
        (each version once); the closure is made again by a replay."""
        flat: dict[str, Any] = signed(self.parts, "host loop")
        flat |= {"t": np.int64(self.loop.t), "entered": np.int64(self.entered)}
        for k, stage in self.stages.items():
            flat |= checkpoint.flatten(stage.state, f"stage{k}/")
            flat[f"stage{k}/updates"], flat[f"stage{k}/staleness"] = np.int64(stage.updates), np.int64(stage.staleness)
            for memo in stage.memos:
                flat |= checkpoint.flatten(memo.x, f"memo{k}/{memo.batch}/x")
                flat |= checkpoint.flatten(memo.extra, f"memo{k}/{memo.batch}/extra")
                flat[f"memo{k}/{memo.batch}/version"] = np.int64(memo.version)
                flat |= checkpoint.flatten(memo.params, f"weights{k}/{memo.version}/")
            for i, (grads, version) in enumerate(stage.line):
                flat |= checkpoint.flatten(grads, f"line{k}/{i}/")
                flat[f"line{k}/{i}/version"] = np.int64(version)
        for box, message in self.loop.mail.items():
            flat |= checkpoint.flatten(message, f"mail/{box.what}/{box.k}/{box.batch}/")
        return jax.device_get(flat)

    def restore(self, flat: checkpoint.Flat) -> None:
        """The inverse of `state`. BadInput where it is of another model, split, method or engine."""
        check_signature(self.parts, "host loop", flat)
        for k, stage in self.stages.items():
            state = checkpoint.unflatten(stage.state, flat, f"stage{k}/")
            stage.state = jax.device_put(state, stage.device)
            stage.updates, stage.staleness = int(flat[f"stage{k}/updates"]), int(flat[f"stage{k}/staleness"])
            stage.line.clear()
            for i in range(sum(name.startswith(f"line{k}/") and name.endswith("/version") for name in flat)):
                grads = checkpoint.unflatten(state.params, flat, f"line{k}/{i}/")
                stage.line.append((jax.device_put(grads, stage.device), int(flat[f"line{k}/{i}/version"])))
            self.restore_memos(k, flat)
        self.loop.mail.clear()
        for what, k, batch in sorted({tuple(name.split("/")[1:4]) for name in flat if name.startswith("mail/")}):
            box = Box(what, int(k), int(batch))
            self.loop.mail[box] = self.message(self.templates[what](box.k), flat, f"mail/{what}/{k}/{batch}/", box.k)
        self.loop.t, self.entered = int(flat["t"]), int(flat["entered"])
        self._before_drain = self.entered - self.loop.t

    def restore_memos(self, k: int, flat: checkpoint.Flat) -> None:
        stage, held = self.stages[k], dict[int, Tree]()
        stage.memos.clear()
        for batch in sorted({int(name.split("/")[1]) for name in flat if name.startswith(f"memo{k}/")}):
            memo, version = f"memo{k}/{batch}/", int(flat[f"memo{k}/{batch}/version"])
            if version not in held:
                weights = checkpoint.unflatten(stage.state.params, flat, f"weights{k}/{version}/")
                held[version] = jax.device_put(weights, stage.device)
            x = self.message(self.parts.inputs[k - 1], flat, memo + "x", k)
            extra = checkpoint.unflatten(stage.state.extra, flat, memo + "extra")
            stage.replay(batch, held[version], jax.device_put(extra, stage.device), x, version)

    def message(self, template: Tree, flat: checkpoint.Flat, prefix: str, k: int) -> Tree:
        return jax.device_put(checkpoint.unflatten(template, flat, prefix, any_batch_size=True), self.stages[k].device)


def delay_line_engine(parts: Parts, scan: bool | None = None) -> "PipelineEngine | ScanEngine":
    """The same training on one device: BP with a delay line on each stage's gradient (see fdg_jax.delay_line).

    On an accelerator many batches are one dispatch (`scan`). On a CPU the host loop runs BP's schedule over delayed
    stages: XLA runs a convolution inside a loop over 40 times slower there (jax issue 12868), and the stage programs
    are the pipeline's own, so that the two engines agree bit for bit.
    """
    device, K = parts.devices[0], parts.schedule.K
    if device.platform != "cpu" if scan is None else scan:
        return ScanEngine(parts)
    delays, schedule = parts.schedule.staleness, bp(K)._replace(name=f"{parts.schedule.name} (delay line)")
    return PipelineEngine(parts._replace(schedule=schedule, delays=delays, devices=[device] * K))


class ScanEngine:
    """Delay lines on one accelerator: data resident on the device, a window of batches a dispatch."""

    def __init__(self, parts: Parts):
        self.parts, self.device = parts, parts.devices[0]
        functions, delays = parts.functions, parts.schedule.staleness
        self.run = jax.device_put(delay_line.start(parts.states, delays), self.device)
        self.run = jax.tree.map(jnp.copy, self.run)  # donated below: never the caller's arrays
        self.losses = LossWindow(parts.read_behind)
        self.entered = 0
        self._resident: tuple[Any, Any, Tree] | None = None
        self._transforms: dict[Callable | None, Callable] = {}

        def one(run, inputs, labels):
            x = parts.preprocess(inputs, run.entered) if parts.preprocess else inputs
            loss, held = delay_line.forward(functions, run.stages, x, labels)
            return delay_line.backward(functions, delays, run, held), loss

        def window(run, images, labels, indices):
            return jax.lax.scan(lambda run, row: one(run, images[row], labels[row]), run, indices)

        self._step = jax.jit(one, donate_argnums=0)
        self._window = jax.jit(window, donate_argnums=0)
        self._drain = jax.jit(partial(delay_line.drain, functions, delays), donate_argnums=0)

    def step(self, inputs: Tree, labels: Tree) -> None:
        self.run, loss = self._step(self.run, *jax.device_put((inputs, labels), self.device))
        self.advance(1, loss)

    def train(self, images: np.ndarray, labels: np.ndarray, indices: np.ndarray) -> None:
        """One dispatch for all W batches; images and labels stay on the device between calls."""
        if self._resident is None or self._resident[0] is not images or self._resident[1] is not labels:
            self._resident = (images, labels, jax.device_put((images, labels), self.device))
        self.run, losses = self._window(self.run, *self._resident[2], jax.device_put(indices, self.device))
        self.advance(len(indices), losses)

    def advance(self, batches: int, losses: jax.Array) -> None:
        self.losses.add(self.entered + 1, losses)
        self.entered += batches

    def drain(self) -> None:
        self.run = self._drain(self.run)

    def wait(self) -> None:
        jax.block_until_ready(self.run)

    def stage_states(self) -> list[StageState]:
        return list(self.run.stages)

    def staleness(self) -> list[int]:
        return [int(value) for value in jax.device_get(self.run.staleness)]

    def updates(self) -> list[int]:
        return [int(value) for value in jax.device_get(self.run.updates)]

    def evaluate(self, batches: Iterable, transform: Callable[[Tree], Tree] | None) -> Evaluation:
        functions, loss = self.parts.functions, self.parts.loss

        def run(stages, inputs, labels):
            x = transform(inputs) if transform else inputs
            for f, s in zip(functions, stages, strict=True):
                x = f.outputs(s.params, s.extra, x)
            return tally(loss, x, labels)

        compiled = self._transforms.setdefault(transform, jax.jit(run))
        return evaluate(lambda x, y: compiled(self.run.stages, *jax.device_put((x, y), self.device)), batches)

    def state(self) -> dict[str, Any]:
        """Everything a resumed run needs; the gradients in the delay lines included."""
        return signed(self.parts, "scan") | jax.device_get(checkpoint.flatten(self.run, "run/"))

    def restore(self, flat: checkpoint.Flat) -> None:
        """The inverse of `state`. BadInput where it is of another model, split, method or engine."""
        check_signature(self.parts, "scan", flat)
        self.run = jax.device_put(checkpoint.unflatten(self.run, flat, "run/"), self.device)
        self.entered = int(flat["run/.entered"])
