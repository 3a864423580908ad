"""Tables 1 and 2 are derived; here they are compared with the printed ones, as exact fractions."""

import re
from fractions import Fraction

import pytest

from fdg_jax import methods
from fdg_jax.errors import ScheduleError
from fdg_jax.methods import __main__ as command
from fdg_jax.methods.fdg import fdg
from fdg_jax.schedule import Op
from fdg_jax.schedule.ideal import ZERO, Locks, Time, formula, free_time, locks, tick_time
from fdg_jax.schedule.running import validate

# The paper's Table 2 as printed, and its Table 1.
PRINTED = {
    "bp": "Tf + Tb",
    "ddg": "Tf + Tb/K",
    "fr": "Tf + (Tf+Tb)/K",
    "dni": "(Tf+Tb)/K + Taux",
    "dgl": "(Tf+Tb)/K + Taux",
    "fdg": "(Tf+Tb)/K",
}
LOCKINGS = {"ddg": True, "fr": True, "dni": False, "dgl": False, "fdg": False}


def read(text, K=1):
    """The coefficients of a formula such as 2(Tf+Tb)/3 + Taux."""
    total = ZERO
    for words in text.split(" + "):
        found = re.fullmatch(r"(\d*)(?:\((.*)\)|(T\w+))(?:/(\w+))?", words)
        assert found, words
        below = K if found[4] == "K" else int(found[4] or 1)
        for part in (found[2] or found[3]).split("+"):
            factor, name = re.fullmatch(r"(\d*)(T\w+)", part).groups()
            share = Fraction(int(found[1] or 1) * int(factor or 1), below)
            total = total.plus(ZERO._replace(**{name: share}))
    return total


def of(name, K, **options):
    method = methods.find(name)
    return method.schedule(K, **options), method.costs(K)


def three(Tf, Tb, Taux=0):
    return Time(*map(Fraction, (Tf, Tb, Taux)))


def test_tables_1_and_2_are_the_printed_ones():
    """The third number of a lock is the update's; a batch's time is also that without a barrier, but for DDG and FR."""
    locked = {"bp": (1, 1, 1), "scaled_bp": (1, 1, 1), "fa": (1, 1, 1), "gpipe": (1, 1, 1), "data_parallel": (1, 1, 1),
              "ddg": (1, 0, 0), "fr": (1, 0, 0), "dfa": (1, 0, 1),
              "fdg": (0, 0, 0), "dni": (0, 0, 0), "dgl": (0, 0, 0)}  # fmt: skip
    free = {"ddg": "(Tf+Tb)/K", "fr": "(2Tf+Tb)/K"}
    for K in (2, 3, 4):
        for name, text in PRINTED.items():
            assert tick_time(*of(name, K)) == read(text, K)
            assert formula(tick_time(*of(name, K))) == text.replace("K", str(K))
        for name, three_locks in locked.items():
            schedule, cost = of(name, K)
            assert locks(schedule)[:3] == three_locks
            assert name not in LOCKINGS or locks(schedule).waits is LOCKINGS[name]
            assert free_time(schedule, cost) == (read(free[name], K) if name in free else tick_time(schedule, cost))
        assert tick_time(*of("data_parallel", K)) == read("(Tf+Tb)/K", K)
        for M in (1, 2, 9):  # GPipe's bubble
            share = Fraction(M + K - 1, M * K)
            assert tick_time(*of("gpipe", K, micro_batches=M)) == three(share, share)
        for options in ({"order": "forward-first"}, {"accumulate": 3}):
            assert tick_time(*of("fdg", K, **options)) == free_time(*of("fdg", K, **options)) == read("(Tf+Tb)/K", K)


def test_the_command_prints_both_tables_and_the_memory_of_corrections(capsys):
    assert command.main(["--K", "3", "--model", "resnet8"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^fdg +- +- +- +No +No +0 +4 +3 1 0 +3$", shown, re.MULTILINE)
    assert re.search(r"^fr +Tf \+ \(Tf\+Tb\)/3 +1\.50 +\(2Tf\+Tb\)/3 +2\.25$", shown, re.MULTILINE)
    assert re.search(r"^dc_asgd ", shown, re.MULTILINE) and "resnet8 itself has 75,290 parameters" in shown


def test_a_single_stage_is_never_locked_and_is_as_fast_as_bp():
    for name in methods.names():
        schedule, cost = of(name, 1)
        assert locks(schedule) == Locks(False, False, False, False)
        expected = three(2, 1) if name in ("fr", "replay") else three(1, 1)  # FR goes forward again even here
        assert tick_time(schedule, cost) == free_time(schedule, cost) == expected


def test_formulas_read_as_the_paper_prints_them_and_say_what_their_coefficients_say():
    for time, text in (
        ((1, 1), "Tf + Tb"), ((Fraction(4, 3), Fraction(1, 3)), "Tf + (Tf+Tb)/3"), ((0, 0), "0"), ((2, 1), "2Tf + Tb"),
        ((Fraction(5, 8), Fraction(5, 8)), "5(Tf+Tb)/8"), ((1, Fraction(1, 4)), "Tf + Tb/4"),
        ((0, Fraction(2, 3), 2), "2Tb/3 + 2Taux"), ((0, 0, 1), "Taux"),
        ((Fraction(1, 2), Fraction(4, 3)), "Tb + (3Tf+2Tb)/6"),
    ):  # fmt: skip
        assert formula(three(*time)) == text
        assert text == "0" or read(text) == three(*time)


def test_a_schedule_that_was_locked_on_purpose_is_found_locked():
    """FDG with its stages' ticks drawn together: F of batch t passes all stages in tick t, like DDG's."""
    K = 3

    def tick(t, last):
        ops = [Op("F", k, t) for k in range(1, K + 1)] + [Op("B", k, t - (2 * K - 2 * k)) for k in range(1, K + 1)]
        return tuple(op for op in ops if op.batch >= 1 and (last is None or op.batch <= last))

    delays = tuple(2 * (K - k) for k in range(1, K + 1))
    drawn_together = fdg(K)._replace(tick=tick, delays=delays)
    validate(drawn_together, 4 * K)
    assert locks(drawn_together) == Locks(True, False, False, True)
    assert tick_time(drawn_together, methods.find("fdg").cost) == read("Tf + Tb/K", K)


def test_a_schedule_without_a_steady_state_has_no_time_per_batch():
    doubled = fdg(2)._replace(tick=lambda t, last: fdg(2).tick(t - t % 2, last))  # every other tick does its work twice
    with pytest.raises(ScheduleError, match="ticks 10 and 11 differ, so the time per batch is not constant"):
        locks(doubled)
