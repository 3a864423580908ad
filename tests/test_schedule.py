"""The schedule is integers, so its tests are exact."""

import re
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small import batches, pipeline

from fdg_jax import methods
from fdg_jax.checks.plan import check_schedule
from fdg_jax.errors import BadInput, ScheduleError
from fdg_jax.methods.fdg import fdg
from fdg_jax.methods.interface import Method
from fdg_jax.schedule import Op, __main__, bp, summary
from fdg_jax.schedule.drawing import render
from fdg_jax.schedule.running import trace_run, validate

ORDERS = ("backward-first", "forward-first")


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
def test_every_batch_passes_every_stage_once_and_is_late_by_two_times_K_minus_k_ticks(K, n, order):
    schedule = fdg(K, order)
    trace, ticks = validate(schedule, n), list(schedule.run(n))
    at = {op: t for t, tick in ticks for op in tick}
    assert schedule.tick(len(ticks) + 1, n) == ()
    for k in range(1, K + 1):
        late = 2 * (K - k)
        assert schedule.staleness[k - 1] == max(0, late - (order == "backward-first"))
        assert {at[Op("B", k, b)] - at[Op("F", k, b)] for b in range(1, n + 1)} <= {late}
        if n > late:
            assert trace.first_update[k - 1] == (2 * K - k)  # the fill of the facts page
            assert trace.stashes[k - 1] == late  # the deque


@given(K=st.integers(1, 9), n=st.integers(0, 20))
def test_bp_has_no_staleness_and_no_stashes_between_batches(K, n):
    assert bp(K).staleness == validate(bp(K), n).stashes == (0,) * K


@pytest.mark.parametrize("name", methods.names())
def test_every_method_has_a_valid_schedule_whose_drawing_explains_it(name):
    method = methods.find(name)
    assert method.name == name
    for K in (1, 2, 3, 4, 8):
        schedule = method.schedule(K)
        validate(schedule, 4 * K + 3)
        check_schedule(method, schedule)
        drawing, _, legend = summary.describe(schedule, words=method.words).split("\n\n")
        rows = drawing.splitlines()[1:]
        for op in schedule.tick(4 * K + 2, None):
            assert op.kind in rows[op.k - 1] and f"{op.kind}3: " in legend


GOOD, LATER = fdg(3), fdg(3, "forward-first")  # behind (4, 2, 0)


def spoiled(good, change):
    return good._replace(tick=lambda t, last: change(t, good.tick(t, last)))


def swapped(t, last):
    """Batches 1 and 2 of BP in one stage change places: everything is there in time, but not in order."""
    return tuple(op for n in ((), (), (2, 1))[t] for op in bp(1).tick(n, last)) if t < 3 else bp(1).tick(t, last)


WRONG = [
    (spoiled(GOOD, lambda t, ops: (Op("F", 3, 1), *ops) if t == 1 else ops), "t=1 stage k=3 does F1, which needs x of"),
    (spoiled(GOOD, lambda t, ops: (*ops, Op("B", 3, 4)) if t == 6 else ops), "second time"),
    (bp(1)._replace(tick=swapped), "order"),
    (LATER._replace(delays=(4, 1, 0)), "stage k=2 has staleness 2 by the ticks and 1 by delays=(4, 1, 0)"),
    (LATER._replace(delays=(4, 2, 1)), "stage k=3 has staleness 0 by the ticks and 1 by delays=(4, 2, 1)"),
    (LATER._replace(delays=(4, 2)), "`delays` has 2 numbers for 3 stages."),
    (spoiled(bp(2), lambda t, ops: ops[:-1]), "sent but never read: dy of batch 1 for stage k=1"),
    (bp(1)._replace(tick=lambda t, last: (Op("F", 1, t),)), "never done: B1 of stage k=1"),
    (spoiled(bp(2), lambda t, ops: ops[::-1]), "at t=1 stage k=1 does B1, which needs dy of"),
    (LATER._replace(ticks=lambda n: n), "sent but never read: dy of batch 8 for stage k=1"),
    (spoiled(bp(1), lambda t, ops: (Op("B", 1, 9), *ops)), "at t=1 stage k=1 does B9, which needs its own F9."),
]


