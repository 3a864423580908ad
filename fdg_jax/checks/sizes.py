"""Whether the stages take batches of other shapes than the example's: found out before such a batch enters.

Stage k meets a batch k-1 ticks after stage 1. What fails there, within a tick, would leave the stages at different
batches.
"""

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax

from fdg_jax.stage.functions import ComputeOptions, split_variables
from fdg_jax.stage.shapes import check_loss, describe, forward_shapes, shape_of, stage_1_inputs
from fdg_jax.stage.tracing import trace_or_refuse

Tree = Any


def follow(
    stages: Sequence[tuple[nn.Module, ComputeOptions, Tree]], loss: Callable, preprocess: Callable | None, batch: Any
) -> None:
    """Follows a batch through all stages in training mode, without computing anything.

    Arguments:
        stages: for each stage its module, how it is computed, and the shapes of its variables.
        loss, preprocess: the pipeline's.
        batch: (inputs, labels), as arrays or shapes.

    Raises:
        BadInput: a stage or the loss cannot take it.
    """
    inputs, labels = map(shape_of, batch)
    x, n = stage_1_inputs(preprocess, inputs), jax.tree.leaves(inputs)[0].shape[0]
    for k, (module, compute, variables) in enumerate(stages, 1):
        fact = f"stage k={k} ({type(module).__name__}) cannot take {describe(x)}, of a batch of {n}."
        way_out = "Leave that batch out, or fill it up, with weights of 0 (fdg_jax.Weighted)."
        state = split_variables(variables)
        x, _ = trace_or_refuse(fact, forward_shapes, module, compute, *state, x, way_out=way_out)
    check_loss(loss, x, labels)
