"""The largest stable learning rate with late gradients: the exact limit on a quadratic.

On h w^2 / 2 with momentum m and gradients that are n updates late, training is the recurrence

    v[t+1] = m v[t] + h w[t-n],   w[t+1] = w[t] - rate v[t+1].

It is stable while all roots of z^(n+1) - (1+m) z^n + m z^(n-1) + rate h lie inside the unit circle (for n = 0 after
multiplication by z). At the limit a first pair of roots is on the circle, z = exp(+-ia). The rate must be real and
positive, which gives one equation for the angle a. For m = 0 the angle is a = pi / (2n+1), and the limit is
2 sin(pi / (2 (2n+1))) / h.
"""

import math

MOMENTA = (0.0, 0.5, 0.8, 0.9, 0.95)


def stability_limit(staleness: int, momentum: float = 0.0) -> float:
    """The largest value of learning rate times h for which the recurrence does not grow.

    Arguments:
        staleness: n, the updates between a gradient's forward pass and its use; 0 or more.
        momentum: m, in [0, 1).

    Example:
        >>> round(stability_limit(0), 6), round(stability_limit(1), 6)
        (2.0, 1.0)
    """

    def phase(angle: float) -> float:
        turned = math.atan2(momentum * math.sin(angle), 1 - momentum * math.cos(angle))
        return (staleness + 0.5) * angle + turned - math.pi / 2

    low, high = 0.0, math.pi  # the phase grows with the angle, from -pi/2 to n pi
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if phase(middle) < 0 else (low, middle)
    return 2 * math.sin(high / 2) * math.hypot(1 - momentum * math.cos(high), momentum * math.sin(high))
