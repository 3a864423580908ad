"""A pipeline that is interrupted, or used by two threads, says so, and nothing is lost by it."""

import threading

import jax.numpy as jnp
import numpy as np
import pytest
from small import mostly_slow, pipeline
from test_own_modules import DATA, X, Y, stepped

import fdg_jax
from fdg_jax.errors import BadInput


def cut_off(ours, name="forward", error=KeyboardInterrupt):
    """Stage 2's next operation of that name raises instead of running."""
    stage = ours.engine.stages[2]
    real = getattr(stage, name)

    def once(*arguments, **named):
        setattr(stage, name, real)
        raise error

    setattr(stage, name, once)


@pytest.fixture(scope="module")
def uninterrupted():
    """The hash of a pipeline's state after five batches, drained."""
    other = stepped(5)
    other.drain()
    return other.state_sha256()


@pytest.mark.parametrize(
    ("call", "name"), mostly_slow([("step", "forward"), ("drain", "backward")], ("drain", "backward"))
)
def test_a_pipeline_that_was_interrupted_within_a_tick_says_so_until_it_is_restored(call, name, uninterrupted):
    ours = stepped(4)
    state = ours.state()
    assert not ours.interrupted
    cut_off(ours, name)
    with pytest.raises(KeyboardInterrupt):
        ours.step(DATA[4]) if call == "step" else ours.drain()
    assert ours.interrupted
    for attempt in (lambda: ours.step(DATA[5]), ours.drain, ours.state, lambda: ours.evaluate(DATA[:1])):
        with pytest.raises(BadInput, match=r"interrupted in the middle of a step.*restore\(state\)"):
            attempt()
    ours.restore(state)
    assert not ours.interrupted
    ours.step(DATA[4])
    ours.drain()
    assert ours.state_sha256() == uninterrupted


def test_so_does_a_scan_that_was_given_away():
    ours = pipeline(2, DATA[0], engine="scan")
    state = ours.state()
    real = ours.engine._step

    def interrupted(*arguments):
        real(*arguments)
        raise KeyboardInterrupt

    ours.engine._step = interrupted
    with pytest.raises(KeyboardInterrupt):
        ours.step(DATA[0])
    with pytest.raises(BadInput, match="interrupted in the middle of a step"):
        ours.state()
    ours.engine._step = real
    ours.restore(state)
    ours.step(DATA[0])
    assert ours.engine.entered == 1


def test_ctrl_c_while_a_loss_is_read_loses_none(monkeypatch):
    ours = stepped(3, read_behind=16)
    seen = len(ours.losses())
    fetch = fdg_jax.machine.jax_internals.fetch

    def interrupted(arrays):
        monkeypatch.setattr("fdg_jax.machine.jax_internals.fetch", fetch)
        raise KeyboardInterrupt

    monkeypatch.setattr("fdg_jax.machine.jax_internals.is_ready", lambda array: False)
    ours.step(DATA[3])
    monkeypatch.setattr("fdg_jax.machine.jax_internals.fetch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ours.losses(wait=True)
    found = ours.losses(wait=True)
    assert [metrics.step for metrics in found] == list(range(seen + 1, 4)) and not ours.interrupted


@pytest.mark.parametrize("call", ["step", "train"])
def test_a_call_that_is_cut_off_between_two_ticks_says_so_if_a_batch_has_entered(call):
    ours = pipeline(2, DATA[0])
    part, name = (ours.engine.losses, "newest") if call == "step" else (ours.engine, "stage_1_inputs")
    real = getattr(part, name)

    def cut_off(*arguments):
        if ours.engine.entered:
            raise KeyboardInterrupt
        return real(*arguments)

    setattr(part, name, cut_off)
    with pytest.raises(KeyboardInterrupt):
        ours.step(DATA[0]) if call == "step" else ours.train(X, Y, np.arange(16).reshape(4, 4))
    assert ours.engine.entered == 1 and ours.interrupted


@pytest.mark.slow
def test_a_batch_that_is_donated_while_it_is_in_flight_is_named_as_the_reason():
    ours = pipeline(2, DATA[0])
    x, y = jnp.array(X), jnp.array(Y)
    ours.step((x, y))
    x.delete()
    y.delete()
    ours.step(DATA[1])
    with pytest.raises(BadInput, match="an array of a batch was deleted or donated while the batch was in flight"):
        ours.step(DATA[2])  # in which batch 1 goes back through stage 1
    assert ours.interrupted


@pytest.mark.slow
def test_two_threads_are_told_and_a_thread_that_has_ended_is_in_nobodys_way():
    ours, inside, go_on = pipeline(2, DATA[0]), threading.Event(), threading.Event()
    stage = ours.engine.stages[1]
    forward = stage.forward

    def slow(*arguments, **named):
        inside.set()
        assert go_on.wait(60)
        return forward(*arguments, **named)

    stage.forward = slow
    other = threading.Thread(target=lambda: ours.step(DATA[0]))
    other.start()
    assert inside.wait(60)
    for attempt in (lambda: ours.step(DATA[1]), ours.drain, ours.state, lambda: ours.restore({})):
        with pytest.raises(BadInput, match=r"two threads use this pipeline at the same time.*Lock"):
            attempt()
    go_on.set()
    other.join()
    stage.forward = forward
    ours.step(DATA[1])
    assert ours.engine.loop.t == 2
