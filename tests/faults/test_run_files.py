"""Files of a run that somebody made up or damaged: what reads them goes on or refuses them in one sentence. Nothing in
them is ever executed, and a report shows all of it as text."""

import json
import random
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from spoiling import spoil

from experiments import table3
from experiments.harness import result_files, run_table
from fdg_jax import cli, compare
from fdg_jax.errors import BadInput
from fdg_jax.experiments import cifar
from fdg_jax.machine import jax_settings
from fdg_jax.report import report_page
from fdg_jax.runs.run_files import CONFIG, METRICS, SUMMARY
from fdg_jax.training import lifecycle, trained
from tests import made_up_runs

TABLE = table3.TABLE
ONE = next(run for run in TABLE.runs if run.flags["K"] == 2)
FILES_EACH = 100  # runs that one case spoils


class Reached(Exception):
    """The files were taken: what follows is training."""


class Seen(HTMLParser):
    """The tags and attributes of a page."""

    def __init__(self, text: str):
        super().__init__()
        self.found: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found |= {tag, *(f"{tag} {name}" for name, _ in attrs)}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The run directory of a table's run, as it was written."""
    runs, one = tmp_path_factory.mktemp("runs"), ONE
    path = made_up_runs.make(runs, one, trained=2, lines=6)
    config = json.loads((path / CONFIG).read_text())
    config |= {"note": "a note", "cpu_devices": 1, "usable_cores": 2, "xla_flags": None, "processor": "one"}
    config |= {"jax_settings": jax_settings.DEFAULTS, "warmup": "off"}
    (path / CONFIG).write_text(json.dumps(config))
    summary = json.loads((path / SUMMARY).read_text())
    summary |= {"updates": [3] * len(summary["staleness"]), "stage_parameters": [9], "note": "", "model": "resnet20"}
    (path / SUMMARY).write_text(json.dumps(summary))
    return path


@pytest.fixture
def quick(monkeypatch):
    """Stops where the training would begin. The same curves are drawn once, the same words are parsed once."""
    parsed: dict[tuple[str, ...], Any] = {}
    parse = cli.parse
    draw, drawn = report_page.png, set[str]()

    def reached(*_):
        raise Reached

    def png(path, title, charts):
        if repr((title, charts)) not in drawn:
            draw(path, title, charts)
            drawn.add(repr((title, charts)))

    def parse_once(words, program):
        if tuple(words) not in parsed:
            parsed[tuple(words)] = parse(words, program)
        return parsed[tuple(words)]

    monkeypatch.setattr(cli, "parse", parse_once)
    monkeypatch.setattr(lifecycle, "prepare_and_run", reached)
    monkeypatch.setattr(report_page, "png", png)


def outcome(main, words: list[str], capsys) -> str:
    """Runs a command here; fails on anything but success and a refusal of one line."""
    try:
        code = main(words)
    except Reached:
        code = 0
    out, err = capsys.readouterr()
    told = [line for line in err.splitlines() if not line.lower().startswith("warning: ")]
    assert code in (0, 2) and len(told) == (code == 2), (code, out[:2000], err[:2000])
    assert all(line.startswith("error: ") and len(line) < 2000 for line in told), told
    return "taken" if code == 0 else "refused"


@pytest.mark.filterwarnings("ignore:Glyph .* missing from font")
@pytest.mark.cases(sample=1, hundred=30)
def test_files_that_were_made_up_are_taken_or_refused_in_a_sentence(
    seed, all_of_them, run, quick, tmp_path, monkeypatch, capsys, tell
):
    monkeypatch.chdir(tmp_path)
    copy, counts = tmp_path / ONE.name, dict.fromkeys(("report", "compare", "resume", "from", "table"), 0)
    shutil.copytree(run, copy)
    assert outcome(report_page.main, [str(copy)], capsys) == "taken"
    allowed = Seen((copy / "report.html").read_text()).found
    for number in range(FILES_EACH if all_of_them else 25):
        rng = random.Random(1000 * seed + number)
        shutil.rmtree(copy)
        shutil.copytree(run, copy)
        done = [spoil(rng, copy / rng.choice((CONFIG, METRICS, SUMMARY))) for _ in range(rng.choice((1, 1, 2)))]
        try:
            counts["report"] += outcome(report_page.main, [str(copy)], capsys) == "taken"
            if (copy / "report.html").exists():
                assert Seen((copy / "report.html").read_text(encoding="utf-8")).found <= allowed
            page = ["--html", str(tmp_path / "compared.html")]
            counts["compare"] += outcome(compare.main, [str(copy), *page], capsys) == "taken"
            where = ["--run-dir", str(copy)]
            counts["resume"] += outcome(cifar.main, [*where, "--resume"], capsys) == "taken"
            counts["from"] += started_from(copy)
            counts["table"] += in_a_table(copy)
        except BaseException as error:
            error.add_note(f"case {1000 * seed + number}: {', '.join(done)}")
            raise
        assert not (tmp_path / "ran").exists()
    assert all(counts.values()), counts
    tell(f"taken of {number + 1}: {counts}")


def started_from(copy: Path) -> bool:
    """Whether a new run takes its weights: it has no checkpoint, so all is refused, in one sentence."""
    with pytest.raises(BadInput) as refused:
        trained.InitialWeights(str(copy)).read({}, "resnet20")
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 2000
    return "has no checkpoint yet" in str(refused.value)


def in_a_table(copy: Path) -> bool:
    """Whether the tables take it: they refuse with BadInput or not at all."""
    try:
        run_table.state(ONE, copy.parent)
        result_files.line(TABLE, ONE, copy)
    except BadInput:
        return False
    return True
