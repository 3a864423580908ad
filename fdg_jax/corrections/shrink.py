"""FDG's gradient shrinking (Eq. 15 and 17): the gradient of stage k is multiplied by beta**(K-k).

    g <- β^{K-k} g,    k < K

The factor comes before weight decay and momentum, so it does not just scale the learning rate. It is part of every run,
unless a chosen correction takes beta itself (`fdg_jax.checks.plan`). `Correction.around` puts it directly in front of
the stage's optax chain, after everything else that changes a gradient. The paper multiplies the cotangent that enters
each stage by beta, which also shrinks the gradient that is passed down. Here the cotangent is not shrunk, and each
stage scales its gradient by the whole power. Both are the same in exact arithmetic (tested); this form leaves the
user's optax chain as it is.
"""

import optax

from fdg_jax.corrections.interface import NONE, Correction, CorrectionSpec, Late


def make(late: Late, beta: float = 1.0) -> Correction:
    """Multiplies the gradients of stages k < K by beta**(K-k); stage K's stay as they are, even in schedules where
    stage K is late. beta = 1 changes nothing. It may be traced, where runs with several betas are one program."""
    if late.k == late.K or (isinstance(beta, float) and beta == 1.0):
        return NONE
    return Correction(before=optax.scale(beta ** (late.K - late.k)))


SUMMARY = "FDG's beta: the gradient of stage k times beta**(K-k)"
CORRECTION = CorrectionSpec(name="shrink", summary=SUMMARY, make=make, takes=("beta",))
