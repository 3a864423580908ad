"""A stage that does not wait for the network's gradient needs a small network of its own to get one from.

`HEADS` are local classifiers, the values of `--aux`: DGL and local error learning train a stage on what `local_loss`
says of their outputs. `Synthesizer` is DNI's: it guesses the gradient itself. All take what a stage gives, feature
maps [b, h, w, c] or vectors [b, features] (dense layers then stand for convolutions), compute in float32, and read
every other size off their input. Used so, for each of the heads alike:

    aux = HEADS["mlp-sr"](classes)
    outputs = aux.apply(variables, y, train)
    value = local_loss(loss, outputs, labels)  # loss(scores, labels) is the user's

Deviations that concern all: biases start at zero, where PyTorch draws them; convolutions start from He's normal
distribution over the fan-out, as elsewhere in this package, and have no bias (but a synthesizer's last). Nothing here
computes at import.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fdg_jax import layers
from fdg_jax.errors import BadInput

# Numbers that enter a linear classifier: 2 x 2 x 32 of ResNet-20's maps in the middle. With the 2048 of Nokland and
# Eidnes, who train with Adam, SGD at the paper's rate of 0.1 diverges (LOG.md, 2026-11-21).
ENTRIES = 128
MATCHING = 0.99  # the similarity matching's share of PredSim's loss
zeros = nn.initializers.zeros


class Outputs(NamedTuple):
    """What a head gives: scores [b, classes], and where similarities are matched what they are taken of, [b, n]."""

    scores: jax.Array
    features: jax.Array | None = None


def local_loss(loss: Callable[[Any, Any], jax.Array], outputs: Outputs, labels: Any) -> jax.Array:
    """The scalar that a stage with a head is trained on: loss(scores, labels), or PredSim's mixture.

    PredSim (Nokland and Eidnes 2019): (1 - 0.99) L_pred + 0.99 L_sim, where L_pred is the user's loss and L_sim the
    mean over all b^2 pairs of (S(features) - S(one-hot labels))^2, S being `similarity`; labels are integers [b].
    Deviation: the mean, as in their code; the paper prints the squared Frobenius norm, which is the sum.
    """
    value = loss(outputs.scores, labels)
    if outputs.features is None:
        return value
    truth = similarity(one_hot(labels, outputs.scores.shape[-1]))
    return (1 - MATCHING) * value + MATCHING * jnp.mean(jnp.square(similarity(outputs.features) - truth))


def similarity(x: jax.Array) -> jax.Array:
    """x [b, n] -> [b, b]: cosines between the rows, each centred on its own mean.

    Deviation from the code of Nokland and Eidnes: what rounding leaves above 1 (1e-7) is not cut off.
    """
    centred = x - jnp.mean(x, axis=1, keepdims=True)
    unit = centred / (1e-8 + root(jnp.sum(jnp.square(centred), axis=1, keepdims=True)))
    return jnp.matmul(unit, unit.T, precision=lax.Precision.HIGHEST)


def root(x: jax.Array) -> jax.Array:
    """The square root, with the derivative 0 at 0: a channel that is dead everywhere sends back no NaN."""
    return jnp.where(x > 0, jnp.sqrt(jnp.where(x > 0, x, 1.0)), 0.0)


class MLPSR(nn.Module):
    """DGL's MLP-SR-aux (Belilovsky et al. 2020), as its public code for ResNets on CIFAR has it.

    Maps: averaged to ceil(h/4) x ceil(w/4); three times 1x1 convolution, batch norm, ReLU at the same width c;
    averaged to 2 x 2 and flattened; three times linear, batch norm, ReLU at width 4c; linear to the classes. Vectors:
    the linear part, at their own width. The linear layers have biases, like the original's and unlike the
    convolutions', although the batch norm behind them takes them out again: they count as auxiliary parameters.
    Deviation: the original declares one more batch norm (2c parameters) and never uses it here; it is left out.
    """

    classes: int

    @nn.compact
    def __call__(self, y: jax.Array, train: bool) -> Outputs:
        y = accepted(y)
        if y.ndim == 4:
            y = averaged(y, -(-y.shape[1] // 4), -(-y.shape[2] // 4))
            for i in range(1, 4):
                y = layers.Conv(y.shape[-1], size=1, name=f"conv{i}")(y)
                y = layers.relu(normalised(y, train, f"conv_norm{i}"))
            y = flat(averaged(y, 2, 2))
        for i in range(1, 4):
            y = nn.Dense(y.shape[-1], kernel_init=layers.torch_linear, name=f"dense{i}")(y)
            y = layers.relu(normalised(y, train, f"dense_norm{i}"))
        return Outputs(nn.Dense(self.classes, kernel_init=layers.torch_linear, name="scores")(y))


class LinearClassifier(nn.Module):
    """A local linear classifier (Mostafa et al. 2018) as the "pred" head of Nokland and Eidnes (2019) has it: trained,
    where Mostafa et al. keep theirs fixed and random.

    Maps are averaged until at most `entries` numbers an example enter, halving height and width in turns. As in their
    code its weights start at zero, so that the first batch trains the classifier and leaves the stage alone.
    Deviation: where halving does not come out even, their pooling counts zeros from a padding; ours does not.
    """

    classes: int
    entries: int = ENTRIES

    @nn.compact
    def __call__(self, y: jax.Array, train: bool) -> Outputs:
        del train
        y = accepted(y)
        if y.ndim == 4:
            y = flat(averaged(y, *reduced(*y.shape[1:], entries=self.entries)))
        return Outputs(nn.Dense(self.classes, kernel_init=zeros, name="scores")(y))


class PredSim(nn.Module):
    """The linear classifier beside a similarity-matching head (Nokland and Eidnes 2019, "predsim").

    The second head is a 3x3 convolution c -> c, and of its maps the standard deviation over space per channel (theirs
    divides by one place less, which no cosine sees); for vectors a linear layer of their own width. Neither has a
    bias. As in their code the maps themselves are compared where there are 3 channels or fewer, or one place only.
    """

    classes: int
    entries: int = ENTRIES

    @nn.compact
    def __call__(self, y: jax.Array, train: bool) -> Outputs:
        y, channels = accepted(y), y.shape[-1]
        scores = LinearClassifier(self.classes, self.entries, name="pred")(y, train).scores
        if y.ndim == 2:
            dense = nn.Dense(channels, use_bias=False, kernel_init=layers.torch_linear, name="sim")
            return Outputs(scores, dense(y))
        maps = layers.Conv(channels, name="sim")(y)
        if channels <= 3 or maps.shape[1] * maps.shape[2] == 1:
            return Outputs(scores, flat(maps))
        return Outputs(scores, root(jnp.var(maps, axis=(1, 2))))


HEADS: Mapping[str, Callable[[int], nn.Module]] = {"mlp-sr": MLPSR, "linear": LinearClassifier, "predsim": PredSim}


class Synthesizer(nn.Module):
    """DNI's model of a boundary's gradient (Jaderberg et al. 2017): (y, labels) -> dy, of y's shape and dtype.

    Maps: 5x5 convolution to `width`, batch norm, ReLU, 5x5 at that width, batch norm, ReLU, 5x5 to y's channels.
    Vectors: linear layers of the same widths. conditional (cDNI): a linear map of the one-hot label is added to every
    place behind the first layer. The last layer starts at zero, so the first gradients are 0.
    labels: integers [b]; looked at only if conditional.
    Deviation: no biases but the last layer's. Those of the original stand before a batch norm, which takes them out
    again, and Adam, dividing their gradients' rounding noise by its own size, would set them walking at full speed.
    """

    classes: int
    conditional: bool = False
    width: int = 128

    @nn.compact
    def __call__(self, y: jax.Array, labels: Any, train: bool) -> jax.Array:
        def hidden(x, name):
            if x.ndim == 4:
                return layers.Conv(self.width, size=5, name=name)(x)
            return nn.Dense(self.width, use_bias=False, kernel_init=layers.torch_linear, name=name)(x)

        x = hidden(accepted(y), "hidden1")
        if self.conditional:
            label = nn.Dense(self.width, use_bias=False, kernel_init=layers.torch_linear, name="label")
            shift = label(one_hot(labels, self.classes))
            x = x + (shift if x.ndim == 2 else shift[:, None, None, :])
        x = layers.relu(normalised(x, train, "norm1"))
        x = layers.relu(normalised(hidden(x, "hidden2"), train, "norm2"))
        if x.ndim == 4:
            dy = nn.Conv(y.shape[-1], (5, 5), padding=2, kernel_init=zeros, name="gradient")(x)
        else:
            dy = nn.Dense(y.shape[-1], kernel_init=zeros, name="gradient")(x)
        return dy.astype(y.dtype)


def accepted(y: Any) -> jax.Array:
    """y in float32. BadInput where it is neither maps nor vectors."""
    if getattr(y, "ndim", None) not in (2, 4):
        raise BadInput(
            "an auxiliary network takes feature maps [b, h, w, c] or vectors [b, features]; this stage gives "
            f"{jax.tree.map(jnp.shape, y)}. Cut the network elsewhere or take a method without auxiliary networks."
        )
    return y.astype(jnp.float32)


def one_hot(labels: Any, classes: int) -> jax.Array:
    """labels, integers [b] -> [b, classes]. BadInput where they are anything else."""
    if getattr(labels, "ndim", None) != 1 or not jnp.issubdtype(labels.dtype, jnp.integer):
        raise BadInput(
            "PredSim and the conditional synthesizer need integer labels [b]; these are "
            f"{jax.tree.map(jnp.shape, labels)}. Take another head, or a synthesizer that is not conditional."
        )
    return jax.nn.one_hot(labels, classes)


def normalised(x: jax.Array, train: bool, name: str) -> jax.Array:
    """The batch norm of our networks, for maps and for vectors alike; a submodule of the module that calls this."""
    maps = x if x.ndim == 4 else x[:, None, None, :]
    return layers.BatchNorm(name=name)(maps, train).reshape(x.shape)


def flat(y: jax.Array) -> jax.Array:
    return y.reshape(y.shape[0], -1)


def averaged(y: jax.Array, rows: int, columns: int) -> jax.Array:
    """PyTorch's adaptive average pooling: y [b, h, w, c] -> [b, rows, columns, c], for any two sizes."""
    b, h, w, c = y.shape
    if h % rows == 0 and w % columns == 0:  # windows all alike: 3 to 8 times as fast as the products on a CPU
        return jnp.mean(y.reshape(b, rows, h // rows, columns, w // columns, c), axis=(2, 4))
    down, across = windows(h, rows), windows(w, columns)
    return jnp.einsum("ih,bhwc,jw->bijc", down, y, across, precision=lax.Precision.HIGHEST)


def windows(n: int, parts: int) -> np.ndarray:
    """[parts, n]: row i averages the places from floor(i n / parts) up to, without it, ceil((i + 1) n / parts)."""
    start, end = np.arange(parts) * n // parts, -(-np.arange(1, parts + 1) * n // parts)
    place = np.arange(n)
    inside = (start[:, None] <= place) & (place < end[:, None])
    return (inside / (end - start)[:, None]).astype(np.float32)


def reduced(h: int, w: int, c: int, entries: int) -> tuple[int, int]:
    """(rows, columns): the larger side halved, rounding up, until rows * columns * c <= entries or one is left."""
    while h * w * c > entries and h * w > 1:
        h, w = (-(-h // 2), w) if h >= w else (h, -(-w // 2))
    return h, w
