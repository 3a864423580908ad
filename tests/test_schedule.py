"""The schedule is integers, so its tests are exact."""

import doctest
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdg_jax import methods
from fdg_jax.errors import BadInput, ScheduleError
from fdg_jax.methods.fdg import fdg
from fdg_jax.schedule import Op, __main__, bp, core, simulator, summary, walk
from fdg_jax.schedule.drawing import columns, render
from fdg_jax.schedule.running import validate

ORDERS = ("backward-first", "forward-first")


@pytest.mark.parametrize(("module", "examples"), [(core, 1), (walk, 2), (simulator, 5)])
def test_the_examples_in_docstrings_say_what_comes_out(module, examples):
    assert doctest.testmod(module) == (0, examples)


def test_a_walk_says_who_sent_what_each_operation_reads():
    schedule = fdg(2, accumulate=2)
    steps = {step.op: step for _, steps in walk.walk(schedule, walk.filling(schedule, 5)) for step in steps}
    assert steps[Op("F", 2, 3)].inputs == [Op("F", 1, 3)] and steps[Op("F", 2, 3)].previous == Op("B", 2, 2)
    assert steps[Op("F", 1, 1)].previous is None and set(steps[Op("F", 1, 1)].senders.values()) == {None}
    assert [str(op) for op, step in steps.items() if op.k == 2 and step.updates] == ["B2", "B4"]


def test_fdg_with_three_stages_is_the_papers_figure():
    drawn = render(fdg(3), 7).splitlines()
    assert [line.split() for line in drawn] == [
        ["t=1", "2", "3", "4", "5", "6", "7"],
        ["k=1", "F1", "F2", "F3", "F4", "B1F5", "B2F6", "B3F7"],
        ["k=2", "F1", "F2", "B1F3", "B2F4", "B3F5", "B4F6"],
        ["k=3", "F1B1", "F2B2", "F3B3", "F4B4", "F5B5"],
    ]
    assert [line.index("F1") for line in drawn[1:]] == sorted({line.index("F1") for line in drawn[1:]})


@given(K=st.integers(1, 9), n=st.integers(0, 40), order=st.sampled_from(ORDERS))
def test_every_batch_passes_every_stage_once_with_the_derived_staleness(K, n, order):
    trace = validate(fdg(K, order), n)
    for k in range(1, K + 1):
        if n > 2 * (K - k):
            assert trace.first_update[k - 1] == (2 * K - k)  # the fill of the facts page
            assert trace.memos[k - 1] == 2 * (K - k)  # the deque


@pytest.mark.parametrize("K", [2, 3, 4, 8])
def test_staleness_is_two_times_K_minus_k_and_one_less_backward_first(K):
    assert fdg(K, "forward-first").staleness == tuple(2 * (K - k) for k in range(1, K + 1))
    assert fdg(K).staleness == (*(2 * (K - k) - 1 for k in range(1, K)), 0)


@pytest.mark.parametrize("K", [2, 3, 4, 8])
@pytest.mark.parametrize("order", ORDERS)
def test_the_gradient_delay_is_two_times_K_minus_k_ticks(K, order):
    at = {op: t for t, tick in fdg(K, order).run(20) for op in tick}
    for k in range(1, K + 1):
        assert {at[Op("B", k, b)] - at[Op("F", k, b)] for b in range(1, 21)} == {2 * (K - k)}


@given(K=st.integers(1, 9), n=st.integers(0, 20))
def test_bp_has_no_staleness_and_no_memos_between_batches(K, n):
    trace = validate(bp(K), n)
    assert bp(K).staleness == (0,) * K and trace.memos == (0,) * K


@pytest.mark.parametrize("K", [1, 2, 3, 5])
def test_bp_is_locked_and_fdg_is_not(K):
    assert len(columns(bp(K), bp(K).tick(1, None))[0]) == 2 * K - 1
    assert all(len(columns(fdg(K), tick)[0]) == 1 for _, tick in fdg(K).run(10))


@pytest.mark.parametrize("K", [1, 2, 4])
@pytest.mark.parametrize("order", ORDERS)
def test_the_drain_ends_when_the_last_batch_has_updated_stage_1(K, order):
    ticks = list(fdg(K, order).run(9))
    assert Op("B", 1, 9) in ticks[-1][1]
    assert fdg(K, order).tick(len(ticks) + 1, 9) == ()


