"""Back-propagation, the baseline: stages wait for one another in forward passes, backward passes and updates.

    θ_k^{t+1} = θ_k^t - γ_t g_k^t(θ^t)        g_k^t: the gradient of batch t for the weights of stage k (Eq. 6)

The number of stages K changes where the network is computed, but not the results: they agree up to rounding.
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
