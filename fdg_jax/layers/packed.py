"""Convolutions of several seeds at once: `jax.vmap` over the kernels of fdg_jax.layers.convolution uses them.

JAX would make a grouped convolution with a group for each seed. On a GPU grouped convolutions are slow, and narrow
layers do not fill the machine (jax issues 26568 and 13800). So the channels of a few seeds lie side by side, at most
`WIDTH` channels: 4 seeds of 16 channels, 2 of 32, 1 of 64. Their kernels are the diagonal blocks of one kernel that is
zero elsewhere. This computes the same sums, with zeros in between, so results differ by rounding only. On a CPU each
seed's convolution is computed separately, as in a run of one seed.

An infinite number in one seed makes NaN in the seeds that lie beside it, since 0 times infinity is NaN.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

WIDTH = 64  # channels


def over_seeds(alone: Callable, packed: Callable) -> Callable:
    """Makes a function of arrays. Under `jax.vmap` it uses `packed`, but on a CPU it calls `alone` for each seed.

    Arguments:
        alone: the function for the arrays of one seed.
        packed: the function for arrays that all have a leading axis of seeds.
    """
    call = jax.custom_batching.custom_vmap(alone)

    @call.def_vmap
    def rule(seeds, batched, *arrays):
        arrays = [a if has else jnp.broadcast_to(a, (seeds, *a.shape)) for a, has in zip(arrays, batched, strict=True)]
        return lax.platform_dependent(*arrays, cpu=partial(one_by_one, alone), default=packed), True

    return call


def one_by_one(alone: Callable, *arrays: jax.Array) -> jax.Array:
    """Calls `alone` for each seed."""
    return jnp.stack([alone(*(array[i] for array in arrays)) for i in range(len(arrays[0]))])


def side_by_side(seeds: int, channels: int, features: int) -> int:
    """How many seeds share a convolution: the largest divisor of the number of seeds with at most `WIDTH` channels."""
    most = max(1, WIDTH // max(channels, features))
    return max(n for n in range(1, min(most, seeds) + 1) if seeds % n == 0)


def join(x: jax.Array, n: int) -> jax.Array:
    """n seeds side by side: [seeds, b, h, w, c] -> [seeds / n, b, h, w, n c]."""
    seeds, b, h, w, c = x.shape
    return x.reshape(seeds // n, n, b, h, w, c).transpose(0, 2, 3, 4, 1, 5).reshape(seeds // n, b, h, w, n * c)


def part(x: jax.Array, n: int) -> jax.Array:
    """The inverse of `join`."""
    groups, b, h, w, c = x.shape
    return x.reshape(groups, b, h, w, n, c // n).transpose(0, 4, 1, 2, 3, 5).reshape(groups * n, b, h, w, c // n)


def block_diagonal(kernel: jax.Array, n: int) -> jax.Array:
    """[seeds, k, k, c, f] -> [seeds / n, k, k, n c, n f], zero where a channel and a feature are of different seeds."""
    seeds, k, _, c, f = kernel.shape
    blocks = kernel.reshape(seeds // n, n, k, k, c, f)
    rows = [jnp.pad(blocks[:, i], [(0, 0)] * 4 + [(i * f, (n - 1 - i) * f)]) for i in range(n)]
    return jnp.concatenate(rows, axis=3)


def diagonal_blocks(kernel: jax.Array, n: int) -> jax.Array:
    """The blocks of `block_diagonal`: [groups, k, k, n c, n f] -> [groups n, k, k, c, f]."""
    groups, k, _, c, f = kernel.shape
    split = kernel.reshape(groups, k, k, n, c // n, n, f // n)
    blocks = jnp.stack([split[:, :, :, i, :, i] for i in range(n)], axis=1)
    return blocks.reshape(groups * n, k, k, c // n, f // n)


def forward(alone: Callable, x: jax.Array, kernel: jax.Array) -> jax.Array:
    """The convolution alone(x, kernel) for several seeds: x [seeds, b, h, w, c], kernel [seeds, k, k, c, f]."""
    n = side_by_side(len(x), *kernel.shape[3:])
    return part(one_by_one(alone, join(x, n), block_diagonal(kernel, n)), n)


def input_gradient(alone: Callable, x: jax.Array, dy: jax.Array, kernel: jax.Array) -> jax.Array:
    """The gradient for x for several seeds; alone(x, dy, kernel) computes it for one seed."""
    n = side_by_side(len(x), *kernel.shape[3:])
    return part(one_by_one(alone, join(x, n), join(dy, n), block_diagonal(kernel, n)), n)


def weight_gradient(alone: Callable, x: jax.Array, dy: jax.Array, kernel: jax.Array) -> jax.Array:
    """The gradient for the kernel for several seeds; alone(x, dy, kernel) computes it for one seed. Products of
    different seeds are left out."""
    n = side_by_side(len(x), *kernel.shape[3:])
    return diagonal_blocks(one_by_one(alone, join(x, n), join(dy, n), block_diagonal(kernel, n)), n)
