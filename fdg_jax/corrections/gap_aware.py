"""Gap-Aware (Barkai et al., 1909.10802): a gradient is divided by a penalty, which grows with the distance that the
weights have moved since the batch's forward pass.

    g <- g / (1 + |w_now - w_then| / C),    C = the largest learning rate so far * (sqrt(mean of v v) + 1e-8)

All operations are elementwise. v is an update divided by its learning rate; for SGD it is the momentum buffer. The mean
of v v is a running mean: 0.999 of the old mean plus 0.001 of v v, with Adam's bias correction. So C is the size of a
usual update. The penalty is the staleness + 1 if the weight has moved by C in each update, and 1 if it has not moved.

Deviations from FTPipe's code: FTPipe counts the initial, empty momentum buffer as a first sample of the mean, so after
n updates its penalty minus 1 is about sqrt((n + 1) / n) times as large as here. For a constant gradient at a staleness
of 5, the penalties of updates 2, 3 and 4 are 2.414, 3.267 and 4.205 in FTPipe, and 2.000, 2.847 and 3.760 here. FTPipe
also divides coupled weight decay by the penalty. Here the optimizer adds weight decay later, so it is not divided.
FTPipe does not accumulate gradients. With --accumulate, distances and C refer to whole updates.

The method is for SGD. Adam and others divide a gradient by its size, elementwise. So they cancel a penalty that is
constant from one gradient to the next, and only its changes have an effect.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fdg_jax.corrections.interface import Correction, CorrectionSpec, Late

DECAY, EPS = 0.999, 1e-8


class Mean(NamedTuple):
    """The running mean of v v. squares: the mean before bias correction, zero at first. updates: the number of updates
    in it, int32."""

    squares: Any
    updates: jax.Array


class Rate(NamedTuple):
    """Learning rates so far. count: the number of updates, int32. largest: the largest of their learning rates,
    float32."""

    count: jax.Array
    largest: jax.Array


class State(NamedTuple):
    """The mean of the steps, and the largest learning rate so far."""

    mean: Mean
    rate: Rate


def make(late: Late) -> Correction:
    """The correction of a stage. Before the first update C is 0, and gradients are not changed."""
    assert late.learning_rate  # `needs` refuses a pipeline without one
    rate_of = late.learning_rate

    def init(params):
        number = lambda: jnp.zeros((), jnp.int32)  # noqa: E731  # a function, because one array cannot be donated twice
        squares = optax.tree.zeros_like(params, dtype=jnp.float32)  # in bfloat16, adding 0.001 of v v would be lost
        return State(Mean(squares, number()), Rate(number(), jnp.zeros(())))

    def gradient(grads, then, now, state):
        bias = 1 - DECAY ** jnp.maximum(state.mean.updates, 1)

        def divided(g, a, b, s):
            usual = state.rate.largest * (jnp.sqrt(s / bias) + EPS)
            smaller = g / (1 + jnp.abs(b - a) / jnp.where(usual > 0, usual, 1))
            return jnp.where(usual > 0, smaller, g).astype(g.dtype)

        return jax.tree.map(divided, grads, then, now, state.mean.squares), state

    def updated(before, after, state):
        rate = jnp.asarray(rate_of(state.rate.count), jnp.float32)
        over = jnp.where(rate > 0, 1 / jnp.where(rate > 0, rate, 1), 0)  # a warm-up may begin with 0

        def step(s, a, b):
            return DECAY * s + (1 - DECAY) * jnp.asarray((b - a) * over, s.dtype) ** 2

        squares = jax.tree.map(step, state.mean.squares, before, after)
        largest = Rate(state.rate.count + 1, jnp.maximum(state.rate.largest, rate))
        return State(Mean(squares, state.mean.updates + 1), largest)

    return Correction(init=init, gradient=gradient, updated=updated)


SUMMARY = "gradients divided by the distance that the weights have moved meanwhile (Barkai et al. 2020)"
CORRECTION = CorrectionSpec(name="gap_aware", summary=SUMMARY, make=make, needs=("learning_rate",), weights="stashed")
