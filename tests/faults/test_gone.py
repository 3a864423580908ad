"""The run directory is deleted while its run goes on: the run ends at its next write, with one sentence."""

import shutil

import pytest
from fault_runs import SMALL

from fdg_jax.experiments import cifar
from fdg_jax.training import loop


@pytest.mark.slow
def test_a_run_whose_directory_is_gone_ends_at_its_next_write(tmp_path, monkeypatch, capsys):
    path, read = tmp_path / "run", loop.Loop.read_losses

    def deleting(loop, wait=False):
        if loop.record.step == 3 and path.exists() and not (tmp_path / "done").exists():
            loop.saving.check()
            shutil.rmtree(path.rename(tmp_path / "done"))
            (tmp_path / "done").mkdir()
        read(loop, wait)

    monkeypatch.setattr(loop.Loop, "read_losses", deleting)
    assert cifar.main(f"{SMALL} --model resnet8 --K 1 --method bp --run-dir {path}".split()) == 1
    said = capsys.readouterr()
    assert said.err.count("error:") == 1 and "is gone: it was deleted, renamed or replaced" in said.err
    assert not path.exists()
