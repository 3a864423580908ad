"""A state is restored as a whole or not at all, and from then on it belongs to the pipeline."""

import itertools
from functools import partial

import jax.numpy as jnp
import numpy as np
import optax
import pytest
import small
from small import batches, mostly_slow, pipeline

from fdg_jax.checkpoint import state as states
from fdg_jax.engine.saved_state import in_flight
from fdg_jax.errors import BadInput
from fdg_jax.methods import find, names

DATA = batches(10)
stepped = partial(small.stepped, DATA, K=3)


@pytest.fixture(scope="module")
def both():
    """(a state in flight, the pipeline, which has gone on since): compiled once for all the tests that only restore."""
    ours = stepped()
    state = ours.state()
    ours.step(DATA[5])
    return state, ours


def find_name(state, *words):
    return next(name for name in state if name == words[0] or (all(word in name for word in words) and len(words) > 1))


def put(words, value):
    def change(state):
        name = find_name(state, *words)
        state[name] = value(np.array(state[name]))

    return change


def nan(array):
    array.ravel()[-1] = np.nan
    return array


def infinite(array):
    array.ravel()[0] = np.inf
    return array


@pytest.mark.parametrize(("change", "match"), [
    (put(["stage3", "params", "kernel"], lambda a: a[:-1]), r"stage3/.*|state/\.params.* is float32\[11, 5\]"),
    (put(["stage3/updates"], lambda a: a - 99), "updates is .*, not a number of 0 or more"),
    (put(["entered"], lambda a: a - 3), "2 batches in all, but 5 since the last drain"),
    (put(["t"], lambda a: a - 1), "the checkpoint holds memos of the batches .* for stage k=1"),
    (put(["stage1/summed"], lambda a: a + 1), "1 in the sum for its next update, but 0 and 0 are needed"),
    (put(["stage2", "state/.params", "kernel"], nan), r"1 of 144 numbers of the state's stage2/.*kernel.* not finite"),
    (put(["stage2", ".opt_state", "kernel"], nan), r"stage2/state/\.opt_state.*not finite"),
    (put(["stage1/weights/", "kernel"], infinite), "stage1/weights/.*not finite"),
    (lambda state: state.update({"stage9/more": np.zeros(3)}), "holds stage9/more, which this pipeline does not"),
    (lambda state: state.update({"stage1/memo/x/version": np.int64(1)}), r"have .*'x'.* where numbers are needed"),
    (put(["of"], lambda a: a * 0 + 255), "of another run"),
])  # fmt: skip
def test_a_state_that_does_not_fit_is_refused_and_nothing_has_changed(both, change, match):
    whole, ours = both
    before, state = ours.state_sha256(), dict(whole)
    change(state)
    with pytest.raises(BadInput, match=match):
        ours.restore(state)
    assert ours.state_sha256() == before and not ours.interrupted


def test_every_single_array_of_a_state_is_needed(both):
    whole, ours = both
    before = ours.state_sha256()
    for name in whole:
        with pytest.raises(BadInput, match=r"has no |holds .* are needed|of another run"):
            ours.restore({key: value for key, value in whole.items() if key != name})
    assert ours.state_sha256() == before


def test_restore_says_what_it_takes_and_refuses_arrays_that_were_deleted(both):
    whole, ours = both
    with pytest.raises(BadInput, match="restore takes what state"):
        ours.restore(None)
    state, gone = dict(whole), jnp.zeros(3)
    state[find_name(state, "stage1", "kernel")] = gone
    gone.delete()
    with pytest.raises(BadInput, match=r"the state's .*kernel.* has been deleted"):
        ours.restore(state)


def aligned(array):
    """A copy in memory that a CPU device would use as it is."""
    raw = np.zeros(array.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


@pytest.mark.parametrize("engine", ["pipeline", pytest.param("scan", marks=pytest.mark.slow)])
def test_what_a_pipeline_was_restored_from_may_be_overwritten(engine, both):
    whole, ours = both
    if engine == "scan":
        ours = stepped(K=2, engine="scan")
        whole = ours.state()
    state = {name: aligned(np.asarray(value)) for name, value in whole.items()}
    ours.restore(state)
    before = states.sha256(state)
    for value in state.values():
        value[...] = 0
    assert ours.state_sha256() == before


@pytest.mark.parametrize("engine", ["pipeline", "scan"])
def test_the_memory_of_another_optimizer_is_not_dropped(engine):
    plain = pipeline(1, DATA[0], optimizer=optax.sgd(0.1), engine=engine)
    momentum = pipeline(1, DATA[0], optimizer=optax.sgd(0.1, momentum=0.9), engine=engine)
    with pytest.raises(BadInput, match=r"holds .*trace.* and \d more, which this pipeline does not have"):
        plain.restore(momentum.state())
    with pytest.raises(BadInput, match=r"has no .*trace.*, or guard, gradient_norms or ema has changed"):
        momentum.restore(plain.state())


def test_what_is_not_finite_can_be_restored_on_demand_and_a_single_infinity_of_an_optimizer_always(both):
    whole, ours = both
    state = dict(whole)
    put(["stage2", "state/.params", "kernel"], nan)(state)
    ours.restore(state, finite=False)
    assert ours.state_sha256() == states.sha256(state)
    ours.restore(whole)
    best = optax.GradientTransformation(lambda params: jnp.full((), jnp.inf), lambda grads, state, _: (grads, state))
    ours = pipeline(1, DATA[0], optimizer=best)
    ours.restore(ours.state())


def held(ours):
    """What is in flight, as a pipeline has it rather than as the schedule tells it."""
    stages = ours.engine.stages.values()
    kept = {(s.k, "B"): [stash.batch for stash in s.stashes] for s in stages if s.stashes}
    kept |= {(s.k, "S"): [a.batch for a in s.asked] for s in stages if getattr(s, "asked", None)}
    return set(ours.engine.loop.mail), kept


@pytest.mark.parametrize("method", mostly_slow(names(), "fdg"))
def test_the_schedule_tells_what_is_in_flight(method):
    ours = pipeline(3, DATA[0], method=method)
    for t, batch in enumerate(DATA[:7]):
        told = in_flight(ours.schedule, t)
        assert (told.mail, {key: sorted(batches) for key, batches in told.kept.items()}) == held(ours)
        ours.step(batch)


def test_nothing_is_in_flight_in_an_empty_pipeline_and_no_more_than_can_be_later():
    for method, K in itertools.product(names(), (1, 2, 4)):
        schedule = find(method).schedule(K)
        assert in_flight(schedule, 0) == (set(), {}, [0] * K)
        early, late = in_flight(schedule, 50), in_flight(schedule, 51)
        assert len(early.mail) == len(late.mail)
        assert np.subtract(late.passes, early.passes).tolist() == [schedule.micro_batches] * K


@pytest.mark.parametrize(("options", "n"), [
    pytest.param({"engine": "delay-line", "accumulate": 3}, 7, marks=pytest.mark.slow),
    pytest.param({"accumulate": 2}, 4, marks=pytest.mark.slow), ({"engine": "delay-line"}, 3), ({"method": "dni"}, 3),
])  # fmt: skip
def test_sums_lines_and_questions_in_flight_are_told_right(options, n):
    ours, again = stepped(n, **options), pipeline(3, DATA[0], **options)
    again.restore(ours.state())
    assert again.state_sha256() == ours.state_sha256()
