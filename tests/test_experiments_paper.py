"""The paper's tables: each lists and renders with nothing run, a result lands in its cell, a run has one name.

No training happens here, but for the slow test of what `--dry-run` measures.
"""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from made_up_runs import make, rows

import experiments
from experiments import figure3ab, figure3c, table3, table6, table7
from experiments.harness import estimate, paper, result_files, run_table, table_command
from experiments.harness.run_table import CUT_OFF, DONE, MISSING, RESULTS, Run, State
from fdg_jax import data, models
from fdg_jax.errors import BadInput
from fdg_jax.runs import option_checks
from fdg_jax.training import command_line

ERRORS = ["table3", "table4", "table5", "table6", "appendix_a", "figure3c"]  # whose pages have rows of test errors
NAMES = [*ERRORS, "figure3ab"]
RUNS = {run.name: run for name in NAMES for run in experiments.find(name).runs}
PAPER, OURS, N, COMMAND = 4, 5, 6, 7  # columns


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch) -> Path:
    """Where measured step times are kept."""
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    return cache / "fdg_jax"


def run_of(name: str) -> Run:
    return RUNS[name]


def collected(table, tmp_path: Path, found: dict[str, float]) -> dict:
    """The results of made-up runs with these test errors."""
    for name, error in found.items():
        make(tmp_path, run_of(name), error=error, trained=300, lines=1)
    result_files.collect(table, tmp_path, tmp_path)
    return result_files.read(table, tmp_path)


def row_of(page: str, name: str, method: str = "") -> list[str]:
    """The row whose command makes the run of that name, its seed left open. method: where two rows show that run."""
    words = run_table.shown(run_table.command(run_of(f"{name}-seed0"), None, None)).replace("--seed 0", "--seed S")
    (found,) = [cells for cells in rows(page) if cells[COMMAND] == f"`{words}`" and method in ("", cells[1])]
    return found


# The runs


