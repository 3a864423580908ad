"""Block times are measured once for all of a kind, kept, and trusted only where they are of this very case."""


import flax.linen as nn
import jax
import numpy as np
import pytest

from fdg_jax import block_times, data, models
from fdg_jax.machine import kept_times
from fdg_jax.runs.options import Options
from fdg_jax.training import partition, setup, stages


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


def known(blocks, x):
    """The seconds that were kept."""
    return kept_times.load(block_times.WHAT, block_times.conditions(blocks, x, device()), len(blocks))


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


def test_blocks_that_are_alike_are_measured_once_and_block_0_by_itself(monkeypatch):
    warmed = []
    warm = block_times.warm

    def remembered(block, x, device, first):
        warmed.append((block.width, x.shape[-1], first))
        return warm(block, x, device, first)

    monkeypatch.setattr(block_times, "warm", remembered)
    found = block_times.measure(BLOCKS, X, device(), rounds=2)
    assert warmed == [(4, 4, True), (4, 4, False), (600, 4, False), (4, 600, False)]
    assert len(found) == len(BLOCKS)
    assert found[1] == found[2] and found[3] == found[5]
    assert all(seconds > 0 for seconds in found)


def test_what_was_measured_is_kept_for_the_next_start(counted, own_cache):
    first = block_times.seconds(BLOCKS, X, device())
    assert block_times.seconds(BLOCKS, X, device()) == first == known(BLOCKS, X)
    assert counted == [(6, (8, 4))]
    assert [path.suffix for path in own_cache.iterdir()] == [".json"]


def test_other_blocks_another_batch_machine_version_or_code_measure_anew(counted, monkeypatch):
    larger, half = jax.ShapeDtypeStruct((16, 4), np.float32), jax.ShapeDtypeStruct((8, 4), np.float16)
    block_times.seconds(BLOCKS, X, device())
    for blocks, x in ((BLOCKS[:-1], X), ([*BLOCKS[:-1], Block(601)], X), (BLOCKS, larger), (BLOCKS, half)):
        block_times.seconds(blocks, x, device())
    assert len(counted) == 5
    conditions = block_times.conditions
    for what in ("versions", "code", "processor", "cores", "device"):
        other = {what: "another"}
        monkeypatch.setattr(block_times, "conditions", lambda *case, other=other: {**conditions(*case), **other})
        assert known(BLOCKS, X) is None


@pytest.mark.parametrize(
    "damage",
    [lambda text: text[:40], lambda text: "[1, 2]", lambda text: text.replace("10.0", "11.0")],
    ids=["cut off", "a list", "a digit"],
)
def test_a_damaged_file_is_said_and_measured_anew(damage, counted, own_cache, capsys):
    first = block_times.seconds(BLOCKS, X, device())
    (path,) = own_cache.iterdir()
    path.write_text(damage(path.read_text()))
    assert block_times.seconds(BLOCKS, X, device()) == first
    assert "the file is damaged; measuring again" in capsys.readouterr().err
    assert len(counted) == 2
    assert block_times.seconds(BLOCKS, X, device()) == first  # it is whole again
    assert len(counted) == 2


def test_a_cache_that_cannot_be_written_costs_time_only(counted, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    for _ in range(2):
        assert block_times.seconds(BLOCKS, X, device())[0] == 1.0
    assert len(counted) == 2
    assert "can't be kept" in capsys.readouterr().err


def test_nothing_is_measured_where_it_was_not_asked_for(counted):
    """A default run is cut the same on every machine."""
    name, options = "balanced", Options(model="resnet8", K=2)
    dataset = data.load("digits")
    costs, cost = partition.block_costs(name, options, models.blocks("resnet8", 10), dataset, device())
    assert (cost, len(costs), counted) == ("FLOPs", 5, [])


@pytest.mark.slow
def test_split_measured_cuts_by_these_times_and_the_config_has_the_blocks(monkeypatch):
    """A run that goes on elsewhere reads the block numbers, so it never measures again."""
    asked = []

    def seconds(blocks, x, device):
        asked.append((x.shape, x.dtype))
        return [0.001, 0.001, 0.001, 0.001, 0.004]

    monkeypatch.setattr(block_times, "seconds", seconds)
    options = Options(model="resnet8", dataset="digits", batch_size=4, train_size=8, epochs=1, split="measured")
    job = setup.prepare(options)
    assert asked == [((4, *job.dataset.train_images.shape[1:]), np.float32)]
    assert (job.partition.cuts, job.options.split) == ((4,), "4")
    assert [stage["share_percent"] for stage in stages.facts(job)] == [50.0, 50.0]
    assert "blocks 0 to 3, 4 ms a batch, 50% of the time" in stages.lines(job, stages.facts(job))[0]
    again = setup.prepare(job.options)
    assert (again.partition.cuts, len(asked)) == ((4,), 1)
