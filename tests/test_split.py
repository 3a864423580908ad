"""A cut changes nothing but the place where work is done; a wrong one is refused with the way out."""

import doctest
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdg_jax import models, split
from fdg_jax.errors import BadInput
from fdg_jax.layers import convolution

IMAGES = (4, 8, 8, 3)


@pytest.fixture(scope="module")
def small():
    """(blocks, images, variables of the whole network) of ResNet-8; statistics other than their start."""
    blocks = models.blocks("resnet8", 10)
    images = jnp.asarray(np.random.default_rng(0).standard_normal(IMAGES, np.float32))
    variables = split.init_whole(blocks, jax.random.key(0), images)
    variables["batch_stats"] = jax.tree.map(lambda a: a + 0.25, variables["batch_stats"])
    return blocks, images, variables


def run(stages, variables, x, train):
    """The stages one after the other, each its own program: (output, all changed statistics)."""
    changed = {}
    for stage, own in zip(stages, variables, strict=True):
        x, new = jax.jit(lambda own, x, stage=stage: stage.apply(own, x, train, mutable=["batch_stats"]))(own, x)
        changed |= new.get("batch_stats", {})
    return x, changed


@pytest.mark.slow  # test_networks.py composes another network in the fast suite
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("cuts", [(1, 4), (2,), (1, 2, 3)])
def test_composed_stages_are_the_uncut_network_bit_for_bit(small, cuts, train):
    blocks, images, variables = small
    whole, whole_statistics = run(split.stages(blocks, ()), [variables], images, train)
    output, statistics = run(split.stages(blocks, cuts), split.split_variables(variables, cuts), images, train)
    np.testing.assert_array_equal(output, whole)
    assert statistics.keys() == whole_statistics.keys()
    jax.tree.map(np.testing.assert_array_equal, statistics, whole_statistics)


@pytest.mark.parametrize("cuts", [(), (2,), (1, 4), (1, 2, 3)])
def test_initial_variables_do_not_depend_on_the_split(small, cuts):
    """A stage that starts itself from the same key has the values that the whole network has there."""
    blocks, images, _ = small
    whole = split.init_whole(blocks, jax.random.key(0), images)
    x = jax.ShapeDtypeStruct(images.shape, images.dtype)
    for stage, part in zip(split.stages(blocks, cuts), split.split_variables(whole, cuts), strict=True):
        own = stage.lazy_init(jax.random.key(0), x, True)
        assert jax.tree.structure(dict(own)) == jax.tree.structure(part)
        jax.tree.map(np.testing.assert_array_equal, dict(own), part)
        x = jax.eval_shape(lambda own, x, stage=stage: stage.apply(own, x, False), own, x)


def test_another_key_gives_other_weights(small):
    blocks, images, variables = small
    other = split.init_whole(blocks, jax.random.key(1), images)["params"]["block000"]["conv"]["kernel"]
    assert not (other == variables["params"]["block000"]["conv"]["kernel"]).any()


def test_initialisation_takes_a_shape_as_well_as_images(small):
    blocks, images, _ = small
    shape = jax.ShapeDtypeStruct(images.shape, images.dtype)
    a, b = (split.init_whole(blocks, jax.random.key(0), x) for x in (images, shape))
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.parametrize("cuts", [(2,), (1, 4), (1, 2, 3)])
def test_the_union_of_the_stages_variables_is_the_whole_networks(small, cuts):
    _, _, variables = small
    union = {}
    for part in split.split_variables(variables, cuts):
        for collection, by_block in part.items():
            assert not union.setdefault(collection, {}).keys() & by_block.keys()
            union[collection] |= by_block
    jax.tree.map(np.testing.assert_array_equal, union, variables)


COUNTS = {"resnet18": (2, 2, 2, 2), "resnet101": (3, 4, 23, 3), "resnet101_imagenet": (3, 4, 23, 3)}


@pytest.mark.parametrize(
    ("name", "K", "layers"),
    # (whole layers before the stage, blocks of the next layer before it), as in the authors' `layerN[a:b]`.
    [
        ("resnet20", 2, [(1, 1)]),
        ("resnet20", 3, [(1, 0), (2, 0)]),
        ("resnet56", 2, [(1, 4)]),
        ("resnet56", 3, [(1, 0), (2, 0)]),
        ("resnet56", 4, [(0, 6), (1, 4), (2, 2)]),
        ("resnet110", 2, [(1, 9)]),
        ("resnet110", 3, [(1, 0), (2, 0)]),
        ("resnet110", 4, [(0, 13), (1, 9), (2, 5)]),
        ("resnet110", 5, [(0, 10), (1, 3), (1, 14), (2, 7)]),
        ("resnet1202", 2, [(1, 50)]),
        ("resnet1202", 3, [(1, 0), (2, 0)]),
        ("resnet1202", 4, [(0, 75), (1, 50), (2, 25)]),
        ("resnet1202", 5, [(0, 60), (1, 20), (1, 80), (2, 40)]),
        ("mobilenet_v1", 2, [(0, 6)]),
        *[
            (name, len(cuts) + 1, cuts)
            for name in ("wrn28_10", "wrn28_10_fdg")
            for cuts in ([(1, 2)], [(1, 0), (2, 0)], [(0, 3), (1, 2), (2, 1)])
        ],
        ("resnet18", 2, [(2, 0)]),
        ("resnet18", 3, [(1, 0), (2, 1)]),
        *[
            (name, len(cuts) + 1, cuts)
            for name in ("resnet101", "resnet101_imagenet")
            for cuts in (
                [(2, 9)],
                [(2, 4), (2, 15)],
                [(2, 1), (2, 9), (2, 17)],
                [(1, 3), (2, 6), (2, 13), (2, 20)],
            )
        ],
    ],
)
def test_the_paper_split_is_the_authors(name, K, layers):
    blocks = models.blocks(name, 10)
    counts = COUNTS.get(name, ((len(blocks) - 2) // 3,) * 3)
    cuts = tuple(1 + sum(counts[:whole]) + more for whole, more in layers)
    assert split.parse("paper", name, K, len(blocks)) == cuts


@pytest.mark.parametrize("text", ["paper", "even", "balanced", ""])
def test_one_stage_has_no_cut(text):
    assert split.parse(text, "resnet8", 1, 5) == ()


def test_even_stages_differ_by_at_most_one_block():
    for n_blocks, K in itertools.product((5, 11, 56), (2, 3, 4, 5)):
        bounds = (0, *split.parse("even", "resnet8", K, n_blocks), n_blocks)
        sizes = np.diff(bounds)
        assert len(sizes) == K
        assert sizes.max() - sizes.min() <= 1


def test_block_numbers_are_taken_as_given():
    assert split.parse("3, 7", "resnet20", 3, 11) == (3, 7)


def stage_costs(costs, cuts):
    return [sum(costs[a:b]) for a, b in itertools.pairwise((0, *cuts, len(costs)))]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=9), st.integers(1, 9))
