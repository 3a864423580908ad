"""Processes of one training agree: where they stop, what they refuse, which checkpoint is whole."""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fdg_jax.checks import options as checks
from fdg_jax.config import Config
from fdg_jax.engine.unfinished import MESSAGE, UnfinishedOperations
from fdg_jax.errors import BadInput
from fdg_jax.machine.signals import Stopped
from fdg_jax.options.common import Joining
from fdg_jax.training import policies, processes
from fdg_jax.training.processes import Elsewhere, JoinedPeers, Silent


class Board:
    """Notices of processes that are threads here."""

    def __init__(self):
        self.texts, self.condition = {}, threading.Condition()

    def put(self, name, text):
        with self.condition:
            self.texts[name] = text
            self.condition.notify_all()

    def wait(self, name, seconds):
        with self.condition:
            self.condition.wait_for(lambda: name in self.texts, seconds)
            return self.texts.get(name)


def in_processes(count, run, seconds=30.0) -> list[Any]:
    """What run(peers) returns, or the exception that it raises, in each of so many processes."""
    board: Any = Board()

    def one(process):
        try:
            return run(JoinedPeers(process, count, seconds, board))
        except Exception as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


@pytest.mark.parametrize("seed", range(3))
def test_processes_at_different_batches_meet_at_the_same_one(seed):
    """None may run ahead of the slowest by more than 3 batches, as losses bound it in a pipeline."""
    rng = random.Random(seed)
    asks = {rng.randrange(3): rng.randrange(1, 30) for _ in range(2)}  # process -> the batch at which it asks
    done = [0, 0, 0]

    def run(peers):
        own = random.Random(f"{seed} {peers.process}")
        for batch in range(1, 100):
            time.sleep(own.random() * 0.003)
            signal = 15 if batch >= asks.get(peers.process, 1000) else None
            found = peers.agree(signal=signal, failed_save=False)
            if found:
                return batch, dict(found)
            done[peers.process] = batch
            while batch - min(done) > 3:
                time.sleep(0.001)
        return None

    found = in_processes(3, run)
    assert found[0] is not None and found == [found[0]] * 3
    assert found[0][1] == {"signal": 15} and found[0][0] >= min(asks.values())


def test_what_one_process_refuses_all_refuse_and_one_says_it():
    def run(peers):
        def refuse():
            if peers.process == 1:
                raise BadInput("no such data.")
            return "loaded"

        return peers.on_all(refuse)

    found = in_processes(3, run)
    assert [type(error) for error in found] == [Elsewhere, BadInput, Elsewhere]
    assert [str(error) for error in found] == ["no such data."] * 3


def test_a_signal_while_preparing_stops_all():
    def run(peers):
        def prepare():
            if peers.process == 2:
                raise Stopped(15)

        peers.on_all(prepare)

    assert [error.number for error in in_processes(3, run)] == [15] * 3


def test_process_0_decides_for_all():
    assert in_processes(3, lambda peers: peers.from_zero(lambda: peers.process + 7)) == [7, 7, 7]


def test_other_settings_are_named_with_both_values():
    found = in_processes(2, lambda peers: peers.compare({"--seed": peers.process}))
    assert type(found[0]) is BadInput and type(found[1]) is Elsewhere
    assert str(found[0]).startswith("process 1 has --seed 1, process 0 has --seed 0. Start all with the same")


def test_a_process_that_does_not_answer_is_named(monkeypatch, capsys):
    monkeypatch.setattr(processes, "LATE_SECONDS", 0.05)
    board: Any = Board()
    with pytest.raises(Silent, match=r"process 1 has not answered for"):
        JoinedPeers(0, 2, 0.08, board).all_gather("here")
    assert "WARNING: process 0 has waited" in capsys.readouterr().err


@pytest.mark.parametrize(("given", "fact"), [
    ({"processes": 2}, "--processes is for a training in several processes, but --coordinator is not given"),
    ({"coordinator": "127.0.0.1:1"}, "--coordinator 127.0.0.1:1 needs --process-id, too"),
    ({"coordinator": "auto", "peer_timeout": 0.0}, "peer_timeout=0.0: it must be positive"),
    ({"coordinator": "auto", "options": {"engine": "delay-line"}}, "--engine delay-line trains in one process"),
])  # fmt: skip
def test_flags_that_contradict_one_another_are_refused(given, fact):
    options = Config(**given.pop("options", {}))
    with pytest.raises(BadInput, match=fact):
        checks.check_joining(Joining(**given), frozenset(given), options)


class Awaited:
    """A watchdog that looks at the times that it is given, at a message of stage 2 that does not come."""

    def __init__(self, monkeypatch, tmp_path, timeout=100.0):
        self.ended = []
        monkeypatch.setattr(policies.os, "_exit", self.ended.append)
        self.unfinished = UnfinishedOperations()
        self.dog = policies.PeerWatchdog(self.unfinished, 600.0, tmp_path, timeout, [0, 1], 0)
        self.now = self.dog.looked = 1000.0  # a whole number: ten steps of a second are ten seconds
        self.unfinished.add(f"{MESSAGE}dy", 2, 61, NeverReady())

    def look(self, seconds):
        for _ in range(seconds):
            self.now += 1
            self.dog.look(self.now)


class NeverReady:
    def is_deleted(self):
        return False

    def is_ready(self):
        return False


def test_a_stage_that_is_late_is_named_once_a_minute_and_ends_the_run_at_the_limit(monkeypatch, tmp_path, capfd):
    awaited = Awaited(monkeypatch, tmp_path)
    awaited.look(9)
    assert capfd.readouterr().err == ""
    awaited.look(3)
    said = "process 0 has waited 10 s for the gradient of batch 61 from stage k=2 (process 1), which is unusually long."
    assert f"WARNING: {said}" in capfd.readouterr().err
    awaited.look(50)
    assert capfd.readouterr().err == "" and not awaited.ended
    awaited.look(40)
    said = capfd.readouterr().err
    assert "has waited 70 s" in said and "longer than --peer-timeout 100" in said and awaited.ended[0] == 1


def test_the_time_that_a_process_was_stopped_itself_counts_for_nobody(monkeypatch, tmp_path, capfd):
    awaited = Awaited(monkeypatch, tmp_path)
    awaited.look(5)
    awaited.now += 500
    awaited.look(9)
    assert capfd.readouterr().err == "" and not awaited.ended


def test_nothing_is_late_while_programs_compile(monkeypatch, tmp_path, capfd):
    awaited = Awaited(monkeypatch, tmp_path)
    awaited.dog.may_compile = True
    awaited.look(50)
    assert capfd.readouterr().err == ""
