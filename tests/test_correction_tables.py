"""The two tables of corrections: grids, commands, and choices that are read from results.

No training happens here, but for the slow tests, which go the whole way with a run or two.
"""

import json
import re

import pytest
from correction_lines import WHENCE, line, tables, tuned, written
from made_up_runs import make

from experiments import corrections_images, corrections_text
from experiments.harness import result_files, run_table, table_command
from experiments.tuning import arms, images, texts, verdicts
from fdg_jax.errors import BadInput
from fdg_jax.experiments import cifar, language_model
from fdg_jax.runs import option_checks
from fdg_jax.runs.options import FIELDS
from fdg_jax.training import command_line

TABLES = {table.TABLE.name: table for table in (corrections_images, corrections_text)}
PROGRAMS = {"fdg_jax.experiments.cifar": cifar.PROGRAM, "fdg_jax.experiments.language_model": language_model.PROGRAM}
EACH = [(part, arm) for table in TABLES.values() for part in table.PARTS for arm in part.arms]


def test_every_arm_of_a_table_has_a_grid_of_one_size_and_the_same_multiples_of_its_usual_rate():
    for parts, size in ((images.PARTS, 6), (texts.PARTS, 4)):
        for part in parts:
            for arm in part.arms:
                runs = part.grid(arm)
                assert len(runs) == len({run.name for run in runs}) == size
                rates = sorted({run.flags["learning_rate"] for run in runs})
                assert rates == pytest.approx([arm.usual_rate * times for times in part.multiples])
                assert {run.flags["seed"] for run in runs} == {0} and all(run.flags["hold_out"] for run in runs)


def test_arms_of_a_part_differ_in_what_their_own_flags_say_only():
    for part in (*images.PARTS, *texts.PARTS):
        for arm in part.arms:
            own = {*arm.flags, *arm.own[0], "learning_rate"}
            assert {k: v for k, v in part.grid(arm)[0].flags.items() if k not in own} == {
                k: v for k, v in {**part.shared, **part.tuned, "seed": 0}.items() if k not in own
            }


def test_every_correction_of_the_docs_has_an_arm_on_images():
    """Not every file: one that a user adds needs neither."""
    told = set(re.findall(r"^\| `(\w+)` \|", (run_table.ROOT / "docs/corrections.md").read_text(), re.M))
    asked = {name for arm in images.FOUR.arms for name in arm.flags.get("correct", "none").split(",")}
    assert asked == told and {"none", "shrink", "anticipate", "t2"} < told
    said = {arm.flags.get("prediction") for arm in images.FOUR.arms} - {None}
    assert said == set(FIELDS["prediction"].type.__args__)


@pytest.mark.parametrize(("part", "arm"), EACH, ids=lambda each: each.name)
def test_every_command_line_is_one_the_training_command_accepts_and_leaves_nothing_to_defaults(part, arm):
    """What a command of its own changes by default would make `list` refuse the run that it has made."""
    tune = part.grid(arm)[-1]
    choice = {name: tune.flags[name] for name in ("learning_rate", *arm.own[0])}
    free = {name for name, field in FIELDS.items() if field.metadata["free"]}
    for run in (tune, part.final_run(arm, choice, 2)):
        words = run_table.command(run, None, "somewhere")
        options, given = command_line.parse(words[3:], PROGRAMS[run.module])
        option_checks.check(options, given)
        wanted = {name: field.default for name, field in FIELDS.items() if name not in free} | dict(run.flags)
        assert {name: getattr(options, name) for name in wanted} == wanted


def test_the_page_registers_the_numbers_of_runs_and_the_rules_that_are_used():
    text = (run_table.ROOT / "experiments" / "corrections.md").read_text()
    counted = {
        "images: tuning BP and K = 4, then final": images.PARTS[:2],
        "text: tuning, then final, K = 8": texts.AT_EIGHT[:2],
        "text: two more arms with Muon, tuning, then final": texts.AT_EIGHT[2:3],
        "text: six more arms at K = 8, tuning, then final": texts.AT_EIGHT[3:],
        "images: tuning BP with other optimizers, then final": images.PARTS[2:3],
        "images: tuning K = 2, then final": images.PARTS[3:],
    }
    total = 0
    for what, parts in counted.items():
        tuning, finals = len(arms.tune_runs(parts)), sum(len(part.arms) * len(part.seeds) for part in parts)
        total += tuning + finals
        assert f"| {what} | {tuning} and {finals} |" in text
    for what, parts in (("", texts.GROWTH), (", all other arms, seed 0", texts.GROWTH_OF_REST)):
        growth = sum(len(part.arms) * len(part.seeds) for part in parts)
        total += growth
        assert f"| growth{what} | {growth} |" in text
    assert f"| all | {total} |" in text
    numbers = (corrections_images.GAIN, corrections_images.LEVEL, corrections_text.GAIN, verdicts.MIN_SEEDS)
    for number in (*numbers, *corrections_text.MOST.values(), 6, 4):
        assert f"**{number:g}**" in text
    assert f"**{corrections_images.AIM:g}%**" in text
    assert f"T = {images.QUARTER} updates" in text and f"{images.HELD_OUT:,} (`--hold-out" in text


