"""What is collected of runs and shown of it: no number is there that no result line has.

No training happens here: run directories and result lines are made up.
"""

import json
import re

import pytest
from made_up_runs import config, events, make, rows
from short_table import NAMES, ROOT, TABLE, run_of

import experiments
from experiments import cifar10_short, methods_short
from experiments.harness import markdown, pictures, result_files, run_table, table_command
from fdg_jax import methods
from fdg_jax.errors import BadInput

# Collecting


def test_a_line_has_the_run_and_nothing_of_where_it_was_made(tmp_path):
    make(tmp_path, run_of("fdg-K2-beta0.5"))
    result_files.collect(TABLE, tmp_path, tmp_path / "results")
    text = (tmp_path / "results" / "cifar10_short.jsonl").read_text()
    (line,) = map(json.loads, text.splitlines())
    assert "someone" not in text
    assert str(tmp_path) not in text
    assert not {"data_dir", "run_dir"} & set(line["options"])
    assert line["command"].endswith(" --K 2 --beta 0.5")  # no directory: the true one is left out, none put in
    assert (line["test_error_percent"], line["staleness"], line["images_per_second"]) == (
        31.25,
        [1, 0],
        123.4,
    )
    assert line["git_commits"] == ["a" * 40, "b" * 40 + "-dirty"]
    assert line["hardware"]["platform"] == "Linux-6.1.2-x86_64-with-glibc2.36"
    assert [test["epoch"] for test in line["evaluations"]] == [1, 2, 3, 4, 5]
    assert line["evaluations"][4]["test_error_percent"] == 40.0


def test_a_line_says_what_it_ran_on_as_far_as_the_run_wrote_it_down(tmp_path):
    path = make(tmp_path, run_of("bp"))
    old = result_files.line(TABLE, run_of("bp"), path)["hardware"]
    assert markdown.machine(old) == "one device (cpu:0) of a machine with 2 cores (Linux-6.1.2-x86_64-with-glibc2.36)"
    told = {"processor": "A Processor", "usable_cores": 1, "cpu_devices": 4, "matmul_precision": None}
    (path / "config.json").write_text(json.dumps(config(run_of("bp")) | told))
    new = result_files.line(TABLE, run_of("bp"), path)["hardware"]
    assert new == old | told
    assert "with 2 cores, 1 used (A Processor, Linux-" in markdown.machine(new)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("summary.json", "{}", "summary.json lacks 'steps'"),
        ("summary.json", "{", "summary.json cannot be read"),
        ("config.json", '{"asked": 5}', "asked is 5, which is no object"),
        ("metrics.jsonl", "rubbish\n", "metrics.jsonl, line 1 is damaged"),
    ],
)
@pytest.mark.parametrize("verb", ["list", "collect"])
def test_a_damaged_run_is_named_in_a_sentence(tmp_path, verb, file, content, message, capsys):
    (make(tmp_path, TABLE.runs[0]) / file).write_text(content)
    where = ["--results", str(tmp_path / "results")] if verb == "collect" else []
    assert table_command.main(TABLE, [verb, "--runs-dir", str(tmp_path), *where]) == (2 if where else 0)
    assert message in "".join(capsys.readouterr())


def test_a_run_whose_config_lacks_what_a_line_shows_is_named_in_a_sentence(tmp_path):
    path = make(tmp_path, TABLE.runs[0])
    (path / "config.json").write_text(json.dumps({**config(TABLE.runs[0]), "versions": "new"}))
    with pytest.raises(BadInput, match="versions is 'new', which is no object"):
        result_files.line(TABLE, TABLE.runs[0], path)


def test_the_thinned_curve_keeps_the_mean_and_the_end():
    lines = [event for event in events(5) if "train_loss" in event]  # 200
    curve = result_files.thinned(lines)
    assert len(curve["epoch"]) == len(curve["train_loss"]) == len(curve["learning_rate"]) == 100
    assert curve["epoch"][-1] == 5.0
    assert curve["train_loss"][0] == pytest.approx((lines[0]["train_loss"] + lines[1]["train_loss"]) / 2, abs=1e-5)
    assert curve["learning_rate"] == [0.1] * 50 + [0.01] * 50
    assert result_files.thinned(lines[:7])["train_loss"] == [round(line["train_loss"], 5) for line in lines[:7]]
    assert result_files.thinned([])["epoch"] == []


