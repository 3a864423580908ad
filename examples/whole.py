"""The whole idea in one file: a network in K stages, of which none ever waits for another. Plain JAX, nothing else.

    .venv/bin/python examples/whole.py
    .venv/bin/python examples/whole.py --K 4 --beta 0.5

Fully decoupled learning with delayed gradients (FDG, arXiv 1906.09108): at every tick each stage works on what arrived
in the tick before. Stage k goes forward on one batch and backward on an older one. The price is that its gradients are
late. They were computed at weights that the stage has updated several times since then. The number of these updates is
the staleness.

Read it from top to bottom. The library does the same with devices, files and many methods (README.md).
"""

import argparse
from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
flags.add_argument("--K", type=int, default=3, help="number of stages, 1 to 4 (default: 3)")
flags.add_argument("--beta", type=float, default=0.5, help="shrinks late gradients by beta^(K-k) (default: 0.5)")
flags.add_argument("--epochs", type=int, default=12, help="(default: 12)")

WIDTH, CLASSES, LAYERS, BATCH, RATE, MOMENTUM = 64, 10, 4, 50, 0.05, 0.9


# ---------------------------------------------------------------------------------------------------------------------
# The network: four layers, cut into K stages. A stage is a list of layers {"kernel": [inputs, outputs], "bias"}.


def first_weights(K, seed=0):
    """The stages k = 1..K. The layers are the same for every K: from 64 pixels to 10 scores."""
    keys = jax.random.split(jax.random.key(seed), LAYERS)
    widths = [WIDTH] * (LAYERS - 1) + [CLASSES]
    layers = [
        {"kernel": jax.random.normal(key, (64, n)) / 8, "bias": jnp.zeros(n)}  # 1/8 is 1 over the root of the inputs
        for key, n in zip(keys, widths, strict=True)
    ]
    return [[layers[i] for i in each] for each in np.array_split(np.arange(LAYERS), K)]


def hidden(stage, x):
    """A stage below K. x [batch, 64] -> [batch, 64]."""
    for layer in stage:
        x = jnp.tanh(x @ layer["kernel"] + layer["bias"])
    return x


def scores(stage, x):
    """Stage K. x [batch, 64] -> [batch, 10]."""
    return hidden(stage[:-1], x) @ stage[-1]["kernel"] + stage[-1]["bias"]


def loss_of(stage, x, labels):
    """Stage K with the loss on top: the mean cross-entropy of a batch."""
    logits = jax.nn.log_softmax(scores(stage, x))
    return -jnp.mean(jnp.take_along_axis(logits, labels[:, None], axis=1))


# ---------------------------------------------------------------------------------------------------------------------
# What a stage computes. Each function is one program on the stage's device.


@jax.jit
def forward(stage, x):
    """(activations for the stage above, the function that takes their gradient back to this stage's weights).

    That function holds the present weights, so a late gradient is taken at the weights at which its batch went forward.
    """
    return jax.vjp(hidden, stage, x)


@jax.jit
def backward(goes_back, dy):
    """(gradient for the weights, gradient for the activations that came from the stage below)."""
    return goes_back(dy)


@jax.jit
def forward_and_backward(stage, x, labels):
    """Stage K does both at once: (loss, (gradient for the weights, gradient for the stage below))."""
    return jax.value_and_grad(loss_of, argnums=(0, 1))(stage, x, labels)


@jax.jit
def updated(stage, velocity, gradient, factor):
    """SGD with momentum: (weights, velocity). factor: beta^(K-k), the shrinking of stage k."""
    velocity = jax.tree.map(lambda v, g: MOMENTUM * v + factor * g, velocity, gradient)
    return jax.tree.map(lambda w, v: w - RATE * v, stage, velocity), velocity


@jax.jit
def one_update_ahead(stage, before):
    """A correction of late gradients: go forward at the weights that one more update, equal to the last, would give."""
    return jax.tree.map(lambda now, then: now + (now - then), stage, before)


# ---------------------------------------------------------------------------------------------------------------------
# Who does what at which tick, as integers. Nobody needs what another stage computes in the same tick.


