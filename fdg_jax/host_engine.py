"""The engine of the host loop: K stages on K devices, or on a CPU one device that stands in for them."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import jax
import numpy as np

from fdg_jax import checkpoint
from fdg_jax.engine import HOST_LOOP, Compiled, LossWindow, Parts, check_signature, signed
from fdg_jax.evaluate import Evaluation, evaluate, tally
from fdg_jax.pipeline import Box, HostLoop
from fdg_jax.scan_engine import ScanEngine
from fdg_jax.schedule import bp
from fdg_jax.stage import Stage, StageState

Tree = Any


class HostEngine:
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
        self._transform = Compiled(lambda transform: transform)
        self.templates: dict[str, Callable[[int], Tree]] = {
            "x": lambda k: parts.inputs[k - 1],
            "dy": lambda k: parts.inputs[k],
            "labels": lambda k: parts.labels,
        }

    def send(self, box: Box, array: Tree) -> Tree:
        return jax.device_put(array, self.parts.devices[box.k - 1])

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
                x = self._transform(transform)(x)
            for k, stage in self.stages.items():
                x = stage.outputs(x if k == 1 else jax.device_put(x, stage.device))
            return self._tally(x, jax.device_put(labels, self.last))

        return evaluate(run, batches)

    def state(self) -> dict[str, Any]:
        """Everything a resumed run needs, batches in flight included. A memo is stored as its input and its weights
        (each version once); the closure is made again by a replay."""
        flat: dict[str, Any] = signed(self.parts, HOST_LOOP)
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
        check_signature(self.parts, HOST_LOOP, flat)
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
        self.losses = LossWindow(self.parts.read_behind)

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


def delay_line_engine(parts: Parts) -> HostEngine | ScanEngine:
    """The same training on one device: BP with a delay line on each stage's gradient (see fdg_jax.delay_line).

    On an accelerator many batches are one dispatch (`scan`). On a CPU the host loop runs BP's schedule over delayed
    stages: XLA runs a convolution inside a loop over 40 times slower there (jax issue 12868), and the stage programs
    are the pipeline's own, so that the two engines agree bit for bit.
    """
    device, K = parts.devices[0], parts.schedule.K
    if device.platform != "cpu":
        return ScanEngine(parts)
    delays, schedule = parts.schedule.staleness, bp(K)._replace(name=f"{parts.schedule.name} (delay line)")
    return HostEngine(parts._replace(schedule=schedule, delays=delays, devices=[device] * K))
