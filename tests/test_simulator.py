"""The simulator against what must be so: ideal times, closed forms of links and hosts, in exact fractions.

FDG's stages wait in loops. A batch goes forward through stages i to j and its gradient comes back, and then stage i
begins another batch. With Tk = Fk + Bk and c the time of a message (its bytes over the bandwidth, and the latency) such
a loop takes Ti + ... + Tj and the c of all its messages. It spans 2(j-i) + 1 ticks, but only 2(j-i) if j = K and
backward passes come first: then stage i < K turns round within a tick, and so does stage K in either order. The time of
a tick is that of the slowest loop, stage or link.
"""

from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdg_jax import methods
from fdg_jax.schedule import Op, ideal
from fdg_jax.schedule.simulator import NO_LINK, Link, Machine, predict


def even(name, K, **options):
    """A schedule, and the machine with which `ideal` reckons: Tf = 1, Tb = 2, Taux = 1/10, as fractions."""
    method = methods.find(name)
    schedule, cost = method.schedule(K, **options), method.costs(K)
    taken = ideal.duration(schedule, cost)
    known = {(kind, k): taken(Op(kind, k, 1)).at(ideal.LENGTHS) for kind in cost for k in range(1, K + 1)}
    return schedule, Machine(lambda kind, k: known.get((kind, k), 0), spread=method.places is not None)


def stages(**seconds):
    """A machine of stages that are alike."""
    return Machine(lambda kind, k: Fraction(seconds.get(kind, 0)))


def test_a_stage_of_several_devices_takes_its_part_of_the_time_and_sums_its_gradients_over_a_ring():
    seconds = {"F": 8, "B": 16, "U": 1}
    one = Machine(lambda kind, k: Fraction(seconds.get(kind, 0)), lambda address, op: Fraction(12))
    ours = one.replicated([4, 1], [6, 6], Link(Fraction(1, 2), Fraction(1, 3)))
    assert [ours.seconds(kind, 1) for kind in "FBU"] == [2, 4 + 6 * (Fraction(6, 12) + Fraction(1, 2)), 1]
    assert [ours.seconds(kind, 2) for kind in "FBU"] == [8, 16, 1]
    # Where all that is sent is free, R devices of both stages make a tick 1/R as long, but for the update.
    assert predict(methods.find("fdg").schedule(2), one.replicated([2, 2], [0, 0], Link())).seconds == 12 + 1


def test_without_links_and_with_even_stages_it_is_the_ideal_time_exactly():
    for name in methods.names():
        for K in (1, 2, 3, 7):
            schedule, machine = even(name, K)
            kinds, Ks = methods.find(name).costs(K), range(1, K + 1)
            found = predict(schedule, machine)
            assert found.seconds == ideal.free_time(schedule, kinds).at(ideal.LENGTHS)
            if name in ("bp", "fdg", "ddg", "fr", "dgl", "dni", "dfa"):
                work = [sum(machine.seconds(kind, k) for kind in kinds if k < K or kind != "S") for k in Ks]
                assert found.utilisation == [each / found.seconds for each in work]
                assert found.bubble == 1 - sum(found.utilisation) / K
    schedule, machine = even("gpipe", 4, micro_batches=8)
    assert predict(schedule, machine).bubble == Fraction(3, 8 + 3)


def test_a_stage_keeps_as_many_batches_as_the_schedule_says():
    K = 4
    expected = {"fdg": [6, 4, 2, 1], "ddg": [4, 3, 2, 1], "fr": [4, 3, 2, 1]}
    for name in ("fdg", "ddg", "fr", "bp", "dgl", "dni"):
        schedule, machine = even(name, K)
        slow = machine._replace(size=lambda address, op: 1, link=Link(0, Fraction(1, 7)))
        for each in (machine, slow):  # a matter of the order of operations, not of time
            assert predict(schedule, each).kept == expected.get(name, [1] * K)


def test_the_slowest_stage_sets_the_pace_and_is_named():
    machine = Machine(lambda kind, k: Fraction({"F": 1, "B": 2}.get(kind, 0)) * (5 if k == 2 else 1))
    found = predict(methods.find("fdg").schedule(3), machine)
    assert (found.seconds, found.limiting) == (15, "stage")
    assert found.utilisation == [Fraction(3, 15), 1, Fraction(3, 15)]


def test_stages_on_the_same_devices_take_turns_also_with_their_updates():
    machine = stages(F=1, B=2, U=1)._replace(spread=True, cores=2)
    found = predict(methods.find("data_parallel").schedule(2), machine)
    assert (found.seconds, found.utilisation, found.bubble) == (8, [1, 1], 0)


def test_the_update_takes_its_time_once_every_M_backward_passes():
    schedules = [methods.find("fdg").schedule(2, accumulate=M) for M in (1, 3)]
    every, third = (predict(schedule, stages(F=1, B=2, U=3)) for schedule in schedules)
    assert (every.seconds, third.seconds) == (6, 4)


def test_copies_that_do_not_overlap_take_the_senders_time():
    link = Link(Fraction(1, 4), Fraction(1, 4))
    beside = stages(F=1, B=2)._replace(size=lambda address, op: 1, link=link)
    instead = beside._replace(link=link._replace(overlaps=False))
    schedule = methods.find("dgl").schedule(3)
    assert predict(schedule, beside).seconds == 3
    found = predict(schedule, instead)
    assert found.seconds == 3 + Fraction(1, 2)
    assert found.utilisation == [1, 1, 3 / found.seconds]  # stage K sends nothing


