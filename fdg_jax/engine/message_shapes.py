"""The shapes of the messages between stages, which whoever receives one from another process has to know before."""

from collections.abc import Sequence
from typing import Any

import jax

from fdg_jax.arrays import cotangent
from fdg_jax.schedule import Address, Op
from fdg_jax.stage.functions import Spec

Tree = Any


def message_shapes(address: Address, sender: Op, specs: Sequence[Spec]) -> Tree:
    """The shapes and dtypes of a message of a batch like the example batch.

    Arguments:
        address: its address.
        sender: the operation that sends it.
        specs: of the stages.
    """
    spec = specs[sender.k - 1]
    if sender.kind == "F":  # direct feedback sends the error at the outputs
        return spec.y if address.what == "x" else cotangent(spec.outputs)
    return cotangent(spec.x)


def with_examples(tree: Tree, n: int) -> Tree:
    """The shapes of arrays [batch, ...] for n examples."""
    return jax.tree.map(lambda like: jax.ShapeDtypeStruct((n, *like.shape[1:]), like.dtype), tree)
