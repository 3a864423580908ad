"""Whether a loss is a mean over examples. Only then the losses of parts of a batch have the gradient of the whole one.

A loss that compares the examples of a batch with one another, sums over them or uses statistics of the batch is another
objective on every part. Shapes cannot tell, so the loss is tried: on four made-up examples, and on two and two of them.
"""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fdg_jax.errors import BadInput
from fdg_jax.machine import programs
from fdg_jax.machine.jax_internals import is_tracing
from fdg_jax.stage.functions import loss_of, metrics_of
from fdg_jax.stage.weighted import Weighted

Tree = Any
NEAR = 1e-4  # relative; float32 rounds a mean by 1e-6, and a loss that is none is off by much more


def check(loss: Callable[[Tree, Tree], Tree], outputs: Tree, labels: Tree, cuts: str, way_out: str) -> None:
    """Tries a loss on parts of a batch. Warns of a metric that is no mean over examples.

    Arguments:
        loss: the user's.
        outputs, labels: the shapes of what it takes, arrays [batch, ...].
        cuts: what cuts a batch into parts, such as "method gpipe cuts a batch into 4 micro-batches".
        way_out: what to do about it.

    Raises:
        BadInput: the loss of four examples is not the mean of the losses of two and two of them.
    """
    if is_tracing():  # somebody follows the shapes of a whole pipeline: nothing can be tried
        return
    run = programs.jit(lambda *batch: loss(*batch))
    four = made_up(outputs, 1), made_up(labels, 2)
    parts = [jax.tree.map(lambda leaf, at=at: leaf[at : at + 2], four) for at in (0, 2)]
    try:
        whole, *halves = (run(*batch) for batch in (four, *parts))
    except Exception:  # a loss for batches of one size, which the parts are not: it fails there, and says so
        return
    weights = np.array([np.sum(y.weights) if isinstance(y, Weighted) else 2.0 for _, y in parts])
    shares = weights / max(weights.sum(), 1e-9)

    def is_mean(get: Callable[[Tree], Any]) -> bool:
        found, one, two = (np.asarray(get(each), np.float64) for each in (whole, *halves))
        near = max(NEAR, 4 * float(jnp.finfo(loss_of(whole).dtype).eps)) * max(abs(found), abs(one), abs(two))
        return not abs(found - shares @ [one, two]) > near  # a NaN tells nothing

    differs = "of a batch is not the mean of those of its parts"
    if not is_mean(loss_of):
        raise BadInput(f"{cuts}, but the loss {differs}: another objective would be trained. {way_out}")
    for name in metrics_of(whole):
        if not is_mean(lambda told, name=name: metrics_of(told)[name]):
            warnings.warn(f"{cuts}, but the metric {name!r} {differs}, which is what Metrics tells.", stacklevel=5)


def made_up(shapes: Tree, seed: int) -> Tree:
    """Random arrays of four examples: fractions, zeros and ones as integers, which are classes of any loss."""
    draw = np.random.default_rng(seed)

    def array(leaf):
        fractions = draw.uniform(0.05, 0.95, (4, *leaf.shape[1:]))
        return jnp.asarray(fractions if jnp.issubdtype(leaf.dtype, jnp.inexact) else fractions > 0.5, leaf.dtype)

    return jax.tree.map(array, shapes)
