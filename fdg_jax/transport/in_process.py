"""The transport within one process: messages are copied from device to device."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fdg_jax.errors import BadInput
from fdg_jax.schedule import Address, Op
from fdg_jax.transport.devices import Place

Tree = Any


class InProcess:
    """A transport for stages that are all in this process (fdg_jax.transport.interface).

    Arguments:
        places: of the stages k = 1..K.
    """

    def __init__(self, places: Sequence[Place]):
        self.places: Mapping[int, Place] = dict(enumerate(places, 1))
        self.here = places[-1]

    def watch(self, note: Callable[[str, int, int, Tree], None]) -> None:
        """Does nothing: no message comes from another process."""

    def enter(self, batch: int, size: int) -> None:
        """Does nothing: an array has its size."""

    def send(self, address: Address, message: Tree, sender: Op | None) -> Tree:
        """Starts to copy a message to stage `address.k`; returns the copy at once."""
        return self.places[address.k].put_batch(message)

    def tell(self, k: int, value: Tree, like: Tree) -> Tree:
        """The value itself."""
        return value

    def agree(self, refusal: BadInput | None) -> None:
        """Raises the refusal, if there is one."""
        if refusal:
            raise refusal

    def gather(self, flat: Mapping[str, Any]) -> dict[str, Any]:
        """A copy of `flat`: this process has everything."""
        return dict(flat)
