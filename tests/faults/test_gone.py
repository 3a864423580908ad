"""The run directory is deleted while its run is under way: by policy its weights are saved all the same, or it ends."""

import json
import os
import shutil

import pytest
from fault_runs import SMALL, STEPS

from fdg_jax.experiments import cifar
from fdg_jax.runs.run_files import read_metrics
from fdg_jax.training import training_loop

AT = 3  # the directory is deleted after so many batches


def words(path, policy):
    return f"{SMALL} --model resnet8 --K 1 --method bp --on-failed-save {policy} --run-dir {path}".split()


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["go-on", "stop"])
def test_a_run_whose_directory_is_deleted_ends_by_policy(policy, tmp_path, monkeypatch, capsys):
    path, window = tmp_path / "run", training_loop.Loop.dispatch

    def deleting(loop):
        if loop.record.step == AT:
            loop.saving.check()
            # Renamed first: else the run may write live.json into the folder while it is emptied, and it would stay.
            shutil.rmtree(path.rename(tmp_path / "deleted"))
        window(loop)

    with monkeypatch.context() as patch:
        patch.setattr(training_loop.Loop, "dispatch", deleting)
        code = cifar.main(words(path, policy))
    said = capsys.readouterr()
    assert "is gone: it was deleted or renamed" in "".join(said) and "Traceback" not in "".join(said)
    if policy == "stop":
        assert code == 1 and said.err.count("error:") == 1 and not path.exists()
        return
    assert code == 0 and said.out.count("WARNING") == 1
    assert sorted(os.listdir(path / "checkpoints")) == [f"step-{step:09d}" for step in (STEPS - 1, STEPS)]
    events = read_metrics(path / "metrics.jsonl")
    assert [event["step"] for event in events if "train_loss" in event] == list(range(1, STEPS + 1))
    summary = json.loads((path / "summary.json").read_text())
    assert cifar.main(["--run-dir", str(path), "--resume"]) == 0  # which reads all that it would need
    assert "is finished" in capsys.readouterr().out
    whole = tmp_path / "whole"
    assert cifar.main(words(whole, policy)) == 0
    assert json.loads((whole / "summary.json").read_text())["final_state_sha256"] == summary["final_state_sha256"]