def test_a_slow_host_bounds_batches_by_its_dispatches():
    machine = stages(F=1, B=2)._replace(host_seconds=lambda kind, k: {"F": 2, "B": 3, "U": 1, "send": 0}[kind])
    found = predict(methods.find("fdg").schedule(2), machine)
    assert (found.seconds, found.limiting) == (2 * (2 + 3 + 1), "host")


def test_stages_that_share_a_core_take_turns_and_one_that_has_all_cores_is_as_much_faster_as_was_measured():
    assert predict(methods.find("fdg").schedule(2), stages(F=1, B=2)._replace(cores=1)).seconds == 6
    shared = stages(F=Fraction(1), B=Fraction(2))._replace(cores=2, alone=lambda kind, k: Fraction(3, 2))
    assert predict(methods.find("bp").schedule(2), shared).seconds == 4  # one at a time: 6 / 1.5
    uneven = Machine(lambda kind, k: Fraction({"F": 1, "B": 2}.get(kind, 0)) * k, cores=2, alone=shared.alone)
    # Of 6 s stage 1 computes for 3 beside stage 2, which has the cores to itself for the rest: 3 + 3 / 1.5.
    assert predict(methods.find("fdg").schedule(2), uneven).seconds == 5


# Links and processes

ORDERS = ("backward-first", "forward-first")
WHOLE = st.integers(0, 6)


def alike(**given):
    """A machine of stages with F = 1 and B = 2, messages of 1 byte."""
    seconds = {"F": Fraction(1), "B": Fraction(2)}
    return Machine(lambda kind, k: seconds.get(kind, Fraction(0)), lambda address, op: 1, **given)


def fdg(K, order=ORDERS[0]):
    return methods.find("fdg").schedule(K, order=order)


def slowest_loop(order, stages, boundaries):
    """The closed form. stages: (F, B) of each; boundaries: (latency, seconds a byte, bytes up, bytes down) of each."""
    K = len(stages)
    carried = [slow * size for _, slow, up, down in boundaries for size in (up, down)]
    times = [*map(sum, stages), *carried]
    for i, j in combinations(range(1, K + 1), 2):
        messages = sum(2 * latency + slow * (up + down) for latency, slow, up, down in boundaries[i - 1 : j - 1])
        ticks = 2 * (j - i) + (0 if (j, order) == (K, "backward-first") else 1)
        times.append(Fraction(sum(map(sum, stages[i - 1 : j])) + messages, ticks))
    return max(times)


def machine_of(stages, boundaries):
    """The machine of `slowest_loop`."""
    sizes = {("x", k + 1): up for k, (_, _, up, _) in enumerate(boundaries, 1)}
    sizes |= {("dy", k): down for k, (_, _, _, down) in enumerate(boundaries, 1)}
    return Machine(
        lambda kind, k: Fraction(stages[k - 1]["FB".index(kind)]) if kind in "FB" else Fraction(0),
        lambda address, op: sizes[address.what, address.k],
        [Link(latency, slow) for latency, slow, _, _ in boundaries],
    )


@st.composite
def pipelines(draw):
    """(stages, boundaries) of a pipeline."""
    K = draw(st.integers(2, 4))
    stages = draw(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=K, max_size=K))
    boundary = st.tuples(st.integers(0, 12), st.fractions(0, 2, max_denominator=2), WHOLE, WHOLE)
    return stages, draw(st.lists(boundary, min_size=K - 1, max_size=K - 1))


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
@settings(deadline=None, max_examples=30)  # a busy machine is no failure
@given(pipelines())
def test_fdgs_tick_is_that_of_the_slowest_loop_stage_or_link(order, pipeline):
    K, machine, expected = len(pipeline[0]), machine_of(*pipeline), slowest_loop(order, *pipeline)
    assert predict(fdg(K, order), machine).seconds == expected
    # Losses come back sooner than gradients, unless a process may run ahead by less than K - 1 of them.
    apart = machine._replace(processes=range(K), run_ahead=K - 1)
    assert predict(fdg(K, order), apart).seconds == expected


def test_a_message_that_skips_stages_goes_over_the_slowest_link_on_its_way():
    machine = alike(link=(Link(5, 1), Link(2, 3), Link(1, 1, overlaps=False)))
    assert machine.between(2, 1) == Link(5, 1)
    assert machine.between(1, 3) == machine.between(3, 1) == Link(5, 3)
    assert machine.between(4, 1) == Link(5, 3, overlaps=False)
    assert machine.between(2, 2) == NO_LINK
    sent = predict(methods.find("dfa").schedule(4), machine._replace(run_ahead=2)).events
    took = {(e.k, e.to): e.end - e.begin for e in sent if e.what == "send"}
    assert took == {(1, 2): 1, (2, 3): 3, (3, 4): 2, (4, 1): 8, (4, 2): 5, (4, 3): 2}


def test_each_process_dispatches_its_own_stages():
    machine = alike(host_seconds=lambda kind, k: {"F": 2, "B": 3, "U": 1, "send": 0}[kind] * k)
    found = [predict(fdg(3), machine._replace(processes=processes)) for processes in ((), (0, 0, 1), (0, 1, 2))]
    assert [each.seconds for each in found] == [36, 18, 18]
    assert [each.limits["host"] for each in found] == [36, 18, 18]


NAMES, FACTORS = st.sampled_from(methods.names()), st.fractions(Fraction(1, 9), 9, max_denominator=9)
