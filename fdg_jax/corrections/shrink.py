"""FDG's gradient shrinking (Eq. 15 and 17): the gradient of stage k is multiplied by beta**(K-k).

    g <- β^{K-k} g,    k < K

It stands before weight decay and momentum, so it is not a learning-rate scale. It is part of every run, unless a
correction that is asked for takes beta itself (`fdg_jax.checks.plan`). `Correction.around` puts it in
front of the stage's optax chain, so behind whatever else changes a gradient. The paper multiplies the cotangent that
enters each stage by beta, which shrinks the gradient passed down as well; here the cotangent travels unshrunk and each
stage scales by the whole power. The two are the same in exact arithmetic (tested), and this one leaves any user's optax
chain as it is.
"""

import optax

from fdg_jax.corrections.interface import NONE, Correction, CorrectionSpec, Late


def make(late: Late, beta: float = 1.0) -> Correction:
    """Stage K is exempt, also in schedules where it is late. beta = 1 shrinks nothing."""
    if beta == 1.0 or late.k == late.K:
        return NONE
    return Correction(before=optax.scale(beta ** (late.K - late.k)))


SUMMARY = "FDG's beta: the gradient of stage k times beta**(K-k)"
CORRECTION = CorrectionSpec(name="shrink", summary=SUMMARY, make=make, takes=("beta",))
