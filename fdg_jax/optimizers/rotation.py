"""Basis rotation (2602.03515), its variant "second moment, both sides" = SOAP (2409.11321): Adam in turned coordinates.

Why it is here: the harm of a delay is worst where the directions of large curvature lie across Adam's coordinates. For
every matrix [a, b] with gradient G

    L <- mean of G G',  R <- mean of G' G;   every 10 updates  U, V <- QR(L U), QR(R V): one step of power iteration
    W <- W - rate U (M~ / (sqrt(N) + eps)) V'      M~ = U' M V,  M <- mean of G,  N <- mean of (U' G V)^2

with Adam's corrections for the start. A kernel of more axes is a matrix of its last axis and all others; everything
else, and a side longer than `largest`, keeps its coordinates, so a vector has Adam. optax has no SOAP.
Deviations: U and V start as the identity instead of SOAP's eigenvectors of the first gradient, and the first update is
made. U and V turn before the update whose gradient has turned them; SOAP turns them after it, so here they are one
update ahead. N is not turned when U and V are, as in SOAP, whose published code sorts both by eigenvalue besides.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fdg_jax.optimizers.decoupled import decoupled

Array = jax.Array


class Leaf(NamedTuple):
    """Of one array: Adam's two means, and for a side that turns the mean product and its basis, else ()."""

    mean: Array
    square: Array
    left: Any = ()
    right: Any = ()


class Side(NamedTuple):
    """product: the mean of G G' (or G' G), [n, n]. basis: its turned coordinates, as columns."""

    product: Array
    basis: Array


class RotationState(NamedTuple):
    """updates: made so far. leaves: params-like, of `Leaf`."""

    updates: Array
    leaves: Any


def scale_by_rotation(
    b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8, every: int = 10, largest: int = 1024
) -> optax.GradientTransformation:
    """The step above, of gradients: without learning rate, sign and weight decay.

    Arguments:
        b1, b2, eps: as Adam's; b2 is that of the mean products, too.
        every: updates between two turns of the bases.
        largest: a side that is longer keeps its coordinates.
    """

    def side(n: int, leaf: Array) -> Any:
        turns, dtype = leaf.ndim > 1 and n <= largest, exact(leaf)
        return Side(jnp.zeros((n, n), dtype), jnp.eye(n, dtype=dtype)) if turns else ()

    def init_leaf(leaf):
        (rows, columns), zeros = shape_of(leaf), lambda: jnp.zeros_like(leaf, dtype=exact(leaf))
        return Leaf(zeros(), zeros(), side(rows, leaf), side(columns, leaf))

    def init(params):
        return RotationState(jnp.zeros((), jnp.int32), jax.tree.map(init_leaf, params))

    def turned(side: Any, product: Array, turn: Array) -> Any:
        if side == ():
            return ()
        product = b2 * side.product + (1 - b2) * product
        basis = jax.lax.cond(turn, lambda: jnp.linalg.qr(product @ side.basis)[0], lambda: side.basis)
        return Side(product, basis)

    def update_leaf(g, leaf: Leaf, n: Array) -> tuple[Array, Leaf]:
        G, turn = g.reshape(shape_of(g)).astype(leaf.mean.dtype), n % every == 0
        left = turned(leaf.left, G @ G.T, turn) if leaf.left != () else ()
        right = turned(leaf.right, G.T @ G, turn) if leaf.right != () else ()
        mean = b1 * leaf.mean + (1 - b1) * G.reshape(g.shape)
        there = rotate(G, left, right)
        square = b2 * leaf.square.reshape(G.shape) + (1 - b2) * there * there
        step = rotate(mean.reshape(G.shape), left, right) / (1 - b1**n) / (jnp.sqrt(square / (1 - b2**n)) + eps)
        back = rotate(step, left, right, back=True)
        return back.reshape(g.shape).astype(g.dtype), Leaf(mean, square.reshape(g.shape), left, right)

    def update(updates, state, params=None):
        del params
        n = state.updates + 1
        flat, treedef = jax.tree.flatten(updates)
        leaves = treedef.flatten_up_to(state.leaves)
        made = [update_leaf(g, leaf, n) for g, leaf in zip(flat, leaves, strict=True)]
        return treedef.unflatten([step for step, _ in made]), RotationState(n, treedef.unflatten([m for _, m in made]))

    return optax.GradientTransformation(init, update)


def exact(leaf: Array) -> Any:
    """The dtype to compute in: the array's own, float32 at least. LAPACK has no QR in bfloat16."""
    return jnp.promote_types(leaf.dtype, jnp.float32)


def shape_of(leaf: Any) -> tuple[int, int]:
    """An array as a matrix: all axes but the last, and the last."""
    return (math.prod(leaf.shape[:-1]), leaf.shape[-1]) if leaf.ndim else (1, 1)


def rotate(G: Array, left: Any, right: Any, back: bool = False) -> Array:
    """U' G V, or back."""
    if left != ():
        G = (left.basis if back else left.basis.T) @ G
    if right != ():
        G = G @ (right.basis.T if back else right.basis)
    return G


def rotation(
    learning_rate: optax.ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    mask: Any = None,
    every: int = 10,
) -> optax.GradientTransformation:
    """Adam in turned coordinates, with decoupled weight decay.

    Arguments: every, that of `scale_by_rotation`; all others as those of `nadam`.
    """
    return decoupled(scale_by_rotation(b1, b2, eps, every), learning_rate, weight_decay, mask)
