"""The largest stable learning rate of the loss h x x / 2 under a staleness, from the roots of a polynomial.

Momentum SGD with anticipation is linear here. With a = rate h, staleness τ and coefficient c:

    y(t+1) = y(t) + m (y(t) - y(t-1)) - a ((1 + c) y(t-τ) - c y(t-τ-1))
"""

import math

import numpy as np


def radius(a: float, m: float, c: float, tau: int) -> float:
    """The largest modulus of a root: the factor by which an error grows per update."""
    polynomial = np.zeros(tau + 3)
    polynomial[:3] = 1, -(1 + m), m
    polynomial[-2] += a * (1 + c)
    polynomial[-1] -= a * c
    return float(np.abs(np.roots(polynomial)).max())


def limit(m: float, c: float, tau: int) -> float:
    """The smallest a at which an error does not shrink, searched upwards by 1% and then by halving."""
    low = 1e-4 * (1 - m)
    while radius(low * 1.01, m, c, tau) < 1:
        low *= 1.01
    high = low * 1.01
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if radius(middle, m, c, tau) < 1 else (low, middle)
    return low


def exact_limit(tau: int) -> float:
    """The limit of plain SGD without a correction: 2 sin(π / (2 (2 τ + 1)))."""
    return 2 * math.sin(math.pi / (2 * (2 * tau + 1)))
