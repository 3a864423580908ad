"""The simulator against what must be so: ideal times, bounds of links and hosts, memory's counts."""

import time
from fractions import Fraction
from itertools import pairwise

import pytest

from fdg_jax import methods
from fdg_jax.errors import BadInput
from fdg_jax.schedule import Op, ideal
from fdg_jax.schedule.simulator import Link, Machine, predict


def even(name, K, **options):
    """A schedule, and the machine with which `ideal` reckons: Tf = 1, Tb = 2, Taux = 1/10, as fractions."""
    method = methods.find(name)
    schedule, cost = method.schedule(K, **options), method.costs(K)
    taken = ideal.duration(schedule, cost)
    known = {(kind, k): taken(Op(kind, k, 1)).at(ideal.LENGTHS) for kind in cost for k in range(1, K + 1)}
    return schedule, Machine(lambda kind, k: known.get((kind, k), 0), spread=method.places is not None)


def given(**seconds):
    """A machine of stages that are alike."""
    return Machine(lambda kind, k: Fraction(seconds.get(kind, 0)))


@pytest.mark.parametrize("K", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("name", methods.names())
def test_without_links_and_with_even_stages_it_is_the_ideal_time_exactly(name, K):
    schedule, machine = even(name, K)
    expected = ideal.free_time(schedule, methods.find(name).costs(K)).at(ideal.LENGTHS)
    assert predict(schedule, machine).seconds == expected


@pytest.mark.parametrize("M", [1, 2, 8])
def test_gpipes_bubble_is_the_known_one(M):
    schedule, machine = even("gpipe", 4, micro_batches=M)
    assert predict(schedule, machine).bubble == Fraction(3, M + 3)


@pytest.mark.parametrize("name", ["bp", "fdg", "ddg", "fr", "dgl", "dni", "dfa"])
def test_utilisation_is_the_work_over_the_time(name):
    schedule, machine = even(name, 3)
    found, kinds = predict(schedule, machine), methods.find(name).costs(3)
    work = [sum(machine.seconds(kind, k) for kind in kinds if k < 3 or kind != "S") for k in (1, 2, 3)]
    assert found.utilisation == [each / found.seconds for each in work]
    assert found.bubble == 1 - sum(found.utilisation) / 3


def test_the_slowest_stage_sets_the_pace_and_is_named():
    machine = Machine(lambda kind, k: Fraction({"F": 1, "B": 2}.get(kind, 0)) * (5 if k == 2 else 1))
    found = predict(methods.find("fdg").schedule(3), machine)
    assert (found.seconds, found.limiting) == (15, "stage")
    assert found.utilisation == [Fraction(3, 15), 1, Fraction(3, 15)]


def test_stages_on_the_same_devices_take_turns_also_with_their_updates():
    machine = given(F=1, B=2, U=1)._replace(spread=True, cores=2)
    found = predict(methods.find("data_parallel").schedule(2), machine)
    assert (found.seconds, found.utilisation, found.bubble) == (8, [1, 1], 0)


def test_the_update_takes_its_time_once_every_M_backward_passes():
    schedules = [methods.find("fdg").schedule(2, accumulate=M) for M in (1, 3)]
    every, third = (predict(schedule, given(F=1, B=2, U=3)) for schedule in schedules)
    assert (every.seconds, third.seconds) == (6, 4)


def test_latency_delays_a_message_and_does_not_occupy_the_link():
    machine = given(F=1, B=2)._replace(size=lambda box, op: 1, link=Link(100, Fraction(1, 10)))
    assert predict(methods.find("dgl").schedule(2), machine).seconds == 3
    assert predict(methods.find("bp").schedule(2), machine).seconds == 6 + 2 * (100 + Fraction(1, 10))


def test_copies_that_do_not_overlap_take_the_senders_time():
    link = Link(Fraction(1, 4), Fraction(1, 4))
    beside = given(F=1, B=2)._replace(size=lambda box, op: 1, link=link)
    instead = beside._replace(link=link._replace(overlaps=False))
    schedule = methods.find("dgl").schedule(3)
    assert predict(schedule, beside).seconds == 3
    found = predict(schedule, instead)
    assert found.seconds == 3 + Fraction(1, 2)
    assert found.utilisation == [1, 1, 3 / found.seconds]  # stage K sends nothing


def test_a_slow_host_bounds_batches_by_its_dispatches():
    machine = given(F=1, B=2)._replace(host_seconds=lambda kind, k: {"F": 2, "B": 3, "U": 1, "send": 0}[kind])
    found = predict(methods.find("fdg").schedule(2), machine)
    assert (found.seconds, found.limiting) == (2 * (2 + 3 + 1), "host")


@pytest.mark.parametrize("run_ahead", [1, 4])
def test_a_host_that_reads_losses_stays_so_many_batches_ahead(run_ahead):
    found = predict(methods.find("fdg").schedule(2), given(F=1, B=2)._replace(run_ahead=run_ahead))
    assert found.seconds == 3  # two stages need no more than that to be kept busy
    end = {event.batch: event.end for event in found.events if (event.what, event.k) == ("F", 2)}
    asked: dict[int, Fraction] = {}
    for event in found.events:
        if (event.what, event.k) == ("host", 1):
            asked.setdefault(event.batch, event.end)  # of F, the first that is done with a batch
    # At tick b-1 the loss of batch b-2 is the newest, and the host waits for the one `run_ahead` before it.
    assert [asked[b] for b in range(8, 20)] == [end[b - 2 - run_ahead] for b in range(8, 20)]


def test_stages_that_share_a_core_take_turns_at_half_the_speed():
    schedule = methods.find("fdg").schedule(2)
    assert predict(schedule, given(F=1, B=2)._replace(cores=1)).seconds == 6
    assert predict(schedule, given(F=1, B=2)._replace(cores=2)).seconds == 3


def test_an_operation_that_has_all_cores_to_itself_is_as_much_faster_as_was_measured():
    shared = given(F=Fraction(1), B=Fraction(2))._replace(cores=2, alone=lambda kind, k: Fraction(3, 2))
    assert predict(methods.find("bp").schedule(2), shared).seconds == 4  # one at a time: 6 / 1.5
    uneven = Machine(lambda kind, k: Fraction({"F": 1, "B": 2}.get(kind, 0)) * k, cores=2, alone=shared.alone)
    # Of 6 s stage 1 computes for 3 beside stage 2, which has the cores to itself for the rest: 3 + 3 / 1.5.
    assert predict(methods.find("fdg").schedule(2), uneven).seconds == 5


def test_nothing_begins_before_its_messages_and_its_stage_are_there():
    machine = given(F=1, B=2)._replace(size=lambda box, op: 1, link=Link(1, 2))
    schedule = methods.find("fdg").schedule(3)
    found = predict(schedule, machine)
    at = {(event.what, event.k, event.batch): event for event in found.events if event.what in "FB"}
    for (what, k, batch), event in at.items():
        if (what, k) == ("F", 2):
            assert event.begin >= at["F", 1, batch].end + 1 + 2
        if (what, k) == ("B", 2):
            assert event.begin >= at["B", 3, batch].end + 1 + 2
    for k in (1, 2, 3):
        own = sorted((e.begin, e.end) for e in found.events if e.k == k and e.what in "FB")
        assert all(a[1] <= b[0] for a, b in pairwise(own))


def test_sixty_four_stages_take_a_second_or_two():
    machine = Machine(lambda kind, k: {"F": 1 / 64, "B": 2 / 64}.get(kind, 0.0))
    begun = time.process_time()
    found = predict(methods.find("fdg").schedule(64), machine)
    assert found.seconds == pytest.approx(3 / 64, rel=1e-9)  # sums of floats
    assert time.process_time() - begun < 4  # 0.3 s on a quiet core; room for one that is not


@pytest.mark.parametrize("name", ["fdg", "ddg", "fr", "bp", "dgl", "dni"])
@pytest.mark.parametrize("K", [2, 4])
def test_a_stage_keeps_as_many_batches_as_the_schedule_says(name, K):
    expected = {"fdg": [2 * (K - k) or 1 for k in range(1, K + 1)], "ddg": [K - k + 1 for k in range(1, K + 1)]}
    expected["fr"] = expected["ddg"]
    schedule, machine = even(name, K)
    slow = machine._replace(size=lambda box, op: 1, link=Link(0, Fraction(1, 7)))
    for each in (machine, slow):  # a matter of the order of operations, not of time
        assert predict(schedule, each).kept == expected.get(name, [1] * K)


@pytest.mark.parametrize(("link", "word"), [(Link(-1, 0), "negative"), (Link(0, -1), "negative")])
def test_negative_numbers_are_refused(link, word):
    with pytest.raises(BadInput, match=word):
        predict(methods.find("fdg").schedule(2), given(F=1, B=2)._replace(link=link))
    with pytest.raises(BadInput, match="B of stage k=1"):
        predict(methods.find("fdg").schedule(2), given(F=1, B=-2))
