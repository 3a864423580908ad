"""The one place that uses what JAX does not promise: how a VJP closure is laid out, and what is behind `device_put`.

`jax.vjp` returns a pytree. The arguments it was called with are among its leaves, and a `jit` that returns the
closure would copy them: every memo would carry its own copy of the weights. `strip` takes the arguments out
before the closure leaves the forward program, `bind` puts arguments back inside the backward program. Which
weights are put back is the whole difference between `stashed` and `current`.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import SingleDeviceSharding

try:
    from jax._src.config import explicit_device_get_scope, explicit_device_put_scope
    from jax._src.lib import xla_client  # pyright: ignore[reportPrivateImportUsage]

    batched_device_put: Any = xla_client.batched_device_put
except (ImportError, AttributeError):  # `Put` and `fetch` do without
    batched_device_put = None


def strippable() -> bool:
    """Whether this JAX lets the arguments be taken out of a closure (0.10.2 to 0.12 do)."""
    _, closure = jax.vjp(lambda p, x: p * x, 2.0, 3.0)
    arguments = getattr(closure, "args_res", None)
    return isinstance(arguments, list) and len(arguments) == 2


def strip(closure):
    """Takes the arguments out of a closure of `jax.vjp(f, params, x)`. Call it inside the forward program."""
    if hasattr(closure, "args_res"):
        closure.args_res = [None] * len(closure.args_res)
    return closure


def bind(closure, params, x):
    """Puts arguments into a stripped closure. Call it inside the backward program; it works on a copy."""
    if not hasattr(closure, "args_res"):
        return closure
    leaves, structure = jax.tree.flatten(closure)
    bound = jax.tree.unflatten(structure, leaves)
    bound.args_res = [params, x]
    return bound


def is_ready(array: jax.Array) -> bool:
    """Whether reading the array would return at once."""
    ready = getattr(array, "is_ready", None)
    return ready() if ready else True


class Put:
    """`jax.device_put(array, device)` of one array. Where that ends in one copy to the device or in none it is made at
    once: most of what it costs the host is the way there (`python -m benchmarks.host_cost`)."""

    def __init__(self, device: Any):
        self.device, self.sharding = device, SingleDeviceSharding(device)

    def __call__(self, array: Any) -> Any:
        array = np.asarray(array) if isinstance(array, np.generic) else array
        shape = _one_piece(array) if batched_device_put else None
        if shape is None:
            return jax.device_put(array, self.device)
        if isinstance(array, jax.Array) and array.committed and array.sharding == self.sharding:
            return array
        with explicit_device_put_scope():  # for who guards against transfers that nobody asked for
            return batched_device_put(shape, self.sharding, [array], [self.device])


def _one_piece(array: Any) -> Any:
    """The shape and dtype of an array that lies in one place and goes to a device as it is, else None."""
    if type(array) is np.ndarray:  # and no masked one
        as_it_is = jax.dtypes.canonicalize_dtype(array.dtype) == array.dtype
        return _shape_of(array.shape, array.dtype) if as_it_is else None
    if not isinstance(array, jax.Array) or isinstance(array, Tracer) or not isinstance(array.dtype, np.dtype):
        return None  # a Python number, something that is only traced, a random key
    return jax.typeof(array) if type(array.sharding) is SingleDeviceSharding else None


@cache
def _shape_of(shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """What JAX takes a NumPy array for; None for float0, the cotangent of an integer, which lies on no device."""
    if dtype == jax.dtypes.float0:
        return None
    return jax.typeof(np.broadcast_to(np.zeros((), dtype), shape))


def fetch(arrays: Sequence[Any]) -> list[Any]:
    """`jax.device_get(arrays)` without most of what it costs the host."""
    if not batched_device_put:
        return jax.device_get(list(arrays))
    for array in arrays[1:]:  # all are on their way before the first is waited for
        if isinstance(array, jax.Array):
            array.copy_to_host_async()
    with explicit_device_get_scope():
        return [np.asarray(array) for array in arrays]
