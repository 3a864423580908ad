"""Bytes of a model's stages and messages for any method and K, from shapes alone. Nothing is computed."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import optax

import fdg_jax
from fdg_jax import split
from fdg_jax.engine import memory
from fdg_jax.training.job import cross_entropy


class Shapes(NamedTuple):
    """Bytes of a pipeline.

    memory: the most bytes that each stage k = 1..K holds (fdg_jax.engine.memory); [] if they are not predicted.
    messages: by (what, receiving stage).
    weights: of each stage.
    """

    memory: list[memory.Memory]
    messages: dict[tuple[str, int], int]
    weights: list[int]


def of(
    blocks: Sequence[nn.Module], cuts: Sequence[int], method: str, options: Mapping[str, Any], *batch: Any
) -> Shapes:
    """The bytes for a method, network and cuts. batch: the shapes of a batch's inputs and labels."""
    found: list[Shapes] = []

    def made(key: Any) -> None:
        devices = jax.local_devices()
        where = [devices[k % len(devices)] for k in range(len(cuts) + 1)]
        stages, optimizer = split.stages(blocks, tuple(cuts)), optax.sgd(0.1, momentum=0.9)
        pipeline = fdg_jax.Pipeline(stages, cross_entropy, optimizer, method, devices=where, **options)
        engine: Any = pipeline.init(key, batch).engine
        schedule = engine.loop.schedule
        specs = memory.micro_batch_specs(engine.problem.specs, schedule.micro_batches)
        given = [(to, op) for op in schedule.tick(4 * schedule.K + 2, None) for to in schedule.messages.gives(op)]
        messages = {(to.what, to.k): memory.message_bytes(to, op, specs) for to, op in given if to.what != "loss"}
        weights = [memory.tree_bytes(stage.variables().get("params", {})) for stage in engine.stages.values()]
        found.append(Shapes(memory.predict(engine), messages, weights))

    jax.eval_shape(made, jax.eval_shape(jax.random.key, 0))
    return found[0]
