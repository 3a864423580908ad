"""Packs a tree of many small arrays into a few arrays, between the programs that take and return it.

Every array that a program takes or returns adds to the cost of a dispatch (`python -m benchmarks.host_cost`), and every
layer of a network has some arrays. So a stage's programs take all small arrays of one dtype as one array. A program
splits this array at its beginning and joins the parts at its end. Both copy data on the device. Large arrays stay
separate.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache, cached_property, wraps
from itertools import accumulate
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from fdg_jax.errors import BadInput
from fdg_jax.machine import programs
from fdg_jax.stages.functions import StageState

Tree = Any
Array = jax.Array
SMALL = 2**18  # bytes of an array; to copy a larger one may cost more than it saves


def small(leaf: Any) -> bool:
    """Whether an array is small enough to be packed."""
    return leaf.size * leaf.dtype.itemsize <= SMALL


def small_vector(leaf: Any) -> bool:
    """Whether an array of a closure is packed: true for a layer's values per channel, never for activations."""
    return leaf.ndim <= 1 and small(leaf)


def shapes_of(tree: Tree) -> Tree:
    """A tree's shapes and dtypes, and the shardings of arrays on several devices."""

    def of(leaf: Any) -> jax.ShapeDtypeStruct:
        sharding = getattr(leaf, "sharding", None)
        several = sharding if isinstance(sharding, NamedSharding) else None
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=several)

    return jax.tree.map(of, tree)


def join(groups: Sequence[Sequence[Array]]) -> list[Array]:
    """Each group of arrays as one vector."""
    return [jnp.concatenate([jnp.ravel(leaf) for leaf in group]) for group in groups]


@cache
def joined() -> Callable:
    """`join`, compiled."""
    return programs.jit(join)


class Packing:
    """How trees like `tree` are packed: the small leaves of each dtype as one array, every other leaf by itself.

    `pack` and `unpack` can be traced. `pack_now` and `unpack_now` do the same from the host, in one dispatch.

    Arguments:
        tree: arrays, or shapes.
        small: which leaves are small.
    """

    def __init__(self, tree: Tree, small: Callable[[Any], bool] = small):
        self.shapes = shapes_of(tree)
        self.leaves, self.treedef = jax.tree.flatten(self.shapes)
        groups: dict[Any, list[int]] = {}
        for i, leaf in enumerate(self.leaves):
            packable = small(leaf) and not jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
            groups.setdefault(leaf.dtype if packable else i, []).append(i)
        self.groups = list(groups.values())

    def pack(self, tree: Tree, join: Callable = join) -> tuple[Array, ...]:
        """Packs a tree.

        Raises:
            BadInput: it differs from `tree` in structure, shapes or dtypes.
        """
        return self.grouped(self.checked(tree), join)

    def grouped(self, leaves: Sequence[Array], join: Callable = join) -> tuple[Array, ...]:
        """The leaves of a tree, packed."""
        together = iter(join([[leaves[i] for i in group] for group in self.groups if len(group) > 1]))
        return tuple(leaves[group[0]] if len(group) == 1 else next(together) for group in self.groups)

    def unpack(self, packed: Tree, parted: Callable | None = None) -> Tree:
        """The inverse of `pack`."""
        shared = [array for group, array in zip(self.groups, packed, strict=True) if len(group) > 1]
        parts, leaves = iter((parted or self.part)(shared)), dict[int, Array]()
        for group, array in zip(self.groups, packed, strict=True):
            leaves |= zip(group, [array] if len(group) == 1 else next(parts), strict=True)
        return self.treedef.unflatten([leaves[i] for i in range(len(leaves))])

    def pack_now(self, tree: Tree) -> tuple[Array, ...]:
        """As `pack`, from the host."""
        return self.pack(tree, joined())

    def unpack_now(self, packed: Tree) -> Tree:
        """As `unpack`, from the host."""
        return self.unpack(packed, self.parted)

    @cached_property
    def parted(self) -> Callable:
        """`part`, compiled."""
        return programs.jit(self.part)

    def checked(self, tree: Tree) -> list[Array]:
        """The leaves of a tree. Raises BadInput if it is not like the tree of the constructor."""
        found, treedef = jax.tree_util.tree_flatten_with_path(tree)
        if treedef != self.treedef:
            fact = f"a stage's arrays were {self.treedef} at first and became {treedef}"
            raise BadInput(f"{fact}. Create all arrays in init, also with train=False.")
        for (path, leaf), first in zip(found, self.leaves, strict=True):
            shape, dtype = jnp.shape(leaf), getattr(leaf, "dtype", None) or jnp.result_type(leaf)
            if (shape, dtype) != (first.shape, first.dtype):
                name = jax.tree_util.keystr(path)
                before, after = (f"{kind}{list(size)}" for size, kind in ((first.shape, first.dtype), (shape, dtype)))
                fact = f"{name} of a stage was {before} at first and became {after}"
                raise BadInput(f"{fact}. Keep its shape and dtype.")
        return [leaf for _, leaf in found]

    def part(self, shared: Sequence[Array]) -> list[list[Array]]:
        """Cuts the joined vectors into the leaves of their groups."""
        parts = []
        for group, array in zip([group for group in self.groups if len(group) > 1], shared, strict=True):
            shapes = [self.leaves[i].shape for i in group]
            ends = list(accumulate(map(math.prod, shapes)))
            parts.append([array[e - math.prod(s) : e].reshape(s) for s, e in zip(shapes, ends, strict=True)])
        return parts

    def __eq__(self, other: object) -> bool:  # jit compares packings, as they are part of the type of what is `Packed`
        if self is other or not isinstance(other, Packing):
            return self is other
        return (self.treedef, self.leaves, self.groups) == (other.treedef, other.leaves, other.groups)

    def __hash__(self) -> int:
        return hash((self.treedef, tuple(self.leaves)))


