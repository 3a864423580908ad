"""No correction: a gradient is used as it arrives, however late."""

from fdg_jax.corrections.interface import NONE, Correction, CorrectionSpec, Late


def make(late: Late) -> Correction:
    """The same for every stage."""
    del late
    return NONE


CORRECTION = CorrectionSpec(name="none", summary="late gradients are used as they come", make=make)
