"""What would late gradients cost my network, and would a pipeline of K stages still be faster? In plain JAX and optax.

    .venv/bin/python examples/late.py

It is a residual network whose layers are stacked, as `nn.scan` stacks them. `late.LAYERS` cuts the layers into K
stages. For each K it is trained with late gradients, as in a pipeline of K stages, until its test error reaches the
target. Several seeds train side by side. Then the simulator predicts the speed-up per batch on K devices, for fast and
slow links. A pipeline pays if the speed-up per batch is larger than the growth in the number of batches.
"""

import argparse

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import optax
from sklearn.datasets import load_digits

from fdg_jax import late
from fdg_jax.methods.fdg import fdg
from fdg_jax.schedule import bp
from fdg_jax.schedule.simulator import Link, Machine, predict

WIDTH, LAYERS, BATCH, EVERY = 48, 8, 32, 10  # EVERY: batches between two evaluations


def first_params(key):
    first, layers, last = jax.random.split(key, 3)
    drawn = lambda key, *shape: jax.random.normal(key, shape) / np.sqrt(shape[-2])  # noqa: E731
    return {
        "first": drawn(first, 64, WIDTH),
        "layers": drawn(layers, LAYERS, WIDTH, WIDTH),
        "last": drawn(last, WIDTH, 10),
    }


def network(params, x):
    layer = lambda x, w: (x + jax.nn.relu(x @ w) / LAYERS, None)  # noqa: E731
    return jax.lax.scan(layer, x @ params["first"], params["layers"])[0] @ params["last"]


def loss(params, x, labels):
    return optax.softmax_cross_entropy_with_integer_labels(network(params, x), labels).mean()


def errors(K, seeds, batches, **options):
    """Trains as K stages would. Returns (test error in % [batches / EVERY, seeds], the optimizer's state)."""
    stage_of = {"first": 1, "layers": late.LAYERS, "last": K}
    optimizer = late.optimizer(optax.sgd(0.01, momentum=0.9), stage_of, K=K, momentum=0.9, **options)
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    images, labels = (images[order] / 16).astype(np.float32), labels[order]
    (x, x_test), (y, y_test) = np.split(images, [1437]), np.split(labels, [1437])

    def step(carry, key):
        params, state = carry
        rows = jax.random.choice(key, len(x), (BATCH,), replace=False)
        grads = jax.grad(loss)(late.forward_params(params, state), jnp.asarray(x)[rows], jnp.asarray(y)[rows])
        updates, state = optimizer.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), None

    def evaluated(carry, keys):
        carry, _ = jax.lax.scan(step, carry, keys)
        return carry, 100 * jnp.mean(network(carry[0], x_test).argmax(-1) != y_test)

    @jax.jit
    @jax.vmap
    def run(seed):
        params = first_params(jax.random.key(seed))
        keys = jax.random.split(jax.random.key(seed), (batches // EVERY, EVERY))
        (_, state), found = jax.lax.scan(evaluated, (params, optimizer.init(params)), keys)
        return found, state

    found, state = run(np.arange(seeds))
    return np.asarray(found).T, state


def batches_to(target, errors):
    """The number of batches until the mean test error of five evaluations reaches the target, as the median over seeds;
    infinite if most seeds do not reach it."""
    means = [np.convolve(run, np.ones(5) / 5)[: len(run)] for run in errors.T]
    reached = [np.flatnonzero((run <= target) & (np.arange(len(run)) >= 4)) for run in means]
    return float(np.median([EVERY * (1 + float(first[0])) if first.size else np.inf for first in reached]))


def speed_up(K, transfer):
    """How much faster K devices do a batch than one. transfer: the time of a message in batches of one device."""
    even = Machine(lambda kind, k: {"F": 1 / K, "B": 2 / K}.get(kind, 0), lambda *_: 1, Link(0, 3 * transfer))
    one = predict(bp(1), Machine(lambda kind, k: {"F": 1, "B": 2}.get(kind, 0))).seconds
    return float(one / predict(fdg(K), even).seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--target", type=float, default=5.0, help="test error in %%")
    parser.add_argument("--picture", default="late.png")
    args = parser.parse_args()
    links = {"fast": 0.0, "slow": 0.3}  # times of a message
    print(f"batches until {args.target:g}% test error on digits, the median of {args.seeds} seeds. Time: on K devices,")
    print("over that of BP on one, with links that take no time (fast) or 0.3 times a batch of BP for a message (slow)")
    print("  K  correction  staleness  batches  over BP's  time, fast  time, slow")
    curves, alone = {}, None
    for K, options in [(1, {}), (2, {}), (4, {}), (8, {}), (8, {"correct": "anticipate"})]:
        found, state = errors(K, args.seeds, args.batches, **options)
        needed, name = batches_to(args.target, found), options.get("correct", "none")
        if alone is None and not np.isfinite(needed):
            parser.error(f"BP misses {args.target:g}% in {args.batches} batches. Give more, or a higher --target")
        alone = alone or needed
        first = late.report(jax.tree.map(lambda leaf: leaf[0], state))[0]  # of seed 0, stage 1
        times = "  ".join(f"{needed / alone / speed_up(K, transfer):10.2f}" for transfer in links.values())
        told = f"{first.staleness:9}  {needed:7.0f}  {needed / alone:9.2f}"
        print(f"{K:3}  {name:10}  {told}  {times}")
        curves[f"K = {K}, {name}"] = np.median(found, 1)
    matplotlib.use("Agg")
    from matplotlib import pyplot

    for name, curve in curves.items():
        pyplot.plot(EVERY * np.arange(1, len(curve) + 1), curve, label=name)
    pyplot.axhline(args.target, color="grey", linewidth=0.5)
    pyplot.gca().set(yscale="log", xlabel="batches", ylabel="test error, % (median)", title="What late gradients cost")
    pyplot.legend()
    pyplot.savefig(args.picture)
    print(f"picture: {args.picture}")


if __name__ == "__main__":
    main()
