"""The paper's tables: each lists its runs though none was made, and a run has one name. No training happens here."""

import importlib.util
import re

import pytest
from paper_tables import NAMES, RUNS

import experiments
from experiments import table3, table7
from experiments.harness import paper, run_table, table_command
from experiments.harness.run_table import Run
from fdg_jax import data, models
from fdg_jax.errors import BadInput
from fdg_jax.runs import option_checks
from fdg_jax.training import command_line

pytestmark = pytest.mark.usefixtures("own_cache")


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
    assert f"\nThe commands run in {run_table.ROOT}.\n" in out


def test_without_a_data_directory_the_list_says_where_the_data_are_looked_for(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TFDS_DATA_DIR", "/the/data")
    for name, fetched in (("table3", ", what is missing is downloaded there"), ("table5", "")):
        assert table_command.main(experiments.find(name), ["list", "--runs-dir", str(tmp_path)]) == 0
        said = f"look for the data in /the/data{fetched}: `list --data-dir DIR` makes them look in DIR."
        assert capsys.readouterr().out.splitlines()[-2].endswith(said)


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
    with pytest.raises(SystemExit):
        table_command.main(table7.TABLE, ["--help"])
    assert "[-h] render ..." in capsys.readouterr().out  # no verb that it refuses
    with pytest.raises(SystemExit):
        table_command.main(table7.TABLE, ["render", "--help"])
    helped = " ".join(capsys.readouterr().out.split())
    assert "make results/table7.md from the results of the benchmarks" in helped and ".jsonl" not in helped


@pytest.mark.parametrize("name", ["table3", "table4", "table5", "table6", "appendix_a"])
def test_every_page_says_what_its_columns_mean_and_how_the_paper_was_read(name):
    page = experiments.find(name).document({})
    assert all(page.count(words) == 1 for words in paper.WORDS)
