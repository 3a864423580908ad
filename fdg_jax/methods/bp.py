"""Back-propagation, the baseline. Forward passes, backward passes and updates are locked."""

from fdg_jax.methods.interface import Method
from fdg_jax.schedule import bp

METHOD = Method(
    name="bp",
    summary="back-propagation through the stages, one batch at a time (Eq. 6)",
    schedule=bp,
    delay_line=True,
    same_for_every_K=True,
)
