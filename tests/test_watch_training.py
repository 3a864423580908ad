"""A real training that is watched by another process, and busy shares that are true."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import flax.linen as nn
import numpy as np
import pytest
import small
from cifar_processes import QUICK, ROOT
from training_processes import each_needs_a_core, finish, started

from benchmarks.harness import recording
from fdg_jax.engine.occupancy import occupancy
from fdg_jax.experiments import cifar
from fdg_jax.runs import live
from fdg_jax.training import heartbeat
from fdg_jax.watch.seen import Watched
from fdg_jax.watch.view import view

pytestmark = pytest.mark.slow
SMALL = "--dataset digits --model resnet8 --K 2 --train-size 640 --batch-size 32 --evaluate-every 2"


def start(*words):
    settings = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "PYTHONIOENCODING": "utf-8", **QUICK}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "encoding": "utf-8"}
    return subprocess.Popen([sys.executable, "-m", *words], cwd=ROOT, env=settings, **pipes)


def test_a_training_is_watched_from_its_beginning_to_its_end(tmp_path):
    run = tmp_path / "run"
    watching = start("fdg_jax.watch", str(run), "--wait", "120")
    training = start("fdg_jax.experiments.cifar", *SMALL.split(), "--epochs", "8", "--run-dir", str(run))
    out, _ = training.communicate(timeout=300)
    seen, _ = watching.communicate(timeout=30)
    assert (training.returncode, watching.returncode) == (0, 0), out + seen
    assert f"{run} holds no run yet. Waiting 120 s for it" in seen
    assert seen.count("resnet8 on digits: FDG with K=2, β=1") == 2 and "It has finished." in seen
    said, summary = live.read(run), json.loads((run / "summary.json").read_text())
    assert said and (said.doing, said.exit_code, said.step, said.steps) == ("ended", 0, 160, 160)
    assert [stage.staleness for stage in said.stages] == summary["staleness"] == [1, 0]
    assert [stage.backward for stage in said.stages] == [160, 160]
    assert all(20 < (stage.busy_percent or 0) <= 100 and stage.samples > 10 for stage in said.stages)
    again = start("fdg_jax.watch", str(run), "--once")
    assert again.communicate(timeout=60)[0].count("It has finished.") == 1 and again.returncode == 0


@each_needs_a_core
def test_the_stages_of_all_processes_are_shown(tmp_path):
    run = tmp_path / "run"
    code, out = finish(started(2, *SMALL.split(), "--epochs", "6", "--run-dir", str(run)))
    assert code == 0, out
    lives = live.read_all(run)
    assert [(said.exit_code, said.processes, [stage.k for stage in said.stages]) for said in lives.values()] == [
        (0, 2, [1]), (0, 2, [2]),
    ]  # fmt: skip
    rows = view(Watched(run).look()).stages
    assert [(row.k, row.late, row.backward) for row in rows] == [("1", 1, "120"), ("2", 0, "120")]
    assert all(row.busy is not None and 5 < row.busy <= 100 for row in rows)


@pytest.mark.parametrize(("number", "words", "code"), [
    (signal.SIGTERM, "It was stopped by SIGTERM.", 143), (signal.SIGKILL, "It was killed: process", None),
])  # fmt: skip
def test_whoever_watches_learns_how_a_training_was_ended(tmp_path, number, words, code):
    run = tmp_path / "run"
    training = start("fdg_jax.experiments.cifar", *SMALL.split(), "--epochs", "500", "--run-dir", str(run))
    watching = start("fdg_jax.watch", str(run), "--wait", "120")
    until = time.monotonic() + 200
    while (said := live.read(run)) is None or said.step < 30:
        assert time.monotonic() < until and training.poll() is None
        time.sleep(0.1)
    training.send_signal(number)
    training.communicate(timeout=100)
    seen, _ = watching.communicate(timeout=60)
    assert watching.returncode == 1 and words in seen
    said = live.read(run)
    assert said and said.exit_code == code


def test_a_training_that_is_looked_at_a_thousand_times_a_second_computes_the_same_bits(tmp_path, monkeypatch):
    ends = []
    for pause in (1e9, 0.001):  # no look at all, and a hundred times as many as usual
        monkeypatch.setattr(heartbeat, "LOOK_SECONDS", pause)
        run = tmp_path / f"{pause:g}"
        assert cifar.main([*SMALL.split(), "--epochs", "2", "--run-dir", str(run)]) == 0
        summary = json.loads((run / "summary.json").read_text())
        ends.append([summary[name] for name in ("final_state_sha256", "final_parameters_sha256", "train_loss")])
    said = live.read(run)
    assert ends[0] == ends[1] and said and said.stages[0].samples > 100


class Wide(nn.Module):
    """Products that take some milliseconds."""

    width: int
    layers: int

    @nn.compact
    def __call__(self, x):
        for _ in range(self.layers):
            x = nn.tanh(nn.Dense(self.width)(x))
        return x


class Looking(threading.Thread):
    """Looks at stages until it is stopped, about 200 times a second."""

    def __init__(self, occupied):
        super().__init__(daemon=True)
        self.occupied, self.stopped, self.random = occupied, threading.Event(), np.random.default_rng(0)

    def run(self):
        while not self.stopped.wait(self.random.uniform(0.002, 0.008)):
            self.occupied.look()


@pytest.mark.parametrize(("method", "layers"), [("fdg", (1, 8)), ("bp", (4, 4)), ("fdg", (4, 4))])
def test_busy_shares_are_those_of_threads_that_wait_for_every_operation(method, layers):
    """Another way of measuring in the same process: benchmarks.timeline's threads see the end of each operation.

    One stage waits most of the time, or each half of it, or none.
    """
    random = np.random.default_rng(0)
    batch = random.normal(size=(256, 512)).astype(np.float32), random.integers(0, 8, 256).astype(np.int32)
    made = small.pipeline(2, batch, stages=[Wide(512, n) for n in layers], method=method)
    occupied = occupancy(made.engine, made.watch())
    assert occupied

    def train(batches):
        for _ in range(batches):
            made.step(batch)
            made.losses()
        made.engine.wait()

    train(8)
    recorded, thread = recording.Recording(made.engine), Looking(occupied)
    with recording.quick_threads():
        thread.start()
        begin = time.perf_counter()
        train(150)
        last = time.perf_counter()
        thread.stopped.set()
        thread.join()
    found, shares = recording.events(recorded.stop()), []
    for k in (1, 2):
        busy = 100 * sum(e.end - e.begin for e in found if e.k == k and e.what in "FBU") / (last - begin)
        looked = 100 * occupied.busy[k] / occupied.looks
        shares.append((busy, looked))
    print(method, layers, shares, occupied.looks)
    # Four standard deviations of a share of so many looks, at most; and ends are seen some 0.3 ms late, of a few ms.
    tolerance = 4 * 50 / occupied.looks**0.5 + 8
    assert [looked for _, looked in shares] == pytest.approx([busy for busy, _ in shares], abs=tolerance)
    if layers == (1, 8):  # the second has 8 times as much to do, and the first waits for it
        assert 0.05 < shares[0][1] / shares[1][1] < 0.3