@pytest.mark.parametrize("best", [0, 2, 5])
def test_a_final_run_has_the_options_of_the_best_tuning_run(tmp_path, best):
    lines = tuned(images.FOUR, best)
    table = written(tmp_path, corrections_images.TABLE, lines)
    finals = [run for run in table.runs if run.name.startswith("final-")]
    assert len(finals) == 3 * len(images.FOUR.arms)
    for arm in images.FOUR.arms:
        chosen = images.FOUR.grid(arm)[best].flags
        (run,) = [run for run in finals if run.name == f"final-K4-{arm.name}-seed1"]
        assert run.flags == {**chosen, "epochs": 5, "hold_out": 0, "seed": 1}
    assert [run.flags["seed"] for run in finals] == sorted(run.flags["seed"] for run in finals)


def test_an_arm_without_its_whole_grid_has_no_final_runs_yet(tmp_path):
    lines = tuned(images.FOUR)
    del lines[images.FOUR.grid(images.FOUR.arms[1])[3].name]
    table = written(tmp_path, corrections_images.TABLE, lines)
    names = {run.name for run in table.runs if run.name.startswith("final-")}
    assert len(names) == 3 * (len(images.FOUR.arms) - 1)
    assert not any(images.FOUR.final_name(images.FOUR.arms[1], seed) in names for seed in images.SEEDS)


def test_of_equals_the_first_is_chosen_and_one_that_has_diverged_never_is():
    arm = images.FOUR.arms[0]
    runs = images.FOUR.grid(arm)
    lines = {run.name: line(run, 30.0) for run in runs}
    assert images.FOUR.choice(lines, arm) == {"learning_rate": 0.05, "momentum": 0.9}
    lines[runs[0].name] = {"options": dict(runs[0].flags), "diverged": True, **WHENCE}
    assert images.FOUR.choice(lines, arm) == {"learning_rate": 0.1, "momentum": 0.9}
    assert images.FOUR.choice({run.name: {"diverged": True} for run in runs}, arm) is None


def test_a_line_made_with_an_earlier_choice_is_refused(tmp_path):
    lines = tuned(images.OF_BP, 0)
    lines |= {run.name: line(run) for run in images.OF_BP.final_runs(lines)}
    table = written(tmp_path, corrections_images.TABLE, lines)
    assert len(result_files.read(table, tmp_path)) == 6 + 3
    lines |= tuned(images.OF_BP, 1)
    table = written(tmp_path, corrections_images.TABLE, lines)
    with pytest.raises(BadInput, match=r"final-K1-bp-seed0 is of another run: learning_rate is 0\.05, not 0\.1"):
        result_files.read(table, tmp_path)


def test_a_run_that_ended_with_a_huge_loss_has_diverged(tmp_path, capsys):
    table = corrections_images.TABLE
    for run, loss in zip(table.runs, (3.2e7, None, 1.5), strict=False):
        path = make(tmp_path / "runs", run, error=90.0, trained=2)
        summary = json.loads((path / "summary.json").read_text())
        (path / "summary.json").write_text(json.dumps({**summary, "train_loss": loss, "updates": [704]}))
    where = ["--runs-dir", str(tmp_path / "runs"), "--results", str(tmp_path)]
    assert table_command.main(table, ["collect", *where]) == 0
    found = result_files.read(table, tmp_path).values()
    assert [each.get("diverged") for each in found] == [True, True, None]
    assert ["test_error_percent" in each for each in found] == [False, False, True]
    capsys.readouterr()


def test_collecting_names_what_is_new_and_counts_what_would_hide_it(tmp_path, capsys):
    table = corrections_images.TABLE
    *before, new = [run for run in table.runs if "split" not in run.flags][:12]  # made-up runs have another one
    for folder, runs in (("before", before), ("now", [new])):
        for run in runs:
            make(tmp_path / folder, run, error=44.0, trained=2)
        where = ["--runs-dir", str(tmp_path / folder), "--results", str(tmp_path)]
        assert table_command.main(table, ["collect", *where]) == 0
        collected, *others = capsys.readouterr().out.splitlines()
        assert collected.endswith(f": collected {', '.join(run.name for run in runs)}")
    kept, lacking = others
    assert kept == "as they were: 11 runs, see `list`"
    assert re.fullmatch(r"not finished: \d+ runs, see `list`", lacking)


