"""Blocks compute what their papers say, and cut into stages they are the network that they were."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from model_parts import example_of, met, normal, plain
from small import jit, mostly_slow

from fdg_jax import layers, models, split
from fdg_jax.models import resnet
from fdg_jax.split import Stage
from fdg_jax.stages.functions import ComputeOptions, functions
from fdg_jax.stages.precision import precision


@pytest.mark.slow
def test_the_authors_wide_block_has_biases_its_stride_in_the_second_convolution_and_the_raw_input_in_its_shortcut():
    block, x = models.blocks("wrn10_1_fdg", 10)[2], normal(0, 2, 8, 8, 16)
    shapes = jax.eval_shape(lambda x: block.init(jax.random.key(0), x, True), x)
    variables = jax.tree.map(lambda p: normal(p.size, *p.shape), shapes)
    p = variables["params"]

    def convolved(x, name, stride=1):
        return plain(x, p[name]["kernel"], stride) + p[name]["bias"]

    def normed(x, name):
        centred = x - x.mean((0, 1, 2))
        return centred / jnp.sqrt(x.var((0, 1, 2)) + 1e-5) * p[name]["scale"] + p[name]["bias"]

    y = convolved(jax.nn.relu(normed(x, "norm1")), "conv1")
    assert y.shape == (2, 8, 8, 32)
    y = convolved(jax.nn.relu(normed(y, "norm2")), "conv2", 2) + convolved(x, "shortcut", 2)
    found, _ = jit(lambda v, x: block.apply(v, x, True, mutable=["batch_stats"]))(variables, x)
    np.testing.assert_allclose(found, y, rtol=0, atol=1e-4)  # sums of 288 products of order 1, float32


@pytest.mark.slow
def test_the_last_norm_of_the_authors_wide_network_keeps_a_tenth_of_its_statistics():
    head, x = models.blocks("wrn10_1_fdg", 10)[-1], 3 + normal(0, 2, 8, 8, 64)

    @jit
    def run(x):
        return head.apply(head.init(jax.random.key(0), x, True), x, True, mutable=["batch_stats"])

    _, moved = run(x)
    norm = moved["batch_stats"]["norm"]
    np.testing.assert_allclose(norm["mean"], 0.9 * x.mean((0, 1, 2)), rtol=1e-5)  # from 0
    np.testing.assert_allclose(norm["var"], 0.1 + 0.9 * x.var((0, 1, 2)), rtol=1e-5)  # from 1


@pytest.mark.slow
def test_the_authors_start_is_uniform_over_the_fan_in_in_every_convolution_and_changes_nothing_else():
    variables = {}
    for name in ("resnet8", "resnet8_fdg_init"):
        network = Stage(tuple(models.blocks(name, 10)))
        variables[name] = jit(lambda key, x, n=network: n.init(key, x, True))(jax.random.key(0), jnp.ones((1, 8, 8, 3)))
    ours, theirs = variables.values()
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    kernels = 0
    for old, new in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        if new.ndim < 4:
            np.testing.assert_array_equal(new, old)  # norms and the head
            continue
        bound = 1 / np.sqrt(np.prod(new.shape[:3]))
        # At least 432 draws: the largest is within 3% of the bound (else 1 in e^13), the deviation within 10%.
        assert 0.97 * bound < np.abs(new).max() <= bound
        np.testing.assert_allclose(np.std(new), bound / np.sqrt(3), rtol=0.1)
        if new.shape[2] == new.shape[3]:
            np.testing.assert_allclose(np.std(old) / np.std(new), np.sqrt(6), rtol=0.1)
        kernels += 1
    assert kernels == 7


@pytest.mark.slow
def test_the_authors_pooling_sees_the_top_left_three_quarters_of_either_side():
    """AvgPool2d(6) on the 8 x 8 map that CIFAR's images end in."""
    side, seen = 8, 6
    head, x = models.blocks("resnet20_fdg_pool", 10)[-1], normal(0, 2, side, side, 64)
    variables = head.lazy_init(jax.random.key(0), x, False)
    dense = variables["params"]["dense"]
    y = x[:, :seen, :seen].mean((1, 2)) @ dense["kernel"] + dense["bias"]
    np.testing.assert_allclose(head.apply(variables, x, False), y, rtol=0, atol=1e-5)  # 64 products of order 0.1
    whole = layers.Head(10).apply(variables, x, False)
    assert np.abs(whole - y).max() > 0.01


