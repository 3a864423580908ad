"""A cut changes nothing but the place of the work, and a wrong one is refused; times of blocks are measured once."""

import itertools
from fractions import Fraction

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdg_jax import block_times, models, split
from fdg_jax.config import Config
from fdg_jax.errors import BadInput
from fdg_jax.training import job as jobs
from fdg_jax.training import opening


@pytest.mark.slow
def test_initial_variables_do_not_depend_on_the_split():
    """A stage that starts itself from the same key has the values that the whole network has there."""
    blocks, images, cuts = models.blocks("resnet8", 10), jnp.zeros((4, 8, 8, 3)), (1, 2, 3)
    whole = split.init_whole(blocks, jax.random.key(0), images)
    x = jax.ShapeDtypeStruct(images.shape, images.dtype)
    for stage, part in zip(split.stages(blocks, cuts), split.split_variables(whole, cuts), strict=True):
        own = stage.lazy_init(jax.random.key(0), x, True)
        assert jax.tree.structure(dict(own)) == jax.tree.structure(part)
        jax.tree.map(np.testing.assert_array_equal, dict(own), part)
        x = jax.eval_shape(lambda own, x, stage=stage: stage.apply(own, x, False), own, x)


COUNTS = {"resnet18": (2, 2, 2, 2), "resnet101": (3, 4, 23, 3), "resnet101_imagenet": (3, 4, 23, 3)}


# (whole layers before the stage, blocks of the next layer before it), as in the authors' `layerN[a:b]`.
THIRDS, WIDE = [(1, 0), (2, 0)], [[(1, 2)], [(1, 0), (2, 0)], [(0, 3), (1, 2), (2, 1)]]
DEEP = [[(2, 9)], [(2, 4), (2, 15)], [(2, 1), (2, 9), (2, 17)], [(1, 3), (2, 6), (2, 13), (2, 20)]]
PAPER = {
    "resnet20": [[(1, 1)], THIRDS],
    "resnet56": [[(1, 4)], THIRDS, [(0, 6), (1, 4), (2, 2)]],
    "resnet110": [[(1, 9)], THIRDS, [(0, 13), (1, 9), (2, 5)], [(0, 10), (1, 3), (1, 14), (2, 7)]],
    "resnet1202": [[(1, 50)], THIRDS, [(0, 75), (1, 50), (2, 25)], [(0, 60), (1, 20), (1, 80), (2, 40)]],
    "resnet56_fdg_init": [[(1, 4)], THIRDS, [(0, 6), (1, 4), (2, 2)]],
    "mobilenet_v1": [[(0, 6)]],
    "wrn28_10": WIDE,
    "wrn28_10_fdg": WIDE,
    "resnet18": [[(2, 0)], [(1, 0), (2, 1)]],
    "resnet101": DEEP,
    "resnet101_imagenet": DEEP,
}


