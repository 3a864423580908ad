"""The auxiliary networks have the size, the layers and the losses of their sources, for maps and for vectors."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import cross_entropy, jit

from fdg_jax.errors import BadInput
from fdg_jax.methods import _auxiliary as auxiliary
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


@pytest.mark.parametrize(
    ("shape", "classes", "mlp_sr", "linear", "predsim"),
    [
        # ResNet-20, K=2: 16 x 16 maps of 32 channels; 2 x 2 x 32 = 128 numbers enter the linear classifier.
        ((2, 16, 16, 32), 10, 54_858, 1_290, 10_506),
        # WRN-28-10, K=2: 16 x 16 x 320, from which only 2 x 2 places are left.
        ((2, 16, 16, 320), 100, 5_363_940, 32_100, 953_700),
        ((2, 11), 3, 498, 36, 157),
    ],
)
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


@pytest.mark.parametrize(
    ("shape", "plain", "conditional"), [((2, 16, 16, 32), 614_944, 616_224), ((2, 11), 19_723, 21_003)]
)
def test_synthesizers_have_the_parameters_that_the_sources_layers_add_up_to(shape, plain, conditional):
    y, truth = jax.ShapeDtypeStruct(shape, jnp.float32), jax.ShapeDtypeStruct((2,), jnp.int32)
    c, places = shape[-1], 25 if len(shape) == 4 else 1
    total = places * c * 128 + norm(128) + places * 128 * 128 + norm(128) + places * 128 * c + c
    assert parameters(Synthesizer(10), y, truth) == total == plain
    assert parameters(Synthesizer(10, conditional=True), y, truth) == total + 10 * 128 == conditional


def test_maps_are_halved_in_turns_until_few_enough_numbers_are_left():
    for size, entries, left in (
        ((32, 32, 16), 2048, (8, 16)),  # height first, as in the public code
        ((2, 9, 10), 60, (2, 3)),
        ((4, 4, 4096), 2048, (1, 1)),
        ((8, 8, 4), 256, (8, 8)),
    ):
        assert auxiliary.pooled_size(*size, entries=entries) == left


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


def test_only_a_conditional_synthesizer_looks_at_the_labels():
    y = jnp.asarray(normal(1, 6, 5, 7, 4))
    for conditional in (False, True):
        module = Synthesizer(5, conditional, width=8)
        variables = variables_of(module, y, labels(6, 5), redrawn=True)
        one, other = (
            jit(partial(module.apply, train=True, mutable=["batch_stats"]))(variables, y, truth)[0]
            for truth in (labels(6, 5), (labels(6, 5) + np.arange(6)) % 5)
        )
        assert np.abs(one - other).max() > 1e-2 if conditional else (one == other).all()


def test_channels_that_are_dead_send_back_zeros_and_not_nan():
    y = jnp.zeros((6, 5, 7, 8)).at[:3].set(1.0)  # half of the examples dead, half of them constant
    for shaped in (y, y[:, 0, 0]):
        head = PredSim(5)
        variables = variables_of(head, shaped, redrawn=True)
        grads = jit(jax.grad(trained_loss(head, variables, shaped, 5), argnums=(0, 1)))(variables["params"], shaped)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))


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