def test_a_schedule_that_contradicts_itself_is_refused_in_one_sentence_with_stage_and_numbers():
    for schedule, says in WRONG:
        with pytest.raises(BadInput, match=re.escape(says)) as refused:
            check_schedule(Method("mine", "", bp), schedule)
        said = str(refused.value)
        assert said.startswith("method mine: ") and "\n" not in said
        assert said.endswith("Correct the schedule in fdg_jax/methods/mine.py.")
    with pytest.raises(ScheduleError, match=r"t=1 stage k=3 does F1, which needs x of batch 1(.|\n)*k=3"):  # drawn
        validate(WRONG[0][0], 8)


def test_a_pipeline_refuses_it():
    schedule = fdg(2)._replace(delays=(3, 0))
    with pytest.raises(BadInput, match=r"stage k=1 has staleness 1 by the ticks and 3 by delays=\(3, 0\)"):
        pipeline(2, batches(1)[0], method=Method("mine", "", lambda K: schedule))


def test_the_command_draws_or_refuses_in_one_sentence(capsys):
    for words in ("--K 3", "--K 4 --method bp", "--ticks 2", "--method gpipe --micro-batches 3"):
        assert __main__.main(words.split()) == 0
        out = capsys.readouterr().out
        assert "k=1" in out and "staleness" in out and "delay" in out
    assert __main__.main(["--K", "2", "--accumulate", "50"]) == 0  # rare updates are shown, too
    assert re.search(r"k=1 +2 +1 +t=52 [\s\S]*k=2 +0 +0 +t=51 ", capsys.readouterr().out)
    for words, fact in (
        ("--K 0", "K=0"), ("--method fgd", "fdg"), ("--ticks 0", "--ticks 0"),
        ("--method bp --order forward-first", "no such option"), ("--K 1000", "unreadable. Use --K 100 or less"),
        ("--measured runs.json", "belongs to the explorer"), ("--ticks 3 --html page.html", "the explorer ignores it"),
    ):  # fmt: skip
        assert __main__.main(words.split()) == 2
        err = capsys.readouterr().err
        assert fact in err and len(err.strip().splitlines()) == 1


# Lateness


OPTIONS = {"order": ("backward-first", "forward-first"), "accumulate": (1, 2, 3, 7), "accumulation": ("sum", "mean")}


def ways(name):
    """Every combination of a method's options that its staleness depends on."""
    own = [option for option in ("order", "accumulate") if option in methods.find(name).schedule_options]
    return [dict(zip(own, values, strict=True)) for values in product(*(OPTIONS[option] for option in own))]


@pytest.mark.parametrize("name", methods.names())
def test_the_updates_that_every_gradient_is_late_are_those_that_a_run_counts(name):
    for K, asked in product((1, 2, 3, 5), ways(name)):
        schedule = methods.find(name).schedule(K, **asked)
        n = 6 * K + 3 * schedule.accumulate
        for k, counted in enumerate(trace_run(schedule, n).staleness, 1):
            assert counted == [schedule.updates_late(k, batch) for batch in range(1, n * schedule.micro_batches + 1)]
            assert max(counted) == schedule.staleness[k - 1]
            full = slice(schedule.delays[k - 1], schedule.delays[k - 1] + schedule.accumulate)  # of a full pipeline
            assert sum(counted[full]) / schedule.accumulate == pytest.approx(schedule.mean_staleness[k - 1])


# Every other method and both orders: tests/test_methods.py and tests/test_engines.py.
@pytest.mark.parametrize("asked", [
    {"method": "fdg", "accumulate": 2},
    pytest.param({"method": "fdg", "accumulate": 3, "order": "forward-first"}, marks=pytest.mark.slow),
    pytest.param({"method": "fdg", "accumulate": 2, "engine": "scan"}, marks=pytest.mark.slow),
], ids=str)  # fmt: skip
def test_the_engines_measure_what_the_schedule_says(asked):
    data = batches(14)
    made = pipeline(3, data[0], **asked)
    for batch in data:
        made.step(batch)
    assert made.staleness == list(made.schedule.staleness)
