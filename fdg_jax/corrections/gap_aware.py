"""Gap-Aware (Barkai et al., 1909.10802): a gradient is divided by how far the weights have moved since, in usual steps.

    g <- g / (1 + |w now - w then| / C),    C = the largest learning rate so far * (sqrt(mean of v v) + 1e-8)

Everything is computed element by element. v is an update divided by its learning rate; for SGD it is the momentum
buffer. The mean of v v is a running mean: 0.999 of the old one plus 0.001 of v v, with Adam's bias correction. So a
gradient is divided by its staleness + 1 if the weight has moved by one usual step per update, and by 1 if the weight
has not moved.

Deviations from FTPipe's code. It counts the momentum buffer that is still empty as a first sample of the mean, so after
n updates its penalty minus 1 is about sqrt((n + 1) / n) times the one here: the penalties of updates 2, 3 and 4 of a
constant gradient at a staleness of 5 are 2.414, 3.267 and 4.205 there, and 2.000, 2.847 and 3.760 here. It divides
coupled weight decay by the same penalty. Here decay belongs to the optimizer, which comes later, and is not divided.
FTPipe does not accumulate gradients. With --accumulate, distances and usual steps here are those of whole updates.

The method is for SGD. Adam and others divide a gradient by its own size, element by element. So they cancel a penalty
that is constant from one gradient to the next, and keep only its changes.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fdg_jax.corrections.interface import Correction, CorrectionSpec, Late

DECAY, EPS = 0.999, 1e-8


class Mean(NamedTuple):
    """squares: the mean of v v, zero at first. updates: how many updates it covers, int32."""

    squares: Any
    updates: jax.Array


class Rate(NamedTuple):
    """count: updates so far, int32. largest: the largest learning rate of these, float32."""

    count: jax.Array
    largest: jax.Array


class State(NamedTuple):
    """The mean of the steps, and the largest learning rate so far."""

    mean: Mean
    rate: Rate


def make(late: Late) -> Correction:
    """Before the first update C is 0, and gradients stay unchanged."""
    assert late.learning_rate  # `needs` refuses a pipeline without one
    rate_of = late.learning_rate

    def init(params):
        number = lambda: jnp.zeros((), jnp.int32)  # noqa: E731  # two, as one array cannot be donated twice
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
