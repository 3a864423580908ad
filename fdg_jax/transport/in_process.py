"""The transport within one process. A transport knows where the stages are, and copies messages to them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fdg_jax.errors import BadInput
from fdg_jax.schedule import Address, Op
from fdg_jax.transport.devices import Place

Tree = Any


class InProcess:
    """Copies messages to stages that are all in this process. `AcrossProcesses` has the same methods for several
    processes.

    Every process walks the same schedule and calls these methods for every message between stages, in the same order,
    even if it has neither of the two stages. It passes None for messages that it does not have.

    Arguments:
        places: the places of the stages k = 1..K.

    Attributes:
        places: the places of the stages in this process, {k: place}.
        here: the place of the values that `tell` returns.
    """

    def __init__(self, places: Sequence[Place]):
        self.places: Mapping[int, Place] = dict(enumerate(places, 1))
        self.here = places[-1]

    def watch(self, note: Callable[[str, int, int, Tree], None]) -> None:
        """From now on, calls `note` for every message that comes from another process.

        Arguments:
            note: note(what, k, batch, message), called when the message is requested. k: the stage that sends it.
                batch: the message's batch; 0 if it belongs to an evaluation or to no batch.
        """

    def enter(self, batch: int, size: int) -> None:
        """Says that the messages of a batch (or micro-batch) have `size` examples. Batch 0 is one of an evaluation."""

    def send(self, address: Address, message: Tree, sender: Op | None) -> Tree:
        """Starts to copy a message to stage `address.k`. It does not wait.

        Arguments:
            address: the address.
            message: a tree of arrays [batch, ...]; None if the sender is in another process.
            sender: the operation that sends it; None for a message that enters with a batch, in the process of stage
                `address.k`.

        Returns: the copy, for the host loop's mail; None if stage `address.k` is in another process.
        """
        return self.places[address.k].put_batch(message)

    def tell(self, k: int, value: Tree, like: Tree) -> Tree:
        """Starts to copy a small value of stage k, such as a loss, to every process. It does not wait.

        Arguments:
            k: the stage that has the value.
            value: a tree of arrays; None if stage k is in another process.
            like: the value's shapes and dtypes.

        Returns: the copy in this process.
        """
        return value

    def agree(self, refusal: BadInput | None) -> None:
        """If a process has an error, raises it in every process. With several processes it waits for all of them.

        Arguments:
            refusal: this process's error; None if there is none.

        Raises:
            BadInput: a process has an error.
        """
        if refusal:
            raise refusal

    def gather(self, flat: Mapping[str, Any]) -> dict[str, Any]:
        """Merges the dictionaries {name: array} of all processes. No two of them may share a name. With several
        processes it waits for all of them.

        Returns: the merged dictionary, in every process.
        """
        return dict(flat)
