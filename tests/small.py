"""Small networks and batches that the tests of the engines share."""

import time
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fdg_jax
from fdg_jax import layers

CLASSES = 5


# For programs that are a test's own and no part of what is tested: compiling them is most of the time that they take.
jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


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
    stages = stages or parts(K)
    made = fdg_jax.Pipeline(stages, cross_entropy, optimizer or recipe(), **options)
    kind = None if variables else first_of(stages, example[0], options)
    made.init(jax.random.PRNGKey(0), example, FIRST.get(kind, variables))
    if kind and kind not in FIRST and all(stage["params"] for stage in made.params):
        FIRST[kind] = jax.device_get(made.params)
    return made


FIRST = {}  # the variables that such stages start from: drawn once, since a program that draws takes long to compile


def first_of(stages, x, options):
    """What the first variables of stages depend on, beside the key; None where it cannot be told."""
    try:
        if "preprocess" in options:
            x = jax.eval_shape(options["preprocess"], x, np.int32(0))
        kind = tuple(stages), tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(x)), options.get("dtype")
        hash(kind)
    except (TypeError, ValueError, AttributeError):  # a module that holds lists, inputs that will be refused
        return None
    return kind


def nothing_unfinished(unfinished):
    """Whether no operation is unfinished, or none is within 10 s.

    For use after `wait`: JAX may call an array ready some milliseconds after it has done so for one computed from it.
    """
    until = time.monotonic() + 10
    while unfinished.oldest() is not None and time.monotonic() < until:
        time.sleep(0.001)
    return unfinished.oldest() is None and not any(unfinished.queues.values())


def as_functions(modules):
    """Stages as the oracle wants them: (params, extra, x) -> (y, extra) in training mode."""

    def function(module):
        def run(params, extra, x):
            return module.apply({"params": params, **extra}, x, train=True, mutable=list(extra))

        return run

    return [function(module) for module in modules]


def leaves(trees):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(trees)]


def fed(ours, data):
    """Trains a pipeline on these batches and drains it. Returns the variables before."""
    start = jax.device_get(ours.params)
    for batch in data:
        ours.step(batch)
    ours.drain()
    return start


def stepped(data, n=5, K=2, **options):
    """A pipeline after n of these batches, not drained."""
    ours = pipeline(K, data[0], **options)
    for batch in data[:n]:
        ours.step(batch)
    return ours


def close(ours, theirs, **tolerance):
    for a, b in zip(leaves(ours), leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, **tolerance)


def goes_on_exactly(made, data, at):
    """A pipeline stopped after `at` batches and restored into a new one ends as one that was never stopped.

    That one goes back to its start and is the one that is stopped, since a third one would have to be traced too.
    """
    first, second = made(), made()
    start = first.state()
    whole = list(ends(first, data))
    first.restore(start)
    for batch in data[:at]:
        first.step(batch)
    second.restore(first.state())
    assert second.state_sha256() == first.state_sha256()
    assert list(ends(second, data[at:])) == whole


def ends(ours, data):
    """What a pipeline comes to by these batches, in flight and drained."""
    for batch in data:
        ours.step(batch)
    yield ours.state_sha256()
    ours.drain()
    yield ours.parameters_sha256()
    yield ours.staleness, ours.updates
