"""The command as a person meets it: what a run leaves, how it is stopped and goes on, in real processes."""


import pytest
from cifar_processes import QUICK, SHORT, command, finish, read

from fdg_jax import methods
from fdg_jax.runs.run_files import read_metrics

SUMMARY = """
    method model dataset K beta engine weights order split parameters steps epochs seconds images_per_second
    train_loss test_error_percent staleness final_parameters_sha256 final_state_sha256
"""


@pytest.fixture(scope="module")
def short_run(tmp_path_factory):
    """A run of 2 epochs of 4 batches, the last of 16 images; (directory, its output)."""
    path = tmp_path_factory.mktemp("short") / "run"
    code, out, err = finish(command(*SHORT.split(), "--beta", "0.5", "--run-dir", str(path), environment=QUICK))
    assert code == 0, err
    assert err == ""
    return path, out


@pytest.mark.slow
def test_a_run_leaves_everything_the_interface_promises(short_run):
    path, _ = short_run
    files = "config.json metrics.jsonl summary.json report.html curves.png checkpoints tensorboard"
    for name in files.split():
        assert (path / name).exists(), name
    summary, config = read(path / "summary.json"), read(path / "config.json")
    assert set(summary) >= set(SUMMARY.split())
    assert (summary["steps"], summary["epochs"], summary["parameters"]) == (8, 2, 75_290)
    assert [summary[name] for name in ("K", "beta", "engine", "dataset")] == [2, 0.5, "pipeline", "digits"]
    assert summary["staleness"] == [1, 0]  # measured; backward-first: 2(K-k)-1
    assert summary["updates"] == [8, 8]  # drained: every batch has updated every stage
    assert 0 <= summary["test_error_percent"] <= 100
    assert summary["images_per_second"] > 0
    assert len(summary["final_parameters_sha256"]) == len(summary["final_state_sha256"]) == 64
    assert (config["epochs"], config["train_size"], config["warmup"]) == (2, 112, "off")
    assert config["versions"]["jax"]
    assert config["devices"] == ["cpu:0", "cpu:1"]


@pytest.mark.slow
def test_every_batch_is_in_the_metrics_and_the_ragged_one_too(short_run):
    events = read_metrics(short_run[0] / "metrics.jsonl")
    train = [event for event in events if "train_loss" in event]
    assert [event["step"] for event in train] == [2, 4, 6, 8]
    assert [event["epoch"] for event in train] == [0.5, 1, 1.5, 2]
    assert [event["learning_rate"] for event in train] == [0.05, 0.05, 0.005, 5e-05]
    assert [event["step"] for event in events if "test_loss" in event] == [4, 8]


@pytest.mark.slow
def test_a_finished_run_is_not_run_again_unless_more_is_asked_for(short_run):
    path, _ = short_run
    before, page = (path / "summary.json").read_text(), (path / "report.html").read_text()
    (path / "report.html").unlink()  # as by a kill just before it is written
    code, out, err = finish(command("--run-dir", str(path), "--resume", environment=QUICK))
    assert (code, err) == (0, "")
    assert "is finished: 8 batches" in out
    assert (path / "summary.json").read_text() == before and (path / "report.html").read_text() == page


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fr", "dgl", "data_parallel"])
def test_every_method_runs_from_the_command_and_reports_itself(method, tmp_path, capsys):
    from fdg_jax.experiments.cifar import main

    words = f"{SHORT} --epochs 1 --method {method} --no-tensorboard --run-dir {tmp_path / 'run'}"
    assert main(words.split()) == 0
    out, summary = capsys.readouterr().out, read(tmp_path / "run" / "summary.json")
    schedule = methods.find(method).schedule(2)
    assert summary["staleness"] == list(schedule.staleness) and summary["updates"] == [4, 4]
    assert (summary["auxiliary_parameters"] > 0) is (method in ("dgl", "dni"))
    assert ("auxiliary  " in out) is (method in ("dgl", "dni"))
    every = "cpu:0 and cpu:1"
    assert read(tmp_path / "run" / "config.json")["devices"] == (
        [every, every] if method == "data_parallel" else ["cpu:0", "cpu:1"]
    )
    page = (tmp_path / "run" / "report.html").read_text()
    assert f"{method.upper()} with K=2{', β=1' if method in ('fdg', 'ddg') else ''}<" in page
