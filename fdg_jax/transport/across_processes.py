"""The transport between processes: copies by `jax.device_put` from a device of one process to a device of another.

The processes have joined by `fdg_jax.join_processes`. Between CPUs, JAX copies through sockets. GPUs have not been
tried. JAX counts these copies: every process has to request each of them in the same order, even if it neither sends
nor receives.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from fdg_jax.errors import BadInput
from fdg_jax.schedule import Address, Op
from fdg_jax.transport.devices import Place, is_here
from fdg_jax.transport.exchange import Exchange, copy, put
from fdg_jax.transport.notices import Notices

Tree = Any


class AcrossProcesses:
    """A transport for stages in several processes (fdg_jax.transport.interface). Only one thread may use it.

    Arguments:
        places: of the stages k = 1..K, on devices of any process.
        shapes: (address, sender, number of examples) -> the shapes and dtypes of a message.
        window: how many batches' sizes are remembered: as many as can be in flight.

    Raises:
        BadInput: a process has no stage, or a stage has several devices.
    """

    def __init__(self, places: Sequence[Place], shapes: Callable[[Address, Op, int], Tree], window: int):
        self.all, self.shapes, self.window = dict(enumerate(places, 1)), shapes, window
        if any(len(place.devices) > 1 for place in places):
            raise BadInput("a stage on several devices cannot be in a pipeline of several processes. Use one process.")
        # Each process gets values (`tell`) on the device of its last stage.
        self.told = {place.device.process_index: place.device for place in places}
        if missing := sorted(set(range(jax.process_count())) - self.told.keys()):
            raise BadInput(
                f"process {missing[0]} has no stage: {len(places)} stages are in {len(self.told)} of "
                f"{jax.process_count()} processes. Start no more processes than stages."
            )
        self.places: Mapping[int, Place] = {k: place for k, place in self.all.items() if is_here(place.device)}
        self.here = self.places[max(self.places)]
        self.exchange = Exchange(self.told)
        self.sizes: dict[int, int] = {}
        self.note: Callable[[str, int, int, Tree], None] = lambda what, k, batch, message: None

    def watch(self, note: Callable[[str, int, int, Tree], None]) -> None:
        """From now on, notes every message that comes from another process."""
        self.note = note

    def enter(self, batch: int, size: int) -> None:
        """Remembers the size of a batch until it has left the pipeline."""
        self.sizes[batch] = size
        self.sizes.pop(batch - self.window, None)

    def send(self, address: Address, message: Tree, sender: Op | None) -> Tree:
        """Starts to copy a message to stage `address.k`, which may be in this process or in another one."""
        target = self.all[address.k]
        source = self.all[sender.k] if sender else target
        if sender is None or source.device.process_index == target.device.process_index:
            return target.put_batch(message) if address.k in self.places else None
        like = self.shapes(address, sender, self.sizes[address.batch])
        arrived = copy(message, like, source.device, target.device)
        if arrived is not None:
            self.note(address.what, sender.k, address.batch, arrived)
        return arrived

    def tell(self, k: int, value: Tree, like: Tree) -> Tree:
        """Starts to copy a value of stage k to all other processes, one after the other."""
        source = self.all[k].device
        # A count that no program has returned yet is on the host.
        arrived = self.exchange.spread(source, put(value, source), like)
        if k not in self.places:
            self.note("a result", k, 0, arrived)
        return arrived

    def agree(self, refusal: BadInput | None) -> None:
        """Sends this process's refusal to all processes, and raises the first refusal of any process in all of them."""
        texts = Notices().share(str(refusal or ""))
        if first := next(filter(None, texts), ""):
            raise BadInput(first) from refusal

    def gather(self, flat: Mapping[str, Any]) -> dict[str, Any]:
        """Sends the arrays of each process to all others, and waits for them."""
        return self.exchange.gather(flat)
