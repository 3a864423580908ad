"""Prints the final hashes of short trainings: `python -m tools.state_hashes [WORD]`, before a change and after it.

A change that should not change numbers prints the same lines: name, sha256 of the parameters, sha256 of the state. The
cases are every method, both engines if the method has them, both orders, every correction and optimizer. With a word,
only cases whose name contains the word run. Only the public API is used, so the script runs on older and newer versions
alike.
"""

import argparse
import itertools
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import fdg_jax

os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")  # most of the time is compiling
fdg_jax.emulate_cpu(3)

import flax.linen as nn  # noqa: E402  # the devices are requested before JAX computes anything
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402

from fdg_jax import corrections, layers, methods, recipe  # noqa: E402

K, CLASSES, BATCHES = 3, 5, 11
RNG = np.random.default_rng(0)


def batches(*shape: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Inputs of that shape [batch, ...] float32, and labels [batch] int32."""
    return [
        (RNG.normal(size=shape).astype(np.float32), RNG.integers(0, CLASSES, shape[0]).astype(np.int32))
        for _ in range(BATCHES)
    ]


ROWS, IMAGES = batches(8, 6), batches(6, 8, 8, 3)  # the batch of IMAGES is divisible by K


class Part(nn.Module):
    """Dense, batch norm, dropout and tanh."""

    width: int

    @nn.compact
    def __call__(self, x, train: bool):
        x = layers.BatchNorm()(nn.Dense(self.width)(x), train)
        return jnp.tanh(nn.Dropout(0.1, deterministic=not train)(x))


class Convolution(nn.Module):
    """The same for images. The last part gives the classes."""

    width: int

    @nn.compact
    def __call__(self, x, train: bool):
        x = layers.BatchNorm()(nn.Conv(self.width, (3, 3))(x), train)
        return x.mean((1, 2)) if self.width == CLASSES else nn.relu(x)


def loss(outputs, labels):
    return optax.softmax_cross_entropy_with_integer_labels(outputs, labels).mean()


def cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, arguments of `Pipeline`, with the optimizer's name)."""
    for method in methods.names():
        engines = ("pipeline", "delay-line") if methods.find(method).delay_line else ("pipeline",)
        for engine in engines:
            yield f"{method} {engine}", {"method": method, "engine": engine}
    for method in ("bp", "data_parallel", "dgl", "dni", "fdg", "fr"):
        yield f"{method} pipeline convolutions", {"method": method, "part": Convolution}
    yield "ddg pipeline one version", {"method": "ddg", "accumulate": 3, "one_version": True}
    for engine, order in itertools.product(("pipeline", "delay-line"), ("backward-first", "forward-first")):
        shared = {"engine": engine, "order": order}
        yield f"fdg {engine} {order} beta 0.5", {**shared, "beta": 0.5}
        yield f"fdg {engine} {order} accumulate 2", {**shared, "accumulate": 2}
        yield f"fdg {engine} {order} guard", {**shared, "guard": True}
        yield f"fdg {engine} {order} bfloat16", {**shared, "dtype": "bfloat16"}
    yield "fdg current", {"weights": "current"}
    yield "fdg remat", {"remat": "all"}
    for name in corrections.names():
        if name not in ("none", "shrink"):
            engines, about = ("pipeline", "delay-line"), {"correct": name, "learning_rate": 0.05, "momentum": 0.9}
            if name == "t2":
                engines, about = ("pipeline",), {**about, "weights": "current"}
            for engine in engines:
                yield f"fdg {engine} {name}", {**about, "engine": engine}
    for optimizer in ("adamw", "lion", "muon", "nadam", "rotation"):
        yield f"fdg pipeline {optimizer}", {"optimizer": optimizer}


def main() -> int:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("word", nargs="?", default="", help="run the cases that have this in their name")
    word = parser.parse_args().word
    for name, options in cases():
        if word not in name:
            continue
        part = options.pop("part", Part)
        data = ROWS if part is Part else IMAGES
        chosen = options.pop("optimizer", "sgd")
        optimizer = recipe.optimizer(chosen, 0.05 if chosen == "sgd" else 0.01, momentum=0.9, weight_decay=5e-4)
        pipeline = fdg_jax.Pipeline([part(7), part(7), part(CLASSES)], loss, optimizer, **options)
        pipeline.init(jax.random.key(0), data[0])
        for batch in data:
            pipeline.step(batch)
        print(f"{name:45} {pipeline.parameters_sha256()[:16]} {pipeline.state_sha256()[:16]}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
