"""FDG's schedule with FR's stages: a stage keeps only its input of a batch. When the gradient comes, it runs the
forward pass again, with the newest weights.

    θ_k^{t+1} = θ_k^t - γ_t dy_k^d ∂h_k(x_k^d; θ_k^t) / ∂θ_k        d = t - 2(K-k)
    h_k: the stage; x_k^d: its input of batch d, which it kept; dy_k^d: the gradient that came from above

This is the core of diversely stale parameters (DSP, Xu et al. 2020), and PETRA (2406.02052) for blocks that are not
reversible. FR's deviations apply here too (fdg_jax.methods.fr): statistics change twice per batch.
"""

from functools import partial

from fdg_jax.methods.fdg import fdg
from fdg_jax.methods.fr import ReplayStage
from fdg_jax.methods.interface import Method

METHOD = Method(
    name="replay",
    summary="FDG's schedule, inputs kept instead of activations: forward again at the newest weights (DSP, PETRA)",
    schedule=partial(fdg, name="replay"),
    cost={"F": (1, 0, 0), "B": (1, 1, 0)},
    stage=ReplayStage,
)
