"""What a run writes down of itself, line by line, and what a resumed run makes of it."""

import dataclasses
import json
import os
from types import SimpleNamespace

import numpy as np
import pytest
from stored_runs import asked, stored_run

from fdg_jax.data import Dataset
from fdg_jax.errors import BadInput
from fdg_jax.runs import reading, run_files
from fdg_jax.training import lifecycle, policies
from fdg_jax.training.record import Record


def a_record(run=None, lines=0) -> Record:
    """A record; with a run directory, its files are open."""
    made = Record(128, 32, 10, np.ones(8))
    made.lines = lines
    if run:
        made.open(run, tensorboard=False)
    return made


def test_metrics_are_on_disk_line_by_line(tmp_path):
    log = a_record(tmp_path)
    log.write({"step": 1, "train_loss": 2.0})
    assert run_files.read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1, "train_loss": 2.0}]
    log.write({"step": 2, "train_loss": float("nan")})
    assert run_files.read_metrics(tmp_path / "metrics.jsonl")[1] == {"step": 2, "train_loss": None}
    assert log.lines == 2
    log.close()


def test_of_very_many_lines_neighbours_become_one_and_what_is_asked_for_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "MOST", 16)
    losses = [2.0 - i / 1000 for i in range(1, 1001)]
    losses[499], losses[700] = 9.0, -1.0  # what nobody may lose sight of
    with (tmp_path / "metrics.jsonl").open("w") as file:
        for step, loss in enumerate(losses, 1):
            event = {"step": step, "epoch": step / 10, "train_loss": loss, "learning_rate": 0.1, "more": "x" * 1000}
            file.write(json.dumps({**event, "images_per_second": 10.0 if step % 2 else 30.0}) + "\n")
    found = reading.events(tmp_path)
    assert 16 < len(found) < 2 * 16 and [event["step"] for event in found] == sorted(event["step"] for event in found)
    assert [found[0]["train_loss"], found[-1]["train_loss"]] == [losses[0], losses[-1]]
    assert min(event["train_loss"] for event in found) == -1.0
    assert max(reading.span(event, "train_loss")[1] for event in found) == 9.0
    one = found[1]  # the lines after the first, up to its step
    assert one["train_loss"] == pytest.approx(np.mean(losses[1 : one["step"]]))
    assert one["images_per_second"] == pytest.approx(15.0)  # as long as a batch at 10 and one at 30
    assert "more" not in one


