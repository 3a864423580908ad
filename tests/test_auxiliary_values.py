"""The auxiliary networks compute what plain NumPy makes of their definitions."""

import math
from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest
from small import jit
from test_auxiliary import ROUNDING, labels, named, normal, trained_loss, variables_of

from fdg_jax import layers
from fdg_jax.methods import _auxiliary as auxiliary
from fdg_jax.methods._auxiliary import MLPSR, PredSim


def pooled_by_loops(y, rows, columns):
    b, h, w, c = y.shape
    out = np.zeros((b, rows, columns, c))
    for i in range(rows):
        for j in range(columns):
            window = y[
                :,
                math.floor(i * h / rows) : math.ceil((i + 1) * h / rows),
                math.floor(j * w / columns) : math.ceil((j + 1) * w / columns),
            ]
            out[:, i, j] = window.mean(axis=(1, 2))
    return out


def test_averaging_takes_the_windows_that_pytorch_takes():
    for size, rows, columns in (((7, 5), 2, 2), ((1, 1), 2, 2), ((3, 2), 5, 4), ((7, 7), 4, 3)):
        y = normal(0, 2, *size, 3)
        found = auxiliary.average_pool(jnp.asarray(y), rows, columns)
        np.testing.assert_allclose(found, pooled_by_loops(y, rows, columns), **ROUNDING)


def similar(x):
    """Cosines of centred rows, one pair at a time."""
    x = x.astype(np.float64)
    out = np.zeros((len(x), len(x)))
    for i, a in enumerate(x):
        for j, b in enumerate(x):
            a0, b0 = a - a.mean(), b - b.mean()
            out[i, j] = (a0 @ b0) / (math.sqrt(a0 @ a0) * math.sqrt(b0 @ b0))
    return out


def convolved(y, kernel):
    b, h, w, _ = y.shape
    padded, out = np.pad(y, ((0, 0), (1, 1), (1, 1), (0, 0))), np.zeros((b, h, w, kernel.shape[3]))
    for i in range(3):
        for j in range(3):
            out += padded[:, i : i + h, j : j + w] @ kernel[i, j]
    return out


@pytest.mark.parametrize("shape", [(6, 5, 7, 8), (6, 5, 7, 3), (6, 11)])
def test_predsim_is_what_plain_numpy_makes_of_its_definition(shape):
    classes, truth = 5, labels(6, 5)
    head = PredSim(classes, entries=100)
    y = jnp.asarray(normal(1, *shape))
    variables = variables_of(head, y, redrawn=True)
    params = {path: leaf.astype(np.float64) for path, leaf in named(variables["params"]).items()}
    ours = jit(trained_loss(head, variables, y, classes))(variables["params"], y)

    plain = np.asarray(y, np.float64)
    if len(shape) == 4:
        maps = convolved(plain, params["sim/kernel"])
        features = maps.reshape(6, -1)  # three channels, or one place: the maps themselves
        if shape == (6, 5, 7, 8):
            features = np.stack([[np.std(maps[i, :, :, c], ddof=1) for c in range(8)] for i in range(6)])
            plain = pooled_by_loops(plain, 3, 4)  # 5 x 7 x 8, then 5 x 4 x 8, then 3 x 4 x 8 = 96
        elif shape == (6, 5, 7, 3):
            plain = pooled_by_loops(plain, 5, 4)  # 105 numbers are too many, 60 are not
        plain = plain.reshape(6, -1)
    else:
        features = plain @ params["sim/kernel"]
    scores = plain @ params["pred/scores/kernel"] + params["pred/scores/bias"]
    entropy = np.mean([np.log(np.exp(row).sum()) - row[label] for row, label in zip(scores, truth, strict=True)])
    matching = np.mean((similar(features) - similar(np.eye(classes)[truth])) ** 2)
    assert ours == pytest.approx((1 - 0.99) * entropy + 0.99 * matching, rel=1e-5)  # ROUNDING


@pytest.mark.parametrize("shape", [(6, 8, 7, 4), (6, 11)])
def test_mlp_sr_is_its_layers_one_after_the_other(shape):
    head, y = MLPSR(5), normal(1, *shape)
    variables = variables_of(head, jnp.asarray(y), redrawn=True)
    outputs, changed = jit(partial(head.apply, train=True, mutable=["batch_stats"]))(variables, y)
    params, seen = named(variables["params"]), {}

    def block(x, layer, norm):
        x = x @ params[f"{layer}/kernel"].reshape(x.shape[-1], -1) + params.get(f"{layer}/bias", 0)
        axes = tuple(range(x.ndim - 1))
        mean, var = x.mean(axes), x.var(axes)
        seen[f"{norm}/mean"], seen[f"{norm}/var"] = 0.9 + 0.1 * mean, 0.9 + 0.1 * var
        x = (x - mean) / np.sqrt(var + layers.EPSILON) * params[f"{norm}/scale"] + params[f"{norm}/bias"]
        return np.maximum(x, 0)

    x = y.astype(np.float64)
    if len(shape) == 4:
        x = pooled_by_loops(x, 2, 2)  # ceil(8/4) x ceil(7/4)
        for i in (1, 2, 3):
            x = block(x, f"conv{i}", f"conv_norm{i}")
        x = pooled_by_loops(x, 2, 2).reshape(6, -1)
    for i in (1, 2, 3):
        x = block(x, f"dense{i}", f"dense_norm{i}")
    # Six batch norms over six examples each magnify rounding by the inverse of a small deviation.
    scores = x @ params["scores/kernel"] + params["scores/bias"]
    np.testing.assert_allclose(outputs.scores, scores, rtol=1e-4, atol=1e-4)
    moved = named(changed["batch_stats"])
    assert set(moved) == set(seen)
    for path in seen:
        np.testing.assert_allclose(moved[path], seen[path], rtol=1e-4, atol=1e-4)