def operations(t, K, batches):
    """The operations of tick t = 1, 2, ...: (what, stage k, batch), in the order in which each stage does its
    operations.

    Batch b enters stage 1 at tick b and reaches stage k at tick b+k-1. Stage K goes backward on it at once. Its
    gradient is back at stage k at tick b+2K-k-1, which is 2(K-k) ticks after stage k went forward on batch b.
    """
    found = []
    for k in range(K, 0, -1):
        up, down = t - k + 1, t - 2 * K + k + 1
        found += [("both", K, up)] if k == K else [("backward", k, down), ("forward", k, up)]
    return [(what, k, b) for what, k, b in found if 1 <= b <= batches]


# ---------------------------------------------------------------------------------------------------------------------
# Training


def train(stages, batches, beta=1.0, ahead=False):
    """FDG; with one stage it is ordinary back-propagation.

    Arguments:
        stages: the weights of the stages 1..K. batches: list of (x [batch, 64], labels [batch]).
        beta: shrinks the gradients of stage k by beta^(K-k). ahead: whether late stages go forward one update ahead.

    Returns: (weights, losses [batches], staleness of the stages 1..K, in updates).
    """
    K, stages, before = len(stages), list(stages), list(stages)  # before: the weights before the last update
    velocity = [jax.tree.map(jnp.zeros_like, each) for each in stages]
    made, staleness, losses = [0] * K, [0] * K, []  # made: updates of each stage so far
    waiting = [deque() for _ in stages]  # what a stage remembers of batches whose gradients are on their way
    up = {(1, b): x for b, (x, _) in enumerate(batches, 1)}  # activations that arrived for (stage, batch)
    down = {}  # gradients that arrived for (stage, batch)

    def use(i, gradient, made_then):
        """Stage i+1 updates its weights. made_then: its updates when the batch of the gradient went forward."""
        staleness[i] = made[i] - made_then  # measured, not derived
        before[i] = stages[i]
        stages[i], velocity[i] = updated(stages[i], velocity[i], gradient, beta ** (K - 1 - i))
        made[i] += 1

    for t in range(1, len(batches) + 2 * K - 1):
        for what, k, b in operations(t, K, len(batches)):
            i = k - 1
            if what == "forward":
                here = one_update_ahead(stages[i], before[i]) if ahead else stages[i]
                up[k + 1, b], goes_back = forward(here, up.pop((k, b)))
                waiting[i].append((goes_back, made[i]))
                continue
            if what == "backward":
                goes_back, made_then = waiting[i].popleft()
                gradient, down[k - 1, b] = backward(goes_back, down.pop((k, b)))
            else:
                made_then = made[i]
                loss, (gradient, down[k - 1, b]) = forward_and_backward(stages[i], up.pop((k, b)), batches[b - 1][1])
                losses.append(loss)
            use(i, gradient, made_then)
    return stages, losses, staleness


def test_error(stages, x, labels):
    """Percent of wrong answers."""
    for each in stages[:-1]:
        x = hidden(each, x)
    return 100 * float(jnp.mean(jnp.argmax(scores(stages[-1], x), 1) != labels))


def digits(epochs):
    """(batches of 1,500 images of handwritten digits for so many epochs, the other 297 images, their labels)."""
    images, labels = load_digits(return_X_y=True)
    images, labels, rng = (images / 16).astype(np.float32), labels.astype(np.int32), np.random.default_rng(0)
    order = [rng.permutation(1500).reshape(-1, BATCH) for _ in range(epochs)]
    return [(images[rows], labels[rows]) for rows in np.concatenate(order)], images[1500:], labels[1500:]


def main():
    asked = flags.parse_args()
    batches, images, labels = digits(asked.epochs)
    for name, K, options in (
        ("back-propagation: one stage", 1, {}),
        ("FDG", asked.K, {}),
        (f"FDG, beta={asked.beta:g}", asked.K, {"beta": asked.beta}),
        ("FDG, forward one update ahead", asked.K, {"ahead": True}),
    ):
        stages, losses, staleness = train(first_weights(K), batches, **options)
        loss, error = float(np.mean(losses[-1500 // BATCH :])), test_error(stages, images, labels)
        print(f"{name:30} staleness {staleness}, loss of the last epoch {loss:.4f}, test error {error:.1f}%")


if __name__ == "__main__":
    main()