def test_the_paper_split_is_the_authors():
    for name, splits in PAPER.items():
        blocks = models.blocks(name, 10)
        counts = COUNTS.get(name, ((len(blocks) - 2) // 3,) * 3)
        for layers in splits:
            cuts = tuple(1 + sum(counts[:whole]) + more for whole, more in layers)
            assert split.parse("paper", name, len(cuts) + 1, len(blocks)) == cuts, name


def test_even_stages_differ_by_at_most_one_block():
    for n_blocks, K in itertools.product((5, 11, 56), (2, 3, 4, 5)):
        bounds = (0, *split.parse("even", "resnet8", K, n_blocks), n_blocks)
        sizes = np.diff(bounds)
        assert len(sizes) == K
        assert sizes.max() - sizes.min() <= 1


def stage_times(costs, cuts, R):
    bounds = (0, *cuts, len(costs))
    return [Fraction(sum(costs[a:b]), r) for a, b, r in zip(bounds, bounds[1:], R, strict=False)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=9), st.lists(st.sampled_from((1, 2, 4)), min_size=1))
def test_balanced_is_the_best_of_all_splits_also_where_stages_have_several_devices(costs, R):
    R = R[: len(costs)]
    every = itertools.combinations(range(1, len(costs)), len(R) - 1)
    best = min((max(times), sum(t * t for t in times)) for times in (stage_times(costs, cuts, R) for cuts in every))
    times = stage_times(costs, split.balanced(costs, len(R), R), R)
    assert (max(times), sum(t * t for t in times)) == best


@pytest.mark.slow
def test_balanced_costs_are_flops_of_the_forward_pass_without_running_it():
    costs = split.block_costs("wrn16_4")
    assert len(costs) == len(models.blocks("wrn16_4", 10))
    # Block 2: two 3 x 3 convolutions of 64 channels on 32 x 32 pixels, 2 FLOPs a multiply-add; XLA leaves out
    # the multiplications with padding (4%), norms and relus add a little.
    assert costs[2] == pytest.approx(2 * 2 * 9 * 64 * 64 * 32 * 32, rel=0.06)
    assert split.parse("balanced", "wrn16_4", 2, 8) == split.balanced(costs, 2)


def test_a_wrong_split_is_refused_with_K_the_blocks_and_the_way_out():
    for text, K, says in (
        *((text, 3, f"split {text} for .* 2 increasing block numbers in 1..10 are needed")
          for text in ("3,3", "0,3", "3,11", "7,3", "3,12", "-1,3", "3,5,7")),
        ("3,x", 3, "neither paper, even, balanced, measured nor block numbers"),
        ("3.5,7", 3, "neither paper"),
        ("paper", 4, "no split of resnet20 .* for K=4, only for K=2, 3"),
        ("even", 12, "more than the 11 blocks"),
        ("measured", 2, r"K=2 needs seconds for each of its 11 blocks.*--split balanced"),
    ):
        with pytest.raises(BadInput, match=says) as error:
            split.parse(text, "resnet20", K, 11)
        message = str(error.value)
        assert f"K={K}" in message and "11 blocks" in message
        assert any(way in message for way in ("Use --", "use --split", "give 2 increasing"))


class Block(nn.Module):
    """One layer; the wider the slower."""

    width: int

    @nn.compact
    def __call__(self, x, train: bool):
        return nn.Dense(self.width)(x)


BLOCKS = [Block(4), Block(4), Block(4), Block(600), Block(4), Block(600)]
X = jax.ShapeDtypeStruct((8, 4), np.float32)


def device():
    return jax.local_devices()[0]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "fdg_jax"


@pytest.fixture
def counted(monkeypatch):
    """Measuring takes no time: a second for the first block, ten for every other; counts measurements."""
    calls = []

    def measure(blocks, x, device, rounds=block_times.ROUNDS):
        calls.append((len(blocks), x.shape))
        return [1.0] + [10.0] * (len(blocks) - 1)

    monkeypatch.setattr(block_times, "measure", measure)
    return calls


@pytest.mark.slow
def test_what_was_measured_is_kept_for_the_next_start(counted, own_cache):
    first = block_times.seconds(BLOCKS, X, device())
    assert block_times.seconds(BLOCKS, X, device()) == first
    assert counted == [(6, (8, 4))]
    assert [path.suffix for path in own_cache.iterdir()] == [".json"]


@pytest.mark.slow
def test_split_measured_cuts_by_these_times_and_the_config_has_the_blocks(monkeypatch):
    """A run that goes on elsewhere reads the block numbers, so it never measures again."""
    asked = []

    def seconds(blocks, x, device):
        asked.append((x.shape, x.dtype))
        return [0.001, 0.001, 0.001, 0.001, 0.004]

    monkeypatch.setattr(block_times, "seconds", seconds)
    options = Config(model="resnet8", dataset="digits", batch_size=4, train_size=8, epochs=1, split="measured")
    job = jobs.prepare(options)
    assert asked == [((4, *job.dataset.shape), np.float32)]
    assert (job.partition.cuts, job.options.split) == ((4,), "4")
    assert [stage["share_percent"] for stage in opening.stage_facts(job)] == [50.0, 50.0]
    assert "blocks 0 to 3, 4 ms a batch, 50% of the time" in opening.stage_lines(job, opening.stage_facts(job))[0]
    again = jobs.prepare(job.options)
    assert (again.partition.cuts, len(asked)) == ((4,), 1)
