"""Chooses the devices of the stages: accelerators if there are any, otherwise emulated CPU devices."""

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

BATCH_AXES = "data", "fsdp"  # the axes of a mesh over which a batch is sharded


def emulate_cpu(K: int) -> None:
    """Makes JAX emulate at least K devices on a CPU, one for each stage. It has no effect if JAX has accelerators.

    Call it before JAX computes anything. Later it can only warn.

    Arguments:
        K: number of devices, 1 or more.

    Raises:
        BadInput: K is not an integer of 1 or more.

    Example:
        >>> import fdg_jax
        >>> fdg_jax.emulate_cpu(4)
    """
    if isinstance(K, bool) or not isinstance(K, numbers.Integral) or K < 1:
        raise BadInput(f"emulate_cpu({K!r}): the number of devices must be 1 or more. Use one for each stage.")
    if request_cpu_devices(K) or jax.default_backend() != "cpu":
        return
    there = jax.local_device_count()
    if there < K:
        fact = f"emulate_cpu({K}) comes too late: JAX has begun to compute and has {there}"
        way_out = "Call it right after the imports, before anything makes an array or asks for devices."
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
    """Raises BadInput within jax.set_mesh, because JAX would run every program on all devices of that mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    if not mesh.empty:
        fact = f"jax.set_mesh is in force, with the axes {dict(mesh.shape)}, but every stage runs on its own device"
        raise BadInput(f"{fact}. Call the pipeline outside of `with jax.set_mesh(...)`.")


def for_each(R: int | Sequence[int], K: int) -> list[int]:
    """The number of devices of each stage k = 1..K. R: one number for all stages, or a number for each."""
    return [R] * K if isinstance(R, int) else list(R)


def stage_devices(K: int, here: bool = False, R: int | Sequence[int] = 1) -> tuple[list[Any], str]:
    """Chooses the devices of the stages. If there are fewer than K, neighbouring stages share them evenly.

    Arguments:
        K: number of stages, 1 or more.
        here: whether all devices are to be in this process, even if other processes have joined it.
        R: the number of devices of each stage, or a list for stages k = 1..K.

    Returns: (the devices of stage 1, then those of stage 2, ... in one list; a warning if stages share devices, else
        "").

    Raises:
        BadInput: JAX finds no device.
    """
    n = sum(for_each(R, K))
    request_cpu_devices(n)  # if JAX has already started, the existing devices are used
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
    faster = "" if kind == "CPU" else " Engine delay-line is faster, if the method can use it."
    return shared, (
        f"K={K} stages share {there} {kind} device{'s' if there > 1 else ''}: the results are those of {n} devices, "
        f"but the run is slower, because stages on one device take turns.{faster}"
    )


def devices_of_processes(K: int, R: int | Sequence[int] = 1) -> list[Any]:
    """The devices of stage 1, then those of stage 2, ... in one list, if several processes have joined. Neighbouring
    stages share a process. R: the number of devices of each stage, or a list for stages k = 1..K.

    A process that emulates the devices of all stages computes stage k on the same device number as a single process
    would. A process with fewer devices gives its first stage its first devices.
    """
    processes, ends = processes_of_stages(K, jax.process_count()), [0, *accumulate(for_each(R, K))]
    found = []
    for process, (begin, end) in zip(processes, pairwise(ends), strict=True):
        theirs = [device for device in jax.devices() if device.process_index == process]
        before = 0 if len(theirs) >= ends[-1] else ends[processes.index(process)]
        found += [theirs[(i - before) % len(theirs)] for i in range(begin, end)]
    return found


class Place:
    """The place of a stage: one device. A `MeshPlace` has several devices.

    device: the device to which the host sends the stage's inputs.
    devices: all devices of the stage.
    parts: the number of parts into which a batch is sharded.
    """

    parts = 1

    def __init__(self, device: Any):
        self.device = device
        self.devices = [device]
        self._put = jax_internals.Put(device)

    def put_weights(self, tree: Any, like: Any = None) -> Any:
        """Starts to copy a tree of arrays without a batch axis to the stage; returns the copies.

        like: on several devices, a tree of arrays (or shapes) whose shardings the copies get; by default the tree
            itself.
        """
        return self._put_tree(tree)

    def put_batch(self, tree: Any) -> Any:
        """Starts to copy a tree of arrays [batch, ...] to the stage; returns the copies."""
        return self._put_tree(tree)

    def of_batch(self, leaf: Any) -> Any:
        """The JAX sharding of an array [batch, ...] at this place."""
        return SingleDeviceSharding(self.device)

    def cut(self, tree: Any) -> Any:
        """Shards traced arrays [batch, ...] in a program as `put_batch` shards arrays."""
        return tree

    def results(self, shapes: Sequence[Any]) -> dict[str, Any]:
        """Arguments of `jax.jit` for the shardings of a program's results. shapes: trees of the results' shapes with
        shardings; None leaves the sharding of a result to JAX."""
        return {}

    def _put_tree(self, tree: Any) -> Any:
        # Most messages are a single array. Skipping jax.tree.map for it saves the host 2 µs.
        return self._put(tree) if isinstance(tree, jax.Array | np.ndarray) else jax.tree.map(self._put, tree)


class MeshPlace(Place):
    """The place of a stage on the devices of a mesh. The first axis of a batch is sharded over the mesh's axes "data"
    and "fsdp", or over all axes if the mesh has neither. If `parts` does not divide the batch size, every device
    computes the whole batch, which is exact but no faster. Weights are copied to every device, except weights that are
    already sharded over this mesh (fdg_jax.stages.sharded).

    mesh: the mesh.
    parts: the number of parts into which a batch is sharded.
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

        On a CPU it first waits for the arrays, so that few programs run at a time. Otherwise the training can hang: an
        all-reduce among emulated devices blocks one thread per device until all devices have arrived, and XLA has only
        as many threads as devices (or cores, if there are more cores). If too many programs are queued on a device,
        launching the next one blocks a thread, too, so too few threads are left. This happened with 8 devices on 2
        cores within 40 batches.
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
