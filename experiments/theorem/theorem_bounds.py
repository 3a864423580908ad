"""Theorem 1's right-hand side, -gamma_t/2 Z_1 + gamma_t^2 Z_2, as printed and corrected in two ways.

Here c = K-k and n = t - max(0, t-2c). Sums are over the modules k and over the n steps j before t. The corrected bounds
sum only over modules that have gradients already, t >= 2c:

    printed   Z_2/(L M) = sum beta^c + beta^(3c) n
    repaired  Z_2/(L M) = sum beta^c + beta^(3c) n sum_j (gamma_j/gamma_t)^2         for a constant rate n^2
    network   Z_2/(L M) = sum beta^(2c)/2 + 2 sqrt(G) beta^c sum_j gamma_j/gamma_t,   G = sum over all k of beta^(2c)

`repaired` follows from the paper's proof with its errors corrected, under the paper's Assumption 1. The second line of
this assumption lets a module's gradient depend on the module's own weights only. `network` has another proof that does
not use the second line, so it holds for modules that feed each other. Both are derived in theorem1.md.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

READINGS = ("printed", "repaired", "network")


def z2(reading: str, K: int, beta: float, rates: Sequence[float], t: int) -> float:
    """Z_2 / (L M) at step t, for the learning rates of the steps 0..t.

    The paper writes the sum of beta^c as (beta^K - 1)/(beta - 1), which is undefined at beta = 1; the sum itself is
    defined.
    """
    G, total = sum(beta ** (2 * c) for c in range(K)), 0.0
    for c in range(K):
        n = min(t, 2 * c)
        ratios = [rate / rates[t] for rate in rates[t - n : t]]
        if reading == "printed":
            total += beta**c + beta ** (3 * c) * n
        elif t < 2 * c:
            break
        elif reading == "repaired":
            total += beta**c + beta ** (3 * c) * n * sum(ratio**2 for ratio in ratios)
        else:
            total += beta ** (2 * c) / 2 + 2 * G**0.5 * beta**c * sum(ratios)
    return total


def z1(reading: str, beta: float, squares: Any, t: int) -> Any:
    """Z_1 at step t from squares [..., K], E|mean gradient of module k|^2 at theta of t."""
    c = np.arange(squares.shape[-1])[::-1]
    counted = (t >= 2 * c) | (reading == "printed")
    return (squares * counted * beta**c).sum(-1)


def bound(reading: str, beta: float, rates: Sequence[float], squares: Any, LM: float) -> Any:
    """The right-hand side at every t [T]; squares [T, K]. LM: the product of the assumptions' constants."""
    K = squares.shape[-1]
    return np.array([
        -rate / 2 * z1(reading, beta, squares[t], t) + rate**2 * LM * z2(reading, K, beta, rates, t)
        for t, rate in enumerate(rates)
    ])  # fmt: skip
