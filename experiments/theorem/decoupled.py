"""The problems of Theorem 1 as Flax stages, trained by `fdg_jax.Pipeline`, many runs side by side.

Here the batch axis holds independent runs: each has its own parameters, samples and learning rate. The loss is a sum
over this axis, so no run influences another, and one pipeline gives a sample of any size.
"""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import fdg_jax
from experiments.theorem.quadratic import Problem

Array = Any


class Adds(nn.Module):
    """Stage k: y = x + A_k theta_k for every run; x, y [runs, p]."""

    matrix: tuple[tuple[float, ...], ...]  # A_k [p][m]
    runs: int

    @nn.compact
    def __call__(self, x):
        matrix = jnp.asarray(self.matrix, x.dtype)
        theta = self.param("theta", nn.initializers.zeros, (self.runs, matrix.shape[1]), x.dtype)
        return x + theta @ matrix.T


def losses(outputs, targets):
    """The sum over the runs of 1/2 |y - target|^2."""
    return 0.5 * jnp.sum((outputs - targets) ** 2)


def sgd(rates: Array) -> optax.GradientTransformation:
    """Plain SGD. rates: [runs]."""
    return optax.stateless(lambda grads, _: jax.tree.map(lambda g: -jnp.asarray(rates, g.dtype)[:, None] * g, grads))


def pipeline(problem: Problem, beta: float, rates: Array, engine: str = "delay-line") -> fdg_jax.Pipeline:
    """The pipeline with the order of the paper's analysis, forward first, where module k's gradient is 2(K-k) updates
    old."""
    K, p, _ = problem.matrices.shape
    stages = [Adds(tuple(map(tuple, matrix.tolist())), len(rates)) for matrix in problem.matrices]
    made = fdg_jax.Pipeline(
        stages, losses, sgd(rates), method="fdg", beta=beta, order="forward-first", engine=engine,
        devices=jax.devices("cpu")[:1] * K,
    )  # fmt: skip
    example = jax.ShapeDtypeStruct((len(rates), p), np.float32)
    start = np.repeat(problem.start[:, None], len(rates), 1).astype(np.float32)
    return made.init(jax.random.key(0), (example, example), [{"params": {"theta": theta}} for theta in start])


def trained(problem: Problem, beta: float, rates: Sequence[Array], drawn: Array) -> tuple[Array, list[int]]:
    """Trains with the library.

    Arguments:
        rates: [T][runs]. All modules have the rate of step t (Eq. 12).
        drawn: [T, runs], the number of the data pair that is each run's batch t.

    Returns: theta [T+1, runs, K m], whose row t is theta^t of Eq. 12, and the measured staleness of stages 1..K. The
        weights of the delay-line engine after batch t are theta^(t+1) (fdg_jax.stages.delay_line).
    """
    run, now, path = pipeline(problem, beta, rates[0]), rates[0], []
    for rate, samples in zip(rates, drawn, strict=True):
        if not np.array_equal(rate, now):  # a new optimizer goes on from the exact state, gradients in flight included
            state, now = run.state(), rate
            run = pipeline(problem, beta, rate)
            run.restore(state)
        path.append(parameters(run))
        run.step(batch(problem, samples))
    return np.stack([*path, parameters(run)]), run.staleness


def batch(problem: Problem, samples: Array) -> tuple[Array, Array]:
    """(inputs, targets) [runs, p] in float32, as the engine takes them."""
    return problem.inputs[samples].astype(np.float32), problem.targets[samples].astype(np.float32)


def parameters(run: fdg_jax.Pipeline) -> Array:
    """The parameters [runs, K m] in float64, like all further computations."""
    return np.concatenate([np.asarray(v["params"]["theta"], np.float64) for v in run.params], -1)
