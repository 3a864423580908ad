"""Names of the axes of weights, for stages on several devices: rules say which names are sharded over the devices.

Flax keeps such names in a box around an array. Outside of `naming`, weights are made without boxes, so that
initialising a module of this library gives plain arrays.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import flax.linen as nn

from fdg_jax.layers.basic import Initializer

EMBED, HIDDEN, HEADS, VOCABULARY = "embed", "hidden", "heads", "vocabulary"  # the axes of a transformer's matrices
_naming = ContextVar("naming", default=False)


@contextmanager
def naming() -> Iterator[None]:
    """A context in which the layers of this library name the axes of the weights that they make."""
    before = _naming.set(True)
    try:
        yield
    finally:
        _naming.reset(before)


def named(draw: Initializer, *axes: str | None) -> Initializer:
    """An initialiser whose arrays have names for their axes, within `naming`."""
    return nn.with_logical_partitioning(draw, axes) if _naming.get() and any(axes) else draw
