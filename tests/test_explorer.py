"""The explorer's page holds what the schedules and the simulator say, for everything that can be chosen in it."""

import doctest
import json
import re
import xml.etree.ElementTree as ElementTree
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import explored
import numpy as np
import pytest

from fdg_jax import methods
from fdg_jax.explorer import choices, figure, page, tables, timeline
from fdg_jax.explorer.choices import Times, Variant
from fdg_jax.schedule import __main__ as command
from fdg_jax.schedule import ideal
from fdg_jax.schedule.running import trace_run
from fdg_jax.schedule.simulator import predict

VARIANTS = [variant for _, found in choices.everything() for variant in found]
MEASURED = Path(__file__).resolve().parent.parent / "benchmarks" / "results" / "timeline.json"


@pytest.fixture(scope="module")
def data():
    """What the page gets, after its way through JSON. It takes seconds."""
    return json.loads(json.dumps(tables.tables()))


# What the page holds


def test_the_page_has_every_method_with_every_option_that_changes_its_schedule():
    found = {method.name: choices.choosable(method) for method, _ in choices.everything()}
    assert list(found) == methods.names()
    orders = ("backward-first", "forward-first")
    assert {name: options for name, options in found.items() if options} == {
        "ddg": {"accumulate": (1, 2, 3, 4)},
        "fdg": {"order": orders, "accumulate": (1, 2, 3, 4)},
        "gpipe": {"micro_batches": (1, 2, 4, 8)},
    }
    assert len({variant.key for variant in VARIANTS}) == len(VARIANTS) == len(found) - 3 + 2 * 4 + 4 + 4


@pytest.mark.slow
def test_operations_versions_and_updates_are_those_of_a_run_on_integers(data):
    """For every method, option and K."""
    assert len(data["schedules"]) == len(VARIANTS) * 8
    for variant in VARIANTS:
        for K in choices.STAGES:
            schedule, key = variant.schedule(K), f"{variant.key} {K}"
            batches = choices.ticks_shown(schedule) + 2 * K
            ran, passes = trace_run(schedule, batches), [0] * K
            wanted: list[list[tuple[str, int, int, bool]]] = [[] for _ in range(K)]
            for op, tick in ran.tick.items():  # in the order in which they were done
                if tick <= choices.ticks_shown(schedule):
                    passes[op.k - 1] += op.kind == "B"
                    updates = op.kind == "B" and passes[op.k - 1] % schedule.accumulate == 0
                    wanted[op.k - 1].append((op.kind, op.batch, ran.version[op], updates))
            assert explored.operations(data, key) == wanted, key
            told = data["schedules"][key]
            assert tuple(told["staleness"]) == schedule.staleness and tuple(told["stashes"]) == ran.stashes


def check_times(data, asked: list[tuple[Variant, int, Times]]) -> None:
    """Fails unless the page's simulation gives the simulator's times."""
    found = explored.timed(data, [(f"{variant.key} {K}", at) for variant, K, at in asked])
    for (variant, K, at), made in zip(asked, found, strict=True):
        schedule = variant.schedule(K)
        shown = timeline.timeline(schedule, variant.method, at)
        wanted = sorted((op.k, op.begin, op.end, op.kind, op.batch) for op in shown)
        assert sorted((op["k"], op["begin"], op["end"], op["kind"], op["batch"]) for op in made["ops"]) == [
            (k, float(begin), float(end), *which) for k, begin, end, *which in wanted
        ], (variant.key, K, at)
        # Updates take no time here, and the simulator averages over few ticks where it must count whole accumulations.
        alike = schedule._replace(accumulate=1)
        simulated = predict(alike, timeline.machine_at(schedule, variant.method, at))
        per = timeline.unit(schedule, variant.method.costs(K))
        assert made["seconds"] == pytest.approx(simulated.seconds / per), (variant.key, K, at)
        assert made["busy"] == pytest.approx(simulated.utilisation), (variant.key, K, at)


