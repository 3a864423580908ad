"""Anticipation: forward passes use a prediction of the weights to which the gradient will be applied.

    x = y + c d        y: the stage's weights; d: their last update; gradients are taken at x, the optimizer updates y

Choices of the coefficient c give six published methods (τ: staleness, m: momentum):

    last       c = 1                        error feedback (arXiv 2606.30634), for τ = 1
    linear     c = τ                        weight prediction by the last update: LWP (2003.11666), XPipe, PipeOptim
    spike      c = (m - m^(τ+1)) / (1 - m)  spike compensation (2003.11666) = msnag of FTPipe with SGD
    nesterov   c = m                        one Nesterov step (2505.01099, its theorem)
    combined   c = τ + c of spike           spike compensation together with weight prediction (2003.11666)
    double     c = 2 τ                      weight prediction by twice the delay (2003.11666)

An optimizer wrapper that trains x in place of y does the same (tests/test_correction_identities.py has one). Here the
stage makes the prediction instead, so that evaluated and saved weights are always y. This takes one more copy of the
weights. In the papers on error feedback and on spike compensation the weights are x, and test errors may be measured at
x. Here test errors are measured at y.

Clipping and weight decay act as without a correction, since both are part of the last update. τ is counted in updates,
also with --accumulate. After `drain`, d is reset to 0, because no update will come before the gradient of the next
batch. When the learning rate drops, d has the old rate for one update, so x is too far ahead by the factor of the drop.
Without momentum, c = τ and larger c make the largest stable learning rate smaller; c = 1 does so only for small τ
(python -m experiments.stability).

For SGD, spike equals msnag. With Adam (m = b1) they are equal only after many updates and without weight decay. In the
first updates, Adam's bias corrections differ: at the first update with τ = 13, spike looks 1.79 times as far ahead as
msnag.
Lion's and Muon's updates do not shrink without gradients, so with them spike looks less far ahead than the weights
move.

PipeOptim's code differs in two details of the prediction: with AdamW it leaves out the decay, and with SGD it predicts
along m v + g, which counts the last gradient twice.

Only the abstract of 2003.11666 was at hand; everything else about this paper is from memory.
"""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
import optax

from fdg_jax.corrections.interface import Correction, CorrectionSpec, Late
from fdg_jax.options.fields import option

Prediction = Literal["spike", "linear", "last", "nesterov", "combined", "double"]
BY_MOMENTUM = ("spike", "nesterov", "combined")


@dataclasses.dataclass(frozen=True)
class Options:
    """The option of `anticipate`. prediction: the row of the table above that gives c."""

    prediction: Literal["spike", "linear", "last", "nesterov", "combined", "double"] = option(
        "spike",
        "anticipate: a forward pass uses the weights plus c times the last update. c, for staleness t and momentum m: "
        "spike: (m - m^(t+1)) / (1 - m) (spike compensation, msnag); linear: t; last: 1 (error feedback); nesterov: m; "
        "combined: linear plus spike; double: 2 t.",
    )


def coefficient(prediction: Prediction, staleness: float, momentum: float) -> float:
    """The coefficient c of the table above: a forward pass looks ahead by c times the last update.

    Arguments:
        prediction: a name in the table above.
        staleness: τ, in updates.
        momentum: m in [0, 1); only the predictions in BY_MOMENTUM use it.
    """
    spike = (momentum - momentum ** (staleness + 1)) / (1 - momentum)
    return {
        "last": 1.0, "linear": staleness, "double": 2 * staleness,
        "spike": spike, "nesterov": momentum, "combined": staleness + spike,
    }[prediction]  # fmt: skip


def make(late: Late, prediction: Prediction) -> Correction:
    """The correction of a stage. d starts at 0, so the first forward pass is at y. Raises BadInput if c needs the
    momentum and it is not known.

    It needs --weights stashed: with --weights current, gradients would be taken at y instead of x.
    """
    if prediction in BY_MOMENTUM:
        late.check("momentum", "anticipate")
    c = coefficient(prediction, late.staleness, late.momentum or 0.0)

    def forward(params, last):
        return jax.tree.map(lambda y, d: y + c * d, params, last)

    def updated(before, after, last):
        return jax.tree.map(jnp.subtract, after, before)

    zeros = optax.tree.zeros_like
    return Correction(init=zeros, forward=forward, updated=updated, drained=zeros)


SUMMARY = "forward pass at predicted weights: error feedback, weight prediction, spike compensation, Nesterov"
CORRECTION = CorrectionSpec(name="anticipate", summary=SUMMARY, make=make, options=Options, weights="stashed")
