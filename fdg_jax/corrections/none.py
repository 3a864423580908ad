"""No correction: gradients are used as they arrive."""

from fdg_jax.corrections.interface import NONE, Correction, CorrectionSpec, Late


def make(late: Late) -> Correction:
    """Returns NONE for every stage."""
    del late
    return NONE


CORRECTION = CorrectionSpec(name="none", summary="late gradients are used as they come", make=make)
