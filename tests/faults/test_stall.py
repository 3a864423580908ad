"""A stage that is held up is named, with the batch and since when; the run goes on and ends as it would have."""

import json
import time
from functools import partial
from threading import Event

import pytest
from small import batches, nothing_unfinished, parts, pipeline
from toys import CALLS, Troubled

from fdg_jax.engine.unfinished import UnfinishedOperations
from fdg_jax.runs.run_files import STALLS
from fdg_jax.training.policies import Watchdog

K = 3


def told(err: str) -> list[str]:
    return [line for line in err.splitlines() if "makes no progress" in line]


@pytest.mark.slow
def test_the_stage_that_is_held_up_is_named_and_changes_nothing(tmp_path, capfd):
    data, hashes, k, held = batches(12), [], 2, 8  # the batch that comes to stage 2 in tick 9
    stages = parts(K)
    stages[k - 1] = Troubled(stages[k - 1].width)
    for holding in (False, True):
        ours = pipeline(K, data[0], stages=stages, beta=0.5)
        unfinished = ours.watch()
        for batch in data[:8]:
            ours.step(batch)
        ours.wait()
        if not holding:
            finish(ours, data[8:])
        else:
            dog, named = Watchdog(unfinished, 0.25, tmp_path), Event()
            # It is held up until it has been named twice: on a loaded machine others may be named as well, meanwhile.
            tell = dog.tell

            def telling(op, now, dog=dog, tell=tell, named=named):
                tell(op, now)
                if (op.k, op.first) == (k, held) and dog.times_named >= 2:
                    named.set()

            dog.tell = telling
            CALLS.append(partial(named.wait, 60))
            with dog:
                finish(ours, data[8:])
            assert not CALLS and named.is_set()
        hashes.append(ours.state_sha256())
    assert hashes[0] == hashes[1]
    lines = [line for line in told(capfd.readouterr().err) if f"stage k={k} " in line]
    assert sum(f"its forward pass of batch {held} has been" in line for line in lines) >= 2
    events = [json.loads(line) for line in (tmp_path / STALLS).read_text().splitlines()]
    assert {"k": k, "batch": held, "operation": "forward pass", "compiling": False}.items() <= events[0].items()


def finish(ours, data):
    for batch in data:
        ours.step(batch)
    ours.drain()
    ours.wait()


class Array:
    """Finished, or deleted, when the test says so."""

    def __init__(self):
        self.ready, self.deleted = False, False

    def is_ready(self):
        assert not self.deleted, "a deleted array was asked"
        return self.ready

    def is_deleted(self):
        return self.deleted


def unfinished_of(*ops):
    unfinished, arrays = UnfinishedOperations(), []
    for kind, k, batch in ops:
        unfinished.begin(kind, k, batch, batch)
        arrays.append(Array())
        unfinished.end(arrays[-1])
    return unfinished, arrays


def test_a_dispatch_that_does_not_return_is_an_operation_under_way_and_may_be_compiling(tmp_path, capsys):
    unfinished = UnfinishedOperations()
    unfinished.begin("B", 2, 7, 7)
    dog = Watchdog(unfinished, 10.0, tmp_path)
    what = "its backward pass and update of batch 7"
    for cold, said in (
        (True, f"k=2 has been compiling the program for {what}"),
        (False, f"{what} has been in its dispatch for"),
    ):
        dog.op, dog.may_compile, now = None, cold, time.monotonic()
        for late in (0.0, 9.0, 11.0, 12.0, 21.0):
            dog.look(now + late)
        err = capsys.readouterr().err
        assert err.count(said) == 2  # after 10 and 20 s
    unfinished.end(None)
    dog.look(now + 40)
    assert capsys.readouterr().err == ""


def test_progress_however_slow_is_no_stall(tmp_path, capsys):
    unfinished, arrays = unfinished_of(*[("F", 1, n) for n in range(1, 9)])
    dog, now = Watchdog(unfinished, 10.0, tmp_path), time.monotonic()
    for n, array in enumerate(arrays):
        dog.look(now + 9 * n)
        array.ready = True
    assert capsys.readouterr().err == "" and not (tmp_path / STALLS).exists()


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["pipeline", "scan"])
def test_a_trail_is_complete_names_real_batches_and_keeps_nothing(engine, monkeypatch):
    data = batches(7)
    ours = pipeline(2, data[0], engine=engine, accumulate=2)
    unfinished, seen = ours.watch(), []
    monkeypatch.setattr(
        unfinished,
        "end",
        lambda *made: (seen.append((unfinished.entering, made[0])), UnfinishedOperations.end(unfinished, *made)),
    )
    for batch in data[:5]:
        ours.step(batch)
    ours.drain()
    for batch in data[5:]:
        ours.step(batch)
    ours.drain()
    if engine == "scan":
        assert [(op.kind, op.first, op.last) for op, _ in seen] == [("window", n, n) for n in range(1, 8)]
    else:
        for k in (1, 2):
            for kind in "FB":
                assert [op.first for op, _ in seen if (op.kind, op.k) == (kind, k)] == list(range(1, 8))
    ours.wait()
    assert nothing_unfinished(unfinished)
    untold = [op for op, array in seen if array is None]
    assert all((op.kind, op.k) == ("B", 1) for op in untold)  # stage 1 sends no cotangent; with its update it tells
