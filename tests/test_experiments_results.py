"""What is collected of runs and shown of it: no number is there that no result line has.

No training happens here: run directories and result lines are made up.
"""

import json
import re

import pytest
from made_up_runs import make, rows

import experiments
from experiments import cifar10_short
from experiments.harness import result_files, run_table, table_command
from experiments.harness.run_table import RESULTS
from fdg_jax.errors import BadInput

TABLE = cifar10_short.TABLE


def run_of(name: str) -> run_table.Run:
    return next(run for run in TABLE.runs if run.name == name)


# Collecting


def test_a_line_has_the_run_and_nothing_of_where_it_was_made(tmp_path):
    make(tmp_path, run_of("fdg-K2-beta0.5"))
    result_files.collect(TABLE, tmp_path, tmp_path / "results")
    text = (tmp_path / "results" / "cifar10_short.jsonl").read_text()
    (line,) = map(json.loads, text.splitlines())
    assert "someone" not in text and str(tmp_path) not in text
    assert not {"data_dir", "run_dir"} & set(line["options"])
    assert line["command"].endswith(" --K 2 --beta 0.5")  # no directory: the true one is left out, none put in
    assert (line["test_error_percent"], line["staleness"], line["images_per_second"]) == (31.25, [1, 0], 123.4)
    assert line["git_commits"] == ["a" * 40, "b" * 40 + "-dirty"]
    assert line["hardware"]["platform"] == "Linux-6.1.2-x86_64-with-glibc2.36"
    assert [test["epoch"] for test in line["evaluations"]] == [1, 2, 3, 4, 5]
    assert line["evaluations"][4]["test_error_percent"] == 40.0


def test_only_finished_runs_are_collected_and_lines_of_other_runs_stay(tmp_path):
    results = tmp_path / "results"
    make(tmp_path / "first", run_of("fdg-K4-beta1"))
    make(tmp_path / "first", run_of("bp"), error=40.0)
    assert result_files.collect(TABLE, tmp_path / "first", results) == (["bp", "fdg-K4-beta1"], [])
    make(tmp_path / "second", run_of("bp"), error=30.0)
    make(tmp_path / "second", run_of("fdg-K2-beta1"), error=None, trained=4)
    assert result_files.collect(TABLE, tmp_path / "second", results) == (["bp"], ["fdg-K4-beta1"])
    lines = result_files.read(TABLE, results)
    assert list(lines) == ["bp", "fdg-K4-beta1"]
    assert lines["bp"]["test_error_percent"] == 30.0


def test_a_line_that_is_not_the_tables_is_refused(tmp_path):
    make(tmp_path, TABLE.runs[0])
    result_files.collect(TABLE, tmp_path, tmp_path)
    path = tmp_path / "cifar10_short.jsonl"
    line = json.loads(path.read_text())
    for changed, message in (
        (line | {"name": "fdg-K9"}, "a line of fdg-K9, which is not a run"),
        (line | {"options": line["options"] | {"epochs": 4}}, "other options than the table: epochs is 4, not 5"),
        ({}, "cannot be read"),
    ):
        path.write_text(json.dumps(changed) + "\n")
        with pytest.raises(BadInput, match=message):
            result_files.read(TABLE, tmp_path)


# Rendering


def test_a_row_shows_its_own_line_and_the_other_rows_stay_blank(tmp_path):
    make(tmp_path, run_of("fdg-K3-beta1"), error=28.125)
    make(tmp_path, run_of("bp"), error=33.0)
    result_files.collect(TABLE, tmp_path, tmp_path)
    text = TABLE.document(result_files.read(TABLE, tmp_path))
    found = dict(zip([run.name for run in TABLE.runs], rows(text), strict=False))  # below is the table of places
    assert found["fdg-K3-beta1"][3:9] == ["2, 1, 0", "28.12", "-4.88", "0.8765", "123", "1"]
    assert found["bp"][4:6] == ["33.00", ""] and found["bp"][9] == "7.78 (8.75 as first published)"
    assert "--K 3 --beta 1`" in found["fdg-K3-beta1"][10]
    assert all(cells[3:9] == [""] * 6 for name, cells in found.items() if name not in ("fdg-K3-beta1", "bp"))
    assert "2 of 7 runs are finished (0.0 core-hours)." in text
    assert "Python 3.11.7, JAX 0.10.2" in text and "`aaaaaaaaaa`, `bbbbbbbbbb-dirty`" in text


@pytest.mark.slow
def test_every_table_renders_where_nothing_has_run(tmp_path, own_cache):
    for name in experiments.names():
        table, results = experiments.find(name), tmp_path / name
        assert table_command.main(table, ["render", "--results", str(results)]) == 0
        made = {f"{name}.md"} | ({f"{name}.png"} if table.picture else set())
        more = {"corrections_text_growth.png"} if name == "corrections_text" else set()
        assert {path.name for path in results.iterdir()} == made | more


# What is committed


@pytest.mark.parametrize("name", experiments.names())
def test_the_committed_page_is_what_the_committed_results_give(name):
    table = result_files.complete(experiments.find(name), RESULTS)
    lines = result_files.read(table, RESULTS)
    page = RESULTS / f"{name}.md"
    assert page.read_text() == table.document(lines), f"run `python -m experiments.{name} render`"
    assert all((RESULTS / link).is_file() for link in re.findall(r"\]\(([^):#]+)\)", page.read_text()))
    assert page.with_suffix(".png").is_file() == (table.picture is not None)
