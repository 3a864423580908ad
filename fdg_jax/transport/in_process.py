"""What a transport is: it knows where the stages are, and takes messages to them. Here within one process."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fdg_jax.errors import BadInput
from fdg_jax.schedule import Address, Op
from fdg_jax.transport.devices import Place

Tree = Any


class InProcess:
    """Takes messages to stages that are all in this process. `across_processes.py` has the same methods for several.

    Every process walks the same schedule and calls these methods for every message between stages, in the same order,
    whether it has one of the two stages or not. It passes None for messages that it does not have.

    Arguments:
        places: of the stages k = 1..K.

    Attributes:
        places: where the stages of this process are, {k: place}.
        here: the place where `tell` puts what it returns.
    """

    def __init__(self, places: Sequence[Place]):
        self.places: Mapping[int, Place] = dict(enumerate(places, 1))
        self.here = places[-1]

    def watch(self, note: Callable[[str, int, int, Tree], None]) -> None:
        """From now on, notes every message that comes from another process.

        Arguments:
            note: note(what, k, batch, message) is called when the message is requested. k: the stage that sends it.
                batch: 0 if it belongs to none, or to an evaluation.
        """

    def enter(self, batch: int, size: int) -> None:
        """Says that the messages of a batch (of a micro-batch, where a batch is split) have `size` examples.

        Batch 0 is that of an evaluation.
        """

    def send(self, address: Address, message: Tree, sender: Op | None) -> Tree:
        """Starts to copy a message to stage `address.k`. It does not wait.

        Arguments:
            address: the address.
            message: a tree of arrays [batch, ...]; None if the sender is in another process.
            sender: the operation that sends it; None if it enters from outside, in the process of stage `address.k`.

        Returns: the copy, to be put into the mail; None if stage `address.k` is in another process.
        """
        return self.places[address.k].put_batch(message)

    def tell(self, k: int, value: Tree, like: Tree) -> Tree:
        """Starts to copy a small value of stage k, such as a loss, to every process. It does not wait.

        Arguments:
            k: the stage that has it.
            value: a tree of arrays; None if stage k is in another process.
            like: its shapes and dtypes.

        Returns: the copy in this process.
        """
        return value

    def agree(self, refusal: BadInput | None) -> None:
        """Raises in every process what one of them refuses. Between processes it waits for all.

        Arguments:
            refusal: what this process refuses; None if nothing.

        Raises:
            BadInput: a process refuses.
        """
        if refusal:
            raise refusal

    def gather(self, flat: Mapping[str, Any]) -> dict[str, Any]:
        """Joins what the processes have, {name: array} with different names. Between processes it waits for all.

        Returns: the same in every process.
        """
        return dict(flat)
