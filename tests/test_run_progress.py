"""Speed, losses and curves while a run goes on, and how it ends where they are absurd."""


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
