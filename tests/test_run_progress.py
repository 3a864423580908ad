"""Speed, losses and curves while a run goes on, and how it ends where they are absurd."""

import subprocess
from unittest import mock

import numpy as np
import pytest

from fdg_jax.engine.losses import Metrics
from fdg_jax.runs import run_files
from fdg_jax.training import lifecycle
from fdg_jax.training.record import Diverged, Record


def test_speed_counts_finished_images_and_leaves_pauses_out(monkeypatch):
    from fdg_jax.training import record as speed

    clock = [100.0]
    monkeypatch.setattr(speed.time, "monotonic", lambda: clock[0])
    pace = speed.Speed()
    assert pace.now() is None
    for _ in range(5):  # 64 images a second, with a pause of 24 s in between that is not training
        pace.finished(64)
        clock[0] += 1
    assert pace.now() == 64
    with pace.pause():
        clock[0] += 17
        with pace.pause():
            pace.finished(64)  # of the last second of training; an evaluation reads what is finished meanwhile
        clock[0] += 7
        assert pace.now() == 64
    clock[0] += 1
    pace.finished(64)
    assert pace.now() == 64
    for _ in range(20):  # from now on 10 a second: after the horizon the old ones are forgotten
        clock[0] += 1
        pace.finished(10)
    assert pace.now() == 10
    assert pace.mean() == pytest.approx((6 * 64 + 200) / 26)  # of the first 64 it is not known how long they took
    pace.forget()  # something may have compiled
    assert pace.now() is None
    clock[0] += 100
    pace.finished(64)
    assert pace.mean() == pytest.approx((6 * 64 + 200) / 26)


def test_a_line_is_the_mean_of_the_losses_since_the_last_and_a_checkpoint_keeps_what_is_open(tmp_path):
    rates = np.asarray([0.1] * 6 + [0.01] * 6, np.float32)

    def record() -> Record:
        return Record(examples=100, batch_size=32, log_every=3, learning_rates=rates)  # 4 batches, the last of 4

    first = record()
    first.open(tmp_path, tensorboard=False)
    first.losses([Metrics(1, 4.0), Metrics(2, 3.0), Metrics(3, 2.0), Metrics(4, 1.0)])
    first.entered(5, 132)
    saved = first.state()
    first.losses([Metrics(5, 9.0), Metrics(6, 9.0)])  # lost: the process is killed after the checkpoint
    first.close()
    second = record()
    second.restore(saved)
    second.open(tmp_path, tensorboard=False)
    second.losses([Metrics(5, 2.0), Metrics(6, 3.0), Metrics(7, 8.0)])
    second.entered(2, 64)
    second.last_line()
    second.close()
    events = run_files.read_metrics(tmp_path / "metrics.jsonl")
    assert [(event["step"], event["train_loss"]) for event in events] == [(3, 3.0), (6, 2.0), (7, 8.0)]
    assert [event["learning_rate"] for event in events] == [0.1, 0.1, 0.01]
    assert second.train_loss() == 3.5  # of the last 4 batches, an epoch's worth: 1, 2, 3, 8
    assert (second.step, second.units, second.sessions) == (7, 196, 2)


def test_tensorboards_curves_end_where_they_cannot_be_written_and_the_run_goes_on(tmp_path, capsys, monkeypatch):
    log = Record(examples=64, batch_size=32, log_every=1, learning_rates=np.ones(2, np.float32))
    log.step = 3
    log.open(tmp_path, tensorboard=True)
    log.write({"step": 4}, {"train/loss": 1.5, "test/loss": None})
    (file,) = (tmp_path / "tensorboard").iterdir()
    content = file.read_bytes()
    assert b"train/loss" in content and b"test/loss" not in content  # there at once
    full = mock.Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr(log.board.clients["TensorBoard"].writer, "flush", full)
    for step in range(5, 50):
        log.write({"step": step}, {"train/loss": 1.0})
    log.close()
    assert full.call_count == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "the curves in TensorBoard end here: No space left on device" in err


def test_a_run_whose_loss_is_absurd_is_not_done(tmp_path, capsys):
    good = {
        "train_loss": 0.5, "test_error_percent": 9.0, "K": 1, "epochs": 1, "dataset": "digits", "steps": 1,
        "images_per_second": None, "staleness": [0], "updates": [1],
    }  # fmt: skip
    assert lifecycle.tell_done(tmp_path, good) == 0
    out = capsys.readouterr().out
    assert "done: test error 9.00% after 1 epoch on digits, training loss 0.5000, - images/s" in out
    assert "staleness of stage 1, in updates: [0]; updates made: [1] for 1 batch\n" in out
    for loss in (2e6, float("nan"), float("inf")):
        assert lifecycle.tell_done(tmp_path, {**good, "train_loss": loss}) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert "has diverged" in err and f"{loss:.4g}" in err


def test_a_loss_that_is_no_number_ends_the_run_after_its_line(tmp_path):
    record = Record(examples=64, batch_size=32, log_every=1, learning_rates=np.ones(2, np.float32))
    record.open(tmp_path, tensorboard=False)
    with pytest.raises(Diverged, match="nan at batch 1"):
        record.losses([Metrics(1, float("nan"))])
    record.close()
    assert run_files.read_metrics(tmp_path / "metrics.jsonl")[0]["train_loss"] is None


def test_a_commit_is_dirty_where_code_differs_and_not_where_tables_do(tmp_path, monkeypatch):
    def git(*words):
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
        return subprocess.run(["git", "-C", tmp_path, *identity, *words], check=True, capture_output=True, text=True)

    code, table = tmp_path / "package" / "sub" / "code.py", tmp_path / "benchmarks" / "results" / "rows.jsonl"
    for file in (code, table, tmp_path / "README.md"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("before")
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "first")
    commit = git("rev-parse", "HEAD").stdout.strip()
    monkeypatch.setattr(run_files, "__file__", str(code))
    assert run_files.git_commit() == commit
    table.write_text("after")
    (tmp_path / "README.md").write_text("after")
    assert run_files.git_commit() == commit
    code.write_text("after")
    assert run_files.git_commit() == f"{commit}-dirty"
    git("add", "-A")
    assert run_files.git_commit() == f"{commit}-dirty"
