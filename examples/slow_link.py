"""A method of your own in one file: FDG as it would train over a slow network, tried out on one machine.

    .venv/bin/python examples/slow_link.py

A method is a schedule: which stage goes forward (F) and backward (B) on which batch at tick t, as plain integers. Here
every message takes `link_ticks` ticks more than in FDG, so every gradient is later. With `link_ticks` 0 this is FDG to
the last bit. The engine, evaluation, checkpoints and staleness need no change: they follow the schedule. It is checked
on integers before anything is trained. All commands take this file, with its flag: `-m fdg_jax.experiments.cifar
--method ./examples/slow_link.py --link-ticks 2`, or `-m fdg_jax.schedule --method ./examples/slow_link.py --K 3`.
"""

import argparse
import dataclasses

from fdg_jax.errors import BadInput
from fdg_jax.methods.interface import Method
from fdg_jax.options.fields import option
from fdg_jax.schedule import Op, Schedule, chain, existing_ops


@dataclasses.dataclass(frozen=True)
class Options:
    link_ticks: int = option(1, "slow_link: ticks that a message between two stages takes beside FDG's one.")

    def __post_init__(self):
        if self.link_ticks < 0:
            raise BadInput(f"link_ticks={self.link_ticks}: a message is not early. Use 0, which is FDG, or more.")


def slow_link(K, link_ticks=1):
    hop = 1 + link_ticks

    def tick(t, last=None):
        ops = []
        for k in range(1, K + 1):
            forward, backward = t - (k - 1) * hop, t - (2 * K - k - 1) * hop  # the batches; the same for k = K
            pair = [Op("B", k, backward), Op("F", k, forward)]
            ops += reversed(pair) if k == K else pair
        return existing_ops(ops, last)  # leaves out batches that do not exist while the pipeline fills and empties

    delays = tuple(2 * (K - k) * hop - 1 if k < K else 0 for k in range(1, K + 1))  # gradients not used yet
    ticks = lambda batches: batches + 2 * (K - 1) * hop if batches else 0  # noqa: E731
    return Schedule("slow_link", K, tick, delays, ticks, chain(K))  # chain: x goes up and dy down, as in BP


METHOD = Method(
    name="slow_link",  # that of the file
    summary="FDG whose messages take more than one tick",
    schedule=slow_link,
    options=Options,
    takes=("beta", "weights"),
    delay_line=True,  # stashed weights: BP with delayed gradients, so one device can stand in for K
)


def test_error(epochs, **options):
    """(test error in %, staleness) of a small network on scikit-learn's digits, in three stages."""
    import flax.linen as nn
    import jax
    import numpy as np
    import optax
    from sklearn.datasets import load_digits

    import fdg_jax

    def loss(outputs, labels):
        return optax.softmax_cross_entropy_with_integer_labels(outputs, labels).mean()

    images, labels = load_digits(return_X_y=True)
    images, labels, rng = (images / 16).astype(np.float32), labels.astype(np.int32), np.random.default_rng(0)
    stages = [nn.Sequential([nn.Dense(64), nn.relu]), nn.Sequential([nn.Dense(64), nn.relu]), nn.Dense(10)]
    pipeline = fdg_jax.Pipeline(stages, loss, optax.sgd(0.1), **options)
    pipeline.init(jax.random.key(0), (images[:50], labels[:50]))
    for _ in range(epochs):
        for chosen in rng.permutation(1500).reshape(-1, 50):
            pipeline.step((images[chosen], labels[chosen]))
    pipeline.drain()
    return pipeline.evaluate([(images[1500:], labels[1500:])]).error_percent, pipeline.staleness


def main():
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    flags.add_argument("--epochs", type=int, default=10)
    epochs = flags.parse_args().epochs
    import fdg_jax

    fdg_jax.emulate_cpu(3)
    for link_ticks in (0, 1, 4):
        error, staleness = test_error(epochs, method=METHOD, link_ticks=link_ticks)
        print(f"link_ticks {link_ticks}: staleness {staleness}, test error {error:.1f}%")


if __name__ == "__main__":
    main()
