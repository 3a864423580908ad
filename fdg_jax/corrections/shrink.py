"""FDG's gradient shrinking (Eq. 15 and 17): the gradient of stage k is multiplied by beta**(K-k).

    g <- β^{K-k} g,    k < K

The factor is applied before weight decay and momentum, so it does not just scale the learning rate. Every run has this
correction, unless a chosen correction takes beta itself (`fdg_jax.checks.plan`). `Correction.around` puts it in front
of the stage's optax chain, after the `gradient` functions of other corrections. The paper multiplies the cotangent that
enters each stage by beta. This also shrinks the cotangent that the stage passes down. Here cotangents are not
multiplied, and each stage multiplies its gradient by the whole power. In exact arithmetic both give the same weights
(tested).
"""

import optax

from fdg_jax.corrections.interface import NONE, Correction, CorrectionSpec, Late


def make(late: Late, beta: float = 1.0) -> Correction:
    """Multiplies the gradients of stages k < K by beta**(K-k). The gradients of stage K are not changed, even in
    schedules where they are late. beta = 1 changes nothing. If runs with several betas are one program, beta is traced.
    """
    if late.k == late.K or (isinstance(beta, float) and beta == 1.0):
        return NONE
    return Correction(before=optax.scale(beta ** (late.K - late.k)))


SUMMARY = "FDG's beta: the gradient of stage k times beta**(K-k)"
CORRECTION = CorrectionSpec(name="shrink", summary=SUMMARY, make=make, takes=("beta",))
