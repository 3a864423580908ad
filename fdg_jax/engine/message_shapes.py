"""The shapes of the messages between stages, which whoever receives one from another process has to know before."""

from collections.abc import Sequence
from typing import Any

import jax

from fdg_jax.arrays import cotangent
from fdg_jax.schedule import Box, Op
from fdg_jax.stage.functions import Spec

Tree = Any


def message_shapes(box: Box, giver: Op, specs: Sequence[Spec]) -> Tree:
    """The shapes and dtypes of a message of a batch like the example batch.

    Arguments:
        box: its address.
        giver: the operation that sends it.
        specs: of the stages.
    """
    spec = specs[giver.k - 1]
    if giver.kind == "F":  # direct feedback sends the error at the outputs
        return spec.y if box.what == "x" else cotangent(spec.outputs)
    return cotangent(spec.x)


def with_examples(tree: Tree, n: int) -> Tree:
    """The shapes of arrays [batch, ...] for n examples."""
    return jax.tree.map(lambda like: jax.ShapeDtypeStruct((n, *like.shape[1:]), like.dtype), tree)
