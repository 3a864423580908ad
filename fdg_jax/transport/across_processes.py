"""The transport between processes: `jax.device_put` copies from a device of one process to a device of another.

The processes have joined by `fdg_jax.join_processes`. Between CPUs, JAX copies through sockets. GPUs have not been
tried. JAX numbers these copies, so every process must request each of them in the same order, even if it neither sends
nor receives.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding, SingleDeviceSharding

from fdg_jax.errors import BadInput
from fdg_jax.schedule import Address, Op
from fdg_jax.transport.devices import Place, is_here
from fdg_jax.transport.notices import Notices

Tree = Any
Listed = list[tuple[str, str, list[int]]]  # (name, dtype, shape) of each array
MOST_BYTES = 2**30  # the most bytes sent in one copy


class AcrossProcesses:
    """The transport for stages in several processes. Its methods are those of `InProcess`. Only one thread may use it.

    Arguments:
        places: the places of the stages k = 1..K, on devices of any process.
        shapes: (address, sender, number of examples) -> the shapes and dtypes of a message.
        window: the number of batches whose sizes are remembered; as many as can be in flight.

    Raises:
        BadInput: a process has no stage, or a stage has devices of two processes.
    """

    def __init__(self, places: Sequence[Place], shapes: Callable[[Address, Op, int], Tree], window: int):
        self.all, self.shapes, self.window = dict(enumerate(places, 1)), shapes, window
        for k, place in self.all.items():
            if len(found := {device.process_index for device in place.devices}) > 1:
                fact = f"stage k={k} has devices of the processes {', '.join(map(str, sorted(found)))}"
                raise BadInput(f"{fact}, but all its devices must be of one process. Choose such devices.")
        # Each process receives the values of `tell` on the first device of its last stage.
        self.told = {place.device.process_index: Place(place.device) for place in places}
        if missing := sorted(set(range(jax.process_count())) - self.told.keys()):
            raise BadInput(
                f"process {missing[0]} has no stage: {len(places)} stages are in {len(self.told)} of "
                f"{jax.process_count()} processes. Start at most as many processes as stages."
            )
        self.places: Mapping[int, Place] = {k: place for k, place in self.all.items() if is_here(place.device)}
        self.here = self.told[jax.process_index()]
        self.sizes: dict[int, int] = {}
        self.note: Callable[[str, int, int, Tree], None] = lambda what, k, batch, message: None

    def watch(self, note: Callable[[str, int, int, Tree], None]) -> None:
        """From now on, calls `note` for every message that comes from another process."""
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
        arrived = copy(message, like, source, target)
        if arrived is not None:
            self.note(address.what, sender.k, address.batch, arrived)
        return arrived

    def tell(self, k: int, value: Tree, like: Tree) -> Tree:
        """Starts to copy a value of stage k to all other processes, one after the other."""
        source = Place(self.all[k].device)
        # The initial value of a count is on the host, until a program returns it.
        arrived = self.spread(source, put(value, source.device), like)
        if k not in self.places:
            self.note("a result", k, 0, arrived)
        return arrived

    def agree(self, refusal: BadInput | None) -> None:
        """Sends this process's error (or none) to all processes. If there are errors, raises the first in all of
        them."""
        texts = Notices().share(str(refusal or ""))
        if first := next(filter(None, texts), ""):
            raise BadInput(first) from refusal

    def gather(self, flat: Mapping[str, Any]) -> dict[str, Any]:
        """Sends the arrays of each process to all others, as a list of shapes and as bytes, and waits for them."""
        listed, content = packed(jax.device_get(dict(flat)))
        gathered: dict[str, Any] = {}
        for process, text in enumerate(Notices().share(json.dumps(listed))):
            theirs, source = json.loads(text), self.told[process]
            size = sum(math.prod(shape) * np.dtype(dtype).itemsize for _, dtype, shape in theirs)
            own = content if is_here(source.device) else None
            gathered |= unpacked(theirs, self.spread_bytes(source, own, size))
        return gathered

    def spread(self, source: Place, value: Tree, like: Tree) -> Tree:
        """Starts to copy a value from a device to all other processes; returns this process's copy."""
        arrived = value
        for process, target in sorted(self.told.items()):
            if process != source.device.process_index:
                copied = copy(value, like, source, target)
                arrived = copied if is_here(target.device) else arrived
        return arrived

    def spread_bytes(self, source: Place, content: bytes | None, size: int) -> bytes:
        """Sends bytes from a device to all processes and waits for them. content: the bytes, in the process that has
        the device; None in the others."""
        parts = []
        for start in range(0, size, MOST_BYTES):
            like = jax.ShapeDtypeStruct((min(MOST_BYTES, size - start),), np.uint8)
            part = None if content is None else np.frombuffer(content, np.uint8, like.shape[0], start)
            parts.append(jax.device_get(self.spread(source, put(part, source.device), like)).tobytes())
        return b"".join(parts)


