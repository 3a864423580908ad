"""The models have the parameters, the blocks and the multiply-adds that their papers say."""


import jax
import jax.numpy as jnp
import pytest
from model_parts import met, shapes

from fdg_jax import models
from fdg_jax.errors import BadInput


def parameters(name: str, classes: int = 10) -> int:
    """Of the whole network."""
    return sum(leaf.size for _, _, variables in met(name, classes) for leaf in jax.tree.leaves(variables["params"]))


PUBLISHED = {
    ("resnet8", 10): 75_290,
    ("resnet8_fdg_init", 10): 75_290,  # first weights and pooling have no part in it
    ("resnet8_fdg_pool", 10): 75_290,
    ("resnet20", 10): 269_722,  # 0.27M; He et al. 2016, table 6
    ("resnet56", 10): 853_018,  # 0.85M
    ("resnet110", 10): 1_727_962,  # 1.7M
    ("resnet1202", 10): 19_421_274,  # 19.4M
    ("wrn16_4", 10): 2_748_890,  # 2.7M; Zagoruyko and Komodakis 2016, table 4
    ("wrn28_10", 10): 36_479_194,  # 36.5M
    ("wrn40_4", 10): 8_949_210,  # 8.9M, by the general name
    ("wrn28_10_fdg", 10): 36_489_290,  # the FDG authors' released code, with biases
    ("mobilenet_v1", 10): 3_217_226,  # the authors' mobilenet.py; without a class 1025 fewer
    ("mobilenet_v1", 200): 3_411_976,  # 3.41M on Tiny-ImageNet, where the paper prints 3.40M for "MobileNet v2"
    # torchvision's documentation gives 11,689,512 for resnet18, 44,549,160 for resnet101, 3,504,872 for mobilenet_v2:
    # ImageNet's stem and 1000 classes. A 3 x 3 stem has (49 - 9) x 3 x 64 fewer, a class fewer takes its weights along.
    ("resnet18", 10): 11_689_512 - 7_680 - 990 * 513,  # 11.2M, as the paper prints
    ("resnet18", 100): 11_689_512 - 7_680 - 900 * 513,
    ("resnet101", 10): 44_549_160 - 7_680 - 990 * 2049,
    ("resnet101_imagenet", 1000): 44_549_160,  # 44.5M
    ("mobilenet_v2", 1000): 3_504_872,  # 3.50M; Sandler et al. 2018 and the paper print 3.4M
    ("mobilenet_v2_imagenet", 1000): 3_504_872,
    ("mobilenet_v2", 200): 3_504_872 - 800 * 1281,  # Tiny-ImageNet
    ("gpt2", 50257): 124_439_808,  # Hugging Face's, which count positions and the tied table once
    ("gpt2-medium", 50257): 354_823_168,
    ("nanogpt-shakespeare", 65): 10_646_784 + 256 * 384,  # nanoGPT reports 10.65M and 0.80M, without positions
    ("nanogpt-cpu", 65): 795_904 + 64 * 128,
    ("asyncpp", 50257): 134_292_480,  # 134M; Ajanthan et al. 2025
    ("rotation32", 50257): 95_577_600,  # nobody prints it: theirs has 32 x 3 x 384 fewer, and 50,257 more in the head
    # Nobody's but ours. Per layer 12 w^2 (4 of attention, 8 of the mlp) and two norms, then a norm and two tables.
    **{
        (f"transformer{n}x{w}", 256): n * (12 * w * w + 2 * w) + w + 2 * 256 * w
        for n, w in [(4, 64), (8, 64), (8, 256)]
    },
}


@pytest.mark.slow
def test_the_number_of_parameters_is_the_published_one():
    assert set(models.names()) <= {name for name, _ in PUBLISHED}
    for (name, classes), number in PUBLISHED.items():
        assert parameters(name, classes) == number, (name, classes)


@pytest.mark.slow
def test_logits_are_float32_of_batch_and_classes_at_any_image_size():
    for name in ("resnet8", "wrn16_4", "resnet18"):
        logits, variables = shapes(name, classes=100, example=(5, 64, 48, 3))
        assert (logits.shape, logits.dtype) == ((5, 100), jnp.float32)
        assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(variables))


def test_blocks_are_stem_then_residual_blocks_then_head():
    residual = {"resnet8": 3, "resnet110": 54, "wrn28_10": 12, "resnet18": 8, "resnet101": 33, "mobilenet_v2": 17}
    inner = {**residual, "wrn28_10_fdg": 12, "mobilenet_v1": 13, "resnet8_fdg_init": 3, "resnet8_fdg_pool": 3}
    for name in models.names():
        blocks = models.blocks(name, 10)
        assert len(blocks) == inner.get(name, len(blocks) - 2) + 2
        assert type(blocks[0]) not in {type(block) for block in blocks[1:-1]}
        assert "Head" in type(blocks[-1]).__name__


@pytest.mark.slow
def test_the_head_meets_a_map_of_the_size_that_the_form_is_meant_for():
    for name, before, after in (
        ("resnet18", 32, 4), ("resnet101", 64, 8), ("resnet101_imagenet", 224, 7),
        ("mobilenet_v2", 64, 8), ("mobilenet_v2_imagenet", 224, 7), ("mobilenet_v1", 32, 2),
    ):  # fmt: skip
        *_, (_, x, _) = met(name, example=(1, before, before, 3))
        assert x.shape[1:3] == (after, after)


def test_strides_are_in_the_3_by_3_convolutions():
    """PyTorch's bottleneck: the 1 x 1 convolution before the strided one still sees the whole map."""
    block, x = models.blocks("resnet101", 10)[4], jax.ShapeDtypeStruct((1, 8, 8, 256), jnp.float32)
    text = str(jax.make_jaxpr(lambda key, x: block.init_with_output(key, x, False)[0])(jax.random.key(0), x))
    convolutions = [line for line in text.splitlines() if "conv_general_dilated" in line]
    assert [shape in line for shape, line in zip(
        ("[1,8,8,128]", "[1,4,4,128]", "[1,4,4,512]", "[1,4,4,512]"), convolutions, strict=True
    )] == [True] * 4  # fmt: skip


def test_an_unknown_model_is_refused_with_the_nearest_names():
    for name in ("resnet21", "wrn27_10", "wrn16_0", "wrn4_1", "resnet21_fdg_init", "transformer3x50"):
        with pytest.raises(BadInput, match=f"'{name}' is not known. Did you mean .*{name[:3]}"):
            models.blocks(name, 10)


def test_a_network_has_three_layers_of_n_blocks_and_the_second_and_third_begin_with_stride_2():
    for name, (a, b, c) in (("resnet20", (16, 32, 64)), ("wrn22_2", (32, 64, 128))):
        found = [(block.channels, block.stride) for block in models.blocks(name, 10)[1:-1]]  # type: ignore[attr-defined]
        assert found == [(a, 1)] * 3 + [(b, 2), (b, 1), (b, 1), (c, 2), (c, 1), (c, 1)]
