"""The largest stable learning rate from training: stage 1 is many parabolas side by side, one per curvature.

With K stages and order backward-first, the gradients of stage 1 are τ = 2K-3 updates late in FDG. The other stages have
no weights. The learning rate is 1, so that a curvature equals the product of learning rate and curvature.
"""

import warnings
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import fdg_jax

STEPS, WINDOW = 3000, 150  # a window is longer than the slowest oscillation, of about 4 τ + 2 updates
GONE = 1e-20  # a weight that began at 1; float32 ends at 1e-38


class Parabolas(nn.Module):
    """y = x + sqrt(h) w for every curvature h; x, y [1, n]."""

    h: tuple[float, ...]

    @nn.compact
    def __call__(self, x):
        w = self.param("w", nn.initializers.ones, (len(self.h),), x.dtype)
        return x + jnp.sqrt(jnp.asarray(self.h, x.dtype)) * w


class Same(nn.Module):
    """A stage without weights."""

    @nn.compact
    def __call__(self, x):
        return x


def loss(outputs, targets):
    """The sum over the curvatures of h w w / 2."""
    return 0.5 * jnp.sum((outputs - targets) ** 2)


def limit(
    m: float, tau: int, correct: str, options: dict[str, Any], points: int = 2000, steps: int = STEPS, low: float = 0.01
) -> float:
    """The limit: the middle between the smallest unstable curvature and the next smaller curvature. There are `points`
    curvatures between `low` and 2,000 `low`, times 1 - m. A curvature is unstable if its weight does not shrink. The
    weight's largest modulus in the last WINDOW updates is compared with that in the WINDOW updates at half of the run.
    If no curvature is unstable, higher curvatures are tried.

    Raises: AssertionError if the measured staleness is not τ, or if the limit is below all curvatures.
    """
    K, odd = divmod(tau + 3, 2)
    assert not odd, f"FDG, backward first, has odd staleness, but {tau} was asked for"
    h = np.geomspace(low, 2000 * low, points) * (1 - m)
    stages = [Parabolas(tuple(h.tolist())), *[Same()] * (K - 1)]
    made = fdg_jax.Pipeline(
        stages, loss, optax.sgd(1.0, momentum=m or None), method="fdg", engine="delay-line", correct=correct,
        learning_rate=1.0, momentum=m, devices=jax.devices("cpu")[:1] * K, **options,
    )  # fmt: skip
    x = np.zeros((1, points), np.float32)
    made.init(jax.random.key(0), (x, x))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the loss becomes inf because of curvatures above the limit
        largest = [most_after(made, (x, x), steps // 2) for _ in range(2)]
    assert made.staleness[0] == tau
    with np.errstate(invalid="ignore"):
        stable = (largest[1] < largest[0]) | (largest[1] < GONE)
    if stable.all():
        return limit(m, tau, correct, options, points, steps, low=1000 * low)
    first = int(np.argmin(stable))
    assert first, f"training is unstable even at the smallest curvature, {h[0]:g}"
    return float(np.sqrt(h[first] * h[first - 1]))


def most_after(made: fdg_jax.Pipeline, batch: Any, steps: int) -> Any:
    """Trains for so many updates. Returns the weight's largest modulus in the last WINDOW updates, per curvature."""
    most = 0.0
    for n in range(steps):
        made.step(batch)
        if n >= steps - WINDOW:
            most = np.maximum(most, np.abs(np.asarray(made.params[0]["params"]["w"])))
    return most
