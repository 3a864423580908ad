"""Small networks that give a stage a gradient when it does not wait for the network's.

`HEADS` are local classifiers, the values of `--aux`. DGL and local error learning train a stage on the `local_loss` of
their outputs. `Synthesizer` is DNI's, and guesses the gradient itself. All take a stage's outputs: feature maps [b, h,
w, c] or vectors [b, features] (for vectors, dense layers replace convolutions). Sequences [b, T, features] are b T
vectors, each with a label of its own (our extension: the original papers have images only). All compute in float32 and
take all other sizes from their inputs. Every head is used like this:

    aux = HEADS["mlp-sr"](classes)
    outputs = aux.apply(variables, y, train)
    value = local_loss(loss, outputs, labels)  # loss(scores, labels) is the user's

Deviations of all of them: biases start at zero; PyTorch's are random. Convolutions start from He's normal
distribution over the fan-out, as elsewhere in this package, and have no bias (except a synthesizer's last one). Nothing
here computes at import.
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
from fdg_jax.stages.weighted import without_weights

# How many numbers enter a linear classifier: 2 x 2 x 32 for ResNet-20's maps in the middle. Nokland and Eidnes use
# 2048, with Adam. With 2048, SGD at the paper's rate of 0.1 diverges (docs/log.md, 2026-11-21).
ENTRIES = 128
MATCHING = 0.99  # the share of similarity matching in PredSim's loss
zeros = nn.initializers.zeros


class Outputs(NamedTuple):
    """The outputs of a head.

    scores: class scores [b, classes], or [b, T, classes] of sequences.
    features: [b, n] ([b T, n] for sequences), from which similarities are computed; None if they are not matched.
    """

    scores: jax.Array
    features: jax.Array | None = None


def local_loss(loss: Callable[[Any, Any], jax.Array], outputs: Outputs, labels: Any) -> jax.Array:
    """The scalar that a stage with a head is trained on: loss(scores, labels), or PredSim's mixture.

    PredSim (Nokland and Eidnes 2019): (1 - 0.99) L_pred + 0.99 L_sim. L_pred is the user's loss. L_sim is the mean over
    all b^2 pairs of (S(features) - S(one-hot labels))^2, where S is `similarity`.
    Deviation: the mean, as in their code; the paper prints the squared Frobenius norm, which is the sum.

    Arguments:
        loss: the user's loss(scores, labels) -> scalar.
        outputs: the head's.
        labels: the batch's; integers [b] for PredSim, or [b, T] for sequences.

    Raises:
        BadInput: PredSim gets other labels.
    """
    value = loss(outputs.scores, labels)
    if outputs.features is None:
        return value
    labels = without_weights(labels)
    truth = similarity(one_hot(labels.reshape(-1) if outputs.scores.ndim == 3 else labels, outputs.scores.shape[-1]))
    return (1 - MATCHING) * value + MATCHING * jnp.mean(jnp.square(similarity(outputs.features) - truth))


def similarity(x: jax.Array) -> jax.Array:
    """Cosines between the rows of x [b, n], each row centred on its own mean: [b, b].

    Deviation from the code of Nokland and Eidnes: values that rounding puts above 1 (by 1e-7) are not clipped.
    """
    centred = x - jnp.mean(x, axis=1, keepdims=True)
    unit = centred / (1e-8 + safe_sqrt(jnp.sum(jnp.square(centred), axis=1, keepdims=True)))
    return jnp.matmul(unit, unit.T, precision=lax.Precision.HIGHEST)


def safe_sqrt(x: jax.Array) -> jax.Array:
    """The square root, with derivative 0 at 0, so that a channel that is zero everywhere sends no NaN back."""
    return jnp.where(x > 0, jnp.sqrt(jnp.where(x > 0, x, 1.0)), 0.0)


class MLPSR(nn.Module):
    """DGL's MLP-SR-aux (Belilovsky et al. 2020), as in its public code for ResNets on CIFAR.

    Maps are averaged to ceil(h/4) x ceil(w/4). Three blocks of 1x1 convolution, batch norm and ReLU follow, at the same
    width c. The result is averaged to 2 x 2 and flattened. Three blocks of linear layer, batch norm and ReLU follow, at
    width 4c, then a linear layer to the classes. Vectors take the linear part only, at their own width. The linear
    layers have biases, as in the original, although the batch norms behind them cancel these. The biases count as
    auxiliary parameters.
    Deviation: the original declares one more batch norm (2c parameters) and does not use it. It is left out here.
    """

    classes: int

    @nn.compact
    def __call__(self, y: jax.Array, train: bool) -> Outputs:
        y, shape = check_activations(y), y.shape
        y = vectors(y)
        if y.ndim == 4:
            y = average_pool(y, -(-y.shape[1] // 4), -(-y.shape[2] // 4))
            for i in range(1, 4):
                y = layers.Conv(y.shape[-1], size=1, name=f"conv{i}")(y)
                y = layers.relu(batch_norm(y, train, f"conv_norm{i}"))
            y = flatten(average_pool(y, 2, 2))
        for i in range(1, 4):
            y = nn.Dense(y.shape[-1], kernel_init=layers.torch_linear, name=f"dense{i}")(y)
            y = layers.relu(batch_norm(y, train, f"dense_norm{i}"))
        scores = nn.Dense(self.classes, kernel_init=layers.torch_linear, name="scores")(y)
        return Outputs(sequences(scores, shape))


class LinearClassifier(nn.Module):
    """A local linear classifier (Mostafa et al. 2018), as the "pred" head of Nokland and Eidnes (2019).

    It is trained, whereas Mostafa et al. keep theirs fixed and random. Maps are averaged, halving height and width in
    turns, until at most `entries` numbers per example enter. As in the code of Nokland and Eidnes its weights start at
    zero, so that the first batch trains the classifier and leaves the stage alone.
    Deviation: for odd sizes, their pooling includes zero padding in the average. Ours does not.
    """

    classes: int
    entries: int = ENTRIES

    @nn.compact
    def __call__(self, y: jax.Array, train: bool) -> Outputs:
        del train
        y = check_activations(y)
        if y.ndim == 4:
            y = flatten(average_pool(y, *pooled_size(*y.shape[1:], entries=self.entries)))
        return Outputs(nn.Dense(self.classes, kernel_init=zeros, name="scores")(y))


class PredSim(nn.Module):
    """The linear classifier and a similarity-matching head (Nokland and Eidnes 2019, "predsim").

    For maps, the second head is a 3x3 convolution c -> c, of which it takes the standard deviation over space per
    channel. (Theirs divides by n - 1 instead of n, which changes no cosine.) For vectors it is a linear layer of the
    same width. Neither has a bias. As in their code, the maps themselves are compared if there are 3 channels or fewer,
    or only one position.
    """

    classes: int
    entries: int = ENTRIES

    @nn.compact
    def __call__(self, y: jax.Array, train: bool) -> Outputs:
        y, channels = check_activations(y), y.shape[-1]
        scores = LinearClassifier(self.classes, self.entries, name="pred")(y, train).scores
        if y.ndim < 4:
            dense = nn.Dense(channels, use_bias=False, kernel_init=layers.torch_linear, name="sim")
            return Outputs(scores, dense(vectors(y)))
        maps = layers.Conv(channels, name="sim")(y)
        if channels <= 3 or maps.shape[1] * maps.shape[2] == 1:
            return Outputs(scores, flatten(maps))
        return Outputs(scores, safe_sqrt(jnp.var(maps, axis=(1, 2))))


HEADS: Mapping[str, Callable[[int], nn.Module]] = {"mlp-sr": MLPSR, "linear": LinearClassifier, "predsim": PredSim}


class Synthesizer(nn.Module):
    """DNI's model of the gradient at a stage boundary (Jaderberg et al. 2017): (y, labels) -> dy, of y's shape and
    dtype.

    For maps: 5x5 convolution to `width`, batch norm, ReLU, 5x5 convolution at that width, batch norm, ReLU, 5x5
    convolution to y's channels. For vectors: linear layers of the same widths. The last layer starts at zero, so the
    first gradients are 0.
    Deviation: only the last layer has biases. The original's other biases stand before a batch norm, which cancels
    them. Their gradients are rounding noise. Adam divides this noise by its own size, so they would move at full speed.

    classes: number of classes.
    conditional: whether a linear map of the one-hot labels (integers [b]) is added behind the first layer (cDNI).
    width: of the hidden layers.
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

        x, labels = hidden(vectors(check_activations(y)), "hidden1"), without_weights(labels)
        if self.conditional:
            label = nn.Dense(self.width, use_bias=False, kernel_init=layers.torch_linear, name="label")
            shift = label(one_hot(labels.reshape(-1) if y.ndim == 3 else labels, self.classes))
            x = x + (shift if x.ndim == 2 else shift[:, None, None, :])
        x = layers.relu(batch_norm(x, train, "norm1"))
        x = layers.relu(batch_norm(hidden(x, "hidden2"), train, "norm2"))
        if x.ndim == 4:
            dy = nn.Conv(y.shape[-1], (5, 5), padding=2, kernel_init=zeros, name="gradient")(x)
        else:
            dy = sequences(nn.Dense(y.shape[-1], kernel_init=zeros, name="gradient")(x), y.shape)
        return dy.astype(y.dtype)


