"""The auxiliary networks have the size, the layers and the losses of their sources, and compute what NumPy does."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import cross_entropy, jit

from fdg_jax import layers
from fdg_jax.errors import BadInput
from fdg_jax.methods._auxiliary import HEADS, MLPSR, LinearClassifier, Outputs, PredSim, Synthesizer, local_loss

# Sums of float32, some hundred terms of order 1, against the same in float64: rounding of 1e-7 each, a few 1e-6 in
# all. A window, a normalisation or a weight in the wrong place is off by more than 1e-2.
ROUNDING = {"rtol": 1e-5, "atol": 1e-5}


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def labels(b, classes):
    return np.random.default_rng(7).integers(0, classes, b).astype(np.int32)


def variables_of(module, *inputs, redrawn=False):
    """The module's own first variables, or all parameters drawn again, so that no layer is zero."""

    def init(key):
        return module.init(key, *inputs, train=False)

    if not redrawn:
        return jit(init)(jax.random.key(0))
    made = jax.eval_shape(init, jax.random.key(0))
    leaves, tree = jax.tree.flatten(made.pop("params"))
    drawn = [0.3 * normal(i, *leaf.shape) for i, leaf in enumerate(leaves)]
    # The running statistics: what they are is of no account in training mode.
    return {"params": jax.tree.unflatten(tree, drawn), **jax.tree.map(lambda leaf: np.ones(leaf.shape, "f4"), made)}


def trained_loss(module, variables, y, classes):
    """loss(params, y) in training mode."""

    def run(params, y):
        outputs, _ = module.apply({**variables, "params": params}, y, train=True, mutable=["batch_stats"])
        return local_loss(cross_entropy, outputs, labels(len(y), classes))

    return run


def named(tree):
    return {"/".join(key.key for key in path): np.asarray(leaf) for path, leaf in jax.tree.leaves_with_path(tree)}


def parameters(module, *inputs):
    made = jax.eval_shape(lambda key, *inputs: module.init(key, *inputs, train=False), jax.random.key(0), *inputs)
    leaves = jax.tree.leaves(made)
    assert all(leaf.dtype == jnp.float32 for leaf in leaves)
    return sum(leaf.size for leaf in jax.tree.leaves(made["params"]))


def norm(c):
    return 2 * c


def dense(n, m):
    return n * m + m


def mlp(n, classes):
    return 3 * (dense(n, n) + norm(n)) + dense(n, classes)


@pytest.mark.parametrize(("shape", "classes", "mlp_sr", "linear", "predsim"), [
    # ResNet-20, K=2: 16 x 16 maps of 32 channels; 2 x 2 x 32 = 128 numbers enter the linear classifier.
    ((2, 16, 16, 32), 10, 54_858, 1_290, 10_506),
    # WRN-28-10, K=2: 16 x 16 x 320, from which only 2 x 2 places are left.
    ((2, 16, 16, 320), 100, 5_363_940, 32_100, 953_700),
    ((2, 11), 3, 498, 36, 157),
])  # fmt: skip
def test_heads_have_the_parameters_that_the_sources_layers_add_up_to(shape, classes, mlp_sr, linear, predsim):
    y = jax.ShapeDtypeStruct(shape, jnp.float32)
    c = shape[-1]
    entries = {(16, 16, 32): 2 * 2 * 32, (16, 16, 320): 320}
    convolutions = 3 * (c * c + norm(c)) + mlp(4 * c, classes) if len(shape) == 4 else mlp(c, classes)
    classifier = dense(entries.get(shape[1:], c), classes)
    matching = 9 * c * c if len(shape) == 4 else c * c
    assert parameters(MLPSR(classes), y) == convolutions == mlp_sr
    assert parameters(LinearClassifier(classes), y) == classifier == linear
    assert parameters(PredSim(classes), y) == classifier + matching == predsim


@pytest.mark.parametrize("shape", [(6, 5, 7, 4), (6, 11)])
@pytest.mark.parametrize("name", HEADS)
def test_heads_give_scores_and_their_gradients_reach_the_stage_and_all_parameters(name, shape):
    head, y = HEADS[name](5), jnp.asarray(normal(1, *shape))
    variables = variables_of(head, y, redrawn=True)
    outputs = jax.eval_shape(lambda y: head.apply(variables, y, train=False), y)
    assert outputs.scores.shape == (6, 5) and (outputs.features is None) == (name != "predsim")
    grads, dy = jit(jax.grad(trained_loss(head, variables, y, 5), argnums=(0, 1)))(variables["params"], y)
    assert np.abs(dy).max() > 1e-5
    for path, grad in named(grads).items():
        if path in ("dense1/bias", "dense2/bias", "dense3/bias"):
            assert np.abs(grad).max() < 1e-5, f"{path}: the batch norm behind it leaves rounding only"
        else:
            assert np.abs(grad).max() > 1e-4, path


@pytest.mark.slow
def test_channels_that_are_dead_send_back_zeros_and_not_nan():
    y = jnp.zeros((6, 5, 7, 8)).at[:3].set(1.0)  # half of the examples dead, half of them constant
    for shaped in (y, y[:, 0, 0]):
        head = PredSim(5)
        variables = variables_of(head, shaped, redrawn=True)
        grads = jit(jax.grad(trained_loss(head, variables, shaped, 5), argnums=(0, 1)))(variables["params"], shaped)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))


@pytest.mark.slow
@pytest.mark.parametrize("name", HEADS)
def test_the_tokens_of_a_sequence_are_examples_of_their_own(name):
    head, y, truth = HEADS[name](5), normal(0, 3, 4, 6), labels(12, 5)
    variables = variables_of(head, y, redrawn=True)
    run = jit(lambda y: head.apply(variables, y, train=True, mutable=["batch_stats"])[0])
    whole, apart = run(y), run(y.reshape(12, 6))
    np.testing.assert_allclose(whole.scores, apart.scores.reshape(3, 4, 5), **ROUNDING)
    losses = local_loss(cross_entropy, whole, truth.reshape(3, 4)), local_loss(cross_entropy, apart, truth)
    np.testing.assert_allclose(*losses, **ROUNDING)


def test_boundaries_and_labels_of_other_kinds_are_refused_with_their_shapes():
    for y in (jnp.ones((2, 3, 4, 5, 6)), (jnp.ones((2, 3)), jnp.ones((2, 4)))):
        with pytest.raises(BadInput, match=r"this stage gives .*\(2, 3"):
            MLPSR(5).init(jax.random.key(0), y, train=False)
    y = jnp.ones((6, 4))
    for wrong in (np.ones((6, 5), np.float32), {"a": np.ones(6)}):
        with pytest.raises(BadInput, match=r"need integer labels \[b\]"):
            local_loss(lambda *_: jnp.ones(()), Outputs(y, y), wrong)
        with pytest.raises(BadInput, match=r"need integer labels \[b\]"):
            Synthesizer(5, conditional=True).init(jax.random.key(0), y, wrong, train=False)


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


@pytest.mark.parametrize("shape", [
    *(pytest.param(maps, marks=pytest.mark.slow) for maps in ((6, 5, 7, 8), (6, 5, 7, 3))), (6, 11),
])  # fmt: skip
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


@pytest.mark.parametrize("shape", [pytest.param((6, 8, 7, 4), marks=pytest.mark.slow), (6, 11)])
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
