"""Basis rotation (2602.03515, Algorithms 1 and 2, two sides, second moment): Adam in the gradients' eigenbasis.

It is meant for late gradients: a delay harms most where directions of large curvature lie across Adam's coordinates.
For each rotated matrix [a, b] with gradient G

    L <- mean of G G',  R <- mean of G' G                      moving averages with b2, from zero
    U, V: at the first gradient the eigenvectors of L and R, by falling eigenvalue; every 10 updates
          the columns of U are sorted by falling diagonal of U' L U, and U <- QR(L U); the same for V and R
    M <- mean of G,  N <- mean of (U' G V)^2                   rows and columns of N are sorted with U and V
    W <- W - rate sqrt(1 - b2^n) / (1 - b1^n) U (U' M V / (sqrt(N) + eps)) V'

The bases turn before the update whose gradient turned them. The form is that of the authors' code
(github.com/joonkyoo/basis-rotation), which rotates the matrices of attention and MLP only. Embeddings, output layers
and vectors have Adam there and here, with Adam's own place for eps. SOAP (2409.11321) turns after the update instead.
Deviations: a kernel with more than two axes is treated as a matrix, whose columns are its last axis (the authors train
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
# Names of embeddings and output layers: of this library's transformer, of Flax's and Hugging Face's.
OUTSIDE = frozenset({"table", "positions", "embedding", "scores", "head", "lm_head", "logits"})


class Leaf(NamedTuple):
    """The state of one array: Adam's two means; for a rotated matrix also both sides, which are () otherwise."""

    mean: Array
    square: Array
    left: Any = ()
    right: Any = ()


class Side(NamedTuple):
    """product: the mean of G G' (or G' G), [n, n]. basis: the basis vectors of this side, as columns [n, n]."""

    product: Array
    basis: Array


class RotationState(NamedTuple):
    """updates: the number so far. leaves: a tree like params, of `Leaf`."""

    updates: Array
    leaves: Any


def inner_matrices(params: Any, outside: Collection[str] = OUTSIDE) -> Any:
    """Which parameters are rotated: those of two axes or more, where no part of the name is in `outside`."""

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
    """Transforms gradients into the step above, without learning rate, sign and weight decay.

    Arguments:
        b1, b2, eps: as Adam's; b2 is that of the mean products, too.
        every: updates between two turns of the bases.
        rotated: params -> a tree of bool: which of them are rotated. A side of length n costs two arrays of [n, n].
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
    """The side with the new product, and the second moment [rows, columns] in its new coordinates.

    Arguments:
        product: G G' or G' G of the gradient, [n, n]. square: the second moment. axis: that of the side.
        n: number of the update, from 1. b2, every: as in `scale_by_rotation`.
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
    """The dtype to compute in: the array's own, float32 at least. LAPACK has no QR in bfloat16."""
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