def check_activations(y: Any) -> jax.Array:
    """y in float32. Raises BadInput if it is neither maps nor vectors nor sequences."""
    if getattr(y, "ndim", None) not in (2, 3, 4):
        raise BadInput(
            "an auxiliary network takes feature maps [b, h, w, c], vectors [b, features] or sequences of them "
            "[b, T, features]; this stage gives "
            f"{jax.tree.map(jnp.shape, y)}. Cut the network elsewhere or take a method without auxiliary networks."
        )
    return y.astype(jnp.float32)


def vectors(y: jax.Array) -> jax.Array:
    """Sequences [b, T, c] as vectors [b T, c]; anything else as it is."""
    return y.reshape(-1, y.shape[-1]) if y.ndim == 3 else y


def sequences(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """The inverse of `vectors`, for results [b T, n]. shape: that of the array which `vectors` took."""
    return x.reshape(*shape[:2], -1) if len(shape) == 3 else x


def one_hot(labels: Any, classes: int) -> jax.Array:
    """Labels [b] as [b, classes]. Raises BadInput if they are not integers [b]."""
    if getattr(labels, "ndim", None) != 1 or not jnp.issubdtype(labels.dtype, jnp.integer):
        raise BadInput(
            "PredSim and the conditional synthesizer need integer labels [b]; these are "
            f"{jax.tree.map(jnp.shape, labels)}. Use another aux (dgl), or conditional=False (dni)."
        )
    return jax.nn.one_hot(labels, classes)


def batch_norm(x: jax.Array, train: bool, name: str) -> jax.Array:
    """The batch norm of our networks, for maps and vectors alike; a submodule of the module that calls this."""
    maps = x if x.ndim == 4 else x[:, None, None, :]
    return layers.BatchNorm(name=name)(maps, train).reshape(x.shape)


def flatten(y: jax.Array) -> jax.Array:
    """y [b, ...] as [b, n]."""
    return y.reshape(y.shape[0], -1)


def average_pool(y: jax.Array, rows: int, columns: int) -> jax.Array:
    """PyTorch's adaptive average pooling, for any two sizes: y [b, h, w, c] -> [b, rows, columns, c]."""
    b, h, w, c = y.shape
    if h % rows == 0 and w % columns == 0:  # equal windows: 3 to 8 times as fast as the products on a CPU
        return jnp.mean(y.reshape(b, rows, h // rows, columns, w // columns, c), axis=(2, 4))
    down, across = pooling_matrix(h, rows), pooling_matrix(w, columns)
    return jnp.einsum("ih,bhwc,jw->bijc", down, y, across, precision=lax.Precision.HIGHEST)


def pooling_matrix(n: int, parts: int) -> np.ndarray:
    """[parts, n]: row i averages positions floor(i n / parts) to ceil((i + 1) n / parts), the latter excluded."""
    start, end = np.arange(parts) * n // parts, -(-np.arange(1, parts + 1) * n // parts)
    place = np.arange(n)
    inside = (start[:, None] <= place) & (place < end[:, None])
    return (inside / (end - start)[:, None]).astype(np.float32)


def pooled_size(h: int, w: int, c: int, entries: int) -> tuple[int, int]:
    """(rows, columns) after halving the larger side, rounded up, until rows * columns * c <= entries or both are 1."""
    while h * w * c > entries and h * w > 1:
        h, w = (-(-h // 2), w) if h >= w else (h, -(-w // 2))
    return h, w