def test_a_loss_that_was_no_number_stays_none():
    event = {"epoch": 1.0, "train_loss": None, "learning_rate": 0.1}
    assert result_files.thinned([event])["train_loss"] == [None]


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


def test_collecting_nothing_is_an_error_and_leaves_no_file(tmp_path, capsys):
    assert table_command.main(TABLE, ["collect", "--runs-dir", str(tmp_path), "--results", str(tmp_path / "r")]) == 2
    assert "no finished run of cifar10_short" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda line: line | {"name": "fdg-K9"}, "a line of fdg-K9, no run"),
        (
            lambda line: line | {"options": line["options"] | {"epochs": 4}},
            "of another run: epochs is 4, not 5",
        ),
        (lambda line: {}, "cannot be read"),
    ],
)
def test_a_line_that_is_not_the_tables_is_refused(tmp_path, change, message):
    make(tmp_path, TABLE.runs[0])
    result_files.collect(TABLE, tmp_path, tmp_path)
    path = tmp_path / "cifar10_short.jsonl"
    path.write_text(json.dumps(change(json.loads(path.read_text()))) + "\n")
    with pytest.raises(BadInput, match=message):
        result_files.read(TABLE, tmp_path)


# Rendering


def test_without_results_every_run_has_a_row_and_no_number_of_ours(tmp_path):
    found = rows(TABLE.document({}))
    assert [cells[:3] for cells in found] == [
        ["BP", "1", "–"], ["FDG", "2", "1"], ["FDG", "2", "0.5"], ["FDG", "3", "1"], ["FDG", "3", "0.5"],
        ["FDG", "4", "1"], ["FDG", "4", "0.5"],
    ]  # fmt: skip
    paper = [cells[9] for cells in found]
    assert paper == ["7.78 (8.75 as first published)", "7.92", "", "", "", "", ""]  # Table 3
    assert all(cell == "" for cells in found for cell in [*cells[3:9], cells[10]])


def test_a_row_shows_its_own_line_and_the_other_rows_stay_blank(tmp_path):
    make(tmp_path, run_of("fdg-K3-beta1"), error=28.125)
    make(tmp_path, run_of("fdg-K2-beta0.5"), error=33.0)
    result_files.collect(TABLE, tmp_path, tmp_path)
    text = TABLE.document(result_files.read(TABLE, tmp_path))
    found = dict(zip(NAMES, rows(text), strict=True))
    assert found["fdg-K3-beta1"][3:9] == ["2, 1, 0", "28.12", "0.8765", "123", "5", "1"]
    assert found["fdg-K2-beta0.5"][4] == "33.00"
    assert "--K 3 --beta 1`" in found["fdg-K3-beta1"][10]
    assert all(cells[4] == "" for name, cells in found.items() if name not in ("fdg-K3-beta1", "fdg-K2-beta0.5"))
    assert "2 of 7 runs are finished" in text
    assert "Python 3.11.7, JAX 0.10.2" in text
    assert "`aaaaaaaaaa` or `bbbbbbbbbb-dirty`" in text


def test_render_makes_page_and_picture_and_leaves_the_readme_alone(tmp_path, capsys):
    make(tmp_path, run_of("bp"))
    results = tmp_path / "results"
    result_files.collect(TABLE, tmp_path, results)
    readme = tmp_path / "README.md"
    readme.write_text("mine\n")
    pages = []
    for _ in range(2):  # again changes nothing
        assert table_command.main(TABLE, ["render", "--results", str(results)]) == 0
        pages.append((results / "cifar10_short.md").read_text())
    assert pages[0] == pages[1]
    assert pages[0].startswith(f"# {TABLE.title}\n\n| method | K |") and "](cifar10_short.png)" in pages[0]
    assert (results / "cifar10_short.png").read_bytes().startswith(b"\x89PNG")
    assert readme.read_text() == "mine\n"