def put(value: Tree, device: Any) -> Tree:
    """Puts a tree of arrays on a device of this process; None stays None."""
    return None if value is None else jax.device_put(value, device)


def copy(value: Tree, like: Tree, source: Place, target: Place) -> Tree:
    """Starts to copy a tree of arrays [batch, ...] from one process to another. Every process must call it.

    Arguments:
        value: the arrays, at the source; None in processes other than the source's.
        like: their shapes and dtypes.
        source, target: places in two different processes.

    Returns: the copies, in the target's process; None in all other processes.
    """
    shapes, structure = jax.tree.flatten(like)
    leaves = [None] * len(shapes) if value is None else structure.flatten_up_to(value)
    arrived = [copy_array(leaf, shape, source, target) for leaf, shape in zip(leaves, shapes, strict=True)]
    return structure.unflatten(arrived) if is_here(target.device) else None


def copy_array(value: Any, like: Any, source: Place, target: Place) -> Any:
    """Copies an array as `copy` does. Each of its parts goes from a device that has the part to the first device that
    needs it."""
    if like.dtype == jax.dtypes.float0:  # a cotangent of integers has no content
        return np.zeros(like.shape, like.dtype)
    sharding = target.of_batch(like)
    senders, ends = parts(source.of_batch(like), like.shape), parts(sharding, like.shape)
    pieces = []
    for i, (index, devices) in enumerate(ends):
        _, (sender, *_) = senders[i % len(senders)]
        # One call for each piece: in a common call, two processes might number the pieces in different orders.
        pieces.append(jax.device_put(piece(value, like, index, sender), SingleDeviceSharding(devices[0])))
    if not is_here(target.device):
        return None
    if len(target.devices) == 1:
        return pieces[0]
    arrays = [put(array, device) for array, (_, devices) in zip(pieces, ends, strict=True) for device in devices]
    return jax.make_array_from_single_device_arrays(like.shape, sharding, arrays)


@cache
def parts(sharding: Sharding, shape: tuple[int, ...]) -> list[tuple[tuple[slice, ...], list[Any]]]:
    """The distinct parts of a sharded array: (the part's index in the array, the devices that have the part)."""
    found: dict[str, tuple[tuple[slice, ...], list[Any]]] = {}
    for device, index in sharding.devices_indices_map(shape).items():
        found.setdefault(str(index), (index, []))[1].append(device)
    return list(found.values())


def piece(leaf: Any, shape: Any, index: tuple[slice, ...], device: Any) -> jax.Array:
    """A part of an array, on the device that sends it. leaf: the array; None if another process has it."""
    if leaf is None:
        lengths = [len(range(n)[part]) for n, part in zip(shape.shape, index, strict=True)]
        return absent(jax.ShapeDtypeStruct(lengths, shape.dtype), device)
    shards = {shard.device: shard for shard in leaf.addressable_shards}
    if device in shards and str(shards[device].index) == str(index):
        return shards[device].data
    return jax.device_put(leaf[index], device)


def absent(like: Any, device: Any) -> jax.Array:
    """Stands in for an array on a device of another process: this process knows only its shape and dtype."""
    return jax.make_array_from_single_device_arrays(like.shape, SingleDeviceSharding(device), [], dtype=like.dtype)


def packed(arrays: Mapping[str, Any]) -> tuple[Listed, bytes]:
    """Packs arrays: (their names, dtypes and shapes; their concatenated bytes)."""
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
