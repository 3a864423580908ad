"""Which device each stage is on: accelerators if there are any, otherwise emulated CPU devices."""

import math
import numbers
import warnings
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from fdg_jax.errors import BadInput, first_line
from fdg_jax.machine import jax_internals
from fdg_jax.machine.child import processes_of_stages

BATCH_AXES = "data", "fsdp"  # the axes of a mesh over which a batch is cut


def emulate_cpu(K: int) -> None:
    """Makes JAX emulate at least K devices on a CPU, one for each stage. It does nothing where JAX has accelerators.

    Call it before JAX computes anything. Later it can only warn.

    Arguments:
        K: number of devices, 1 or more.

    Raises:
        BadInput: K is something else.

    Example:
        >>> import fdg_jax
        >>> fdg_jax.emulate_cpu(4)
    """
    if isinstance(K, bool) or not isinstance(K, numbers.Integral) or K < 1:
        raise BadInput(f"emulate_cpu({K!r}): a number of devices is 1 or more. Use one for each stage.")
    if request_cpu_devices(K) or jax.default_backend() != "cpu":
        return
    there = jax.local_device_count()
    if there < K:
        fact = f"emulate_cpu({K}) comes too late: JAX has begun to compute and has {there}"
        way_out = "Call it before anything that makes an array or asks for devices, right after the imports."
        warnings.warn(f"{fact} CPU device{'s' if there > 1 else ''}. {way_out}", stacklevel=2)


def request_cpu_devices(K: int, exactly: bool = False) -> bool:
    """Requests K CPU devices from JAX.

    Arguments:
        K: number of devices.
        exactly: whether to request K even if the environment (JAX_NUM_CPU_DEVICES) requests more.

    Returns: False if JAX has already started, which is too late.
    """
    try:
        asked = getattr(jax.config, "jax_num_cpu_devices", 0)  # -1: not set yet
        if asked < K or (exactly and asked != K):
            jax.config.update("jax_num_cpu_devices", K)
    except RuntimeError:
        return False
    return True


def check_no_mesh() -> None:
    """Raises BadInput within jax.set_mesh: JAX would have every program run on all devices of that mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    if not mesh.empty:
        fact = f"jax.set_mesh is in force, with the axes {dict(mesh.shape)}, and a stage runs on a device of its own"
        raise BadInput(f"{fact}. Call the pipeline outside of `with jax.set_mesh(...)`.")


def for_each(R: int | Sequence[int], K: int) -> list[int]:
    """The devices of each stage k = 1..K. R: of all, or of each."""
    return [R] * K if isinstance(R, int) else list(R)


def stage_devices(K: int, here: bool = False, R: int | Sequence[int] = 1) -> tuple[list[Any], str]:
    """Chooses the devices of the stages. If there are fewer than K, neighbouring stages share them evenly.

    Arguments:
        K: number of stages, 1 or more.
        here: whether all of them are to be in this process, even if others have joined it.
        R: devices of each stage, or of stages k = 1..K.

    Returns: (the devices of each stage k = 1..K, one after the other, a warning if stages share devices, else "").

    Raises:
        BadInput: JAX finds no device.
    """
    n = sum(for_each(R, K))
    request_cpu_devices(n)  # if it is too late, the devices that exist are used
    try:
        found = jax.local_devices()
    except Exception as error:  # JAX raises several kinds of errors if a requested platform is missing
        raise BadInput(f"JAX finds no device: {first_line(error)} Set JAX_PLATFORMS=cpu, or leave it unset.") from error
    if jax.process_count() > 1 and not here:
        return devices_of_processes(K, R), ""
    if len(found) >= n:
        return list(found[:n]), ""
    there, kind = len(found), found[0].platform.upper()
    shared = [found[k * there // n] for k in range(n)]
    faster = "" if kind == "CPU" else " Engine delay-line, if the method has it, is faster."
    return shared, (
        f"K={K} stages share {there} {kind} device{'s' if there > 1 else ''}: the results are those of {n} devices, "
        f"the speed is not (stages on one device run one after the other).{faster}"
    )


def devices_of_processes(K: int, R: int | Sequence[int] = 1) -> list[Any]:
    """The devices of each stage k = 1..K, one after the other, where several processes have joined: neighbouring stages
    share a process. R: how many each stage has, or stages k = 1..K.

    A process that emulates the devices of all stages computes stage k where a single process would. A process with
    fewer devices computes its first stage on its first ones.
    """
    processes, ends = processes_of_stages(K, jax.process_count()), [0, *accumulate(for_each(R, K))]
    found = []
    for process, (begin, end) in zip(processes, pairwise(ends), strict=True):
        theirs = [device for device in jax.devices() if device.process_index == process]
        before = 0 if len(theirs) >= ends[-1] else ends[processes.index(process)]
        found += [theirs[(i - before) % len(theirs)] for i in range(begin, end)]
    return found


class Place:
    """Where a stage is: on one device. `MeshPlace` is one on several devices.

    device: where the host sends a stage's inputs.
    devices: all devices of the stage.
    parts: into how many parts a batch is cut.
    """

    parts = 1

    def __init__(self, device: Any):
        self.device = device
        self.devices = [device]
        self._put = jax_internals.Put(device)

    def put_weights(self, tree: Any, like: Any = None) -> Any:
        """Starts to copy a tree of arrays without a batch axis to the stage; returns the copies.

        like: on several devices, a tree of arrays (or shapes) that are cut in the same way; by default the tree itself.
        """
        return self._put_tree(tree)

    def put_batch(self, tree: Any) -> Any:
        """Starts to copy a tree of arrays [batch, ...] to the stage; returns the copies."""
        return self._put_tree(tree)

    def of_batch(self, leaf: Any) -> Any:
        """How an array [batch, ...] lies here, as a JAX sharding."""
        return SingleDeviceSharding(self.device)

    def cut(self, tree: Any) -> Any:
        """The arrays [batch, ...] of a program that is being traced, laid out as `put_batch` does."""
        return tree

    def results(self, shapes: Sequence[Any]) -> dict[str, Any]:
        """Arguments of `jax.jit` that say where a program's results lie. shapes: of each; None leaves it open."""
        return {}

    def _put_tree(self, tree: Any) -> Any:
        # A single array, as most messages are, needs no tree: it costs the host 2 µs less.
        return self._put(tree) if isinstance(tree, jax.Array | np.ndarray) else jax.tree.map(self._put, tree)


