"""A cosine gate: a late gradient is scaled by its agreement with the gradients before it.

    g <- g (1 + cos(g, m)) / 2 exp(-a τ),    m <- 0.9 m + 0.1 g

The cosine is taken over all weights of the stage; for the first gradient it counts as 1. Adam and Muon cancel the
constant factor exp(-a τ), but not the gate, which varies.

This gate is ours; no paper has it. According to its abstract, CGAD (2605.09126) multiplies gradients by γ(τ) exp(-a τ)
before Adam, and its gate γ falls to 0 at a cutoff of the staleness. Here the staleness of a stage is constant once the
pipeline is full, so CGAD's factor would be one number per stage, which Adam cancels. Without γ, and if τ = 2(K-k), CGAD
is FDG's shrinking with β = exp(-2a); τ = 2(K-k) holds with `--order forward-first` (tested). According to its abstract,
Adaptive Braking (2007.01397) scales gradients by their agreement with the momentum. It is not implemented, because only
its abstract was at hand.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import optax

from fdg_jax.corrections.interface import Correction, CorrectionSpec, Late
from fdg_jax.options.fields import option

DECAY = 0.9


@dataclasses.dataclass(frozen=True)
class Options:
    """The option of `cosine`. gate_decay: a, per update of staleness. Raises BadInput if it is negative or not
    finite."""

    gate_decay: float = option(
        0.0,
        "cosine: also multiply gradients by exp(-A times the staleness). 0: do not.",
        metavar="A",
        inside="[0, inf)",
    )


def make(late: Late, gate_decay: float) -> Correction:
    """The correction of a stage. m starts at 0. While the norm of m or g is 0, the cosine counts as 1."""
    shrink = math.exp(-gate_decay * late.staleness)

    def gradient(grads, then, now, mean):
        norms = optax.tree.norm(grads) * optax.tree.norm(mean)
        cosine = jnp.where(norms > 0, optax.tree.vdot(grads, mean) / jnp.where(norms > 0, norms, 1), 1.0)
        gate = (1 + cosine) / 2 * shrink
        mean = jax.tree.map(lambda m, g: DECAY * m + (1 - DECAY) * g, mean, grads)
        return jax.tree.map(lambda g: gate.astype(g.dtype) * g, grads), mean

    return Correction(init=optax.tree.zeros_like, gradient=gradient)


SUMMARY = "gradients scaled by their cosine to the running mean of earlier gradients"
CORRECTION = CorrectionSpec(name="cosine", summary=SUMMARY, make=make, options=Options)