@pytest.mark.parametrize("name", NAMES)
def test_every_table_lists_its_runs_although_none_was_made(name, tmp_path, capsys):
    assert table_command.main(experiments.find(name), ["list", "--runs-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count(": missing\n") == len(experiments.find(name).runs) > 0


def test_the_listed_commands_name_the_data_directory_as_seen_from_where_they_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    one = ["list", "--runs-dir", "runs", "--only", "resnet20-cifar10-bp-K1-seed0"]
    assert table_command.main(table3.TABLE, [*one, "--data-dir", "my data"]) == 0
    out = capsys.readouterr().out
    assert f" --data-dir '{tmp_path}/my data' --run-dir {tmp_path}/runs/" in out
    assert out.endswith(f"\nThe commands run in {run_table.ROOT}.\n")


def test_without_a_data_directory_the_list_says_where_the_data_are_looked_for(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TFDS_DATA_DIR", "/the/data")
    for name, fetched in (("table3", ", what is missing is downloaded there"), ("table5", "")):
        assert table_command.main(experiments.find(name), ["list", "--runs-dir", str(tmp_path)]) == 0
        said = f"look for the data in /the/data{fetched}: `list --data-dir DIR` makes them look in DIR."
        assert capsys.readouterr().out.splitlines()[-1].endswith(said)


def test_every_setting_is_run_with_three_seeds():
    for name in NAMES:
        seeds: dict[str, list[int]] = {}
        for run in experiments.find(name).runs:
            seeds.setdefault(run.name.rpartition("-")[0], []).append(run.flags["seed"])
        assert all(sorted(found) == [0, 1, 2] for found in seeds.values())


# Of the runs that differ only in network, data, beta and seed, whose words are read alike, one: reading takes a while.
ALIKE = {(run.module, run.flags["method"], run.flags["K"], run.flags.get("order")): run for run in RUNS.values()}


@pytest.mark.parametrize("run", ALIKE.values(), ids=lambda run: run.name)
def test_every_command_line_is_the_papers_recipe_and_accepted(run):
    words = run_table.command(run, "data", "somewhere")
    options, given = command_line.parse(words[3:], words[2])
    option_checks.check(options, given)
    assert {name: getattr(options, name) for name in run.flags} == run.flags
    recipe = (options.epochs, options.batch_size, options.learning_rate, options.weight_decay, options.momentum)
    assert recipe == (300, 128, 0.1, 5e-4, 0.9) and options.warmup == "paper"


NEEDED = sorted({(run.module, run.flags["dataset"], run.flags["model"]) for run in RUNS.values()})


@pytest.mark.parametrize(("module", "dataset", "model"), NEEDED)
def test_programs_data_and_networks_of_the_runs_exist(module, dataset, model):
    try:
        models.blocks(model, classes=10)
    except BadInput as error:
        pytest.skip(str(error))
    if dataset not in data.names() or importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} or {dataset} is not there yet")


def test_the_same_run_has_one_name_in_all_tables_and_another_run_another_name():
    found: dict[str, Run] = {}
    for name in NAMES:
        for run in experiments.find(name).runs:
            assert found.setdefault(run.name, run) == run
    told = [(run.module, *sorted(run.flags.items())) for run in found.values()]
    assert len(set(told)) == len(told)


def test_a_run_that_three_tables_show_is_in_each_of_them_and_in_one_place():
    tables = [experiments.find(name) for name in ("table3", "figure3c", "appendix_a")]
    assert all("resnet20-cifar10-fdg-K2-beta0.2-seed1" in [run.name for run in table.runs] for table in tables)
    assert {table.home for table in tables} == {"paper"}


def test_forward_first_is_a_run_of_its_own_and_backward_first_is_the_default():
    runs = experiments.find("appendix_a").runs
    assert [run.name for run in runs if (run.flags["seed"], run.flags["beta"]) == (0, 1)] == [
        "resnet20-cifar10-fdg-K2-beta1-forward-first-seed0", "resnet20-cifar10-fdg-K2-beta1-seed0",
        "resnet56-cifar10-fdg-K2-beta1-forward-first-seed0", "resnet56-cifar10-fdg-K2-beta1-seed0",
    ]  # fmt: skip


def test_only_takes_patterns_and_refuses_one_that_fits_nothing(tmp_path, capsys):
    chosen = ["list", "--runs-dir", str(tmp_path), "--only", "resnet20-*-seed0"]
    assert table_command.main(table3.TABLE, chosen) == 0
    assert len(re.findall(r"^resnet20-\S+-seed0: missing$", capsys.readouterr().out, re.M)) == 3
    assert table_command.main(table3.TABLE, [*chosen[:-1], "resnet20-cifar10-bp-K2-seed0"]) == 2
    assert "Did you mean resnet20-cifar10-bp-K1-seed0 or" in capsys.readouterr().err


def test_a_table_without_runs_says_where_its_numbers_come_from(capsys):
    assert table_command.main(table7.TABLE, ["list"]) == 2
    assert "table7 has no runs of its own" in capsys.readouterr().err


# The pages


@pytest.mark.parametrize("name", ERRORS)
def test_without_results_a_page_has_every_row_and_no_number_of_ours(name):
    table = experiments.find(name)
    found = rows(table.document({}))
    settings = {cells[COMMAND] for cells in found}  # DDG and FDG of two stages show the same runs
    assert 3 * len(settings) == len(table.runs)
    assert all(cells[OURS] == cells[N] == "" and "--seed S`" in cells[COMMAND] for cells in found)


@pytest.mark.parametrize("name", [*NAMES, "table7"])
def test_every_table_renders_where_nothing_is(name, tmp_path):
    table = experiments.find(name)
    assert table_command.main(table, ["render", "--results", str(tmp_path)]) == 0
    made = {f"{name}.md"} | ({f"{name}.png"} if table.picture else set())
    assert {path.name for path in tmp_path.iterdir()} == made


def test_a_result_lands_in_its_cell_and_the_others_stay_blank(tmp_path):
    lines = collected(table3.TABLE, tmp_path, {"resnet56-cifar10-dgl-K2-seed2": 6.5})
    page = table3.TABLE.document(lines)
    assert row_of(page, "resnet56-cifar10-dgl-K2")[OURS : N + 1] == ["6.50", "1"]
    assert [cells[2] for cells in rows(page) if cells[OURS]] == ["2"]
    assert "1 of its 78 runs is finished." in page


def test_ddg_and_fdg_of_two_stages_are_one_set_of_runs(tmp_path):
    """They are one algorithm (test_methods.py), so none is planned twice, and both rows show the result."""
    assert [run for name in NAMES for run in experiments.find(name).runs if run.name.find("-ddg-K2") > 0] == []
    assert sum("-ddg-K3" in run.name for run in table6.TABLE.runs) == 6
    lines = collected(table6.TABLE, tmp_path, {"wrn28_10-cifar10-fdg-K2-beta1-seed0": 4.25})
    page = table6.TABLE.document(lines)
    shown = {cells[1]: cells[PAPER] for cells in rows(page) if cells[OURS]}
    assert shown == {"DDG": "4.05\\* (Table 3: 4.05)", "FDG": "4.13"}


@pytest.mark.parametrize(
    ("name", "most", "gains", "chance"),
    [("table3", "0.47", "6", "5"), ("table4", "1.43", "4", "4"), ("table6", "0.40", "6", "4")],
)
def test_a_table_says_how_far_the_paper_has_one_algorithm_from_itself(name, most, gains, chance):
    """Table 3: ResNet-110 with 6.26 and 5.79. Of its gains by beta only ResNet-20's 0.69 is larger."""
    says = r"A null comparison:.* up to (\S+) apart.* Of the (\d) gains by shrinking in this table, (\d) are no larger"
    assert re.findall(says, experiments.find(name).document({})) == [(most, gains, chance)]


def test_a_table_without_both_of_them_speaks_of_no_null_comparison():
    assert "null comparison" not in experiments.find("table5").document({})


def test_ours_is_the_median_of_the_seeds_that_are_finished(tmp_path):
    name = "resnet20-cifar10-fdg-K2-beta0.2"
    found = {f"{name}-seed{seed}": error for seed, error in enumerate((9.0, 7.25, 7.5))}
    lines = collected(table3.TABLE, tmp_path, found)
    assert row_of(table3.TABLE.document(lines), name)[OURS : N + 1] == ["7.50 (7.25 to 9.00)", "3"]
    del lines[f"{name}-seed0"]
    assert row_of(table3.TABLE.document(lines), name)[OURS : N + 1] == ["7.38 (7.25 to 7.50)", "2"]


def test_a_curve_is_that_of_the_median_run(tmp_path):
    cell = next(cell for cell in figure3ab.CELLS if (cell.method, cell.K, cell.beta) == ("FDG", 4, 0.5))
    lines = {paper.name(cell, seed): {"test_error_percent": error} for seed, error in enumerate((5.0, 4.0, 4.5))}
    assert paper.median_line(cell, lines) == {"test_error_percent": 4.5}
    assert paper.median_line(cell, {}) is None


def test_every_curve_has_a_look_of_its_own():
    curves = [figure3ab.curve(cell, {"test_error_percent": 1.0}) for cell in figure3ab.CELLS]
    assert len(curves) == 15  # BP, and DDG, DGL, FR and two of FDG for three K, but for DDG with K = 2, which is FDG
    assert len({(curve.colour, curve.style, curve.marker) for curve in curves}) == len(curves)
    assert len({curve.label for curve in curves}) == len(curves)


def test_the_bar_chart_has_the_papers_three_known_bars_and_ten_betas():
    known = {cell.beta: cell.error for cell in figure3c.CELLS if cell.error}
    assert known == {None: "7.78*", 0.2: "7.23", 1.0: "7.92"}
    assert [cell.beta for cell in figure3c.CELLS[1:]] == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]


def test_the_papers_cell_has_the_rerun_and_what_was_first_published():
    page = table3.TABLE.document({})
    assert row_of(page, "resnet20-cifar10-bp-K1")[PAPER] == "7.78\\* (first published: 8.75)"
    assert row_of(page, "resnet18-cifar10-fr-K2")[PAPER] == "4.80\\*"


@pytest.mark.parametrize(
    ("table", "run", "shown"),
    [
        ("table3", "resnet56-cifar10-fdg-K2-beta1", "6.63\\* (first published: 6.89, Table 6: 6.60\\*)"),
        ("table6", "resnet56-cifar10-fdg-K2-beta1", "6.60\\* (Table 3: 6.63\\*)"),
        ("table6", "wrn28_10-cifar10-fr-K2", "3.87\\* (Table 3: 3.87)"),
        ("table6", "resnet56-cifar10-fdg-K2-beta0.5", "5.90"),
        ("appendix_a", "resnet20-cifar10-fdg-K2-beta0.2", "7.23"),
    ],
)
def test_what_two_tables_print_differently_is_shown_with_both_values(table, run, shown):
    method = "DDG" if "beta1" in run else ""  # which has these runs' row beside FDG's
    assert row_of(experiments.find(table).document({}), run, method)[PAPER] == shown


def test_what_is_odd_about_a_number_is_said_below_the_table():
    page = table6.TABLE.document({})
    mark = re.search(r"\[\d\]$", row_of(page, "wrn28_10-cifar10-ddg-K4")[PAPER])[0]
    assert row_of(page, "resnet56-cifar10-ddg-K4")[PAPER].endswith(mark)
    assert f"\n{mark} DDG with K = 4 has 6.61 for ResNet-56 and for WRN-28-10" in page


@pytest.mark.parametrize("name", NAMES)
def test_every_note_is_about_a_cell_that_is_there(name):
    table = importlib.import_module(f"experiments.{name}")
    cells = {(cell.network, cell.method, cell.K, cell.beta) for cell in table.CELLS}
    assert set(table.PLAN.notes) <= cells | {key[:1] for key in cells}


# Table 7


def test_speedups_that_contradict_the_text_or_the_images_per_second_are_shown_with_all_values():
    said = {(s.network, s.K, s.method): table7.speedup(s) for s in table7.SPEEDS}
    assert {key: text for key, text in said.items() if "(" in text} == {
        ("ResNet-101", 2, "FDG"): "1.88 (text: 1.68; 175.0 / 104.3 = 1.68)",
        ("ResNet-101", 3, "FDG"): "2.10 (217.0 / 104.3 = 2.08)",
        ("ResNet-101", 4, "FDG"): "2.30 (234.3 / 104.3 = 2.25)",
        ("ResNet-101", 2, "DGL"): "1.89 (194.6 / 104.3 = 1.87)",
    }
    assert said["WRN-28-10", 4, "FDG"] == "3.20" and said["WRN-28-10", 1, "BP"] == ""


def test_a_line_of_the_benchmark_lands_in_its_row_of_table_7(tmp_path):
    line = {
        "benchmark": "images_per_second", "side": "fdg", "method": "fdg", "K": 4, "cores": 4, "model": "wrn28_10_fdg",
        "batch_size": 128, "split": "paper", "xla": "", "baseline": "bp", "images_per_second": 12.34, "ratio": 3.456,
        "windows": 6, "others_percent": 1.0, "cpu": "A Processor", "machine_cores": 8,
    }  # fmt: skip
    others = [{"cores": 2}, {"split": "balanced"}, {"batch_size": 64}, {"others_percent": 20.0}, {"benchmark": "other"}]
    others += [{"model": model} for model in ("wrn28_10", "resnet101", "resnet101_imagenet")]
    lines = [line, *({**line, "images_per_second": 99.0, **other} for other in others)]
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    found = table7.measured(tmp_path)
    ours = {(s.network, s.K, s.method): table7.row(s, found)[6:9] for s in table7.SPEEDS}
    assert ours.pop(("WRN-28-10", 4, "FDG")) == ["12.3", "3.46", "6"]
    assert all(cells == [""] * 3 for cells in ours.values())


def test_the_benchmarks_commands_of_table_7_are_ones_it_accepts():
    from benchmarks.images_per_second import parser

    for speed in table7.SPEEDS:
        if speed.network == "WRN-28-10":
            given = parser().parse_args(table7.command(speed).strip("`").split()[3:])
            assert (given.K, given.model, given.sides[-1]) == (speed.K, "wrn28_10_fdg", speed.method.lower())


# Results and runs that tables share


def test_collecting_one_table_leaves_the_lines_of_the_others(tmp_path):
    collected(table3.TABLE, tmp_path, {"resnet20-cifar10-bp-K1-seed0": 7.0, "resnet20-cifar10-fdg-K2-beta1-seed0": 8.0})
    lines = collected(table6.TABLE, tmp_path, {"resnet56-cifar10-fdg-K3-beta1-seed0": 6.0})
    assert list(lines) == ["resnet56-cifar10-fdg-K3-beta1-seed0"]
    assert len((tmp_path / "paper.jsonl").read_text().splitlines()) == 3
    assert list(result_files.read(figure3c.TABLE, tmp_path)) == [
        "resnet20-cifar10-bp-K1-seed0", "resnet20-cifar10-fdg-K2-beta1-seed0"
    ]  # fmt: skip


def test_every_committed_line_belongs_to_a_table():
    assert set(result_files.entries(table3.TABLE, RESULTS)) <= set(RUNS)


def test_a_shorter_version_has_runs_results_and_pages_of_its_own_that_say_so(tmp_path, capsys):
    asked = ["--epochs", "2", "--results", str(tmp_path)]
    make(tmp_path / "runs", run_of("resnet20-cifar10-bp-K1-seed0"), error=44.0, trained=2, epochs=2)
    assert table_command.main(table3.TABLE, ["collect", *asked, "--runs-dir", str(tmp_path / "runs")]) == 0
    assert table_command.main(table3.TABLE, ["render", *asked]) == 0
    names = {path.name for path in tmp_path.iterdir() if path.is_file()}
    assert names == {"paper-2-epochs.jsonl", "table3-2-epochs.md"}
    page = (tmp_path / "table3-2-epochs.md").read_text()
    assert page.startswith("# Table 3") and "**Scaled:** 2 epochs instead of the paper's 300" in page
    (cells,) = [cells for cells in rows(page) if cells[OURS]]
    assert cells[OURS] == "44.00" and "--epochs 2 " in cells[COMMAND]
    assert table_command.main(table3.TABLE, ["list", "--epochs", "0"]) == 2
    assert "--epochs 0: use 1 or more" in capsys.readouterr().err


# How long it would take


def test_the_steps_that_are_left_are_those_of_the_epochs_that_are_left():
    cifar, tiny = run_of("resnet20-cifar10-bp-K1-seed0"), run_of("resnet18-tiny_imagenet-bp-K1-seed0")
    assert estimate.steps_left(cifar, State(MISSING)) == 300 * 391  # 390 batches of 128 and one of 80
    assert estimate.steps_left(tiny, State(MISSING)) == 300 * 782
    assert estimate.steps_left(cifar, State(CUT_OFF, 299.5)) == round(391 / 2)
    assert estimate.steps_left(cifar, State(DONE, 300)) == 0


def test_a_dry_run_measures_a_step_once_for_all_runs_it_is_the_same_for(tmp_path, monkeypatch, capsys):
    asked = []

    def measured(run, core):
        asked.append(run.name)
        return estimate.Step(2.0 if run.flags["K"] == 1 else None, "made up")

    monkeypatch.setattr(estimate, "measured", measured)
    make(tmp_path, run_of("resnet20-cifar10-bp-K1-seed1"), error=None, trained=100, lines=1)
    make(tmp_path, run_of("resnet20-cifar10-bp-K1-seed2"), trained=300, lines=1)
    told = ["run", "--dry-run", "--runs-dir", str(tmp_path), "--only", "resnet20-*"]
    assert table_command.main(table3.TABLE, told) == 0
    assert asked == ["resnet20-cifar10-bp-K1-seed0", "resnet20-cifar10-fdg-K2-beta1-seed0"]
    out = capsys.readouterr().out
    assert "bp-K1-seed0: missing, 117,300 steps to go: 2.72 days" in out  # 234,600 s
    assert "bp-K1-seed1: cut off at epoch 100.00, 78,200 steps to go: 43.4 hours" in out  # 156,400 s
    assert "bp-K1-seed2: done" in out
    assert "total: 4.53 days of training, one run at a time" in out
    assert "not in it: 6 runs without an estimate" in out
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "resnet20-cifar10-bp-K1-seed1", "resnet20-cifar10-bp-K1-seed2"
    ]  # fmt: skip