def test_a_run_that_has_diverged_is_collected_once_and_not_made_again(tmp_path, monkeypatch, capsys):
    table = corrections_images.TABLE
    run, other = table.runs[:2]
    for each in (run, other):
        make(tmp_path / "runs", each, error=None, trained=2)
    said = "error: the training loss is nan at batch 7. The run in x has diverged; its report shows where. Lower it."
    (tmp_path / "runs" / f"{run.name}.log").write_text(f"epoch 2/5\n{said}\n")
    (tmp_path / "runs" / f"{other.name}.log").write_text("epoch 2/5\nerror: no room left on the disk\n")
    where = ["--runs-dir", str(tmp_path / "runs"), "--results", str(tmp_path)]
    assert table_command.main(table, ["collect", *where]) == 0
    (found,) = result_files.read(result_files.complete(table, tmp_path), tmp_path).values()
    assert found["name"] == run.name and found["diverged"] and "test_error_percent" not in found
    asked = []
    monkeypatch.setattr(table_command.runner, "run_missing", lambda runs, *_: asked.extend(runs) or 0)
    assert table_command.main(table, ["run", *where, "--only", run.name, other.name]) == 0
    assert [each.name for each in asked] == [other.name]
    assert "1 diverged" in table.document({run.name: found})
    capsys.readouterr()


@pytest.mark.parametrize("name", TABLES)
def test_without_results_a_page_has_every_row_and_no_number(name, tmp_path):
    table = TABLES[name]
    assert table_command.main(table.TABLE, ["render", "--results", str(tmp_path)]) == 0
    parts = table.PARTS if name == "corrections_images" else texts.AT_EIGHT  # growth has a table of its own
    text = (tmp_path / f"{name}.md").read_text()
    found, head = tables(text)[0], {title: at for at, title in enumerate(table.HEADS)}
    assert len(found) == sum(len(part.arms) for part in parts)
    assert all(cells[head["n"]] == cells[head["by seed"]] == cells[head["here"]] == "" for cells in found)
    assert all("--seed S" in cells[head["command"]] for cells in found)
    for picture in re.findall(r"\((\w+\.png)\)", text):
        assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")
    assert f"({name}.png)" in text


def short(part, names, **shared):
    """The part with one tuning run an arm and one seed, of these arms, with other flags."""
    few = tuple(arm._replace(own=arm.own[:1]) for arm in part.arms if arm.name in names)
    left = {name: value for name, value in part.shared.items() if name not in shared}
    return part._replace(arms=few, multiples=(1.0,), seeds=(0,), shared={**left, **shared})


def whole_way(table, parts, tmp_path):
    """run, collect, run, collect, render; the page's rows."""
    made = table._replace(
        runs=arms.tune_runs(parts), then=lambda lines: arms.final_runs(parts, lines), picture=None,
        document=lambda lines: "\n".join(lines),
    )  # fmt: skip
    where = ["--runs-dir", str(tmp_path / "runs"), "--results", str(tmp_path)]
    for _ in range(2):
        assert table_command.main(made, ["run", *where]) == 0
        assert table_command.main(made, ["collect", *where]) == 0
    assert table_command.main(made, ["list", *where]) == 0
    return result_files.read(result_files.complete(made, tmp_path), tmp_path)


@pytest.mark.slow
def test_a_tiny_table_on_images_is_tuned_on_held_out_images_and_then_trained(tmp_path):
    few = {"dataset": "digits", "model": "resnet8", "epochs": 1, "batch_size": 64, "train_size": 128}
    part = short(images.TWO, ("fdg", "beta-spike"), **few)
    lines = whole_way(
        corrections_images.TABLE, (part._replace(tuned={"hold_out": 300}, final={"hold_out": 0}),), tmp_path
    )
    assert [name.split("-")[0] for name in lines] == ["tune", "tune", "final", "final"]
    tune, final = lines["tune-K2-fdg-rate0.1-momentum0.9"], lines["final-K2-fdg-seed0"]
    assert (tune["options"]["hold_out"], final["options"]["hold_out"]) == (300, 0)
    assert tune["final_parameters_sha256"] == final["final_parameters_sha256"]  # the same 128 images
    assert "held out" in tune["note"] and not final["note"] and tune["test_loss"] != final["test_loss"]


@pytest.mark.slow
def test_a_tiny_table_on_text_writes_its_text_and_trains_on_it(tmp_path):
    part = short(texts.EIGHT, ("bp", "t1"), model="transformer2x32", K=2, train_size=64, block_size=16)
    part = part._replace(tuned={"epochs": 1, "hold_out": 320}, final={"epochs": 2, "hold_out": 0})
    lines = whole_way(corrections_text.TABLE, (part,), tmp_path)
    assert len(lines) == 4 and (run_table.ROOT / texts.TEXT).is_file()
    final = lines["final-K8-t1-seed0"]
    assert [test["step"] for test in final["evaluations"]] == [4, 8]  # 64 blocks, batches of 16
    assert final["options"]["text"] == texts.TEXT and "--text" in final["command"]
