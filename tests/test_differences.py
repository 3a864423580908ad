"""Where this package differs from the authors' code: the arms, what the table makes of results, and its words.

No training happens here: run directories are made up.
"""

import json

import pytest
from made_up_runs import make, rows

from experiments import decisive, differences
from experiments.decision.rules import SHRUNK
from experiments.harness import estimate, result_files, run_table, table_command
from experiments.harness.intervals import interval
from fdg_jax import models
from fdg_jax.runs import option_checks
from fdg_jax.runs.options import Options, words
from fdg_jax.training import command_line

TABLE, ARMS, SEEDS = differences.TABLE, differences.ARMS, differences.SEEDS
# The columns.
WHAT, N, MEAN, MINUS, BEYOND, EFFECT, REMARK, COMMAND = 0, 3, 4, 5, 6, 7, 8, 9


def options_of(run: run_table.Run) -> Options:
    """As the training command understands the run."""
    words = run_table.command(run, "data", "somewhere")
    options, given = command_line.parse(words[3:], words[2])
    option_checks.check(options, given)
    return options


# The arms


def test_the_base_is_an_arm_of_the_decisive_experiment_and_its_runs_are_the_same_runs():
    of_decisive = {run.name: run for run in decisive.TABLE.runs}
    assert [run.name for run in differences.BASE.values()] == [f"resnet8-{SHRUNK}-20-epochs-seed{s}" for s in (0, 1, 2)]
    assert all(of_decisive[run.name] == run for run in differences.BASE.values())
    shared = {run.name for run in TABLE.runs} & set(of_decisive)
    assert shared == {run.name for run in differences.BASE.values()}
    assert TABLE.home == decisive.TABLE.home


def test_there_are_three_runs_of_each_arm_and_every_seed_is_whole_before_the_next():
    names = [run.name for run in TABLE.runs]
    assert len(names) == len(set(names)) == 3 * (1 + len(ARMS))
    assert [run.flags["seed"] for run in TABLE.runs] == [seed for seed in (0, 1, 2) for _ in range(1 + len(ARMS))]


@pytest.mark.parametrize("arm", ARMS)
def test_an_arm_differs_from_the_base_in_one_option_and_its_command_is_accepted(arm):
    base, ours = options_of(differences.BASE[0]), options_of(differences.run_of(arm, 0))
    changed = {name: value for name, value in vars(ours).items() if value != getattr(base, name)}
    assert changed == dict(ARMS[arm].changed)
    assert len(changed.keys() - {"engine"}) == 1


def test_only_arms_that_the_base_engine_cannot_run_have_another():
    other = {arm for arm, one in ARMS.items() if "engine" in one.changed}
    assert other == {"current", "in-flight"}
    # The delay line has no batches in flight, so these two differ in the moment of the test alone.
    assert {**ARMS["no-drain"].changed, "engine": "pipeline"} == ARMS["in-flight"].changed


def test_the_arm_of_the_dropped_batch_has_full_batches_only():
    images = ARMS["full-batches"].changed["train_size"]
    assert images % decisive.BATCH == 0 and 50_000 - images == 80


@pytest.mark.parametrize("arm", ["init", "pool"])
def test_the_arms_of_networks_are_cut_where_the_base_is(arm):
    assert len(models.blocks(ARMS[arm].changed["model"], 10)) == len(models.blocks("resnet8", 10))


def test_a_switch_that_is_off_stands_in_the_command_with_no():
    assert words("drain", False) == ["--no-drain"] and words("drain", True) == ["--drain"]
    assert "--no-drain" in run_table.command(differences.run_of("no-drain", 0), None, None)


# What is made of results

BASE = {0: 25.0, 1: 25.5, 2: 24.8}
MADE = {
    "init": {0: 27.0, 1: 27.6, 2: 26.9},  # +2.0, +2.1, +2.1: an effect
    "current": {0: 25.5, 1: 25.3, 2: 25.3},  # +0.5, -0.2, +0.5: none shown
    "pool": {0: 25.4, 1: 25.1, 2: 24.8},  # +0.4, -0.4, 0: none at all
    "no-drain": {0: 24.0, 1: 24.5},  # -1, -1, and a seed is missing
}