def test_every_run_has_a_look_of_its_own():
    line = {"test_error_percent": 1.0}
    curves = [cifar10_short.curve(run, line) for run in TABLE.runs]
    assert len({(curve.colour, curve.style) for curve in curves}) == len(curves)
    assert len({curve.label for curve in curves}) == len(curves)
    assert all(len({c.colour for c in curves if f"K={K}" in c.label}) == 1 for K in (2, 3, 4))


def test_only_falls_of_the_learning_rate_are_marked():
    training = {"epoch": [0.1, 0.2, 0.3, 0.4], "learning_rate": [0.01, 0.1, 0.1, 0.01]}  # a warm-up first
    assert pictures.falls(training) == [(0.4, 0.01)]


# What is committed

COMMITTED = run_table.RESULTS / "cifar10_short.jsonl"
committed = pytest.mark.skipif(not COMMITTED.is_file(), reason="nothing has been collected yet")


@pytest.mark.parametrize("name", experiments.names())
def test_the_committed_page_is_what_the_committed_results_give(name):
    table = result_files.complete(experiments.find(name), run_table.RESULTS)
    lines = result_files.read(table, run_table.RESULTS)
    page = run_table.RESULTS / f"{name}.md"
    assert page.read_text() == result_files.page(table, lines), f"run `python -m experiments.{name} render`"
    assert page.with_suffix(".png").is_file() == (table.picture is not None)


def test_the_readme_is_one_page_that_links_to_every_table():
    text = (ROOT / "experiments" / "README.md").read_text()
    links = set(re.findall(r"\]\(([^)#]+)\)", text))
    assert links >= {f"results/{name}.md" for name in experiments.names()}
    assert all((ROOT / "experiments" / link).exists() for link in links)
    assert len(text.splitlines()) < 90


@committed
def test_what_the_words_say_of_the_options_is_what_the_committed_results_say():
    for line in result_files.read(TABLE, run_table.RESULTS).values():
        said = {
            "learning_rate": 0.1, "momentum": 0.9, "weight_decay": 5e-4, "order": "backward-first",
            "weights": "stashed", "drain": True, "train_size": 50000, "dtype": "float32",
            "warmup": "on" if line["options"]["K"] >= 3 else "off",
        }  # fmt: skip
        assert {name: line["options"][name] for name in said} == said


@committed
def test_the_committed_results_are_plausible_and_name_no_place():
    assert not re.search(r'["\s=]/', COMMITTED.read_text()), "an absolute path"
    for line in result_files.read(TABLE, run_table.RESULTS).values():
        K = line["options"]["K"]
        derived = [max(0, 2 * (K - k) - 1) for k in range(1, K + 1)]  # backward first
        assert line["staleness"] == (derived if line["method"] == "fdg" else [0])
        assert line["evaluations"][-1]["test_error_percent"] == line["test_error_percent"]
        assert len(line["evaluations"]) == line["epochs"] == 5


def test_every_method_but_the_control_has_a_row_in_the_table_of_all_methods():
    assert {run.flags["method"] for run in methods_short.RUNS} == {*methods.names()} - {"scaled_bp"}


def test_a_run_is_the_tables_if_what_it_asked_for_was_settled_as_the_table_has_it(tmp_path):
    run = run_of("fdg-K2-beta0.5")
    path = make(tmp_path, run)
    stored = json.loads((path / "config.json").read_text())
    asked = {**stored.get("asked", stored), "split": None}
    (path / "config.json").write_text(json.dumps({**stored, "split": "2,4,7", "asked": asked}))
    named = run._replace(flags={**run.flags, "split": "2,4,7"})
    assert run_table.state(named, tmp_path).kind == run_table.state(run, tmp_path).kind == run_table.DONE
    with pytest.raises(BadInput, match="split is None, not 3,5,7"):
        run_table.state(run._replace(flags={**run.flags, "split": "3,5,7"}), tmp_path)
