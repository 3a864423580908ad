"""PipeMare's T2 (Yang et al., 1910.05124): a gradient is computed at an estimate of the weights of its forward pass.

    backward at w - τ d,    d <- γ d + (1 - γ) (the last update),    γ = D^(1/τ)

It is for gradients at the newest weights (--weights current): activations are those of the batch's forward pass. The
weights of that pass are estimated by going τ updates back along the average update d. D = e^-2 is PipeMare's. With D =
0 and equal updates the estimate is exact. A stash of this library still refers to its weights, for checkpoints, so T2
saves no memory here; it costs one copy. PipeMare's T3 is not a correction: it begins with some synchronous epochs. Here
that is a run with --method bp, whose weights the next run takes with --init-from (docs/corrections.md). Only the
abstract of PipeMare was at hand: T2's equations and its D are from memory.
"""

import dataclasses

import jax
import optax

from fdg_jax.corrections.interface import Correction, CorrectionSpec, Late
from fdg_jax.options.fields import option


@dataclasses.dataclass(frozen=True)
class Options:
    """discrepancy: D in [0, 1), without a unit. Raises BadInput outside."""

    discrepancy: float = option(
        0.135,
        "t2: PipeMare's D, the share of an update that its running mean keeps after as many updates as the staleness.",
        metavar="D",
        inside="[0, 1)",
    )


def make(late: Late, discrepancy: float) -> Correction:
    """d is 0 at the start and after `drain`, so the first backward pass is at the newest weights."""
    gamma = discrepancy ** (1 / late.staleness)

    def backward(params, average):
        return jax.tree.map(lambda w, d: w - late.staleness * d, params, average)

    def updated(before, after, average):
        return jax.tree.map(lambda d, old, new: gamma * d + (1 - gamma) * (new - old), average, before, after)

    zeros = optax.tree.zeros_like
    return Correction(init=zeros, backward=backward, updated=updated, drained=zeros)


SUMMARY = "PipeMare's T2: backward at an estimate of the weights of the forward pass"
CORRECTION = CorrectionSpec(name="t2", summary=SUMMARY, make=make, options=Options, weights="current")