def made_up(path, arms, base=BASE):
    """The results of made-up runs, collected as real ones are."""
    runs = [(differences.BASE[seed], error) for seed, error in base.items()]
    runs += [(differences.run_of(arm, seed), error) for arm, found in arms.items() for seed, error in found.items()]
    for run, error in runs:
        made = make(path / "runs", run, error=error, trained=20, lines=1) / "config.json"
        made.write_text(json.dumps(json.loads(made.read_text()) | {"split": "1,2,3"}))  # the made-up one has another
    result_files.collect(TABLE, path / "runs", path)
    return result_files.read(TABLE, path)


def told(text: str) -> dict[str, list[str]]:
    """The cells of every row, by its arm; of what has no arm, by what it is."""
    found, arms = {cells[WHAT]: cells for cells in rows(text)}, {one.what: arm for arm, one in ARMS.items()}
    return {arms.get(what, what): cells for what, cells in found.items()}


def test_the_table_computes_differences_by_seed_with_their_intervals_and_the_registered_rule(tmp_path):
    text = TABLE.document(made_up(tmp_path, MADE))
    found = told(text)
    assert found["the base"][N : EFFECT + 1] == ["3", "25.10", "", "", ""]
    # By hand: mean 2.0667, deviation 0.0577, times 4.3027 / sqrt(3) = 0.1434.
    assert found["init"][N : EFFECT + 1] == ["3", "27.17", "+2.07 (+1.92 to +2.21)", "yes", "yes"]
    # Mean 0.2667, deviation 0.4041, so an interval of +-1.0039.
    assert found["current"][MINUS : EFFECT + 1] == ["+0.27 (-0.74 to +1.27)", "no", "none shown"]
    assert found["pool"][MINUS : EFFECT + 1] == ["+0.00 (-0.99 to +0.99)", "no", "none shown"]
    assert found["no-drain"][N : EFFECT + 1] == ["2", "24.25", "-1.00 (-1.00 to -1.00)", "yes", ""]
    assert found["in-flight"][N : EFFECT + 1] == [""] * 5
    finished = "14 of 24 runs are finished. The base, 20 epochs: 3 of 3; the 7 arms, 20 epochs: 11 of 21."
    assert text.startswith(f"**How much has run:** {finished}\n")
    assert "- initialisation (`init`): +2.07 points, larger than the seeds' spread" in text
    assert "(`pool`): +0.00 points, not larger than the seeds' spread" in text and "(`in-flight`):" not in text


def test_rounding_is_told_of_where_an_arm_that_trains_as_the_base_has_another_curve(tmp_path):
    lines = made_up(tmp_path, MADE)
    assert "Rounding" not in TABLE.document(lines)
    lines[differences.run_of("no-drain", 1).name]["training_curve"]["train_loss"][0] += 1e-5
    assert "Of 2 seeds it is another one for 1:" in TABLE.document(lines)
    assert "`no-drain` minus the base, -1.00 (-1.00 to -1.00), is" in TABLE.document(lines)


def test_an_arm_is_compared_on_the_seeds_that_the_base_has(tmp_path):
    found = told(TABLE.document(made_up(tmp_path, {"init": MADE["init"]}, base={2: 24.8})))
    assert found["init"][N : EFFECT + 1] == ["3", "27.17", "+2.10", "", ""]


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ([], ""), ([1.0, 1.0], ""), ([1.0, 1.1, 0.9], "yes"), ([-1.0, -1.1, -0.9], "yes"),
        ([0.1, 0.2, -0.1], "none shown"), ([0.0, 0.0, 0.0], "none shown"),
    ],
)  # fmt: skip
def test_an_effect_needs_all_seeds_and_an_interval_without_0(values, word):
    assert differences.has_effect(interval(values)) == word


def test_both_tables_keep_their_lines_in_one_file_and_read_their_own(tmp_path):
    made_up(tmp_path, {"init": MADE["init"]})
    bp = decisive.TABLE.runs[0]
    made = make(tmp_path / "others", bp, error=24.0, trained=20, lines=1) / "config.json"
    made.write_text(json.dumps(json.loads(made.read_text()) | {"split": "1,2,3"}))
    assert result_files.collect(decisive.TABLE, tmp_path / "others", tmp_path)[0] == [bp.name]
    bases = [run.name for run in differences.BASE.values()]
    assert set(result_files.read(decisive.TABLE, tmp_path)) == {bp.name, *bases}
    assert "4 of 74 runs are finished" in decisive.TABLE.document(result_files.read(decisive.TABLE, tmp_path))
    assert len(result_files.read(TABLE, tmp_path)) == 6
    assert [path.name for path in tmp_path.glob("*.jsonl")] == ["decisive.jsonl"]


