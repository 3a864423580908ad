"""Back-propagation, the baseline. Forward passes, backward passes and updates are locked.

    θ_k^{t+1} = θ_k^t - γ_t g_k^t(θ^t)        g_k^t: the gradient of batch t for the weights of stage k (Eq. 6)

Cutting the network into K stages changes where it is computed, not what: with any K the results agree up to rounding.
"""

from fdg_jax.methods.interface import Method
from fdg_jax.schedule import bp

METHOD = Method(
    name="bp",
    summary="back-propagation through the stages, one batch at a time (Eq. 6)",
    schedule=bp,
    delay_line=True,
    same_for_every_K=True,
)
