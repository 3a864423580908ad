"""Links and processes in the simulator, against closed forms in exact fractions.

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
from fdg_jax.errors import BadInput
from fdg_jax.schedule.simulator import NO_LINK, Link, Machine, predict

ORDERS = ("backward-first", "forward-first")
WHOLE = st.integers(0, 6)


def alike(**given):
    """A machine of stages with F = 1 and B = 2, messages of 1 byte."""
    seconds = {"F": Fraction(1), "B": Fraction(2)}
    return Machine(lambda kind, k: seconds.get(kind, Fraction(0)), lambda box, op: 1, **given)


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
        lambda box, op: sizes[box.what, box.k],
        [Link(latency, slow) for latency, slow, _, _ in boundaries],
    )


@st.composite
def pipelines(draw):
    """(stages, boundaries) of a pipeline."""
    K = draw(st.integers(2, 4))
    stages = draw(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=K, max_size=K))
    boundary = st.tuples(st.integers(0, 12), st.fractions(0, 2, max_denominator=2), WHOLE, WHOLE)
    return stages, draw(st.lists(boundary, min_size=K - 1, max_size=K - 1))


@pytest.mark.parametrize("order", ORDERS)
@settings(deadline=None, max_examples=30)  # a busy machine is no failure
@given(pipelines())
def test_fdgs_tick_is_that_of_the_slowest_loop_stage_or_link(order, pipeline):
    K, machine, expected = len(pipeline[0]), machine_of(*pipeline), slowest_loop(order, *pipeline)
    assert predict(fdg(K, order), machine).seconds == expected
    # Losses come back sooner than gradients, unless a process may run ahead by less than K - 1 of them.
    apart = machine._replace(processes=range(K), run_ahead=K - 1)
    assert predict(fdg(K, order), apart).seconds == expected


@pytest.mark.parametrize("K", [2, 3, 4])
def test_forward_first_hides_messages_of_half_a_tick_and_backward_first_none_of_the_last_boundary(K):
    half = Fraction(3, 2)
    for c in (half - 1, half, half + 1):
        times = [predict(fdg(K, order), alike(link=Link(c - Fraction(1, 5), Fraction(1, 5)))) for order in ORDERS]
        assert times[0].seconds == 3 + c
        assert times[1].seconds == max(3, (3 * K + 2 * (K - 1) * c) / (2 * K - 1))
        assert times[1].limiting == ("stage" if c <= half else "waiting")


@pytest.mark.parametrize("order", ORDERS)
def test_other_boundaries_hide_messages_of_half_a_tick_in_both_orders(order):
    """So where two processes share three stages, the network had better not be in front of the last one."""
    for c in (Fraction(3, 2), Fraction(2)):
        found = predict(fdg(3, order), alike(link=(Link(c), NO_LINK)))
        assert found.seconds == max(3, Fraction(6 + 2 * c, 3))
        assert found.limiting == ("stage" if found.seconds == 3 else "waiting")


@pytest.mark.parametrize("K", [2, 3, 4])
def test_a_message_costs_pipedream_more_than_fdg_but_for_two_stages_backward_first(K):
    """docs/corrections.md: what a staleness twice as large buys. Without messages all three are as fast."""
    for c in map(Fraction, ("0", "1/2", "3/2", "2")):
        schedules = methods.find("ddg").schedule(K), fdg(K), fdg(K, ORDERS[1])
        pipedream, backward_first, forward_first = (predict(each, alike(link=Link(c))).seconds for each in schedules)
        assert pipedream == 3 + 2 * c * Fraction(K - 1, K)
        assert backward_first == 3 + c
        assert (forward_first == 3) is (c <= Fraction(3, 2))
        if c:
            assert pipedream > forward_first and (pipedream > backward_first) is (K > 2)


@pytest.mark.parametrize(("name", "options"), [("fdg", {"order": "forward-first"}), ("dgl", {})])
def test_a_tick_over_a_slow_link_is_bytes_over_bandwidth(name, options):
    found = predict(methods.find(name).schedule(2, **options), alike(link=Link(0, Fraction(7))))
    assert (found.seconds, found.limiting, found.links[1, 2]) == (7, "link", 1)


def test_a_links_share_is_of_the_bytes_of_its_own_direction():
    up_and_down = alike(link=Link(Fraction(5), Fraction(1, 4)))._replace(
        size=lambda box, op: 2 if box.what == "x" else 1
    )
    found = predict(fdg(2), up_and_down)
    assert found.seconds == (6 + 2 * 5 + Fraction(3, 4)) / 2
    assert found.links == {(1, 2): Fraction(1, 2) / found.seconds, (2, 1): Fraction(1, 4) / found.seconds}
    copied = predict(fdg(2), up_and_down._replace(link=Link(Fraction(5), Fraction(1, 4), overlaps=False)))
    assert copied.links == {(1, 2): Fraction(1, 2) / copied.seconds, (2, 1): Fraction(1, 4) / copied.seconds}


@pytest.mark.parametrize("name", methods.names())
def test_links_that_take_no_time_and_processes_change_nothing(name):
    schedule = methods.find(name).schedule(3)
    plain = alike(run_ahead=4, spread=methods.find(name).places is not None)
    assert (
        predict(schedule, plain._replace(link=[NO_LINK, NO_LINK], processes=(0, 1, 1)))[:6]
        == predict(schedule, plain)[:6]
    )
    assert (
        predict(schedule, plain._replace(link=[Link(1, 2)] * 2))[:8]
        == predict(schedule, plain._replace(link=Link(1, 2)))[:8]
    )


def test_a_message_that_skips_stages_goes_over_the_slowest_link_on_its_way():
    machine = alike(link=(Link(5, 1), Link(2, 3), Link(1, 1, overlaps=False)))
    assert machine.between(2, 1) == Link(5, 1)
    assert machine.between(1, 3) == machine.between(3, 1) == Link(5, 3)
    assert machine.between(4, 1) == Link(5, 3, overlaps=False)
    assert machine.between(2, 2) == NO_LINK
    sent = predict(methods.find("dfa").schedule(4), machine._replace(run_ahead=2)).events
    took = {(e.k, e.to): e.end - e.begin for e in sent if e.what == "send"}
    assert took == {(1, 2): 1, (2, 3): 3, (3, 4): 2, (4, 1): 8, (4, 2): 5, (4, 3): 2}


@pytest.mark.parametrize("run_ahead", [1, 2, 5])
@pytest.mark.parametrize("c", [1, 20, 100])
def test_a_process_waits_for_losses_that_travel(run_ahead, c):
    """DGL waits for no gradient: only the losses tie stage 1 to stage 2. F1, x travels, F2, the loss travels, F1."""
    machine = alike(link=Link(Fraction(c)), run_ahead=run_ahead)
    schedule = methods.find("dgl").schedule(2)
    assert predict(schedule, machine).seconds == max(3, Fraction(2 + c, run_ahead + 2))
    apart = machine._replace(processes=(0, 1))
    assert predict(schedule, apart).seconds == max(3, Fraction(2 + 2 * c, run_ahead + 2))
    assert predict(fdg(2), apart).seconds == 3 + c  # FDG waits for its gradients longer than for any loss


def test_each_process_dispatches_its_own_stages():
    machine = alike(host_seconds=lambda kind, k: {"F": 2, "B": 3, "U": 1, "send": 0}[kind] * k)
    found = [predict(fdg(3), machine._replace(processes=processes)) for processes in ((), (0, 0, 1), (0, 1, 2))]
    assert [each.seconds for each in found] == [36, 18, 18]
    assert [each.limits["host"] for each in found] == [36, 18, 18]


NAMES = ("bp", "fdg", "ddg", "fr", "dgl", "dfa", "gpipe")


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=8)
@given(
    latency=WHOLE,
    slow=WHOLE,
    more=st.tuples(WHOLE, WHOLE),
    run_ahead=st.sampled_from([None, 1, 4]),
    apart=st.booleans(),
)
def test_more_latency_or_less_bandwidth_is_never_faster(name, latency, slow, more, run_ahead, apart):
    machine = alike(link=Link(latency, slow), run_ahead=run_ahead, processes=(0, 1, 1) if apart else ())
    slower = machine._replace(link=Link(latency + more[0], slow + more[1]))
    schedule = methods.find(name).schedule(3)
    assert predict(schedule, machine).seconds <= predict(schedule, slower).seconds


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=6)
@given(latency=WHOLE, slow=WHOLE, host=WHOLE, factor=st.fractions(Fraction(1, 9), 9, max_denominator=9))
def test_all_times_longer_by_a_factor_make_a_tick_longer_by_that_factor(name, latency, slow, host, factor):
    def machine(c):
        return alike(
            link=Link(c * latency, c * slow),
            run_ahead=2,
            processes=(0, 0, 1),
            host_seconds=lambda kind, k: c * host / 4,
        )._replace(seconds=lambda kind, k: c * {"F": 1, "B": 2}.get(kind, 0))

    one, scaled = (predict(methods.find(name).schedule(3), machine(c)) for c in (Fraction(1), factor))
    assert scaled.seconds == factor * one.seconds
    assert (scaled.utilisation, scaled.links, scaled.limiting) == (one.utilisation, one.links, one.limiting)


@pytest.mark.parametrize(
    ("changed", "fact"),
    [
        ({"link": [Link()]}, "1 links for K=3"),
        ({"link": [Link(), Link(float("nan"))]}, "nan s"),
        ({"link": [Link(), Link(0, -1)]}, "negative"),
        ({"processes": (0, 1)}, "2 stages for K=3"),
    ],
)
def test_links_and_processes_of_another_K_are_refused(changed, fact):
    with pytest.raises(BadInput, match=fact):
        predict(fdg(3), alike(**changed))
