"""The paper's tables: their runs have one name each, and a result lands in its cell. No training happens here."""

from pathlib import Path

import pytest
from made_up_runs import make, rows

import experiments
from experiments import figure3c, table3, table6
from experiments.harness import paper, result_files
from experiments.harness.run_table import RESULTS, Run

pytestmark = pytest.mark.usefixtures("own_cache")
ERRORS = ["table3", "table4", "table5", "table6", "appendix_a", "figure3c"]  # whose pages have rows of test errors
NAMES = [*ERRORS, "figure3ab"]
RUNS = {run.name: run for name in NAMES for run in experiments.find(name).runs}
PAPER, OURS, N, MINUS, COMMAND = 4, 5, 6, 7, 8  # columns


def collected(table, tmp_path: Path, found: dict[str, float]) -> dict:
    """The results of made-up runs with these test errors."""
    for name, error in found.items():
        make(tmp_path, RUNS[name], error=error, trained=300, lines=1)
    result_files.collect(table, tmp_path, tmp_path)
    return result_files.read(table, tmp_path)


def row_of(page: str, name: str, method: str = "") -> list[str]:
    """The row whose command makes the run of that name, its seed left open. method: where two rows show that run."""
    command = RUNS[f"{name}-seed0"].cell("S")
    (found,) = [cells for cells in rows(page) if cells[-1] == command and method in ("", cells[1])]
    return found


# The runs


def test_the_same_run_has_one_name_in_all_tables_another_run_another_name_and_each_setting_three_seeds():
    found: dict[str, Run] = {}
    for name in NAMES:
        seeds: dict[str, list[int]] = {}
        for run in experiments.find(name).runs:
            assert found.setdefault(run.name, run) == run
            seeds.setdefault(run.name.rpartition("-")[0], []).append(run.flags["seed"])
        assert all(sorted(each) == [0, 1, 2] for each in seeds.values())
    assert len({(run.module, *sorted(run.flags.items())) for run in found.values()}) == len(found)
    tables = [experiments.find(name) for name in ("table3", "figure3c", "appendix_a")]
    assert all("resnet20-cifar10-fdg-K2-beta0.2-seed1" in [run.name for run in table.runs] for table in tables)
    assert {table.home for table in tables} == {"paper"}


# The pages


def test_ours_is_the_median_of_the_finished_seeds_and_differences_to_bp_are_by_seed(tmp_path):
    name, bp = "resnet20-cifar10-fdg-K2-beta0.2", "resnet20-cifar10-bp-K1"
    found = {f"{name}-seed{seed}": error for seed, error in enumerate((9.0, 7.25, 7.5))}
    lines = collected(table3.TABLE, tmp_path, {**found, f"{bp}-seed0": 8.0, f"{bp}-seed1": 7.25})
    page = table3.TABLE.document(lines)
    assert row_of(page, name)[OURS : MINUS + 1] == ["7.50 (7.25 to 9.00)", "3", "+0.50 (-5.85 to +6.85)"]
    assert row_of(page, bp)[OURS : MINUS + 1] == ["7.62 (7.25 to 8.00)", "2", ""]
    cell = next(cell for cell in table3.CELLS if cell.beta == 0.2)
    assert paper.median_line(cell, lines) == lines[f"{name}-seed2"] and paper.median_line(cell, {}) is None
    del lines[f"{name}-seed0"]
    assert row_of(table3.TABLE.document(lines), name)[OURS : N + 1] == ["7.38 (7.25 to 7.50)", "2"]


def test_collecting_one_table_leaves_the_lines_of_the_others(tmp_path):
    collected(table3.TABLE, tmp_path, {"resnet20-cifar10-bp-K1-seed0": 7.0, "resnet20-cifar10-fdg-K2-beta1-seed0": 8.0})
    lines = collected(table6.TABLE, tmp_path, {"resnet56-cifar10-fdg-K3-beta1-seed0": 6.0})
    assert list(lines) == ["resnet56-cifar10-fdg-K3-beta1-seed0"]
    assert len((tmp_path / "paper.jsonl").read_text().splitlines()) == 3
    assert list(result_files.read(figure3c.TABLE, tmp_path)) == [
        "resnet20-cifar10-bp-K1-seed0", "resnet20-cifar10-fdg-K2-beta1-seed0"
    ]  # fmt: skip


def test_the_committed_shorter_table_is_what_its_results_give():
    short = paper.table(paper.Plan("table3", table3.CELLS, table3.NOTES), 3)
    assert (RESULTS / "table3-3-epochs.md").read_text() == short.document(result_files.read(short, RESULTS))