@pytest.mark.slow
def test_shortcut_a_takes_every_second_pixel_and_pads_channels_with_zeros():
    block = models.blocks("resnet20", 10)[4]
    x = jnp.abs(normal(0, 2, 8, 8, 16))  # positive: the last relu changes nothing
    variables = jit(lambda x: block.init(jax.random.key(1), x, False))(x)
    variables = {**variables, "params": jax.tree.map(jnp.zeros_like, variables["params"])}
    y = np.asarray(block.apply(variables, x, False))
    assert y.shape == (2, 4, 4, 32)
    np.testing.assert_array_equal(y[..., 8:24], x[:, ::2, ::2])
    assert not y[..., :8].any()
    assert not y[..., 24:].any()


@pytest.mark.slow
def test_a_block_whose_weights_are_zero_is_its_shortcut():
    for name, number, channels in (("resnet18", 1, 64), ("resnet101", 2, 256), ("mobilenet_v2", 3, 24)):
        block = models.blocks(name, 10)[number]
        x = jnp.abs(normal(0, 2, 4, 4, channels))  # positive: a last relu changes nothing
        variables = jax.eval_shape(lambda x, block=block: block.init(jax.random.key(0), x, False), x)
        zeros = jax.tree.map(lambda a: jnp.zeros(a.shape), variables)
        np.testing.assert_array_equal(jit(lambda v, x, block=block: block.apply(v, x, False))(zeros, x), x)


QUICK = ("resnet8", "wrn16_4", "resnet18", "mobilenet_v2")
LONGER = (
    *("resnet20", "resnet56", "resnet110", "resnet1202", "wrn28_10", "transformer8x64", "transformer8x256"),
    *("gpt2-medium", "nanogpt-shakespeare", "asyncpp", "rotation32"),
)
OTHERS = [name for name in models.names() if name not in (*QUICK, *LONGER)]  # those have more of the same blocks


@pytest.mark.parametrize("name", mostly_slow([*QUICK, *OTHERS], "resnet8", "wrn16_4", "resnet18"))
def test_composed_stages_are_the_uncut_network(name):
    """Traced, both are the same list of operations on the same weights, so nothing need be computed."""
    blocks, whole = models.blocks(name, 10), {}
    for number, (_, _, variables) in enumerate(met(name)):
        for collection, values in variables.items():
            whole.setdefault(collection, {})[split.block_name(number)] = values

    def program(cuts) -> str:
        def run(variables, x):
            changed = {}
            for stage, own in zip(split.stages(blocks, cuts), split.split_variables(variables, cuts), strict=True):
                x, new = stage.apply(own, x, True, mutable=["batch_stats"])
                changed |= new.get("batch_stats", {})
            return x, changed

        return str(jax.make_jaxpr(run)(whole, example_of(name)))

    n = len(blocks)
    assert program((1, n // 2, n - 1)) == program(())


@pytest.mark.slow
@pytest.mark.parametrize("names", [QUICK, OTHERS], ids=["quick", "others"])
def test_blocks_hand_on_their_dtype_and_their_closures_hold_no_weights(names):
    """A stash would carry them 2(K-k) times over, and `current` would silently use old ones. What is summed, running
    statistics, stays float32, as gradients of the weights do."""
    dtype, seen = "bfloat16", set()
    compute = ComputeOptions(precision(dtype, last=False))
    for block, x, variables in (each for name in names if models.takes(name) == "images" for each in met(name)):
        if (block, x.shape[-1]) in seen:
            continue
        seen.add((block, x.shape[-1]))
        params, extra = variables["params"], {"batch_stats": variables.get("batch_stats", {})}
        made, x = functions(block, compute=compute), x.update(dtype=dtype)
        messages, extra, closure = jax.eval_shape(made.forward, params, extra, x)
        grads, dx = jax.eval_shape(made.backward, closure, params, x, messages["x"])
        assert messages["x"].dtype == dx.dtype == dtype
        assert {leaf.dtype for leaf in jax.tree.leaves((grads, extra))} == {jnp.dtype(jnp.float32)}
        kept = [leaf for leaf in jax.tree.leaves(closure) if leaf.ndim > 1]
        assert {leaf.shape[0] for leaf in kept} <= {2}, block  # the batch's two examples
        assert {leaf.dtype for leaf in kept} <= {jnp.dtype(dtype), jnp.dtype(bool)}
    assert len(seen) > 5


def test_the_maximum_of_slices_is_that_of_the_window_and_has_its_gradient():
    x = jax.random.normal(jax.random.key(0), (2, 7, 8, 3))
    for each in (x, x[:, :, :7]):
        found = [jax.value_and_grad(lambda x, pool=pool: jnp.sum(pool(x) ** 3))(each)
                 for pool in (resnet.max_pool, resnet.maximum_of_slices)]  # fmt: skip
        np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-6)
        np.testing.assert_array_equal(found[0][1], found[1][1])
