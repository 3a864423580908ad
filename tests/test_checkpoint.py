"""What is written is what is read, or it is refused."""

import jax
import numpy as np
import pytest
from small import batches, pipeline

from fdg_jax import checkpoint
from fdg_jax.errors import BadInput

DATA = batches(6)


def stepped(K=3, n=5, **options):
    ours = pipeline(K, DATA[0], **options)
    for batch in DATA[:n]:
        ours.step(batch)
    return ours


@pytest.mark.parametrize("engine", ["pipeline", "delay-line"])
def test_the_disk_changes_nothing(tmp_path, engine):
    ours = stepped(engine=engine)
    state = ours.state()
    checkpoint.save(tmp_path / "c", state)
    read = checkpoint.load(tmp_path / "c")
    assert read.keys() == state.keys()
    for name, value in state.items():
        assert read[name].dtype == np.asarray(value).dtype and read[name].shape == np.shape(value), name
        np.testing.assert_array_equal(read[name], value)
    assert checkpoint.sha256(read) == ours.state_sha256()
    again = pipeline(3, DATA[0], engine=engine)
    again.restore(read)
    again.step(DATA[5])
    ours.step(DATA[5])
    assert again.state_sha256() == ours.state_sha256()


def test_a_second_save_replaces_the_first(tmp_path):
    for n in (2, 5):
        checkpoint.save(tmp_path / "c", stepped(n=n).state())
    assert int(checkpoint.load(tmp_path / "c")["t"]) == 5
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_empty_arrays_survive(tmp_path):
    checkpoint.save(tmp_path / "c", {"none": np.zeros((0, 3), np.int16), "one": np.float32(1)})
    read = checkpoint.load(tmp_path / "c")
    assert read["none"].shape == (0, 3) and read["none"].dtype == np.int16 and read["one"] == 1


@pytest.mark.parametrize("other", [{"K": 2}, {"engine": "delay-line"}, {"method": "bp"}, {"weights": "current"}])
def test_a_state_of_another_run_is_refused(other):
    state = stepped().state()
    options = {"K": 3, **other}
    target = pipeline(options.pop("K"), DATA[0], **options)
    with pytest.raises(BadInput, match="the checkpoint"):
        target.restore(state)


def test_a_missing_or_emptied_checkpoint_is_refused(tmp_path):
    with pytest.raises(BadInput, match="there is no checkpoint"):
        checkpoint.load(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="cannot be read"):
        checkpoint.load(tmp_path / "empty")


def test_nothing_private_to_jax_is_stored():
    """A memo is its input, its weights and its statistics; nothing of the closure's activations is written."""
    ours = stepped()
    state = ours.state()
    memo = ours.engine.stages[1].memos[0]
    written = [name for name in state if name.startswith(f"stage1/memo/{memo.batch}/")]
    parts = {"version": np.int64(memo.version), "x": memo.x, "extra": memo.extra}
    assert len(written) == len(jax.tree.leaves(parts))
    assert {np.asarray(value).dtype.kind for value in state.values()} <= set("fiu")
    closure, ours = ({leaf.shape for leaf in jax.tree.leaves(tree)} for tree in (memo.closure, parts))
    assert closure - ours
    assert not (closure - ours) & {np.shape(state[name]) for name in written}
