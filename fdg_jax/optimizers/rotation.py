"""Basis rotation (2602.03515, Algorithms 1 and 2, two sides, second moment): Adam in the gradients' eigenbasis.

It is meant for late gradients: a delay does most harm if directions of large curvature are not aligned with Adam's
coordinates. For each rotated matrix [a, b] with gradient G (' is the transpose):

    L <- mean of G G',  R <- mean of G' G                      moving averages with b2, from zero
    U, V: after the first gradient the eigenvectors of L and R, by decreasing eigenvalue; every 10 updates
          the columns of U are sorted by decreasing diagonal of U' L U, and U <- QR(L U); the same for V and R
    M <- mean of G,  N <- mean of (U' G V)^2                   rows and columns of N are sorted with U and V
    W <- W - rate sqrt(1 - b2^n) / (1 - b1^n) U (U' M V / (sqrt(N) + eps)) V'

The bases U and V change before the update by the same gradient; in SOAP (2409.11321) they change after it. The
algorithm follows the authors' code (github.com/joonkyoo/basis-rotation), which rotates only the matrices of attention
and MLP. Embeddings, output layers and vectors use ordinary Adam, in the authors' code and here.
Deviations: a kernel with more than two axes is treated as a matrix whose columns are its last axis (the authors train
no convolutions). The transformer of this library has queries, keys and values in one matrix; theirs has three.
"""

import math
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fdg_jax.optimizers.nadam import decoupled

Array = jax.Array
# Names of embeddings and output layers in this library's transformer, and in those of Flax and Hugging Face.
OUTSIDE = frozenset({"table", "positions", "embedding", "scores", "head", "lm_head", "logits"})


class Leaf(NamedTuple):
    """The state of one array. mean, square: Adam's two means. left, right: for a rotated matrix the `Side`s of U and V;
    () for other arrays."""

    mean: Array
    square: Array
    left: Any = ()
    right: Any = ()


class Side(NamedTuple):
    """One side of a rotated matrix. product: L or R, [n, n]. basis: U or V, the basis vectors as columns [n, n]."""

    product: Array
    basis: Array


class RotationState(NamedTuple):
    """updates: the number of updates so far. leaves: a tree like params, with a `Leaf` for each array."""

    updates: Array
    leaves: Any


def inner_matrices(params: Any, outside: Collection[str] = OUTSIDE) -> Any:
    """A mask of the parameters to rotate: those with two axes or more, if no part of the name is in `outside`."""

    def inner(path, leaf):
        return leaf.ndim > 1 and not any(getattr(part, "key", None) in outside for part in path)

    return jax.tree_util.tree_map_with_path(inner, params)


def scale_by_rotation(
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    every: int = 10,
    rotated: Callable[[Any], Any] = inner_matrices,
) -> optax.GradientTransformation:
    """Transforms gradients into the step of the equations above, without learning rate, sign and weight decay.

    Arguments:
        b1, b2, eps: as in Adam; b2 is also used for L and R.
        every: the number of updates between two changes of the bases.
        rotated: params -> a tree of booleans, which selects the arrays to rotate. A side of length n costs two arrays
            [n, n].
    """

    def init_leaf(leaf, turns):
        mean, square = (jnp.zeros_like(leaf, dtype=exact(leaf)) for _ in range(2))
        sizes = shape_of(leaf) if turns else ()
        return Leaf(mean, square, *(Side(jnp.zeros((n, n), mean.dtype), jnp.eye(n, dtype=mean.dtype)) for n in sizes))

    def init(params):
        return RotationState(jnp.zeros((), jnp.int32), jax.tree.map(init_leaf, params, rotated(params)))

    def plain(g, leaf: Leaf, n: Array) -> tuple[Array, Leaf]:
        G = g.astype(leaf.mean.dtype)
        mean, square = b1 * leaf.mean + (1 - b1) * G, b2 * leaf.square + (1 - b2) * G * G
        return mean / (1 - b1**n) / (jnp.sqrt(square / (1 - b2**n)) + eps), Leaf(mean, square)

    def in_basis(g, leaf: Leaf, n: Array) -> tuple[Array, Leaf]:
        G = g.reshape(shape_of(g)).astype(leaf.mean.dtype)
        left, square = turned(leaf.left, G @ G.T, leaf.square.reshape(G.shape), 0, n, b2, every)
        right, square = turned(leaf.right, G.T @ G, square, 1, n, b2, every)
        mean = b1 * leaf.mean + (1 - b1) * G.reshape(g.shape)
        U, V = left.basis, right.basis
        square = b2 * square + (1 - b2) * jnp.square(U.T @ G @ V)
        step = U.T @ mean.reshape(G.shape) @ V * jnp.sqrt(1 - b2**n) / (1 - b1**n) / (jnp.sqrt(square) + eps)
        return (U @ step @ V.T).reshape(g.shape), Leaf(mean, square.reshape(g.shape), left, right)

    def update(updates, state, params=None):
        del params
        n = state.updates + 1
        flat, treedef = jax.tree.flatten(updates)
        made = [
            (in_basis if leaf.left else plain)(g, leaf, n)
            for g, leaf in zip(flat, treedef.flatten_up_to(state.leaves), strict=True)
        ]
        steps = [step.astype(g.dtype) for g, (step, _) in zip(flat, made, strict=True)]
        return treedef.unflatten(steps), RotationState(n, treedef.unflatten([leaf for _, leaf in made]))

    return optax.GradientTransformation(init, update)


def turned(side: Side, product: Array, square: Array, axis: int, n: Array, b2: float, every: int) -> tuple[Side, Array]:
    """Updates one side. Returns the new side, and the second moment with rows (or columns) in the new order.

    Arguments:
        product: G G' or G' G of the gradient, [n, n].
        square: the second moment [rows, columns].
        axis: 0 for the left side, 1 for the right side.
        n: number of the update, from 1.
        b2, every: as in `scale_by_rotation`.
    """
    product = b2 * side.product + (1 - b2) * product

    def kept():
        return side.basis, square

    def begun():
        return jnp.linalg.eigh(product)[1][:, ::-1], square

    def again():
        order = jnp.argsort(-jnp.sum(side.basis * (product @ side.basis), 0), stable=True)
        return jnp.linalg.qr(product @ side.basis[:, order])[0], jnp.take(square, order, axis)

    first = jnp.trace(side.product) == 0  # this is the first gradient
    which = jnp.where(first, 1, jnp.where(n % every == 0, 2, 0))
    basis, square = jax.lax.switch(which, (kept, begun, again))
    return Side(product, basis), square


def exact(leaf: Array) -> Any:
    """The dtype for computations: the array's own, but at least float32, because LAPACK has no QR in bfloat16."""
    return jnp.promote_types(leaf.dtype, jnp.float32)


def shape_of(leaf: Any) -> tuple[int, int]:
    """The shape of an array of two or more axes as a matrix: (all axes but the last, the last)."""
    return math.prod(leaf.shape[:-1]), leaf.shape[-1]


def rotation(
    learning_rate: optax.ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    mask: Any = None,
    every: int = 10,
    rotated: Callable[[Any], Any] = inner_matrices,
) -> optax.GradientTransformation:
    """Adam in the gradients' eigenbasis, with decoupled weight decay.

    Arguments: every and rotated are those of `scale_by_rotation`, all others those of `nadam`.
    """
    return decoupled(scale_by_rotation(b1, b2, eps, every, rotated), learning_rate, weight_decay, mask)
