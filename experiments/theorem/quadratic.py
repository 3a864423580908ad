"""Delayed gradients on a quadratic. Here Theorem 1's expectations are sums, so no sampling is needed.

With f(theta) = 1/2 theta' H theta and gradients g = H theta + noise the update of Eqs. 12 and 17,

    theta_k <- theta_k - gamma_t beta^(K-k) g_k of batch t-2(K-k),       nothing while t < 2(K-k),

is linear. So theta at step t is the response to the start plus the responses to each batch's noise. The noise of
different batches is uncorrelated, so the expectation of any squared quantity is the sum of its squared responses.
`follow` computes each response as a column. A sampled run is one column. An exact expectation has a column for the
start, and a column for each direction of each batch's noise. Index t counts batches from 0 (the time of Eq. 12).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

Array = Any


class Expected(NamedTuple):
    """Exact expectations at t = 0..T-1. Leading axes, if any, are problems.

    change [..., T]: the change of the loss, E f(theta at t+1) - E f(theta at t). squares [..., T, K]: E|mean gradient
    of module k|^2 at theta of t. M [..., T]: the largest E|g|^2, all modules together, of the batches 0..t. The last
    entry, for the whole run, is the smallest constant that satisfies Assumption 2.
    """

    change: Array
    squares: Array
    M: Array


def follow(H: Array, K: int, shrink: Array, rates: Array, start: Array, noise: Array) -> Array:
    """The update exactly as written in the module's docstring.

    H [..., n, n], n parameters in K modules of equal size; shrink [..., n]: beta^(K-k) of each parameter; rates [T,
    ...]; start [..., n, columns]; noise [T, ..., n, columns], added to H theta. Returns theta [T+1, ..., n, columns].
    """
    m, theta, gradients = H.shape[-1] // K, [start], []
    for t, rate in enumerate(rates):
        gradients.append(H @ theta[-1] + noise[t])
        late = np.zeros_like(start)
        for k in range(1, K + 1):
            batch, own = t - 2 * (K - k), slice(m * (k - 1), m * k)
            if batch >= 0:
                late[..., own, :] = gradients[batch][..., own, :]
        theta.append(theta[-1] - np.asarray(rate)[..., None, None] * shrink[..., None] * late)
    return np.stack(theta)


def shrinks(K: int, m: int, beta: Array) -> Array:
    """beta^(K-k) for the m parameters of each module: [..., K m] for beta [...]."""
    return np.asarray(beta)[..., None] ** np.repeat(np.arange(K)[::-1], m)


def expected(H: Array, K: int, beta: Array, rates: Array, start: Array, factor: Array) -> Expected:
    """The exact expectations. start [..., n]: theta at t = 0 minus the minimiser. factor [..., n, p]: the noise of a
    batch is factor times p uncorrelated numbers of mean 0 and variance 1, so its covariance is factor factor'."""
    T, p, n = len(rates), factor.shape[-1], H.shape[-1]
    first = np.concatenate([start[..., None], np.zeros((*start.shape, T * p))], -1)
    noise = np.zeros((T, *first.shape))
    for t in range(T):
        noise[t, ..., 1 + t * p : 1 + (t + 1) * p] = factor
    theta = follow(H, K, shrinks(K, n // K, beta), rates, first, noise)
    means = H @ theta  # gradients without their batch's own noise
    losses = 0.5 * (theta * means).sum((-2, -1))
    squares = (means[:-1] ** 2).sum(-1)
    M = np.maximum.accumulate(squares.sum(-1) + (factor**2).sum((-2, -1)))
    squares = squares.reshape(*squares.shape[:-1], K, n // K).sum(-1)
    return Expected(np.moveaxis(np.diff(losses, axis=0), 0, -1), np.moveaxis(squares, 0, -2), np.moveaxis(M, 0, -1))


class Problem(NamedTuple):
    """A network of K linear modules, y = x + A_k theta_k each, with the loss 1/2 |y - target|^2.

    As a function of all parameters it is a quadratic: H = A'A with A = [A_1 .. A_K].

    matrices: [K, p, m].
    inputs, targets: [N, p], the whole data set. Every batch is one pair, drawn independently.
    start: [K, m].
    """

    matrices: Array
    inputs: Array
    targets: Array
    start: Array

    @property
    def A(self) -> Array:
        """The matrix A = [A_1 .. A_K], [p, K m]."""
        return np.concatenate(list(self.matrices), -1)

    @property
    def H(self) -> Array:
        return self.A.T @ self.A

    @property
    def L(self) -> float:
        """The Lipschitz constant of the gradient: H's largest eigenvalue."""
        return float(np.linalg.eigvalsh(self.H)[-1])

    @property
    def factor(self) -> Array:
        """The factor of the gradient noise, [K m, N]: A' times the deviations of the data from their mean."""
        data = self.inputs - self.targets
        return self.A.T @ (data - data.mean(0)).T / np.sqrt(len(data))

    @property
    def from_minimum(self) -> Array:
        """The start minus a minimiser, [K m]."""
        offset = (self.inputs - self.targets).mean(0)
        return self.start.ravel() + np.linalg.pinv(self.A) @ offset

    def losses(self, theta: Array) -> Array:
        """The expected loss at theta [..., K m], up to a constant."""
        offset = (self.inputs - self.targets).mean(0)
        return 0.5 * ((theta @ self.A.T + offset) ** 2).sum(-1)

    def expected(self, beta: float, rates: Sequence[float]) -> Expected:
        return expected(self.H, len(self.matrices), beta, np.asarray(rates), self.from_minimum, compact(self.factor))

    def sampled(self, beta: float, rates: Sequence[float], drawn: Array) -> Array:
        """theta [T+1, K m] if batch t is the pair number drawn[t], in plain NumPy."""
        K, _, m = self.matrices.shape
        noise = ((self.inputs - self.targets)[drawn] @ self.A)[..., None]
        return follow(self.H, K, shrinks(K, m, beta), np.asarray(rates), self.start.reshape(-1, 1), noise)[..., 0]


def compact(factor: Array) -> Array:
    """A factor of the same covariance with as many columns as the rank. Singular values below 1e-12 of the largest are
    rounding."""
    left, sizes, _ = np.linalg.svd(factor, full_matrices=False)
    return (left * sizes)[:, sizes > 1e-12 * sizes[0]]


def coupled(K: int, m: int = 2, p: int = 4, N: int = 16, seed: int = 0) -> Problem:
    """The problem for the grid of K, beta and learning rates, with random matrices and data. All modules act on the
    same p outputs. L = 1."""
    rng = np.random.default_rng(seed)
    matrices = rng.normal(size=(K, p, m))
    matrices /= np.linalg.norm(np.concatenate(list(matrices), -1), 2)
    inputs, targets = rng.normal(size=(2, N, p))
    return Problem(matrices, inputs, targets, rng.normal(size=(K, m)))


def uncoupled() -> Problem:
    """Two independent modules, without noise: f = 1/2 (theta_1^2 + theta_2^2) from
    theta = (1, 0). L = 1, and the second line of Assumption 1 holds too."""
    zeros = np.zeros((1, 2))
    return Problem(np.eye(2)[:, :, None], zeros, zeros, np.array([[1.0], [0.0]]))
