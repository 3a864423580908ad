"""The transport within one process: messages are copied from device to device."""

from collections.abc import Sequence
from typing import Any

from fdg_jax.schedule import Box
from fdg_jax.transport.devices import Place

Tree = Any


class InProcess:
    """A transport for stages that are all in this process (fdg_jax.transport.interface).

    Arguments:
        places: of the stages k = 1..K.
    """

    def __init__(self, places: Sequence[Place]):
        self.places = dict(enumerate(places, 1))

    def send(self, box: Box, message: Tree) -> Tree:
        """Starts to copy a message to stage `box.k`; returns the copy at once."""
        return self.places[box.k].put_batch(message)
