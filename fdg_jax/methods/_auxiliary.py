"""Small auxiliary networks that give a stage a gradient without waiting for the stages above.

`HEADS` are local classifiers, the values of `--aux`. DGL and local error learning train a stage on the `local_loss` of
a head's outputs. `Synthesizer` belongs to DNI and guesses the gradient itself. All take a stage's outputs: feature maps
[b, h, w, c] or vectors [b, features] (for vectors, dense layers replace convolutions). Sequences [b, T, features] are
treated as b T vectors, each with its own label (our extension: the original papers have only images). All compute in
float32 and take sizes from their inputs. Every head is used like this:

    aux = HEADS["mlp-sr"](classes)
    outputs = aux.apply(variables, y, train)
    value = local_loss(loss, outputs, labels)  # loss(scores, labels) is the user's

Deviations of all of them: biases start at zero; PyTorch's are random. Convolutions start from He's normal
distribution over the fan-out, as elsewhere in this package. Only the last convolution of a synthesizer has a bias.
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

# The most numbers per example that enter a linear classifier: 2 x 2 x 32 for the maps in the middle of ResNet-20.
# Nokland and Eidnes use 2048, with Adam. With 2048, SGD at the paper's rate of 0.1 diverges (docs/log.md, 2026-11-21).
ENTRIES = 128
MATCHING = 0.99  # the weight of similarity matching in PredSim's loss
zeros = nn.initializers.zeros


class Outputs(NamedTuple):
    """The outputs of a head.

    scores: class scores [b, classes], or [b, T, classes] of sequences.
    features: [b, n] ([b T, n] for sequences), whose similarities PredSim matches; None for other heads.
    """

    scores: jax.Array
    features: jax.Array | None = None


def local_loss(loss: Callable[[Any, Any], jax.Array], outputs: Outputs, labels: Any) -> jax.Array:
    """The scalar loss of a stage with a head: loss(scores, labels), or PredSim's weighted sum.

    PredSim (Nokland and Eidnes 2019): (1 - 0.99) L_pred + 0.99 L_sim. L_pred is the user's loss. L_sim is the mean over
    all b^2 pairs of (S(features) - S(one-hot labels))^2, where S is `similarity`.
    Deviation: L_sim is a mean, as in the authors' code; the paper prints the squared Frobenius norm, which is a sum.

    Arguments:
        loss: the user's loss(scores, labels) -> scalar.
        outputs: the head's outputs.
        labels: the batch's labels; for PredSim integers [b], or [b, T] for sequences.

    Raises:
        BadInput: PredSim gets labels that are not such integers.
    """
    value = loss(outputs.scores, labels)
    if outputs.features is None:
        return value
    labels = without_weights(labels)
    truth = similarity(one_hot(labels.reshape(-1) if outputs.scores.ndim == 3 else labels, outputs.scores.shape[-1]))
    return (1 - MATCHING) * value + MATCHING * jnp.mean(jnp.square(similarity(outputs.features) - truth))


def similarity(x: jax.Array) -> jax.Array:
    """Cosines between the rows of x [b, n], each row centred on its own mean: [b, b].

    Deviation from the code of Nokland and Eidnes: values that exceed 1 by rounding (by 1e-7) are not clipped.
    """
    centred = x - jnp.mean(x, axis=1, keepdims=True)
    unit = centred / (1e-8 + safe_sqrt(jnp.sum(jnp.square(centred), axis=1, keepdims=True)))
    return jnp.matmul(unit, unit.T, precision=lax.Precision.HIGHEST)


def safe_sqrt(x: jax.Array) -> jax.Array:
    """The square root, with derivative 0 at 0, so that an all-zero channel has a gradient of 0 instead of NaN."""
    return jnp.where(x > 0, jnp.sqrt(jnp.where(x > 0, x, 1.0)), 0.0)


class MLPSR(nn.Module):
    """DGL's MLP-SR-aux (Belilovsky et al. 2020), as in its public code for ResNets on CIFAR.

    Maps are averaged to ceil(h/4) x ceil(w/4). Three blocks of 1x1 convolution, batch norm and ReLU follow, with c
    channels. The result is averaged to 2 x 2 and flattened. Three blocks of linear layer, batch norm and ReLU follow,
    of width 4c, then a linear layer to the classes. For vectors only the linear part is used, at the vectors' width.
    The linear layers have biases, as in the original, although the following batch norms cancel them. The biases count
    as auxiliary parameters.
    Deviation: the original declares one more batch norm (2c parameters) but does not use it. It is left out here.
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

    The classifier is trained; that of Mostafa et al. is fixed and random. Maps are averaged over windows, which halves
    height and width in turns until at most `entries` numbers per example are left. As in the code of Nokland and
    Eidnes, the classifier's weights start at zero, so the first batch trains the classifier but not the stage.
    Deviation: for odd sizes, the averages of Nokland and Eidnes include zero padding; ours do not.
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

    For maps, the second head is a 3x3 convolution c -> c, followed by the standard deviation over space for each
    channel. (The authors' code divides by n - 1 instead of n, which does not change the cosines.) For vectors it is a
    linear layer of the same width. Neither has a bias. As in the authors' code, the standard deviation is left out if
    there are at most 3 channels or only one position.
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
    """DNI's model of the gradient at a stage boundary (Jaderberg et al. 2017): (y, labels) -> dy. dy has the shape and
    dtype of y.

    For maps: 5x5 convolution to `width`, batch norm, ReLU, 5x5 convolution at that width, batch norm, ReLU, 5x5
    convolution to y's channels. For vectors: linear layers of the same widths. The last layer starts at zero, so the
    first gradients are 0.
    Deviation: only the last layer has biases. In the original, a batch norm follows every other bias and cancels it, so
    the bias's gradient is rounding noise. Adam divides this noise by its size, so the bias would move at full speed.

    classes: number of classes.
    conditional: whether a linear map of the one-hot labels (integers [b]) is added after the first layer (cDNI).
    width: the width of the hidden layers.
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
    """Converts y to float32. Raises BadInput if y is neither maps nor vectors nor sequences."""
    if getattr(y, "ndim", None) not in (2, 3, 4):
        raise BadInput(
            "an auxiliary network takes feature maps [b, h, w, c], vectors [b, features] or sequences of them "
            "[b, T, features]; this stage gives "
            f"{jax.tree.map(jnp.shape, y)}. Cut the network elsewhere or take a method without auxiliary networks."
        )
    return y.astype(jnp.float32)


def vectors(y: jax.Array) -> jax.Array:
    """Reshapes sequences [b, T, c] to vectors [b T, c]; returns maps and vectors unchanged."""
    return y.reshape(-1, y.shape[-1]) if y.ndim == 3 else y


def sequences(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """The inverse of `vectors`, for results [b T, n]. shape: the shape of the argument of `vectors`."""
    return x.reshape(*shape[:2], -1) if len(shape) == 3 else x


def one_hot(labels: Any, classes: int) -> jax.Array:
    """One-hot labels [b, classes] from labels [b]. Raises BadInput if the labels are not integers [b]."""
    if getattr(labels, "ndim", None) != 1 or not jnp.issubdtype(labels.dtype, jnp.integer):
        raise BadInput(
            "PredSim and the conditional synthesizer need integer labels [b]; these are "
            f"{jax.tree.map(jnp.shape, labels)}. Use another aux (dgl), or conditional=False (dni)."
        )
    return jax.nn.one_hot(labels, classes)


def batch_norm(x: jax.Array, train: bool, name: str) -> jax.Array:
    """Applies this package's batch norm to maps or vectors, as a submodule of the calling module."""
    maps = x if x.ndim == 4 else x[:, None, None, :]
    return layers.BatchNorm(name=name)(maps, train).reshape(x.shape)


def flatten(y: jax.Array) -> jax.Array:
    """Reshapes y [b, ...] to [b, n]."""
    return y.reshape(y.shape[0], -1)


def average_pool(y: jax.Array, rows: int, columns: int) -> jax.Array:
    """PyTorch's adaptive average pooling, for any two sizes: y [b, h, w, c] -> [b, rows, columns, c]."""
    b, h, w, c = y.shape
    if h % rows == 0 and w % columns == 0:  # equal windows: 3 to 8 times as fast on a CPU as the einsum below
        return jnp.mean(y.reshape(b, rows, h // rows, columns, w // columns, c), axis=(2, 4))
    down, across = pooling_matrix(h, rows), pooling_matrix(w, columns)
    return jnp.einsum("ih,bhwc,jw->bijc", down, y, across, precision=lax.Precision.HIGHEST)


def pooling_matrix(n: int, parts: int) -> np.ndarray:
    """A matrix [parts, n]: row i averages the positions from floor(i n / parts) to ceil((i + 1) n / parts) - 1."""
    start, end = np.arange(parts) * n // parts, -(-np.arange(1, parts + 1) * n // parts)
    place = np.arange(n)
    inside = (start[:, None] <= place) & (place < end[:, None])
    return (inside / (end - start)[:, None]).astype(np.float32)


def pooled_size(h: int, w: int, c: int, entries: int) -> tuple[int, int]:
    """(rows, columns) after halving the larger side, rounded up, until rows * columns * c <= entries or both are 1."""
    while h * w * c > entries and h * w > 1:
        h, w = (-(-h // 2), w) if h >= w else (h, -(-w // 2))
    return h, w