def test_balanced_is_the_best_of_all_splits(costs, K):
    K = min(K, len(costs))
    every = itertools.combinations(range(1, len(costs)), K - 1)
    best = min((max(sums), sum(s * s for s in sums)) for sums in (stage_costs(costs, cuts) for cuts in every))
    sums = stage_costs(costs, split.balanced(costs, K))
    assert (max(sums), sum(s * s for s in sums)) == best


def test_balanced_takes_measured_costs():
    assert split.parse("balanced", "resnet8", 2, 5, costs=[1, 1, 1, 1, 4]) == (4,)


def test_balanced_costs_are_flops_of_the_forward_pass_without_running_it():
    costs = split.block_costs("wrn16_4")
    assert len(costs) == len(models.blocks("wrn16_4", 10))
    # Block 2: two 3 x 3 convolutions of 64 channels on 32 x 32 pixels, 2 FLOPs a multiply-add; XLA leaves out
    # the multiplications with padding (4%), norms and relus add a little.
    assert costs[2] == pytest.approx(2 * 2 * 9 * 64 * 64 * 32 * 32, rel=0.06)
    assert split.parse("balanced", "wrn16_4", 2, 8) == split.balanced(costs, 2)


def test_on_a_gpu_the_flops_are_those_of_plain_convolutions(monkeypatch):
    on_cpu = split.block_costs("resnet20")
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    on_gpu = split.block_costs("resnet20")
    monkeypatch.setattr(convolution, "PLAIN", True)
    assert on_gpu == split.block_costs("resnet20")
    assert on_gpu[1] < on_cpu[1] and on_gpu[-2] == on_cpu[-2]  # only narrow ones take another form on a CPU


def test_flops_are_refused_without_a_cpu_to_count_them_on(monkeypatch):
    def none(backend):
        raise RuntimeError(f"Unknown backend {backend}. Available backends are ['cuda']")

    monkeypatch.setattr(jax, "local_devices", none)
    with pytest.raises(BadInput, match=r"counted on a CPU, and JAX has none here: Unknown backend cpu.*JAX_PLATFORMS"):
        split.block_costs("resnet20")


@pytest.mark.parametrize(
    ("text", "K", "says"),
    [
        ("3,3", 3, "stage k=2 is empty"),
        ("0,3", 3, "stage k=1 is empty"),
        ("3,11", 3, "stage k=3 is empty"),
        ("7,3", 3, "not increasing, stage k=2 would run from block 7 back to 3"),
        ("3,12", 3, "no block 12"),
        ("-1,3", 3, "no block -1"),
        ("3", 3, "1 block numbers where 2 are needed"),
        ("3,5,7", 3, "3 block numbers where 2 are needed"),
        ("", 3, "0 block numbers where 2 are needed"),
        ("3,x", 3, "neither paper, even, balanced, measured nor block numbers"),
        ("3.5,7", 3, "neither paper"),
        ("fair", 3, "'fair' is neither paper"),
        ("paper", 4, "no split of resnet20 .* for K=4, only for K=2, 3"),
        ("even", 12, "more than the 11 blocks"),
        ("paper", 99, "more than the 11 blocks"),
        ("even", 0, "at least 1 stage"),
    ],
)
def test_a_wrong_split_is_refused_with_K_the_blocks_and_the_way_out(text, K, says):
    with pytest.raises(BadInput, match=says) as error:
        split.parse(text, "resnet20", K, 11)
    message = str(error.value)
    assert f"K={K}" in message
    assert "11 blocks" in message
    assert "Use --" in message or "use --split" in message or "give 2 of them" in message


def test_a_model_without_any_paper_split_says_so():
    with pytest.raises(BadInput, match=r"no split of wrn16_4 .* for K=2, nor for any other K"):
        split.parse("paper", "wrn16_4", 2, 8)


def test_stages_refuses_a_cut_that_leaves_one_empty():
    with pytest.raises(BadInput, match="stage k=2 is empty"):
        split.stages(models.blocks("resnet8", 10), (2, 2))


def test_the_examples_in_docstrings_say_what_comes_out():
    found = doctest.testmod(split)
    assert (found.attempted, found.failed) == (2, 0)
