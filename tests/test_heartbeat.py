"""Busy shares by looking now and then: what a look takes for computing, what it costs, and what a run writes."""

import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from small import batches, nothing_unfinished, pipeline

from fdg_jax import methods
from fdg_jax.engine.occupancy import Occupancy, computed_now, occupancy
from fdg_jax.engine.unfinished import Dispatched, UnfinishedOperations
from fdg_jax.schedule import chain
from fdg_jax.training import heartbeat
from fdg_jax.training.heartbeat import Heartbeat


def op(kind, k, batch, since=0.0):
    return Dispatched(kind, k, batch, batch, since, True, batch)


def computing(*ops, messages=None, devices=("a", "b", "c")):
    """The operations that are computed, as texts, of those under way, in the order of their dispatch."""
    queues = {}
    for each in ops:
        queues.setdefault(each.k, []).append(each)
    where = {k: (name,) for k, name in enumerate(devices, 1) if name}
    return {f"{o.kind}{o.first}" for o in computed_now(queues, messages or chain(3), where).values()}


def test_a_stage_computes_its_oldest_operation_unless_that_waits_for_another():
    assert computing(op("F", 1, 1)) == {"F1"}
    assert computing(op("F", 1, 1), op("F", 2, 1), op("F", 3, 1)) == {"F1"}  # one reads what the other makes
    assert computing(op("F", 1, 3), op("F", 2, 2), op("F", 3, 1)) == {"F3", "F2", "F1"}
    assert computing(op("F", 1, 3), op("F", 2, 2), op("B", 3, 1), op("B", 2, 1)) == {"F3", "F2", "B1"}
    assert computing(op("B", 2, 1), op("F", 2, 9), op("B", 3, 1)) == {"B1"}  # F9 is not the oldest
    assert computing(op("B", 2, 1), op("B", 3, 1)._replace(sent=True)) == {"B1"}  # 3 updates, and 2 has its gradient
    assert computing(op("B", 2, 1), op("F", 3, 2)) == {"B1", "F2"} and computing() == set()
    assert computing(Dispatched("E", 0, 1, 1, 0.0, True), Dispatched("L", 0, 1, 1, 0.0, True)) == set()


def test_stages_of_one_device_take_turns_in_the_order_of_dispatch():
    ops = op("F", 1, 5, since=2.0), op("F", 2, 4, since=1.0), op("F", 3, 3, since=3.0)
    assert computing(*ops, devices=("a", "a", "a")) == {"F4"}
    assert computing(*ops, devices=("a", "a", "b")) == {"F4", "F3"}


def test_a_message_of_another_process_is_waited_for():
    message = Dispatched("message x", 1, 4, 4, 0.0, True, 4)
    assert computing(message, op("F", 2, 4), devices=(None, "a", "a")) == set()
    assert computing(op("F", 2, 4), devices=(None, "a", "a")) == {"F4"}
    assert computing(message._replace(number=5), op("F", 2, 4), devices=(None, "a", "a")) == {"F4"}


def trained(n=6, **options):
    """A pipeline through which so many batches went, and what looks at it."""
    data = batches(n)
    made = pipeline(2, data[0], **options)
    occupied = occupancy(made.engine, made.watch())
    for batch in data:
        made.step(batch)
    made.engine.wait()
    assert occupied and nothing_unfinished(occupied.unfinished)
    return made, occupied


def test_a_look_finds_what_is_finished_and_how_late_gradients_were():
    made, occupied = trained()
    now = occupied.look()
    assert [(n.forward, n.backward, n.under_way, n.operation) for n in now] == [(6, 4, 0, None), (5, 5, 0, None)]
    assert [n.staleness for n in now] == made.staleness == [1, 0]
    assert (occupied.looks, occupied.counts()) == (1, {1: 0, 2: 0})
    occupied.look(counts=False)
    assert occupied.looks == 1


def test_what_cannot_be_told_is_left_blank():
    _, occupied = trained(accumulate=2)
    assert occupied.counts().keys() == {2}  # of stage 1 no array tells when a backward pass without update has ended
    assert occupancy(SimpleNamespace(), UnfinishedOperations()) is None  # type: ignore[arg-type]  # a scan, say


@pytest.mark.parametrize("name", methods.names())
def test_in_any_order_of_finishing_something_is_computed_until_all_is_finished(name):
    """No look may find everything waiting: of what is under way, the oldest needs nothing that is under way."""
    schedule = methods.find(name).schedule(3)
    ops = [each for t in range(1, 9) for each in schedule.tick(t, None)]
    assert all(box.batch == each.batch for each in ops for box in schedule.messages.gives(each))  # a look relies on it
    queues = {}
    for number, each in enumerate(ops):
        queues.setdefault(each.k, []).append(op(*each, since=float(number)))
    where = {k: (str(k),) for k in queues}
    random, finished = np.random.default_rng(0), 0
    while any(queues.values()):
        now = computed_now(queues, schedule.messages, where)
        assert now
        done = now[random.choice(list(now))]
        assert queues[done.k].pop(0) == done
        finished += 1
    assert finished == len(ops)


def test_a_look_and_a_writing_cost_less_than_a_hundredth_of_a_core(tmp_path):
    """By count: so many looks and writings a second, each of so much processor time. The best of several, since others
    use the machine, too."""
    schedule, unfinished = methods.find("fdg").schedule(8), UnfinishedOperations()
    array = SimpleNamespace(is_deleted=lambda: False, is_ready=lambda: False)
    stages = {k: SimpleNamespace(k=k, staleness=0, place=SimpleNamespace(devices=[k])) for k in range(1, 9)}
    for t in range(30, 46):  # two times as many ticks as the host runs ahead
        for each in schedule.tick(t, None):
            unfinished.put(op(*each), array, array)
    engine = SimpleNamespace(stages=stages, problem=SimpleNamespace(schedule=schedule))
    occupied = Occupancy(engine, unfinished)  # type: ignore[arg-type]
    numbers = {"doing": "training", "step": 5, "steps": 10}
    beats = Heartbeat(tmp_path, occupied, lambda: numbers, lambda: True, lambda: True, str)
    beats.look()
    look, write = (min(seconds(call, 20) for _ in range(8)) for call in (beats.look, beats.write))
    print(f"look {1e6 * look:.0f} us, writing {1e6 * write:.0f} us")
    assert look / heartbeat.LOOK_SECONDS + write / heartbeat.WRITE_SECONDS < 0.01


def test_no_fault_of_what_is_written_ends_a_training(tmp_path, monkeypatch):
    hangs, calls = threading.Event(), []

    def numbers():
        calls.append(1)
        if len(calls) == 2:
            hangs.wait(30)  # as a disk that does not answer
        raise ValueError("a number that is none")

    monkeypatch.setattr(heartbeat, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(heartbeat, "WRITE_SECONDS", 0.0)
    beats = Heartbeat(tmp_path, None, numbers, lambda: True, lambda: True, str)
    with beats:
        while len(calls) < 2:  # so the first error has not ended the thread
            time.sleep(0.001)
        monkeypatch.setattr(beats.thread, "join", lambda seconds: threading.Thread.join(beats.thread, 0.2))
    assert len(calls) == 2 and beats.thread.is_alive()  # nothing was written by the training itself
    hangs.set()
    with Heartbeat(tmp_path, None, numbers, lambda: True, lambda: True, str):
        pass


def seconds(call, times):
    began = time.process_time()
    for _ in range(times):
        call()
    return (time.process_time() - began) / times
