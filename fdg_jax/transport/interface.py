"""What a transport is: it knows where the stages lie and takes messages to them."""

from collections.abc import Mapping
from typing import Any, Protocol

from fdg_jax.schedule import Box
from fdg_jax.transport.devices import Place

Tree = Any


class Transport(Protocol):
    """Takes messages to stages.

    places: where the stages of this process lie, by their number k; the others are elsewhere.
    """

    places: Mapping[int, Place]

    def send(self, box: Box, message: Tree) -> Tree:
        """Starts to copy a message to stage `box.k` and returns it as it will be there, at once, without waiting.

        For a stage that is elsewhere it delivers the message there, and what it returns is not used.
        """
        ...
