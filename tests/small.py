"""Small networks and batches that the tests of the engines share."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fdg_jax
from fdg_jax import layers
from fdg_jax.api import ENGINES
from fdg_jax.engine.scan_engine import ScanEngine

CLASSES = 5
ENGINES["scan"] = ScanEngine  # what delay-line is on an accelerator; it runs on a CPU too, only slowly


def cross_entropy(outputs, labels):
    return optax.softmax_cross_entropy_with_integer_labels(outputs, labels).mean()


class Part(nn.Module):
    """Dense, BatchNorm, tanh: what residual networks have that can go wrong, without the convolutions."""

    width: int

    @nn.compact
    def __call__(self, x, train: bool):
        x = nn.Dense(self.width)(x)
        return jnp.tanh(nn.BatchNorm(use_running_average=not train)(x))


class CurrentPart(nn.Module):
    """A part for `current` weights: its batch norm goes back through the scale that it is given, Flax's does not."""

    width: int

    @nn.compact
    def __call__(self, x, train: bool):
        return jnp.tanh(layers.BatchNorm()(nn.Dense(self.width)(x), train))


def parts(K, kind=Part):
    return [kind(CLASSES if k == K else 12) for k in range(1, K + 1)]


def mostly_slow(values, *fast):
    """Parameters of a test that does little but compile: the fast suite has only those in `fast`."""
    assert set(fast) <= set(values), "a fast case that is none of the cases"
    rest = {value: value if isinstance(value, tuple) else (value,) for value in values if value not in fast}
    return [pytest.param(*rest[value], marks=pytest.mark.slow) if value in rest else value for value in values]


def recipe(momentum=0.9):
    return optax.chain(optax.add_decayed_weights(5e-4), optax.sgd(0.1, momentum=momentum))


def batches(n, size=16, features=8, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, size, features)).astype(np.float32)
    return [(x[i], rng.integers(0, CLASSES, size).astype(np.int32)) for i in range(n)]


def pipeline(K, example, optimizer=None, stages=None, variables=None, **options):
    made = fdg_jax.Pipeline(stages or parts(K), cross_entropy, optimizer or recipe(), **options)
    return made.init(jax.random.PRNGKey(0), example, variables)


def as_functions(modules):
    """Stages as the oracle wants them: (params, extra, x) -> (y, extra) in training mode."""

    def function(module):
        def run(params, extra, x):
            return module.apply({"params": params, **extra}, x, train=True, mutable=list(extra))

        return run

    return [function(module) for module in modules]


def leaves(trees):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(trees)]


def goes_on_exactly(made, data, at):
    """A pipeline stopped after `at` batches and restored into a new one ends as one that was never stopped."""
    whole, first, second = made(), made(), made()
    for batch in data:
        whole.step(batch)
    for batch in data[:at]:
        first.step(batch)
    second.restore(first.state())
    assert second.state_sha256() == first.state_sha256()
    for batch in data[at:]:
        second.step(batch)
    assert second.state_sha256() == whole.state_sha256()
    whole.drain()
    second.drain()
    assert second.parameters_sha256() == whole.parameters_sha256()
    assert (second.staleness, second.updates) == (whole.staleness, whole.updates)
