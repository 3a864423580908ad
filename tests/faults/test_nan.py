"""A NaN put into each stage, through the real training loop: named, obeyed as --help says, and on no disk."""

import re
from random import Random

import jax
import numpy as np
import pytest
from fault_runs import SMALL, STEPS, summary

from fdg_jax.checkpoint import run_checkpoints
from fdg_jax.experiments import cifar
from fdg_jax.runs import run_files
from fdg_jax.stages.stage import Stage
from fdg_jax.training import loop

CONFIGS = [("fdg", 1), ("fdg", 2), ("fdg", 4), ("ddg", 2), ("fr", 4), ("dgl", 2), ("dni", 4), ("gpipe", 2), ("dfa", 4)]
CASES = [(method, K, k, what) for method, K in CONFIGS for k in range(1, K + 1) for what in ("weights", "gradient")]
SAMPLE = [("fdg", 2, 1, "weights"), ("dni", 2, 1, "gradient")]


def lost(tree):
    return jax.tree.map(lambda leaf: leaf * np.float32(np.nan), tree)


def spoil_weights(patch, k, step):
    """The weights of stage k are lost just before batch `step` enters, once: as by a fault of its device."""
    window, done = loop.Loop.dispatch, []

    def spoilt(loop):
        if loop.record.step == step - 1 and not done:
            done.append(step)
            stage = loop.pipeline.engine.stages[k]
            stage.state = stage.state._replace(params=lost(stage.state.params))
        return window(loop)

    patch.setattr(loop.Loop, "dispatch", spoilt)


def spoil_gradient(patch, k, number):
    """The gradient of stage k's update `number` is lost, once."""
    update, done = Stage.update, []

    def spoilt(stage):
        if stage.k == k and stage.updates == number - 1 and not done:
            done.append(number)
            stage.sum = lost(stage.sum)
        update(stage)

    patch.setattr(Stage, "update", spoilt)


def no_number_on_disk_is_lost(path):
    """How many checkpoints there are, each of which is whole and finite."""
    stored = run_checkpoints.stored(path / "checkpoints")
    for folder in stored:
        state, _, _ = run_checkpoints.load(folder)
        for name, value in state.items():
            assert value.dtype.kind != "f" or np.isfinite(value).all(), f"{folder.name}: {name}"
    return len(stored)


def run(path, capsys, method, K, policy):
    words = f"{SMALL} --model resnet8 --method {method} --K {K} --on-nan {policy} --keep 9 --run-dir {path}"
    code = cifar.main(words.split())
    return code, "".join(capsys.readouterr())


@pytest.mark.slow
@pytest.mark.cases(sample=2, hundred=len(CASES))
def test_a_nan_in_a_stage_is_named_and_each_policy_obeyed(seed, all_of_them, tmp_path, monkeypatch, capsys, tell):
    method, K, k, what = (CASES if all_of_them else SAMPLE)[seed]
    step = Random(f"nan {seed}").randint(2, 4)  # of the six batches; before it there is a checkpoint to go back to
    spoil, told = {"weights": spoil_weights, "gradient": spoil_gradient}[what], {}
    for policy in ("stop", "skip", "rollback"):
        path = tmp_path / policy
        with monkeypatch.context() as patch:
            spoil(patch, k, step)
            code, said = run(path, capsys, method, K, policy)
        told[policy] = code
        assert "Traceback" not in said
        named(said, k, step, what, K)
        assert no_number_on_disk_is_lost(path) >= 1
        if policy == "rollback":
            assert code == 0 and "goes back to the checkpoint" in said, said
            assert "goes back to the checkpoint" in run_files.read_incidents(path)[-1].fact
        elif policy == "stop" or what == "weights":  # weights that are lost stay so, and no checkpoint may hold them
            assert code == 1 and "error: " in said and not (path / "summary.json").exists()
            assert run_files.read_incidents(path)[-1].fact.endswith("The run ended there.")
        else:
            assert code == 0 and "Its update is skipped" in said and summary(path)["steps"] == STEPS
            assert "Its update is skipped" in run_files.read_incidents(path)[0].fact
    code, said = run(tmp_path / "whole", capsys, method, K, "stop")
    assert code == 0, said
    for name in ("final_state_sha256", "final_parameters_sha256"):  # a fault that is gone leaves no trace
        assert summary(tmp_path / "rollback")[name] == summary(tmp_path / "whole")[name]
    tell(f"{method} K={K}: {what} of stage {k} lost at {step}: exit codes {told}")


def named(said, k, step, what, K):
    """That a message names the stage, and a batch within the one in which the fault can first be seen."""
    refused = f"stage k={k} got a gradient that is not finite, for its update {step}"
    if what == "gradient" or refused in said:  # with a loss of its own, a stage has lost its gradient, too
        assert refused in said
        return
    assert f"the weights of stage k={k}" in said, said
    batch = int(re.search(r"(?:training loss is nan at| is not finite after) batch (\d+)", said)[1])  # type: ignore[index]
    assert step - K < batch <= step  # those that stages 1 to K have before them when it happens
