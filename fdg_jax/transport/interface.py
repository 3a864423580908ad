"""What a transport is: it knows where the stages are, and takes messages to them."""

from collections.abc import Mapping
from typing import Any, Protocol

from fdg_jax.schedule import Box
from fdg_jax.transport.devices import Place

Tree = Any


class Transport(Protocol):
    """Takes messages to stages. The one in a process (`in_process.py`) is the only one yet, and has all stages.

    places: where the stages of this process are, {k: place}. The other stages are elsewhere, in a process whose host
        loop walks the same schedule; a message for one of them has to be put into that loop's `mail` before the tick
        in which its operation takes it, for a host loop never waits.
    """

    places: Mapping[int, Place]

    def send(self, box: Box, message: Tree) -> Tree:
        """Starts to copy a message to stage `box.k`. It does not wait.

        Arguments:
            box: the address.
            message: a tree of arrays [batch, ...].

        Returns: the message as it will be there. For a stage that is elsewhere it is delivered there, and what this
        returns is not used.
        """
        ...
