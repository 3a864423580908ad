"""The transport between processes: copies by `jax.device_put` from a device of one process to a device of another.

The processes have joined by `fdg_jax.join_processes`. Between CPUs, JAX copies through sockets. GPUs have not been
tried. JAX counts these copies: every process has to request each of them in the same order, even if it neither sends
nor receives.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from fdg_jax.errors import BadInput
from fdg_jax.schedule import Address, Op
from fdg_jax.transport.devices import Place, is_here
from fdg_jax.transport.notices import Notices

Tree = Any
Listed = list[tuple[str, str, list[int]]]  # (name, dtype, shape) of each array
MOST_BYTES = 2**30  # that are sent at once


class AcrossProcesses:
    """A transport for stages in several processes, as `InProcess` is for one. Only one thread may use it.

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
        arrived = self.spread(source, put(value, source), like)
        if k not in self.places:
            self.note("a result", k, 0, arrived)
        return arrived

    def agree(self, refusal: BadInput | None) -> None:
        """Sends this process's refusal to all processes, and raises the first refusal of any process in all of them."""
        texts = Notices().share(str(refusal or ""))
        if first := next(filter(None, texts), ""):
            raise BadInput(first) from refusal

    def gather(self, flat: Mapping[str, Any]) -> dict[str, Any]:
        """Sends the arrays of each process to all others, as a list of their shapes and as bytes. It waits for them."""
        listed, content = packed(jax.device_get(dict(flat)))
        gathered: dict[str, Any] = {}
        for process, text in enumerate(Notices().share(json.dumps(listed))):
            theirs, source = json.loads(text), self.told[process]
            size = sum(math.prod(shape) * np.dtype(dtype).itemsize for _, dtype, shape in theirs)
            gathered |= unpacked(theirs, self.spread_bytes(source, content if is_here(source) else None, size))
        return gathered

    def spread(self, source: Any, value: Tree, like: Tree) -> Tree:
        """Starts to copy a value from a device to all other processes; returns this process's copy."""
        arrived = value
        for process, target in sorted(self.told.items()):
            if process != source.process_index:
                copied = copy(value, like, source, target)
                arrived = copied if is_here(target) else arrived
        return arrived

    def spread_bytes(self, source: Any, content: bytes | None, size: int) -> bytes:
        """Sends bytes from a device to all processes and waits for them. content: None except where the device is."""
        parts = []
        for start in range(0, size, MOST_BYTES):
            like = jax.ShapeDtypeStruct((min(MOST_BYTES, size - start),), np.uint8)
            part = None if content is None else np.frombuffer(content, np.uint8, like.shape[0], start)
            parts.append(jax.device_get(self.spread(source, put(part, source), like)).tobytes())
        return b"".join(parts)


def put(value: Tree, device: Any) -> Tree:
    """Puts a tree of arrays on a device of this process; None stays None."""
    return None if value is None else jax.device_put(value, device)


def copy(value: Tree, like: Tree, source: Any, target: Any) -> Tree:
    """Copies a tree of arrays from one process to another. Every process has to call it.

    Arguments:
        value: the arrays, on the source; None in processes other than the source's.
        like: their shapes and dtypes.
        source, target: devices of two different processes.

    Returns: the copies in the target's process, which may still be under way; None in all others.
    """
    shapes, structure = jax.tree.flatten(like)
    leaves = [None] * len(shapes) if value is None else structure.flatten_up_to(value)
    empty = [shape.dtype == jax.dtypes.float0 for shape in shapes]  # a cotangent of integers has no content
    arrays = [
        absent(shape, source) if leaf is None else leaf
        for leaf, shape, nothing in zip(leaves, shapes, empty, strict=True)
        if not nothing
    ]
    copied = iter(jax.device_put(arrays, SingleDeviceSharding(target)))
    if not is_here(target):
        return None
    arrived = [
        np.zeros(shape.shape, shape.dtype) if nothing else next(copied)
        for shape, nothing in zip(shapes, empty, strict=True)
    ]
    return jax.tree.unflatten(structure, arrived)


def absent(like: Any, device: Any) -> jax.Array:
    """An array on a device of another process. In this process, only its shape and dtype are known."""
    return jax.make_array_from_single_device_arrays(like.shape, SingleDeviceSharding(device), [], dtype=like.dtype)


def packed(arrays: Mapping[str, Any]) -> tuple[Listed, bytes]:
    """(the names, dtypes and shapes of arrays, their bytes one after the other)."""
    plain = {name: np.asarray(array) for name, array in arrays.items()}
    listed = [(name, array.dtype.name, list(array.shape)) for name, array in plain.items()]
    return listed, b"".join(array.tobytes() for array in plain.values())


def unpacked(listed: Listed, content: bytes) -> dict[str, np.ndarray]:
    """The inverse of `packed`."""
    arrays, start = {}, 0
    for name, dtype, shape in listed:
        arrays[name] = np.frombuffer(content, dtype, math.prod(shape), start).reshape(shape)
        start += arrays[name].nbytes
    return arrays