@pytest.mark.slow
@pytest.mark.parametrize("K", choices.STAGES)
def test_times_are_the_simulators_for_every_choice_up_to_2_stages_and_for_many_beyond(data, K):
    asked = list(explored.times(K))[:: 1 if K <= 2 else 37]
    check_times(data, [(variant, K, at) for variant in VARIANTS for at in asked])


@pytest.mark.slow
def test_a_barrier_between_ticks_costs_what_the_papers_table_2_says(data):
    K, lengths = 3, ideal.Time(Fraction(3), Fraction(6), Fraction(1, 2))
    for variant in VARIANTS:
        told, schedule = data["schedules"][f"{variant.key} {K}"], variant.schedule(K)
        assert told["waits"] == ideal.locks(schedule).waits
        free = ideal.free_time(schedule, variant.method.costs(K), lengths).at(lengths)
        assert told["barrier"][1] >= float(free) - 1e-9  # of floats; a barrier makes nothing faster
        assert told["waits"] or told["barrier"][1] == pytest.approx(float(free))
    # DDG, K = 3, backward passes of 2: a tick is three forward passes and one backward pass, 1.8 times BP's 9.
    assert data["schedules"]["ddg,1 3"]["barrier"][1] == 5 and data["schedules"]["bp 3"]["barrier"][1] == 9
    assert data["schedules"]["fdg,backward-first,1 3"]["barrier"][1] == 3


@pytest.mark.slow
def test_methods_whose_gradients_are_not_bps_are_named(data):
    found = {method["name"]: method for method in data["methods"]}
    others = {name: method["bp"] for name, method in found.items() if method["bp"] != "always"}
    assert others == {"fa": "never", **dict.fromkeys(("dfa", "dgl", "dni"), "with one stage")}
    assert {name for name, method in found.items() if method["auxiliary"]} == {"dgl", "dni"}


# The page


@pytest.mark.slow
def test_the_page_is_whole_and_asks_for_nothing(data, monkeypatch):
    monkeypatch.setattr(page, "tables", lambda start: {**data, "start": start})
    made = page.page({"method": "fdg", "K": 3})
    assert "{{" not in made.replace("${{", "")
    assert json.loads(re.findall(r'id="data">(.*?)</script>', made, re.S)[0])["ticks"] == data["ticks"]
    assert not re.findall(r"""(?:src|href)=["'](?!#|data:,)|@import|url\((?!#)|fetch\(|XMLHttp|WebSocket""", made)
    addresses = set(re.findall(r"https?://[^\s\"'<>]+", made))
    assert addresses <= {"http://www.w3.org/2000/svg"}, "a namespace is no address"


# The quadratic


def test_the_limit_without_momentum_is_the_known_formula():
    assert doctest.testmod(tables) == (0, 1)
    for n in range(20):
        known = 2 * np.sin(np.pi / (2 * (2 * n + 1)))
        assert tables.stability_limit(n) == pytest.approx(known, rel=1e-9)  # of 60 halvings


def largest_root(n: int, momentum: float, rate: float) -> float:
    """The spectral radius of the recurrence of tables.py."""
    coefficients = np.zeros(n + 3)
    coefficients[:3] = 1, -(1 + momentum), momentum
    coefficients[n + 1] += rate  # of z times the polynomial, so that n = 0 has a place for it
    return float(np.abs(np.roots(coefficients)).max())


@pytest.mark.parametrize("momentum", tables.MOMENTA)
def test_below_the_limit_the_recurrence_shrinks_and_above_it_grows(momentum):
    for n in range(15):
        limit = tables.stability_limit(n, momentum)
        assert largest_root(n, momentum, 0.999 * limit) < 1 < largest_root(n, momentum, 1.001 * limit), n


# Picture and trace


