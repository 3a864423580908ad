"""PipeMare's T2 (Yang et al., 1910.05124): a gradient is computed at an estimate of the weights of its forward pass.

    backward at w - τ d,    d <- γ d + (1 - γ) (the last update),    γ = D^(1/τ)

It is for --weights current, where a backward pass combines the newest weights with the activations of the batch's
forward pass. T2 estimates the weights of that forward pass by going τ updates back along the average update d.
PipeMare's D is e^-2. With D = 0 and equal updates the estimate is exact. Stashes of this library still refer to their
weights, for checkpoints, so T2 saves no memory here: it costs one copy of the weights. PipeMare's T3 is not a
correction: it begins with some synchronous epochs. Here a run with --method bp does the same; a second run starts from
its weights with --init-from (docs/corrections.md). Only the abstract of PipeMare was at hand, so T2's equations and D
are from memory.
"""

import dataclasses

import jax
import optax

from fdg_jax.corrections.interface import Correction, CorrectionSpec, Late
from fdg_jax.options.fields import option


@dataclasses.dataclass(frozen=True)
class Options:
    """The option of `t2`. discrepancy: D in [0, 1), without a unit. Raises BadInput outside this range."""

    discrepancy: float = option(
        0.135,
        "t2: PipeMare's D, the share of an update that its running mean keeps after as many updates as the staleness.",
        metavar="D",
        inside="[0, 1)",
    )


def make(late: Late, discrepancy: float) -> Correction:
    """The correction of a stage. d is 0 at the start and after `drain`, so the next backward pass uses the newest
    weights."""
    gamma = discrepancy ** (1 / late.staleness)

    def backward(params, average):
        return jax.tree.map(lambda w, d: w - late.staleness * d, params, average)

    def updated(before, after, average):
        return jax.tree.map(lambda d, old, new: gamma * d + (1 - gamma) * (new - old), average, before, after)

    zeros = optax.tree.zeros_like
    return Correction(init=zeros, backward=backward, updated=updated, drained=zeros)


SUMMARY = "PipeMare's T2: backward at an estimate of the weights of the forward pass"
CORRECTION = CorrectionSpec(name="t2", summary=SUMMARY, make=make, options=Options, weights="current")
