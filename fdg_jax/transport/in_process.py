"""The transport within one process: a message is copied from device to device."""

from collections.abc import Sequence
from typing import Any

from fdg_jax.schedule import Box
from fdg_jax.transport.devices import Place

Tree = Any


class InProcess:
    """All stages k = 1..K lie in this process, each at its place."""

    def __init__(self, places: Sequence[Place]):
        self.places = dict(enumerate(places, 1))

    def send(self, box: Box, message: Tree) -> Tree:
        return self.places[box.k].batch(message)
