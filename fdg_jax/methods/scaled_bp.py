"""BP with the gradient of stage k multiplied by scale**(K-k): FDG's shrinking without FDG's delay.

    θ_k^{t+1} = θ_k^t - γ_t scale^{K-k} g_k^t(θ^t)

It is the control for FDG with beta < 1. Gradients are multiplied at the same place as in FDG, before weight decay and
momentum, but no gradient is late. So any gain of this method over BP does not come from repairing staleness.
"""

import dataclasses

import jax
import optax

from fdg_jax.methods.interface import Method
from fdg_jax.options.fields import option
from fdg_jax.schedule import Schedule, bp
from fdg_jax.stages.functions import Spec
from fdg_jax.stages.stage import Stage


@dataclasses.dataclass(frozen=True)
class Options:
    """scaled_bp's options."""

    scale: float = option(
        1.0,
        "scaled_bp: multiply the gradient of stage k by scale^(K-k), as beta does in FDG, but without late gradients. "
        "In (0, 1]; 1 is BP.",
        metavar="FACTOR",
        inside="(0, 1]",
        use="1 for plain BP",
    )


def scaled_bp(K: int) -> Schedule:
    """BP's schedule under this method's name."""
    return bp(K)._replace(name="scaled_bp")


class Scaled(Stage):
    """A stage whose optimizer sees the gradient times scale**(K-k), which is 1 for stage K. scale = 1 is BP."""

    def update_rule(self, spec: Spec):
        """BP's update rule, with the gradient multiplied by the factor first."""
        factor = spec.options["scale"] ** (spec.K - spec.k)
        if factor == 1.0:
            return super().update_rule(spec)
        init, update = spec.optimizer

        def scaled(updates, state, params=None, **extra):
            return update(jax.tree.map(lambda leaf: factor * leaf, updates), state, params, **extra)

        # optax.chain would change the paths in checkpoints; this keeps those of BP.
        return super().update_rule(spec._replace(optimizer=optax.GradientTransformationExtraArgs(init, scaled)))


METHOD = Method(
    name="scaled_bp",
    summary="BP with the gradient of stage k times scale**(K-k): FDG's shrinking without its delay",
    schedule=scaled_bp,
    options=Options,
    stage=Scaled,
)