@pytest.mark.parametrize("variant", VARIANTS[::12], ids=lambda variant: variant.key)
def test_the_picture_has_every_operation_and_the_trace_an_arrow_for_every_backward_pass(variant):
    schedule = variant.schedule(3)
    shown = timeline.timeline(schedule, variant.method)
    root = ElementTree.fromstring(figure.figure(shown, "<b> & co", 3, variant.method.words))
    assert root.find("{http://www.w3.org/2000/svg}title").text == "<b> & co"  # type: ignore[union-attr]
    end = min(max(op.end for op in shown if op.k == k) for k in range(1, 4))
    drawn = [each for each in root.iter() if re.match(r"fill: var\(--c[013]\)", each.get("style", ""))]
    assert len(drawn) == sum(op.begin < end for op in shown)
    made = json.loads(json.dumps(timeline.trace(shown, "title", 3)))["traceEvents"]
    check_trace(made)
    for kind, phase in (("B", "s"), ("B", "f")):
        assert sum(event["ph"] == phase for event in made) == sum(op.kind == kind for op in shown)
    assert sum(event["ph"] == "C" for event in made) == sum(op.updates for op in shown)


def check_trace(events: list[dict]) -> None:
    """Fails unless these are valid events of the Trace Event Format, with arrows that begin and end in a slice."""
    slices = [event for event in events if event["ph"] == "X"]
    for event in events:
        assert {"ph", "name", "pid", "tid"} <= event.keys()
        assert event["ph"] in "MXsfC" and (event["ph"] == "M" or event["ts"] >= 0)
    for k in {event["tid"] for event in slices}:
        row = sorted((event["ts"], event["ts"] + event["dur"]) for event in slices if event["tid"] == k)
        assert all(a[1] <= b[0] + 1e-6 for a, b in pairwise(row))  # one after the other
    arrows = [event for event in events if event["ph"] in "sf"]
    pairs = {event["id"]: [e for e in arrows if e["id"] == event["id"]] for event in arrows}
    for begin, end in pairs.values():
        assert (begin["ph"], end["ph"], end["bp"]) == ("s", "f", "e") and begin["ts"] <= end["ts"]
        assert (begin["name"], begin["cat"], begin["tid"]) == (end["name"], end["cat"], end["tid"])
        inside = [[s["name"] for s in slices if s["tid"] == e["tid"] and s["ts"] <= e["ts"] < s["ts"] + s["dur"]]
                  for e in (begin, end)]  # fmt: skip
        assert inside[0][0][1:] == inside[1][0][1:] and inside[0][0][0] + inside[1][0][0] == "FB"


@pytest.mark.parametrize(("method", "ticks"), [("fdg", "11"), ("bp", "3")])
def test_the_picture_in_the_documentation_is_the_one_that_the_command_makes(tmp_path, method, ticks):
    made = tmp_path / f"{method}.svg"
    assert command.main(["--method", method, "--K", "3", "--ticks", ticks, "--svg", str(made)]) == 0
    kept = Path(__file__).resolve().parent.parent / "docs" / "pictures" / made.name
    assert kept.read_text() == made.read_text(), "python -m fdg_jax.schedule writes it, see docs"


def test_the_command_writes_what_it_is_asked_for_and_names_it(tmp_path, capsys):
    files = [tmp_path / name for name in ("a.svg", "a.json")]
    assert command.main(["--K", "2", "--ticks", "5", "--svg", str(files[0]), "--trace", str(files[1])]) == 0
    assert capsys.readouterr().out.split() == [str(file) for file in files]
    assert ElementTree.fromstring(files[0].read_text()).tag.endswith("svg")
    assert json.loads(files[1].read_text())["traceEvents"]


# A measured run


def test_a_measured_run_is_read_as_it_was_written():
    found = page.read(MEASURED)
    events = json.loads(MEASURED.read_text())["traceEvents"]
    operations = [event for event in events if event["ph"] == "X" and event["cat"] != "send"]
    assert len(found["measured"]) + len(found["predicted"]) == len(operations) > 50
    first = operations[0]
    assert found["measured"][0] == [first["cat"], 1, first["args"]["batch"], 0.0, pytest.approx(first["dur"] / 1e3)]
    assert found["rows"] == 2 and found["title"].startswith("fdg, model resnet20")