class MeshPlace(Place):
    """A place on several devices, those of a mesh. A batch is cut along its first axis, over the mesh's axes "data" and
    "fsdp", or over all of its axes if it has neither. If these do not divide it, every device computes the whole batch,
    which is exact but no faster. Weights are on every device, except those that already lie on parts of this mesh
    (fdg_jax.stages.sharded).

    mesh: the mesh.
    parts: into how many parts a batch is cut.
    """

    def __init__(self, mesh: Mesh):
        super().__init__(mesh.devices.flat[0])
        self.devices, self.mesh = list(mesh.devices.flat), mesh
        axes = tuple(axis for axis in mesh.axis_names if axis in BATCH_AXES) or mesh.axis_names
        self.weights, self.batch = NamedSharding(mesh, P()), NamedSharding(mesh, P(axes))
        self.parts = math.prod(mesh.shape[axis] for axis in axes)
        self.waits = self.device.platform == "cpu"

    def put_weights(self, tree: Any, like: Any = None) -> Any:
        def sharding(leaf: Any) -> NamedSharding:
            found = getattr(leaf, "sharding", None)
            return found if isinstance(found, NamedSharding) and found.mesh == self.mesh else self.weights

        return jax.device_put(tree, jax.tree.map(sharding, tree if like is None else like))

    def put_batch(self, tree: Any) -> Any:
        """Starts to copy a tree of arrays [batch, ...] to the stage, a part to each device; returns the copies.

        On a CPU it waits for the arrays first, so that few programs are under way. An all-reduce among emulated devices
        blocks one thread per device until all have arrived. There are as many threads as devices (or cores, if these
        are more). If too many programs are under way on a device, launching the next one blocks a thread, too. Then too
        few threads are left, and the training hangs. This was seen on 2 cores for 8 devices, within 40 batches.
        """
        if self.waits:
            jax.block_until_ready(tree)
        return jax.device_put(tree, jax.tree.map(self.of_batch, tree))

    def cut(self, tree: Any) -> Any:
        floats = lambda leaf: leaf.dtype != jax.dtypes.float0  # noqa: E731  # a cotangent of integers has no content
        return jax.tree.map(
            lambda leaf: jax.lax.with_sharding_constraint(leaf, self.of_batch(leaf)) if floats(leaf) else leaf, tree
        )

    def results(self, shapes: Sequence[Any]) -> dict[str, Any]:
        found = [jax.tree.map(lambda leaf: leaf.sharding, each) for each in shapes]
        return {"out_shardings": tuple(found) if len(found) > 1 else found[0]}

    def of_batch(self, leaf: Any) -> NamedSharding:
        return self.batch if np.ndim(leaf) and len(leaf) % self.parts == 0 else self.weights


def is_here(device: Any) -> bool:
    """Whether a device belongs to this process."""
    return device.process_index == jax.process_index()


def all_here(places: Sequence[Place]) -> bool:
    """Whether all devices of these places belong to this process."""
    return all(is_here(device) for place in places for device in place.devices)
