"""Pages in a real browser: the explorer shows what the schedules say; it, reports and comparisons serve everybody."""

import json
import re
from fractions import Fraction
from pathlib import Path

import chromium
import explored
import made_up_runs
import pytest

from experiments.harness.run_table import Run
from fdg_jax import methods
from fdg_jax.explorer import choices, page, timeline
from fdg_jax.explorer.choices import Times
from fdg_jax.report import report_page
from fdg_jax.runs import run_files
from fdg_jax.schedule.running import trace_run

pytestmark = pytest.mark.slow

HTML_NAME = "<img src=nowhere onerror=\"document.title='broken'\">&amp;<b>bold</b>"


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """The page, with a measured run."""
    chromium.program("chromium")  # skips before the page is made
    made = tmp_path_factory.mktemp("page") / "a page.html"
    run = {"title": HTML_NAME, "rows": 2}
    run |= {"measured": [["F", 1, 1, 0.0, 5.0], ["U", 2, 1, 5.0, 6.0]], "predicted": [[HTML_NAME, 1, 1, 0.0, 4.0]]}
    made.write_text(page.page({"method": "fdg", "K": 3}, run), encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def browser(tmp_path_factory, file):
    with chromium.browser(tmp_path_factory.mktemp("profile")) as made:
        yield made


@pytest.fixture
def shown(browser, file):
    """The page as it is when it opens, 1280 pixels wide; a test may not leave anything on the console."""
    browser.show(1280)
    browser.open(file)
    yield browser
    assert browser.complaints() == []


# Every operation of the upper picture as it is drawn, and what the page says of each backward pass.
DRAWN = """
const svg = document.querySelector("#panel-0 svg"), all = [...svg.querySelectorAll(".op")], read = [];
for (const group of all.filter((each) => each.dataset.kind === "B")) {
  group.dispatchEvent(new PointerEvent("pointerover", { bubbles: true }));
  read.push([Number(group.dataset.k), Number(group.dataset.batch), document.getElementById("readout").textContent]);
}
const place = (g) => [Number(g.firstChild.getAttribute("x")), Number(g.firstChild.getAttribute("width"))];
return {
  ops: all.map((g) => [g.dataset.kind, Number(g.dataset.k), Number(g.dataset.batch), ...place(g)]),
  read, width: Number(svg.getAttribute("width")), scale, horizon,
  busy: [...document.querySelectorAll("#panel-0 .labels span")].map((span) => span.textContent),
  versions: [...svg.querySelectorAll(".ver")].map((g) => [Number(g.dataset.k), Number(g.dataset.version), ...place(g)]),
};
"""


KEPT = "return [...document.querySelectorAll('#panel-0 tbody tr')].map((row) => row.lastChild.textContent)"


def compare(browser, variant: choices.Variant, K: int, at: Times) -> None:
    """Chooses all that in the page, and fails unless what it draws and says is what the schedule says."""
    index = {"backward": choices.BACKWARD.index(at.backward), "link": choices.LINK.index(at.link), "slow": at.slow}
    if at.slow:
        index["factor"] = choices.FACTOR.index(at.factor)
    options = choices.choosable(variant.method)
    asked = [("K", K), *index.items(), ("method-0", variant.method.name)]
    for name, value in variant.options.items():
        number = all(str(each).isdigit() for each in options[name])
        asked.append((f"{name}-0", options[name].index(value) if number else value))
    browser.run(chromium.SET, asked)
    drawn, schedule = browser.run(DRAWN), variant.schedule(K)
    wanted = timeline.timeline(schedule, variant.method, at)
    assert drawn["width"] == pytest.approx(drawn["horizon"] * drawn["scale"])
    scale, end = drawn["scale"], drawn["horizon"]
    expected = {op[:3]: op for op in wanted if op.begin < end - 1e-9}
    found = {tuple(op[:3]): op[3:] for op in drawn["ops"]}
    assert found.keys() == expected.keys() and len(drawn["ops"]) == len(found)
    for key, (x, width) in found.items():
        op = expected[key]
        assert x == pytest.approx(float(op.begin) * scale, abs=0.01)  # pixels
        assert width == pytest.approx(max(0.5, float(min(op.end, Fraction(end)) - op.begin) * scale), abs=0.01)
    trace, said = trace_run(schedule, choices.ticks_shown(schedule)), 0
    for k, batch, text in drawn["read"]:
        op = expected["B", k, batch]
        if op.end <= end + 1e-9:
            used, now = trace.version[op_of("F", k, batch)], trace.version[op_of("B", k, batch)]
            what = f"forward pass with weights of version {used}, update of version {now}."
            assert f"stage {k}, backward pass of batch {batch}: {what}" in text
            assert ("not late" in text) == (used == now)
            assert len(re.findall(r"\d+", text.partition("In between w")[2].partition(":")[0])) == now - used
            said += 1
    assert said >= K
    found = timeline_of_versions(drawn["versions"], K)
    for k in range(1, K + 1):
        updates = [float(op.end) * scale for op in wanted if op.k == k and op.updates and op.end < end - 1e-9]
        assert found[k] == pytest.approx(updates, abs=0.01)


def op_of(kind, k, batch):
    return timeline.Op(kind, k, batch)


def timeline_of_versions(strips, K) -> dict[int, list[float]]:
    """By stage: where a version begins that is not the first."""
    made: dict[int, list[float]] = {k: [] for k in range(1, K + 1)}
    for k, version, x, _ in strips:
        if version:
            made[k].append(x)
            assert len(made[k]) == version
    return made


@pytest.mark.parametrize("name", methods.names())
def test_what_is_shown_is_what_the_schedule_says_for_every_method(shown, name):
    """With times that are not the first: test_explorer.py compares all of the page's simulation with the simulator."""
    variant = choices.variants(methods.find(name))[-1]
    for K in (1, 3, 8):
        compare(shown, variant, K, [*explored.times(K)][17])


@pytest.mark.parametrize("name", ["fdg", "fr", "dni", "gpipe"])
def test_the_batches_that_a_stage_keeps_are_those_of_the_schedule(shown, name):
    variant = choices.Variant(methods.find(name), {})  # at the defaults, as the page begins
    K, schedule = 4, variant.schedule(4)
    shown.run(chromium.SET, [("K", K), ("method-0", name)])
    wanted = timeline.timeline(schedule, variant.method)
    for now in (5, 17.5, 30):
        shown.run("stop(); setTime(arguments[0])", now)
        kept = shown.run(KEPT)
        for k in range(1, K + 1):
            own = [op for op in wanted if op.k == k]
            last = {op.batch: op.end for op in own if op.kind != "F"}
            there = [op.batch for op in own if op.kind == "F" and op.end <= now and last.get(op.batch, now + 1) > now]
            assert kept[k - 1] == (" ".join(map(str, there)) or "none")


def test_a_name_that_holds_html_stays_text(shown):
    assert shown.run("return document.getElementById('measured-title').textContent").startswith(HTML_NAME)
    assert shown.run("return document.querySelectorAll('img').length") == 0
    shown.run("data.methods[0].summary = arguments[0]; data.methods[0].name", HTML_NAME)
    name = shown.run("return data.methods[0].name")
    shown.run(chromium.SET, [("method-0", name)])
    assert HTML_NAME in shown.run("return document.getElementById('choice-0').textContent")
    assert shown.run("return [document.querySelectorAll('img, #panels b b').length, document.title]") == [
        0, "How late is each gradient?",
    ]  # fmt: skip


def test_the_explorer_is_easy_to_use(browser, file):
    chromium.easy_to_use(browser, file, ((), [("K", 8), ("method-0", "dni")], [("rate", 90), ("K", 1)], [("now", 0)]))


def reported(folder: Path, method: str, K: int, trained: int) -> Path:
    """A run directory whose names hold HTML, with all that a run writes."""
    run = Run("a run", {"method": method, "K": K, "seed": 0})
    path = made_up_runs.make(folder, run, trained=trained, note=HTML_NAME, data_dir=HTML_NAME, warmup="off")
    config = json.loads((path / "config.json").read_text())
    memory = {"first_block": 0, "last_block": 3, "share_percent": 50.0, "share_of": HTML_NAME}
    config |= {"note": HTML_NAME, "stages": [{**memory, "memory_bytes": {"total": 27_500_000}}] * K}
    config["devices"][0] = HTML_NAME
    (path / "config.json").write_text(json.dumps(config))
    run_files.add_incident(path, 7, HTML_NAME)
    report_page.write(path)
    return path / "report.html"


@pytest.mark.parametrize(("method", "K", "trained"), [("fdg", 8, 9), ("data_parallel", 2, 2)])
def test_the_report_of_a_run_is_as_easy_to_use_and_shows_names_that_hold_html_as_text(
    browser, tmp_path, method, K, trained
):
    chromium.easy_to_use(browser, reported(tmp_path, method, K, trained))
    marked = browser.run("return [...document.querySelectorAll('img, b')].map((each) => each.textContent)")
    assert not {"", "bold"} & {*marked}
    # The note, a stage's share and device, the incident, an option.
    assert browser.run("return document.body.textContent").count(HTML_NAME) >= 5
    charts = "return document.querySelectorAll('svg.chart, svg.schedule').length"
    assert browser.run(charts) == 3 + (method != "data_parallel")  # loss, error and rate; no speed was logged