def test_resuming_drops_the_lines_after_the_checkpoint(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"st')
    log = a_record(tmp_path, lines=2)
    log.write({"step": 3, "again": True})
    log.close()
    assert [event["step"] for event in run_files.read_metrics(path)] == [1, 2, 3]
    assert log.lines == 3


def test_a_half_written_line_is_never_kept(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"st')
    assert run_files.read_metrics(path) == [{"step": 1}]
    assert run_files.cut_back(path, 5) == 1
    assert path.read_text() == '{"step": 1}\n'


def test_json_files_are_valid_json_also_when_a_loss_is_no_number(tmp_path):
    run_files.write_json(tmp_path / "summary.json", {"train_loss": float("inf"), "split": [3]})
    assert json.loads((tmp_path / "summary.json").read_text()) == {"train_loss": None, "split": [3]}
    assert os.listdir(tmp_path) == ["summary.json"]  # nothing half-written is left beside it


def test_a_resumed_run_has_the_options_of_its_config(tmp_path):
    stored_run(tmp_path, K=3, beta=0.25, epochs=7)
    options, _ = reading.resumed_options(tmp_path, asked(resume=True), frozenset({"resume"}))
    assert (options.K, options.beta, options.epochs, options.resume) == (3, 0.25, 7, True)


def test_options_that_change_the_training_cannot_change_on_resume(tmp_path):
    stored_run(tmp_path, K=3, beta=0.25)
    with pytest.raises(BadInput, match=r"--beta 0\.5 contradicts .*config\.json, which says 0\.25"):
        reading.resumed_options(tmp_path, asked(beta=0.5), frozenset({"beta", "resume"}))
    options, _ = reading.resumed_options(tmp_path, asked(beta=0.25), frozenset({"beta", "resume"}))
    assert options.K == 3


def test_how_far_and_how_often_may_change_on_resume(tmp_path):
    stored_run(tmp_path, steps=10)
    now = asked(steps=20, checkpoint_every=5)
    options, _ = reading.resumed_options(tmp_path, now, frozenset({"steps", "checkpoint_every"}))
    assert (options.steps, options.checkpoint_every) == (20, 5)


def test_a_damaged_config_is_refused(tmp_path):
    for content in ("{", "[]", '{"K": 2}'):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(BadInput, match=r"config\.json"):
            reading.resumed_options(tmp_path, asked(), frozenset())


@pytest.mark.parametrize(("name", "value", "said"), [
    ("K", True, "K is True, not a whole number"),
    ("engine", "fast", "engine is 'fast', not auto or pipeline or delay-line or scan"),
    ("steps", "9", "steps is '9', not a whole number or null"),
    ("resumed", 3, "resumed is 3, not a list or null"),
])  # fmt: skip
def test_a_value_of_another_type_in_a_config_is_refused_by_name(tmp_path, name, value, said):
    stored_run(tmp_path)
    config = run_files.read_json(tmp_path / "config.json")
    run_files.write_json(tmp_path / "config.json", {**config, "beta": 1, name: value})
    with pytest.raises(BadInput) as refused:
        reading.config(tmp_path)
    assert f"{tmp_path / 'config.json'}: {said}. The file is damaged." in str(refused.value)


@pytest.mark.parametrize("name", ["K", "devices"])
def test_a_config_that_lacks_a_value_is_refused_by_its_name(tmp_path, name):
    stored_run(tmp_path)
    config = run_files.read_json(tmp_path / "config.json")
    assert reading.config(tmp_path) == config
    del config[name]
    run_files.write_json(tmp_path / "config.json", config)
    with pytest.raises(BadInput, match=f"config.json lacks '{name}'"):
        reading.config(tmp_path)


@pytest.mark.parametrize("line", [b"[3]", b"{}", b"\xff"])
def test_a_damaged_line_of_the_metrics_is_refused_by_its_number(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n' + line + b'\n{"step": 3}\n')
    with pytest.raises(BadInput, match=r"metrics\.jsonl, line 2 is damaged"):
        run_files.read_metrics(path)


def images() -> Dataset:
    black, labels = np.zeros((128, 1, 1, 1), np.uint8), np.zeros(128, np.int32)
    return Dataset("black", black, labels, black, labels, classes=1, mean=(0,), std=(1,), pad=0, flip=False)


def test_a_config_that_was_changed_since_the_checkpoint_is_refused():
    dataset, restored = images(), SimpleNamespace(restore=lambda state: None)
    job = SimpleNamespace(options=asked(momentum=0.8, steps=3), pipeline=restored, dataset=dataset)
    record = a_record()
    about = policies.about_job(SimpleNamespace(options=asked(momentum=0.9), dataset=dataset))
    with pytest.raises(BadInput, match=r"config.json has changed .*: momentum is 0.8 and was 0.9\. Restore it"):
        lifecycle.begin_again(job, record, {}, record.state(), about)
    with pytest.raises(BadInput, match="damaged: its options are \\[1\\]"):
        lifecycle.begin_again(job, record, {}, record.state(), {**about, "options": [1]})
    about["options"].pop("momentum")  # of a version that did not have it; steps may change
    lifecycle.begin_again(job, record, {}, record.state(), about)


@pytest.mark.parametrize("entry", [
    {"step": np.zeros(2)}, {"lines": np.float32(3)}, {"seconds": np.bytes_(b"x")}, {"pending": np.zeros((2, 2))},
    {"error": np.zeros(0)}, {"unread/x": np.zeros(1)}, {"images": None},
])  # fmt: skip
def test_numbers_of_a_checkpoint_that_are_none_are_refused(entry):
    record, [name] = a_record(), entry
    record.restore(state := record.state())
    with pytest.raises(BadInput, match=f"the checkpoint.*{name.partition('/')[0]}"):
        record.restore({n: value for n, value in {**state, **entry}.items() if value is not None})


def test_lines_that_a_resumed_run_has_lost_are_told(tmp_path, capsys):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    for lines, said in ((1, ""), (3, "metrics.jsonl has 1 of the 3 lines that it had at the checkpoint")):
        a_record(tmp_path, lines).close()
        assert said in (err := capsys.readouterr().err) and bool(err) == bool(said)


def test_a_finished_run_is_not_asked_for_less(tmp_path, capsys):
    stored_run(tmp_path)
    summary = {"steps": 5, "epochs": 1.0, "test_error_percent": 9.0, "seconds": 1.0}
    run_files.write_json(tmp_path / "summary.json", summary)
    options = asked(batch_size=32, train_size=160, epochs=2)
    assert lifecycle.finished(tmp_path, dataclasses.replace(options, steps=5))
    assert "5 batches" in capsys.readouterr().out
    assert not lifecycle.finished(tmp_path, dataclasses.replace(options, steps=6))
    with pytest.raises(BadInput, match="--steps 4: the run is already at batch 5"):
        lifecycle.finished(tmp_path, dataclasses.replace(options, steps=4))