class Unpacked:
    """Stands in for a Packing where a stage's trees stay as they are."""

    def __init__(self, tree: Tree):
        self.shapes = shapes_of(tree)

    def pack(self, tree: Tree) -> Tree:
        """The tree itself."""
        return tree

    unpack = pack_now = unpack_now = pack


class Layout(NamedTuple):
    """How a stage's state is packed. Gradients are packed as the parameters are."""

    params: Packing | Unpacked
    extra: Packing | Unpacked
    opt_state: Packing | Unpacked

    @classmethod
    def of(cls, state: StageState, packs: bool) -> "Layout":
        """The layout of a state. packs: whether anything is packed at all."""
        return cls(*map(Packing if packs else Unpacked, state[:3]))

    def pack_now(self, state: StageState) -> StageState:
        """Packs a state, from the host."""
        params, extra, opt_state = (packing.pack_now(tree) for packing, tree in zip(self, state[:3], strict=True))
        return state._replace(params=params, extra=extra, opt_state=opt_state)

    def unpack_now(self, state: StageState) -> StageState:
        """The inverse of `pack_now`."""
        params, extra, opt_state = (packing.unpack_now(packed) for packing, packed in zip(self, state[:3], strict=True))
        return state._replace(params=params, extra=extra, opt_state=opt_state)

    @property
    def shapes(self) -> tuple[Tree, Tree, Tree]:
        """Shapes of (params, extra, opt_state), unpacked."""
        return self.params.shapes, self.extra.shapes, self.opt_state.shapes


@jax.tree_util.register_pytree_node_class
class Packed:
    """A tree that is packed, and for JAX a tree of its few arrays.

    For JAX the packing is part of the type, because the packing of a VJP closure may change with the batch size.
    """

    def __init__(self, arrays: tuple[Array, ...], packing: Packing):
        self.arrays, self.packing = arrays, packing

    @classmethod
    def pack(cls, tree: Tree, small: Callable[[Any], bool] = small_vector) -> "Packed":
        """Packs a tree, by default a VJP closure."""
        packing = Packing(tree, small)
        return cls(packing.pack(tree), packing)

    def unpack(self) -> Tree:
        """The tree as it was."""
        return self.packing.unpack(self.arrays)

    def tree_flatten(self) -> tuple[tuple[Array, ...], Packing]:
        return self.arrays, self.packing

    @classmethod
    def tree_unflatten(cls, packing: Packing, arrays: tuple[Array, ...]) -> "Packed":
        return cls(arrays, packing)


def on_packed(function: Callable, takes: Sequence[Any], gives: Sequence[Any]) -> Callable:
    """Turns a function on plain trees into a function on packed trees.

    Arguments:
        function: the function.
        takes, gives: how each argument and each result is packed: a Packing or `Packed`; None if it is not packed.
            With one result the function returns this result; with several it returns a tuple.
    """

    @wraps(function)  # a profile shows its name
    def unpacked(*arguments):
        plain = [how.unpack(tree) if how else tree for how, tree in zip(takes, arguments, strict=True)]
        results = function(*plain) if len(gives) > 1 else (function(*plain),)
        packed = tuple(how.pack(tree) if how else tree for how, tree in zip(gives, results, strict=True))
        return packed if len(gives) > 1 else packed[0]

    return unpacked