def spoiled(change):
    good = fdg(3)
    return good._replace(tick=lambda t, last: change(t, good.tick(t, last)))


def test_an_operation_too_early_is_an_error_with_a_drawing():
    early = spoiled(lambda t, tick: (Op("F", 3, 1), *tick) if t == 1 else tick)
    with pytest.raises(ScheduleError, match=r"t=1 stage k=3 does F1, which needs x of batch 1(.|\n)*k=3"):
        validate(early, 8)


def test_a_forgotten_operation_is_an_error():
    with pytest.raises(ScheduleError):
        validate(spoiled(lambda t, tick: tick[1:] if t == 6 else tick), 8)


def test_an_operation_done_twice_is_an_error():
    with pytest.raises(ScheduleError, match="second time"):
        validate(spoiled(lambda t, tick: (*tick, Op("B", 3, 4)) if t == 6 else tick), 8)  # needs no message


def test_batches_out_of_order_are_an_error():
    """Batches 1 and 2 change places: everything exists in time, but not in order."""
    good = bp(1)
    both = lambda t, last: tuple(op for n in (2, 1) for op in good.tick(n, last)) if t == 2 else ()  # noqa: E731
    changed = good._replace(tick=lambda t, last: both(t, last) if t < 3 else good.tick(t, last))
    with pytest.raises(ScheduleError, match="order"):
        validate(changed, 8)


def test_a_false_claim_of_staleness_is_an_error():
    with pytest.raises(ScheduleError, match="staleness"):
        validate(fdg(3)._replace(behind=(4, 2, 0)), 8)


def test_dni_keeps_two_batches_until_their_gradients_have_come():
    assert validate(methods.find("dni").schedule(3), 14).memos == (2, 2, 0)


@pytest.mark.parametrize("name", methods.names())
@pytest.mark.parametrize("K", [1, 3, 4])
def test_a_drawing_shows_the_full_pipeline_and_explains_what_is_in_it(name, K):
    method = methods.find(name)
    drawing, _, legend = summary.describe(made := method.schedule(K), words=method.words).split("\n\n")
    rows = drawing.splitlines()[1:]
    for op in made.tick(4 * K + 2, None):
        assert op.kind in rows[op.k - 1] and f"{op.kind}3: " in legend


@pytest.mark.parametrize("arguments", [
    ["--K", "3"], ["--K", "1"], ["--K", "4", "--method", "bp"], ["--ticks", "2"], ["--accumulate", "2"],
    ["--method", "gpipe", "--micro-batches", "3"],
])  # fmt: skip
def test_the_command_draws(arguments, capsys):
    assert __main__.main(arguments) == 0
    out = capsys.readouterr().out
    assert "k=1" in out and "staleness" in out and "delay" in out


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [(["--K", "0"], "K=0"), (["--method", "fgd"], "fdg"), (["--ticks", "0"], "--ticks 0"),
     (["--method", "bp", "--order", "forward-first"], "no such option")],
)  # fmt: skip
def test_the_command_refuses_with_one_sentence(arguments, fact, capsys):
    assert __main__.main(arguments) == 2
    err = capsys.readouterr().err
    assert fact in err and len(err.strip().splitlines()) == 1


def test_the_schedule_needs_no_jax():
    code = "import sys, fdg_jax.schedule.__main__ as s; s.main(['--K', '2']); sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("name", methods.names())
@pytest.mark.parametrize("K", [1, 2, 3, 4])
def test_every_method_has_a_valid_schedule(name, K):
    method = methods.find(name)
    assert method.name == name
    validate(method.schedule(K), 4 * K + 3)


def test_an_option_a_method_does_not_have_is_refused():
    with pytest.raises(BadInput, match="bp has no such option"):
        methods.find("bp").accepted({"beta": 0.5})


def test_rare_updates_are_shown_too(capsys):
    assert __main__.main(["--K", "2", "--accumulate", "50"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"k=1 +2 +1 +t=52 ", out) and re.search(r"k=2 +0 +0 +t=51 ", out)
