"""Learning rates by staleness: every update of a stage is divided by its staleness τ.

    update <- update / τ^{1 - n/T}        n: updates before this one. T = --anneal-updates; without it the power is 1

Without --anneal-updates this is staleness-aware SGD (Zhang et al., 1511.05950). With --anneal-updates, it is PipeMare's
T1 (Yang et al., 1910.05124), whose division ends after T updates. PipeMare's T is a quarter of the phase of the first
learning rate (ResNet), or five times its warm-up (Transformer).

T1's equation comes from the code of asynchronous Nesterov (2505.01099, github.com/PluralisResearch/AsyncPP), which
counts the update itself as well: its n is one larger. Only the abstract of PipeMare was at hand, so its choices of T
are from memory.

The factor is applied after the whole optimizer. So it also scales weight decay, and it has an effect with Adam and
Muon, which would cancel a factor on gradients. A staleness below 1 counts as 1.
"""

import dataclasses

import jax.numpy as jnp
import optax

from fdg_jax.corrections.interface import Correction, CorrectionSpec, Late
from fdg_jax.options.fields import option


@dataclasses.dataclass(frozen=True)
class Options:
    """The option of `rate`. anneal_updates: T, in updates of the stage; with 0 the division never ends. Raises BadInput
    if it is negative."""

    anneal_updates: int = option(
        0,
        "rate: fade the division by the staleness out over T updates (PipeMare's T1). 0: never fade it out.",
        metavar="T",
        inside="[0, inf)",
        use="a number of updates, or 0 for never",
    )


def make(late: Late, anneal_updates: int) -> Correction:
    """The correction of a stage. Its factor depends on the number n of the stage's own updates, from 0."""
    staleness, T = max(late.staleness, 1.0), anneal_updates

    def factor(n):
        power = 1 - jnp.minimum(n / T, 1.0) if T else 1.0
        return staleness**-power

    scale = optax.scale_by_schedule(factor) if T else optax.scale(1 / staleness)
    return Correction(optimizer=lambda chain: optax.chain(chain, scale))


SUMMARY = "updates divided by the staleness (Zhang et al. 2016); with --anneal-updates only at first (PipeMare's T1)"
CORRECTION = CorrectionSpec(name="rate", summary=SUMMARY, make=make, options=Options)