def test_runs_are_looked_for_where_the_decisive_ones_are(tmp_path, capsys):
    make(tmp_path, differences.BASE[0], trained=20, lines=1)
    assert table_command.main(TABLE, ["list", "--runs-dir", str(tmp_path)]) == 0
    assert f"{differences.BASE[0].name}: done" in capsys.readouterr().out
    assert table_command.main(TABLE, ["list", "--only", differences.BASE[0].name]) == 0
    assert f"--run-dir runs/decisive/{differences.BASE[0].name}" in capsys.readouterr().out


def test_a_dry_run_counts_the_steps_of_full_batches_and_measures_them_like_the_base():
    base, full = differences.BASE[0], differences.run_of("full-batches", 0)
    missing = run_table.State(run_table.MISSING)
    assert [estimate.steps_left(run, missing) for run in (base, full)] == [20 * 391, 20 * 390]
    same = {arm for arm in ARMS if estimate.step_kind(differences.run_of(arm, 0)) == estimate.step_kind(base)}
    assert same == {"full-batches", "no-drain"}


# The page


def test_without_results_every_row_is_there_and_blank():
    text = TABLE.document({})
    found = told(text)
    assert len(found) == 1 + len(ARMS) + len(differences.WITHOUT_ARM)
    assert all(cells[N : EFFECT + 1] == [""] * 5 for cells in found.values())
    assert "0 of 24 runs are finished" in text and "Nothing has been run yet" in text


def test_every_row_has_a_command_or_the_reason_why_there_is_no_arm():
    found = told(TABLE.document({}))
    for one in differences.WITHOUT_ARM:
        assert found[one.what][REMARK].startswith("No arm: ") and not found[one.what][COMMAND]
    for arm, one in ARMS.items():
        assert found[arm][COMMAND].endswith("`") and "--seed S" in found[arm][COMMAND]
        for name, value in one.changed.items():
            assert " ".join(words(name, value)) in found[arm][COMMAND]


def test_what_counts_is_registered_with_the_numbers_of_the_rule():
    text = TABLE.document({})
    assert text.index("fixed before the first run") < text.index("| difference |")
    assert f"n = {len(SEEDS)}" in text and "95% interval (Student's) excludes 0" in text
    assert "so intervals reach 0.7 to 1.0 points" in text  # 4.3027 / sqrt(3) times 0.3 and 0.4
    assert "with a probability of 30%" in text  # 1 - 0.95^7


SAID = {
    "K": 4, "beta": 0.3, "epochs": 20, "order": "backward-first", "weights": "stashed", "drain": True,
    "engine": "delay-line", "model": "resnet8", "dataset": "cifar10_16", "warmup": "on",
}  # fmt: skip


def test_what_the_words_say_of_the_base_is_what_its_command_asks_for():
    options = options_of(differences.BASE[0])
    assert {name: getattr(options, name) for name in SAID} == SAID
    text = TABLE.document({})
    said = "K = 4 and β = 0.3, 20 epochs", "backward first, stashed weights, drained", "`--engine delay-line`"
    assert all(words in text for words in said)


def test_the_updates_that_are_named_are_those_of_the_run():
    notes = " ".join(one.note for one in differences.WITHOUT_ARM)
    assert "is 26 of the 7,820 batches" in notes  # 7,820 / 300
    assert "1/1,280" in notes  # 80 images, 16 places


def test_what_the_words_say_is_what_the_committed_results_say():
    late = {"forward-first": [6, 4, 2, 0]}
    lines = result_files.read(TABLE, run_table.RESULTS)
    for seed, arm in ((seed, arm) for seed in SEEDS for arm in (None, *ARMS)):
        run = differences.run_of(arm, seed) if arm else differences.BASE[seed]
        if run.name in lines:
            line, changed = lines[run.name], ARMS[arm].changed if arm else {}
            wanted = {**SAID, **changed}
            assert {name: line["options"][name] for name in wanted} == wanted
            assert line["staleness"] == late.get(arm or "", [5, 3, 1, 0])
