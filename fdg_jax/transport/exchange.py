"""Copies between processes. Every process has to request them in the same order."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from fdg_jax.transport.devices import is_here

Tree = Any
LENGTH = jax.ShapeDtypeStruct((2,), np.uint32)  # the length n of bytes, as divmod(n, 2**32)
MOST_BYTES = 2**30  # that are sent at once


class Exchange:
    """Sends what one process has to all others.

    Arguments:
        devices: {process: the device on which it receives}.
    """

    def __init__(self, devices: Mapping[int, Any]):
        self.devices = devices

    def spread(self, source: Any, value: Tree, like: Tree) -> Tree:
        """Starts to copy a value from a device to all other processes; returns this process's copy."""
        arrived = value
        for process, target in sorted(self.devices.items()):
            if process != source.process_index:
                copied = copy(value, like, source, target)
                arrived = copied if is_here(target) else arrived
        return arrived

    def gather(self, flat: Mapping[str, Any]) -> dict[str, Any]:
        """Sends the arrays of each process to all others, as a list of their shapes and as bytes. It waits for them."""
        listed, content = packed(jax.device_get(dict(flat)))
        gathered: dict[str, Any] = {}
        for source in (self.devices[process] for process in sorted(self.devices)):
            mine = is_here(source)
            shapes = self.spread_bytes(source, listed if mine else None)
            gathered |= unpacked(json.loads(shapes), self.spread_bytes(source, content if mine else None))
        return gathered

    def spread_bytes(self, source: Any, content: bytes | None) -> bytes:
        """Sends bytes from a device to all processes and waits for them. content: None except where the device is."""
        length = None if content is None else np.array(divmod(len(content), 2**32), np.uint32)
        high, low = map(int, jax.device_get(self.spread(source, put(length, source), LENGTH)))
        total, parts = high * 2**32 + low, []
        for start in range(0, total, MOST_BYTES):
            like = jax.ShapeDtypeStruct((min(MOST_BYTES, total - start),), np.uint8)
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


def packed(arrays: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """(the names, dtypes and shapes of arrays as JSON, their bytes one after the other)."""
    plain = {name: np.asarray(array) for name, array in arrays.items()}
    listed = json.dumps([[name, array.dtype.name, array.shape] for name, array in plain.items()])
    return listed.encode(), b"".join(np.ascontiguousarray(array).tobytes() for array in plain.values())


def unpacked(listed: Sequence[tuple[str, str, Sequence[int]]], content: bytes) -> dict[str, np.ndarray]:
    """The inverse of `packed`. listed: what its JSON says."""
    arrays, start = {}, 0
    for name, dtype, shape in listed:
        arrays[name] = np.frombuffer(content, dtype, int(np.prod(shape)), start).reshape(shape)
        start += arrays[name].nbytes
    return arrays