DRY_RUN = ["run", "--dry-run", "--only", "resnet20-*"]  # two kinds of run


@pytest.fixture
def counted(monkeypatch):
    """Measuring takes no time and gives two seconds a step; the runs that were measured."""
    asked = []

    def measured(run, core):
        asked.append(run.name)
        return estimate.Step(2.0, "2 s a step, made up")

    monkeypatch.setattr(estimate, "measured", measured)
    return asked


def test_a_dry_run_says_first_how_many_kinds_of_run_it_measures_and_then_how_far_it_is(tmp_path, counted, capsys):
    assert table_command.main(table3.TABLE, [*DRY_RUN, "--runs-dir", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2 kinds of run are measured now, one after another, which takes 60 s to 6 minutes"
    assert [line for line in lines if "left" in line] == [
        "  1 of 2, about 60 s left: resnet20, bp, K=1, batches of 128",
        "  2 of 2, about 0 s left: resnet20, fdg, K=2, batches of 128",
    ]


def test_what_a_dry_run_measured_is_kept_for_the_next_one_until_asked_again(tmp_path, counted, capsys):
    here = ["--runs-dir", str(tmp_path)]
    assert table_command.main(table3.TABLE, [*DRY_RUN, *here]) == 0
    first = capsys.readouterr().out.splitlines()
    assert table_command.main(table3.TABLE, [*DRY_RUN, *here]) == 0
    second = capsys.readouterr().out.splitlines()
    assert len(counted) == 2
    assert second[0] == "2 kinds of run were measured before; --measure-again measures anew"
    assert second[-1] == first[-1] and "measured now" not in "".join(second)
    assert table_command.main(table3.TABLE, [*DRY_RUN, *here, "--measure-again"]) == 0
    assert len(counted) == 4


@pytest.mark.parametrize(
    "changed",
    [{"machine": "another"}, {"code": "other"}, {"versions": {}}, {"cores": 1000}, {"environment": {"XLA_FLAGS": "x"}}],
)
def test_what_was_measured_elsewhere_or_with_other_code_is_not_used(changed, tmp_path, counted, monkeypatch):
    here = ["--runs-dir", str(tmp_path)]
    assert table_command.main(table3.TABLE, [*DRY_RUN, *here]) == 0
    conditions = estimate.conditions
    monkeypatch.setattr(estimate, "conditions", lambda *of: {**conditions(*of), **changed})
    assert table_command.main(table3.TABLE, [*DRY_RUN, *here]) == 0
    assert len(counted) == 4


def test_what_could_not_be_measured_is_tried_again(tmp_path, monkeypatch, own_cache):
    monkeypatch.setattr(estimate, "measured", lambda *_: estimate.Step(None, "not measured"))
    assert table_command.main(table3.TABLE, [*DRY_RUN, "--runs-dir", str(tmp_path)]) == 0
    assert not own_cache.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_dry_run_that_is_stopped_keeps_what_it_measured_and_leaves_no_process(number, tmp_path, monkeypatch, capsys):
    started = []

    class Process(subprocess.Popen):
        """Stands for a training that takes long; the second one is stopped."""

        def __init__(self, words, **options):
            super().__init__([sys.executable, "-c", "import time; time.sleep(60)"], **options)
            started.append(self)

        def communicate(self, *arguments, **options):
            os.kill(os.getpid(), number)
            return super().communicate(*arguments, **options)

    monkeypatch.setattr(estimate.subprocess, "Popen", Process)
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    assert table_command.main(table3.TABLE, [*DRY_RUN, "--runs-dir", str(tmp_path)]) == 128 + number
    assert "what has been measured is kept" in capsys.readouterr().err
    assert [process.returncode for process in started] == [-signal.SIGKILL]
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_measuring_again_goes_with_a_dry_run_that_measures(capsys):
    assert table_command.main(table3.TABLE, ["run", "--measure-again"]) == 2
    assert table_command.main(table3.TABLE, [*DRY_RUN, "--measure-again", "--seconds-per-step", "1"]) == 2
    assert capsys.readouterr().err.count("--measure-again goes with --dry-run") == 2


def test_seconds_per_step_replaces_measuring_and_jobs_divide_the_total(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(estimate.runner, "cores_for", lambda jobs: [None] * jobs)
    told = ["run", "--dry-run", "--runs-dir", str(tmp_path), "--only", "resnet20-*-bp-*", "--jobs", "3"]
    assert table_command.main(table3.TABLE, [*told, "--seconds-per-step", "0.5"]) == 0
    assert "total: 16.3 hours of training, 3 runs at a time" in capsys.readouterr().out  # 3 * 117,300 * 0.5 / 3 s
    assert table_command.main(table3.TABLE, [*told, "--seconds-per-step", "0"]) == 2
    assert table_command.main(table3.TABLE, ["run", "--seconds-per-step", "1"]) == 2
    assert "--seconds-per-step goes with --dry-run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "words"), [(40, "40 s"), (719, "12 minutes"), (27_000, "7.5 hours"), (3_550_000, "41.1 days")]
)
def test_durations_are_told_in_the_unit_a_person_would_take(seconds, words):
    assert estimate.duration(seconds) == words


@pytest.mark.parametrize("name", ["table3", "table4", "table5", "table6", "appendix_a"])
def test_every_page_says_what_its_columns_mean_and_how_the_paper_was_read(name):
    page = experiments.find(name).document({})
    assert all(page.count(words) == 1 for words in paper.WORDS)


@pytest.mark.parametrize(
    ("rates", "steps", "seconds"),
    [
        ([(100.0, "")], [9], 1.28),  # 5 steps of 128 images in 6.4 s
        ([(None, ""), (12_800.0, "")], [9, 154], 0.01),  # one dispatch, which is not timed
        ([(6_400.0, ""), (12_800.0, "")], [9, 154], 0.01),  # 5 steps in 0.1 s
        ([(50.0, "180 s were not enough")], [9], 2.56),  # what it had logged by then
        ([(None, "180 s were not enough")], [9], None),
    ],
)
def test_more_steps_are_made_where_a_few_tell_too_little(monkeypatch, rates, steps, seconds):
    asked = []
    monkeypatch.setattr(estimate, "once", lambda run, steps, core: (asked.append(steps), rates[len(asked) - 1])[1])
    run = run_of("resnet20-cifar10-fdg-K2-beta1-seed0")
    assert estimate.measured(run, None).seconds == seconds and asked == steps
    asked.clear()
    tiny = estimate.measured(run._replace(flags={**run.flags, "dataset": "tiny_imagenet"}), None)
    assert tiny.seconds == (seconds and 4 * seconds)  # 64x64 pixels


@pytest.mark.slow
def test_a_step_is_measured_with_the_runs_own_flags_and_what_it_refuses_is_told(monkeypatch):
    monkeypatch.setattr(estimate, "SHORT_SECONDS", 0.0)  # a few steps must do here
    flags = {"dataset": "tiny_imagenet", "model": "resnet8", "epochs": 300, "batch_size": 16, "method": "fdg", "K": 2}
    plain = estimate.measured(Run("x", {**flags, "dataset": "cifar10"}), None)
    assert plain.seconds is not None and 0 < plain.seconds < 10  # 16 small images: 0.1 s even on a busy core
    assert re.search("from up to 5 steps made now on synthetic images$", plain.how)
    unknown = estimate.measured(Run("x", {**flags, "model": "resnet99"}), None)
    assert unknown.seconds is None and "not measured (error: model 'resnet99' is not known." in unknown.how
