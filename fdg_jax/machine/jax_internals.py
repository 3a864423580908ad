"""The only module that uses undocumented parts of JAX: the layout of a VJP closure, the parameters of a scan, the
function behind `jax.device_put`, the test for tracing, and the coordination service of several processes.

`jax.vjp` returns a closure that is a pytree. Its leaves include the arguments, so a jitted function that returns it
would copy them: every stash would have its own copy of the weights. `strip` removes the arguments before the closure
leaves the forward program. `bind` puts arguments back inside the backward program. The weights that `bind` puts back
are the only difference between `stashed` and `current`.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import jax
import numpy as np
from jax._src.core import trace_state_clean
from jax.core import Tracer
from jax.sharding import SingleDeviceSharding

try:
    from jax._src.config import explicit_device_get_scope, explicit_device_put_scope
    from jax._src.lib import xla_client  # pyright: ignore[reportPrivateImportUsage]

    batched_device_put: Any = xla_client.batched_device_put
except (ImportError, AttributeError):  # then `Put` and `fetch` use the documented functions
    batched_device_put = None


def carried(scan: dict[str, Any]) -> tuple[int, int]:
    """The first of a scan's arguments that are carried, and the first after them. scan: the equation's parameters."""
    if "num_consts" in scan:  # before JAX 0.12
        return scan["num_consts"], scan["num_consts"] + scan["num_carry"]
    constants, carried, _ = scan["ft_in"].unpack()
    return len(constants), len(constants) + len(carried)


def strippable() -> bool:
    """Whether the arguments can be removed from a VJP closure in this version of JAX (in 0.10.2 to 0.12 they can)."""
    arguments: Any = None

    def look(params, x):
        nonlocal arguments
        _, closure = jax.vjp(lambda p, x: p * x, params, x)
        arguments = getattr(closure, "args_res", None)

    jax.eval_shape(look, 2.0, 3.0)  # nothing is computed: options are checked before the processes are joined
    return isinstance(arguments, list) and len(arguments) == 2


def strip(closure):
    """Removes the arguments from a closure of `jax.vjp(f, params, x)` in place. Call it in the forward program."""
    if hasattr(closure, "args_res"):
        closure.args_res = [None] * len(closure.args_res)
    return closure


def bind(closure, params, x):
    """A copy of a stripped closure with the arguments `params` and `x`. Call it in the backward program."""
    if not hasattr(closure, "args_res"):
        return closure
    leaves, structure = jax.tree.flatten(closure)
    bound = jax.tree.unflatten(structure, leaves)
    bound.args_res = [params, x]
    return bound


def is_tracing() -> bool:
    """Whether JAX traces a function at this moment."""
    return not trace_state_clean()


def is_ready(array: jax.Array) -> bool:
    """Whether the array has been computed, so that reading it returns at once."""
    ready = getattr(array, "is_ready", None)
    return ready() if ready else True


class Put:
    """Puts one array on a device, as `jax.device_put(array, device)` does, with less work for the host.

    If at most one copy is needed, it calls JAX's inner function directly, which avoids most of the cost (`python -m
    benchmarks.host_cost`). Otherwise it calls `jax.device_put`.
    """

    def __init__(self, device: Any):
        self.device, self.sharding = device, SingleDeviceSharding(device)

    def __call__(self, array: Any) -> Any:
        known = isinstance(array, jax.Array) and not isinstance(array, Tracer)
        if known and array.committed and array.sharding == self.sharding:
            return array
        array = np.asarray(array) if isinstance(array, np.generic) else array
        shape = _one_piece(array) if batched_device_put else None
        if shape is None:
            return jax.device_put(array, self.device)
        with explicit_device_put_scope():  # marks the transfer as explicit for `jax.transfer_guard`
            return batched_device_put(shape, self.sharding, [array], [self.device])


def _one_piece(array: Any) -> Any:
    """The shape and dtype of an array that is in one place and needs no conversion; None for any other."""
    if type(array) is np.ndarray:  # not a masked array
        as_it_is = jax.dtypes.canonicalize_dtype(array.dtype) == array.dtype
        return _shape_of(array.shape, array.dtype) if as_it_is else None
    if not isinstance(array, jax.Array) or isinstance(array, Tracer) or not isinstance(array.dtype, np.dtype):
        return None  # a Python number, a tracer or a random key
    return jax.typeof(array) if type(array.sharding) is SingleDeviceSharding else None


@cache
def _shape_of(shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """JAX's type of a NumPy array; None for float0, the cotangent of an integer, which is on no device."""
    if dtype == jax.dtypes.float0:
        return None
    return jax.typeof(np.broadcast_to(np.zeros((), dtype), shape))


def fetch(arrays: Sequence[Any]) -> list[Any]:
    """Reads arrays as NumPy arrays, as `jax.device_get` does, with less work for the host."""
    if not batched_device_put:
        return jax.device_get(list(arrays))
    for array in arrays[1:]:  # start all transfers before waiting for the first
        if isinstance(array, jax.Array):
            array.copy_to_host_async()
    with explicit_device_get_scope():
        return [np.asarray(array) for array in arrays]


def has_started() -> bool:
    """Whether JAX has looked for its devices, after which it can no longer join other processes. This test starts
    nothing."""
    from jax._src import xla_bridge

    return xla_bridge.backends_are_initialized()


def coordination_client() -> Any:
    """The client of the coordination service that `jax.distributed` has joined: a key-value store of texts, shared by
    all processes.

    JAX has no documented access to this client. Orbax uses the same undocumented access.
    """
    from jax._src.distributed import global_state

    return global_state.client


def detected_cluster(seconds: int) -> tuple[str | None, int | None, int | None]:
    """The settings that `jax.distributed.initialize()` would get from SLURM, Open MPI, Kubernetes or a cloud.

    Arguments:
        seconds: how long to wait for a scheduler's answer.

    Returns: (coordinator as host:port, number of processes, number of this process); all None without a scheduler.
    """
    from jax._src.clusters import ClusterEnv

    coordinator, processes, process, _ = ClusterEnv.auto_detect_unset_distributed_params(
        None, None, None, None, None, seconds
    )
    return coordinator, processes, process
