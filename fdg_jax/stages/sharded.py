"""Weights that are sharded over the devices of a stage, as the modules' partitioning metadata say.

Flax modules name the axes of their arrays: `nn.with_partitioning`, `nn.with_logical_partitioning`, flax.nnx's
`out_sharding`. Rules turn these names into axes of the stage's mesh. XLA does the rest: it partitions the computation
and adds the communication (tensor parallelism, FSDP). Gradients, optimizer states, delay lines and old weights are
computed from the weights, so they are sharded alike.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
from flax.core import meta
from flax.linen.spmd import logical_to_mesh_axes
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.tree_util import keystr

from fdg_jax.errors import BadInput
from fdg_jax.machine import programs

Tree = Any
Rules = Sequence[tuple[str, str | tuple[str, ...] | None]]


def is_box(leaf: Any) -> bool:
    """Whether a leaf is an array with metadata of Flax."""
    return isinstance(leaf, meta.AxisMetadata)


def unboxed(tree: Tree) -> Tree:
    """Arrays (or shapes) without Flax's metadata. The pipeline decides where arrays lie, not the metadata."""

    def of(leaf: Any) -> Any:
        if is_box(leaf):
            return of(leaf.unbox(apply_constraint=False) if isinstance(leaf, meta.Partitioned) else leaf.unbox())
        return leaf

    return jax.tree.map(of, tree, is_leaf=is_box)


def axes_of(tree: Tree) -> Tree:
    """For each array (or shape) the names of its axes, as a PartitionSpec; P() for one without metadata."""
    found = nn.get_partition_spec(tree)
    return jax.tree.map(lambda spec: spec or P(), found, is_leaf=lambda spec: isinstance(spec, P | None))


def shardings(k: int, mesh: Mesh, axes: Tree, shapes: Tree, rules: Rules) -> Tree | None:
    """The shardings of stage k's variables on its mesh; None if each device has all of them.

    Arguments:
        axes, shapes: the names of the variables' axes, and their shapes.
        rules: pairs of the name of an array's axis and the mesh axis (or axes) that cut it; None: it is not cut. The
            first pair with the name counts. A name without a rule is cut by the mesh's axis of the same name, if there
            is one.

    Raises:
        BadInput: the length of an array's axis is not divisible by the size of the mesh's axis.
    """
    known = [(name, to) for name, to in rules if all(axis in mesh.shape for axis in several(to))]
    known += [(axis, axis) for axis in mesh.axis_names if axis not in dict(rules)]

    def sharding(path: Any, spec: P, leaf: Any) -> NamedSharding:
        found = logical_to_mesh_axes(tuple(spec), known) or P()
        for i, to in enumerate(found):
            n = math.prod(mesh.shape[axis] for axis in several(to))
            if leaf.shape[i] % n:
                fact = f"stage k={k}: axis {i} ({spec[i]!r}) of {keystr(path)} has length {leaf.shape[i]}"
                way_out = f"which is not a multiple of the {n} devices of the mesh's axis {to!r}"
                raise BadInput(f"{fact}, {way_out}. Use fewer devices, or another rule.")
        return NamedSharding(mesh, found)

    found = jax.tree_util.tree_map_with_path(sharding, axes, shapes, is_leaf=lambda spec: isinstance(spec, P))
    return None if all(each.is_fully_replicated for each in jax.tree.leaves(found)) else found


def several(to: Any) -> tuple[str, ...]:
    """The axes of a mesh in a rule or a PartitionSpec."""
    return (to,) if isinstance(to, str) else tuple(to or ())


def first_variables(init: Callable[..., Tree], key: jax.Array, cut: Tree | None, given: bool) -> Tree:
    """The first variables of a stage. If they are sharded, each device makes its own part, so that no device has to
    hold a whole stage. cut: the result of `shardings`. given: whether the caller gave the variables."""
    if cut is None or given:
        made = init(key)
        return made if cut is None else jax.device_put(made, cut)
    return programs.jit(init, out_shardings=cut)(key)
