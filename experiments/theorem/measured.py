"""The measurements of theorem1.py's runs: the library's training, compared with exact expectations and the bounds."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.theorem import adversary, decoupled, quadratic
from experiments.theorem.theorem_bounds import READINGS, bound, z1, z2

Array = Any


def on_grid(K: int, beta: float, L_gamma: Sequence[float], steps: int, samples: int, seed: int) -> dict[str, Any]:
    """The results for one K and beta at all learning rates, trained as one pipeline with `samples` runs per rate."""
    problem, filled = quadratic.coupled(K), 2 * (K - 1)
    gammas = [rate / problem.L for rate in L_gamma]
    drawn = np.random.default_rng([seed, K]).integers(0, len(problem.inputs), (steps, len(gammas) * samples))
    theta, staleness = decoupled.trained(problem, beta, [np.repeat(gammas, samples)] * steps, drawn)
    changes = np.diff(problem.losses(theta), axis=0).reshape(steps, len(gammas), samples)
    return {
        "L": problem.L,
        "staleness": staleness,
        "Z2": {name: z2(name, K, beta, [1.0] * (filled + 1), filled) for name in READINGS},
        "rates": [at_rate(problem, beta, [gamma] * steps, changes[:, i]) for i, gamma in enumerate(gammas)],
    }


def at_rate(problem: quadratic.Problem, beta: float, rates: Sequence[float], changes: Array) -> dict[str, Any]:
    """The results at one learning rate. changes [T, samples]: changes of the loss in training.

    Returns: needed: the largest Z_2/(L M) that a step of the full pipeline needs. above: steps whose exact expected
        change exceeds a bound. deviation: the largest distance of a step's mean from its exact expectation, in standard
        errors. The other entries describe one step with a full pipeline: the step whose change is closest to the
        printed bound, in units of gamma M."""
    filled, gamma = 2 * (len(problem.matrices) - 1), rates[0]
    exact = problem.expected(beta, rates)
    M = float(exact.M[-1])
    bounds = {name: bound(name, beta, rates, exact.squares, problem.L * M) for name in READINGS}
    Z1 = np.array([z1("printed", beta, squares, t) for t, squares in enumerate(exact.squares)])
    needed = (exact.change + gamma / 2 * Z1) / (gamma**2 * problem.L * M)
    mean, error = changes.mean(-1), changes.std(-1, ddof=1) / changes.shape[-1] ** 0.5
    step = filled + int((exact.change - bounds["printed"])[filled:].argmax())
    values = {"engine": mean, "standard_error": error, "exact": exact.change, **bounds}
    return {
        "L_gamma": gamma * problem.L,
        "M": M,
        "needed": float(needed[filled:].max()),
        "above": {
            "printed, filling": int((exact.change > bounds["printed"])[:filled].sum()),
            "printed, full": int((exact.change > bounds["printed"])[filled:].sum()),
            "network": int((exact.change > bounds["network"]).sum()),
        },
        "deviation": float((abs(mean - exact.change) / error).max()),
        "step": step,
        **{name: float(value[step] / (gamma * M)) for name, value in values.items()},
    }


def step_by_step(beta: float, rates: Sequence[float]) -> dict[str, Any]:
    """The results at every step of a run without noise on two independent modules."""
    problem, T = quadratic.uncoupled(), len(rates)
    theta, staleness = decoupled.trained(problem, beta, [np.array([rate]) for rate in rates], np.zeros((T, 1), int))
    exact = problem.expected(beta, rates)
    M = float(exact.M[-1])
    return {
        "L": problem.L,
        "M": M,
        "staleness": staleness,
        "engine": np.diff(problem.losses(theta), axis=0)[:, 0].tolist(),
        "exact": exact.change.tolist(),
        **{name: bound(name, beta, rates, exact.squares, problem.L * M).tolist() for name in READINGS},
    }


def searched(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The best result of each climb."""
    climbs = [(K, convex) for K in flags["K"] for convex in (False, True)]
    found = [adversary.search(K, convex, flags["problems"], flags["rounds"], flags["seed"]) for K, convex in climbs]
    return {"found": [{"K": K, "convex": c, **each._asdict()} for (K, c), each in zip(climbs, found, strict=True)]}
