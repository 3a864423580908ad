"""Delay compensation, DC-ASGD (Zheng et al., 1609.08326): a first-order estimate of the gradient at the newest weights.

    g <- g + λ g g (w_now - w_then)        w_then: the weights of the batch's forward pass; all products are elementwise

λ g g approximates the diagonal of the Hessian. "constant": λ is a constant, 0.04 in the paper. "adaptive": λ = λ0 /
sqrt(s + 1e-7) with s <- 0.95 s + 0.05 g g, and λ0 = 2 in the paper. For a parabola h w²/2 and λ = h/g² the estimate is
exact.

Both forms, and 1e-7, come from the authors' code, whose user chooses the other numbers:
https://github.com/Microsoft/Delayed-Compensation-Asynchronous-Stochastic-Gradient-Descent-for-Multiverso
The paper's 0.04, 2 and 0.95 are from memory, as only its abstract was at hand. MXNet's DCASGD also uses 0.04, and
github.com/botkop/scorch uses all three.
"""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
import optax

from fdg_jax.corrections.interface import Correction, CorrectionSpec, Late
from fdg_jax.options.fields import option

DECAY, EPS = 0.95, 1e-7
OF_THE_PAPER = {"constant": 0.04, "adaptive": 2.0}


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of `dc_asgd`. compensation_strength: λ of "constant", or λ0 of "adaptive"; 0 for the paper's value.
    Raises BadInput if it is negative or not finite."""

    compensation: Literal["constant", "adaptive"] = option(
        "constant", "dc_asgd: a constant lambda, or one divided by the root of a running mean of squared gradients."
    )
    compensation_strength: float = option(
        0.0, "dc_asgd: lambda. 0 means the paper's value: 0.04 if constant, 2 if adaptive.", metavar="LAMBDA",
        inside="[0, inf)"
    )


def make(late: Late, compensation: str, compensation_strength: float) -> Correction:
    """The correction of a stage. It is the same for every staleness. s starts at 0."""
    del late
    strength = compensation_strength or OF_THE_PAPER[compensation]

    def compensated(g, then, now, strength):
        return g + strength * g * g * (now - then)

    def constant(grads, then, now, state):
        return jax.tree.map(lambda g, a, b: compensated(g, a, b, strength), grads, then, now), state

    def adaptive(grads, then, now, squares):
        squares = jax.tree.map(lambda s, g: DECAY * s + (1 - DECAY) * g * g, squares, grads)
        by = jax.tree.map(lambda s: strength / jnp.sqrt(s + EPS), squares)
        return jax.tree.map(compensated, grads, then, now, by), squares

    if compensation == "constant":
        return Correction(gradient=constant)
    return Correction(init=optax.tree.zeros_like, gradient=adaptive)


SUMMARY = "delay compensation (Zheng et al. 2017): the gradient at the newest weights, to first order"
CORRECTION = CorrectionSpec(name="dc_asgd", summary=SUMMARY, make=make, options=Options, weights="stashed")
