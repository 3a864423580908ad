"""A search for quadratics that break Theorem 1 as printed, in the hardest case: constant rate, full pipeline.

It climbs from random starts, over everything that defines a quadratic: the Hessian, the start, the noise, beta and the
learning rate. The Hessian may be indefinite, since the theorem assumes no convexity. Each step t >= 2(K-1) is judged as
the last step of a run, since the M of the shortest run is the smallest.
"""

from typing import Any, NamedTuple

import numpy as np

from experiments.theorem import quadratic, theorem_bounds

Array = Any


class Found(NamedTuple):
    """The result of a search.

    needed: the largest (change + gamma/2 Z_1) / (gamma^2 Z_2 as printed); above 1, the theorem is broken.
    tried: number of quadratics.
    beta, L_gamma: of the best quadratic.
    """

    needed: float
    tried: int
    beta: float
    L_gamma: float


def needed(K: int, z: dict[str, Array], convex: bool) -> Array:
    """`Found.needed` of each problem, [problems]. z: unconstrained numbers, "H" [problems, K, K] and so on; a module
    has one parameter."""
    H = z["H"] @ z["H"].mT if convex else z["H"] + z["H"].mT
    H = H / np.linalg.norm(H, 2, (-2, -1), keepdims=True)  # L = 1
    beta, rate = unit(z["beta"]), unit(z["rate"])
    rates, filled = [rate] * (3 * K + 2), 2 * (K - 1)
    run = quadratic.expected(H, K, beta, np.array(rates), z["start"], z["noise"][..., None])
    Z1 = (run.squares * quadratic.shrinks(K, 1, beta)[:, None]).sum(-1)
    Z2 = [theorem_bounds.z2("printed", K, b, [1.0] * (filled + 1), filled) for b in beta]
    rate, Z2 = rate[:, None], np.array(Z2)[:, None]
    return ((run.change + rate / 2 * Z1) / (rate**2 * run.M * Z2))[:, filled:].max(-1)


def unit(z: Array) -> Array:
    """Maps any number into (0.001, 1)."""
    return 0.001 + 0.999 / (1 + np.exp(-z))


def search(K: int, convex: bool, problems: int, rounds: int, seed: int) -> Found:
    """Climbs from `problems` starts at once. After a successful step, a climber's next step is larger."""
    rng = np.random.default_rng(seed)
    shapes = {"H": (K, K), "start": (K,), "noise": (K,), "beta": (), "rate": ()}
    draw = lambda: {name: rng.normal(size=(problems, *shape)) for name, shape in shapes.items()}  # noqa: E731
    z = draw()
    z["noise"] *= np.exp(2 * rng.normal(size=(problems, 1)))
    z["beta"], z["rate"] = 2 * z["beta"], 2 * z["rate"]
    best, size = needed(K, z, convex), np.ones(problems)
    for _ in range(rounds):
        step = draw()
        near = {name: z[name] + size.reshape(-1, *[1] * (z[name].ndim - 1)) * step[name] for name in z}
        value = needed(K, near, convex)
        better = value > best
        best = np.where(better, value, best)
        z = {name: np.where(better.reshape(-1, *[1] * (z[name].ndim - 1)), near[name], z[name]) for name in z}
        size *= np.where(better, 1.5, 0.93)
    top = best.argmax()
    return Found(float(best[top]), problems * (rounds + 1), float(unit(z["beta"])[top]), float(unit(z["rate"])[top]))
