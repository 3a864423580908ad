"""`--track`: curves in trackers, by the clients that people install. Clients that are not installed here are stood in
for by modules with the same few functions; the real ones are used where they are."""

import importlib.util
import json
import sys

import numpy as np
import pytest

from fdg_jax.config import FIELDS
from fdg_jax.runs import trackers
from fdg_jax.training.record import Record

CONFIG = {name: field.default for name, field in FIELDS.items()} | {"versions": {"jax": "0"}, "devices": ["cpu:0"]}
WANDB = """
import os, types
said = []

class Settings:
    def __init__(self, console, silent): pass

class Run:
    def __init__(self, id):
        self.id, self.summary = id or "made-up", {}
    def define_metric(self, name, step_metric):
        assert (name, step_metric) == ("*", "batch")
    def log(self, values):
        step = values.pop("batch")
        if step == 4: raise ConnectionError("the server is gone")
        said.append((step, values))
    def finish(self, exit_code):
        said.append(("finished", exit_code, dict(self.summary)))

def init(id=None, config=None, **others):
    if os.environ.get("WANDB_MODE") == "broken": raise RuntimeError("no key")
    said.append(("begun", id, config))
    return Run(id)
"""


@pytest.fixture
def wandb(tmp_path, monkeypatch):
    """What a stand-in of wandb was told."""
    (tmp_path / "clients").mkdir()
    (tmp_path / "clients" / "wandb.py").write_text(WANDB)
    monkeypatch.syspath_prepend(str(tmp_path / "clients"))
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    yield importlib.import_module("wandb").said
    sys.modules.pop("wandb", None)


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def opened(run, found, lines=0, step=0, tensorboard=False) -> Record:
    """The open record of a run that stands at a checkpoint, with these trackers."""
    made = Record(64, 32, 1, np.ones(2))
    made.lines, made.step, made.trackers = lines, step, found
    made.open(run, tensorboard)
    return made


def test_a_tracker_gets_the_options_the_curves_and_the_results(wandb, run):
    found = trackers.opened("wandb", run, CONFIG, resumed=False)
    log = opened(run, found)
    log.write({"step": 2}, {"train/train_loss": 1.5, "train/images_per_second": None})
    log.close()
    (run / "summary.json").write_text(json.dumps({"test_error_percent": 7.5, "staleness": [1, 0]}))
    found.finish(run, 0)
    begun, *rest = wandb
    assert begun[:2] == ("begun", None) and begun[2]["beta"] == 1.0 and begun[2]["versions"] == {"jax": "0"}
    assert rest == [(2, {"train/train_loss": 1.5}), ("finished", 0, {"test_error_percent": 7.5})]


def test_a_resumed_run_goes_on_in_its_trackers_unless_told_otherwise(wandb, run):
    trackers.opened("wandb", run, CONFIG, resumed=False)
    assert json.loads((run / "tracking.json").read_text()) == {"wandb": "made-up"}
    assert list(trackers.opened(None, run, CONFIG, resumed=True).clients) == ["wandb"]
    assert [each[1] for each in wandb] == [None, "made-up"]
    assert not trackers.opened("none", run, CONFIG, resumed=True).clients
    assert not trackers.opened(None, run, CONFIG, resumed=True).clients


def test_no_curve_gets_a_point_twice_from_a_run_that_is_killed_and_resumed(wandb, run, monkeypatch):
    """The checkpoint is of batch 2, when only the loss of batch 1 had been read. The second session is killed early."""
    train, test = {"train_loss": 1.5}, {"test_loss": 0.5}
    sessions = [
        [(1, train), (2, train), (3, test), (3, train), (5, train)],
        [(2, train)],
        [(2, train), (3, test), (3, train), (5, train), (6, test), (7, train)],
    ]
    points: list = []
    writer = "tensorboardX.event_file_writer.EventsWriter.write_event"
    monkeypatch.setattr(writer, lambda _, event: points.append(event))
    for number, session in enumerate(sessions):
        found = trackers.opened(None if number else "wandb", run, CONFIG, resumed=number > 0)
        log = opened(run, found, 1 if number else 0, 2 if number else 0, tensorboard=True)
        for step, event in session:
            log.write({"step": step, **event}, {name.replace("_", "/", 1): value for name, value in event.items()})
        log.close()
    sent = [each for each in wandb if each[0] != "begun"]
    assert [step for step, values in sent if "train/loss" in values] == [1, 2, 3, 5, 7]
    assert [step for step, values in sent if "test/loss" in values] == [3, 6]
    shown: list = []
    for event in points:
        if event.HasField("session_log"):  # TensorBoard then forgets points from that batch on
            shown = [point for point in shown if point[0] < event.step]
        shown += [(event.step, value.tag) for value in event.summary.value]
    assert shown == [(batch, name.replace("_", "/")) for batch, event in [(1, train), *sessions[-1]] for name in event]


def test_a_client_that_fails_loses_its_curves_and_the_run_goes_on(wandb, run, capsys):
    found = trackers.opened("wandb", run, CONFIG, resumed=False)
    for step in (2, 4, 6):
        found.add(step, {"loss": 1.0})
    found.finish(run, 0)
    assert [each[0] for each in wandb] == ["begun", 2]
    err = capsys.readouterr().err
    fact = "the curves in wandb end here: ConnectionError: the server is gone"
    assert err == f"WARNING: {fact}. metrics.jsonl still gets all curves.\n"
