"""Checkpoints that several processes write together: whole, or written by none of them."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_agreement_of_processes import in_processes

from fdg_jax.errors import BadInput
from fdg_jax.runs import checkpoints
from fdg_jax.runs.shared_saver import SharedSaver
from fdg_jax.storage import manifest


def state_of(process):
    return {f"stage{process + 1}/state/weights": np.full((2, 3), process, np.float32), "t": np.int64(4)}


def saved_by(count, root, change=lambda process, state: state, best=False) -> list[Any]:
    def run(peers):
        saver = SharedSaver(root, {"about": "a run"}, 2, peers)
        state = change(peers.process, state_of(peers.process))
        saver.save(7, state, {"step": 7}, None, best)
        saver.wait()
        return saver.step

    return in_processes(count, run)


def test_parts_become_one_checkpoint(tmp_path):
    """Read as that of one process, with what each of them has."""
    assert saved_by(3, tmp_path / "checkpoints") == [7, 7, 7]
    (path,) = checkpoints.stored(tmp_path / "checkpoints")
    assert sorted(entry.name for entry in path.iterdir()) == ["manifest.json", "process0", "process1", "process2"]
    state, loop, about = checkpoints.load(path)
    assert sorted(state) == ["stage1/state/weights", "stage2/state/weights", "stage3/state/weights", "t"]
    np.testing.assert_array_equal(state["stage3/state/weights"], np.full((2, 3), 2, np.float32))
    assert state["t"] == 4 and loop["step"] == 7 and about == {"about": "a run"}


def test_a_part_that_cannot_be_written_fails_in_all_processes(tmp_path):
    def change(process, state):
        if process == 1:
            state["unwritable"] = np.array([object()])
        return state

    found = saved_by(3, tmp_path / "checkpoints", change)
    assert [type(error) for error in found] == [checkpoints.SaveFailed] * 3
    assert all("in process 1" in str(error) for error in found)
    assert checkpoints.stored(tmp_path / "checkpoints") == []
    assert checkpoints.remainders(tmp_path / "checkpoints") == []


def test_room_is_looked_for_for_all_parts_before_any_is_written(tmp_path, monkeypatch):
    """A file system that has room for one part, and not for three."""
    free = 3 * 2**20
    monkeypatch.setattr(checkpoints.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))

    def change(process, state):
        return state | {f"stage{process + 1}/state/weights": np.zeros(2**18, np.float32)}

    found = saved_by(3, tmp_path / "checkpoints", change)
    assert [type(error) for error in found] == [checkpoints.SaveFailed] * 3
    assert all("it needs 4.352 MB, 3.146 MB are free" in str(error) for error in found)
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_a_part_that_is_not_finite_fails_in_all_processes(tmp_path):
    def change(process, state):
        return state | {f"stage{process + 1}/state/weights": np.full(3, np.nan)} if process == 2 else state

    found = saved_by(3, tmp_path / "checkpoints", change)
    assert [type(error) for error in found] == [checkpoints.NotFinite] * 3
    assert all("stage k=3" in str(error) and error.step == 7 for error in found)


@pytest.mark.parametrize("file", ["manifest.json", "process1/manifest.json", "process1/npy/00000.npy"])
def test_damage_of_a_part_is_noticed(file, tmp_path):
    saved_by(2, tmp_path / "checkpoints")
    path = tmp_path / "checkpoints" / "step-000000007" / file
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)
    with pytest.raises(BadInput, match="damaged"):
        checkpoints.load(tmp_path / "checkpoints" / "step-000000007")


def test_a_part_that_is_missing_or_too_many_is_noticed(tmp_path):
    saved_by(2, tmp_path / "checkpoints")
    path = tmp_path / "checkpoints" / "step-000000007"
    (path / "process2").mkdir()
    (path / "process2" / "manifest.json").write_text("{}")
    with pytest.raises(BadInput, match=r"process2/manifest\.json is there"):
        checkpoints.load(path)
    (path / "process1" / "manifest.json").unlink()
    with pytest.raises(BadInput, match=r"process1/manifest\.json is missing"):
        checkpoints.load(path)


def test_what_a_checkpoint_says_of_its_data_can_be_changed_alone(tmp_path):
    saved_by(2, tmp_path / "checkpoints")
    path = tmp_path / "checkpoints" / "step-000000007"
    before = checkpoints.load(path)
    manifest.change(path, {"about": {"about": "the same run, with repaired images"}})
    after = checkpoints.load(path)
    assert after[2] == {"about": "the same run, with repaired images"} and before[0].keys() == after[0].keys()
    (path / "manifest.json").write_bytes(b"{}")
    with pytest.raises(manifest.Damaged):
        manifest.change(path, {})
