"""FDG, the paper's method (Algorithm I): no stage ever waits; stage k uses its gradient 2(K-k) ticks late."""

from fdg_jax.methods import Method
from fdg_jax.schedule import fdg

METHOD = Method(
    name="fdg",
    summary="fully decoupled learning with delayed gradients (Algorithm I)",
    schedule=fdg,
    schedule_options=("order", "accumulate", "accumulation"),
    options=("beta", "weights"),
    delay_line=True,
)
