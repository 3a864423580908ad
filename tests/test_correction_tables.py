"""The two tables of corrections: grids, choices that are read from results, pages with none, some and all of them.

No training happens here, but for the slow tests, which go the whole way with a run or two.
"""

import json
import re

import pytest
from made_up_runs import make, rows

from experiments import corrections_images, corrections_text
from experiments.harness import bars, estimate, result_files, run_table, table_command
from experiments.harness.intervals import interval
from experiments.tuning import arms, corpus, growth, images, texts, verdicts
from experiments.tuning.verdicts import FAILS, HOLDS, UNDECIDED, Scale, Values
from fdg_jax import methods
from fdg_jax.errors import BadInput
from fdg_jax.experiments import cifar, language_model
from fdg_jax.runs import option_checks
from fdg_jax.runs.options import FIELDS
from fdg_jax.training import command_line

TABLES = {table.TABLE.name: table for table in (corrections_images, corrections_text)}
PROGRAMS = {"fdg_jax.experiments.cifar": cifar.PROGRAM, "fdg_jax.experiments.language_model": language_model.PROGRAM}
WHENCE = {
    "versions": {"python": "3", "jax": "1", "flax": "2", "optax": "3"},
    "hardware": {"devices": ["cpu:0"], "cpus": 2},
    "git_commits": ["a" * 40],
}
EACH = [(part, arm) for table in TABLES.values() for part in table.PARTS for arm in part.arms]


def line(run, error=30.0, loss=None):
    """A result line. loss: of a text, after its first epoch of 1,000 steps; it falls by 0.1 every epoch."""
    made = {"name": run.name, "options": dict(run.flags), "seconds": 360.0, "test_error_percent": error, **WHENCE}
    if loss is not None:
        epochs, steps = range(run.flags["epochs"]), texts.STEPS_PER_EPOCH
        made["evaluations"] = [{"step": (i + 1) * steps, "test_loss": loss - 0.1 * i} for i in epochs]
        made["test_loss"] = made["evaluations"][-1]["test_loss"]
    return made


def tuned(part, best=0, loss=None):
    """Lines of all tuning runs of a part, with the lowest error at run `best` of each grid."""
    return {
        run.name: line(run, 40.0 - 10 * (i == best), loss and loss - (i == best))
        for arm in part.arms
        for i, run in enumerate(part.grid(arm))
    }


def written(tmp_path, table, lines):
    (tmp_path / f"{table.home}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines.values()))
    return result_files.complete(table, tmp_path)


# The runs


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


def test_every_correction_there_is_has_an_arm_on_images():
    from fdg_jax import corrections

    asked = {name for arm in images.FOUR.arms for name in arm.flags.get("correct", "none").split(",")}
    assert asked == {*corrections.names()}
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
        "text: tuning, then final, K = 8": texts.PARTS[:2],
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


# The choice


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


def test_growth_has_the_rates_that_were_chosen_for_eight_stages():
    lines = tuned(texts.EIGHT, 2, loss=2.0)
    for part in texts.GROWTH:
        runs = part.final_runs(lines)
        assert len(runs) == 9 and {run.flags["learning_rate"] for run in runs} == {0.002}
        assert {run.flags["K"] for run in runs} == {part.shared["K"]} and part.tune_runs == ()
        assert part.final_runs({}) == ()
    alone = {arm.name for part in texts.GROWTH_OF_REST for arm in part.arms}
    assert len(alone) == 19 and {"bp-muon", "bp-rotation", "ddg"} <= alone and not alone & {"bp", "fdg", "t1"}
    assert {part.seeds for part in texts.GROWTH_OF_REST} == {(0,)}


def test_the_arms_left_out_of_growth_at_two_stages_would_be_others_runs_again():
    """By the committed results, which say what rates were chosen."""
    lines = result_files.entries(corrections_text.TABLE, run_table.ROOT / "experiments" / "results")
    assert methods.find("ddg").schedule(2).staleness == methods.find("fdg").schedule(2).staleness == (1, 0)
    own = ("method", "correct", "prediction", "anneal_updates")  # `rate` divides by 1
    at_eight = {arm.name: (part, arm) for part in texts.PARTS[:2] for arm in part.arms}
    for name, other in texts.SAME_AT_TWO.items():
        flags = []
        for part, arm in (at_eight[name], at_eight[other]):
            run = part.final_run(arm, part.choice(lines, arm), 0)
            looks_ahead = "anticipate" in run.flags.get("correct", "")
            flags.append((looks_ahead, {key: value for key, value in run.flags.items() if key not in own}))
        assert flags[0] == flags[1]
    left = {arm.name for part in texts.GROWTH_OF_REST if part.shared["K"] == 2 for arm in part.arms}
    everywhere = {arm.name for part in texts.GROWTH_OF_REST for arm in part.arms}
    assert everywhere - left == texts.SAME_AT_TWO.keys()


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


# The rules

SCALE = Scale("points", 0.5, 2)
NOISE = (0.0, 0.1, -0.1)


def of(mean, seeds=3, shift=0, noise=1.0):
    return Values({seed: mean + noise * NOISE[(seed + shift) % 3] for seed in range(seeds)})


@pytest.mark.parametrize(
    ("arm", "noise", "less", "none"),
    [
        (28.0, 1.0, HOLDS, FAILS), (30.0, 0.1, FAILS, HOLDS), (32.0, 1.0, FAILS, HOLDS),
        (29.8, 0.1, HOLDS, HOLDS),  # surely less, and surely by less than half a point
        (29.5, 5.0, UNDECIDED, UNDECIDED),
    ],
)  # fmt: skip
def test_an_arm_errs_less_or_not(arm, noise, less, none):
    stale, found = of(30.0, noise=noise), of(arm, shift=1, noise=noise)
    assert verdicts.less(found, stale, SCALE).word == less
    assert verdicts.no_gain(found, stale, SCALE).word == none


def test_two_seeds_decide_nothing():
    few = "2 of at least 3 seeds can be compared."
    assert verdicts.less(of(1, 2), of(9), SCALE) == verdicts.worse(of(9, 2), of(1), SCALE) == (UNDECIDED, few)
    assert verdicts.level(of(1, 2), of(9), 1.0, SCALE) == (UNDECIDED, few)
    assert verdicts.within({0: 1.0, 1: 1.0}, 1.1, of(1, 2), of(9)) == (UNDECIDED, few)


@pytest.mark.parametrize(("arm", "level", "worse"), [(20.5, HOLDS, HOLDS), (22.0, FAILS, HOLDS), (19.0, HOLDS, FAILS)])
def test_an_arm_is_level_with_bp_or_behind_it(arm, level, worse):
    assert verdicts.level(of(arm, shift=1), of(20.0), 1.0, SCALE).word == level
    assert verdicts.worse(of(arm, shift=1), of(20.0), SCALE).word == worse


def test_an_arm_that_diverges_more_often_does_not_hold():
    lost = Values({0: 1.0, 1: 1.0}, (2,))
    diverged = (FAILS, "1 of its runs have diverged.")
    assert verdicts.less(lost, of(30.0), SCALE) == verdicts.no_gain(lost, of(30.0), SCALE) == diverged
    assert verdicts.within({0: 1.0, 1: 1.0, 2: None}, 1.1, lost, of(30.0)) == diverged
    assert verdicts.level(lost, lost, 1.0, SCALE).word == UNDECIDED


@pytest.mark.parametrize(
    ("times", "word"),
    [((1.0, 1.1, 0.9), HOLDS), ((1.2, None, 1.3), FAILS), ((1.0, 1.2, 1.0), UNDECIDED)],
)
def test_all_seeds_reach_bps_loss_in_time_or_none_does(times, word):
    assert verdicts.within(dict(enumerate(times)), 1.1, of(1.0), of(1.0)).word == word


def test_the_gap_that_is_closed_is_of_the_seeds_that_all_have_and_may_not_be_chance():
    shared = Values({0: 28.0, 1: 28.0, 2: 28.0, 3: 99.0}), of(34, noise=0), Values({0: 22.0, 1: 22.0, 2: 22.0, 4: 9.0})
    assert verdicts.gap_closed(*shared) == 0.5
    assert verdicts.gap_closed(Values({0: 28.0}), of(34), of(22)) is None  # one seed says nothing of the gap's spread
    assert verdicts.gap_closed(of(30), of(20), of(25)) is None  # without a gap there is nothing to close
    assert verdicts.gap_closed(of(19), of(20.05), of(20, shift=1)) is None  # an interval of the gap has 0
    assert verdicts.gap_closed(Values({0: 1.0, 1: 1.0}, (2,)), of(34), of(22)) is None


def test_tokens_to_a_loss_are_found_between_two_tests():
    tests = [{"step": step, "test_loss": loss} for step, loss in ((500, 3.0), (2000, 2.0), (2500, 2.1), (3000, 1.9))]
    assert corrections_text.steps_to(tests, 2.5) == pytest.approx(1000)  # half of the way from log 500 to log 2000
    assert corrections_text.steps_to(tests, 2.0) == pytest.approx(2000)
    assert corrections_text.steps_to(tests, 3.5) == 500
    assert corrections_text.steps_to(tests, 1.8) is None
    assert corrections_text.steps_to([{"step": 250, "test_loss": None}, *tests], 2.5) == pytest.approx(1000)


def test_a_loss_that_is_not_finite_is_the_largest():
    arm = texts.EIGHT.arms[0]
    runs = texts.EIGHT.grid(arm)
    lines = {run.name: line(run, loss=loss) for run, loss in zip(runs, (9.0, 8.0, 8.5, 8.0), strict=True)}
    lines[runs[1].name]["test_loss"] = None
    assert texts.EIGHT.choice(lines, arm) == {"learning_rate": 0.004}


# The pages


@pytest.mark.parametrize("name", TABLES)
def test_without_results_a_page_has_every_row_and_no_number(name, tmp_path):
    table = TABLES[name]
    assert table_command.main(table.TABLE, ["render", "--results", str(tmp_path)]) == 0
    parts = table.PARTS if name == "corrections_images" else texts.PARTS[:2]  # growth has a table of its own
    text = (tmp_path / f"{name}.md").read_text()
    found, head = tables(text)[0], {title: at for at, title in enumerate(table.HEADS)}
    assert len(found) == sum(len(part.arms) for part in parts)
    assert all(cells[head["n"]] == cells[head["by seed"]] == cells[head["here"]] == "" for cells in found)
    assert all("--seed S" in cells[head["command"]] for cells in found)
    for picture in re.findall(r"\((\w+\.png)\)", text):
        assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")
    assert f"({name}.png)" in text


def tables(text):
    """The rows of each table of a page."""
    by_width = {}
    for cells in rows(text):
        by_width.setdefault(len(cells), []).append(cells)
    return list(by_width.values())


def finals(parts, names, lines):
    """(run, arm, seed) of the final runs of the arms of these names."""
    for part in parts:
        for arm in (each for each in part.arms if each.name in names):
            for seed in part.seeds:
                yield part.final_run(arm, part.choice(lines, arm), seed), arm, seed


def test_the_page_on_images_says_what_was_chosen_what_it_cost_and_what_holds():
    lines = {name: each for part in images.PARTS for name, each in tuned(part, 1).items()}
    errors = {"bp": 22.0, "fdg": 34.0, "beta": 28.0, "last": 33.95, "pipemare": 22.3}
    for run, arm, seed in finals(images.PARTS, errors, lines):
        lines[run.name] = line(run, errors[arm.name] + NOISE[seed] * (1 + len(arm.name) / 10))
    told = {(cells[0], cells[1]): dict(zip(corrections_images.HEADS, cells, strict=True)) for cells in
            rows(corrections_images.document(lines))}  # fmt: skip
    bp, beta = told["any", "BP, SGD"], told["4", "FDG, β"]
    assert (bp["n"], bp["test error %, mean"], bp["gap to BP closed"]) == ("3", "22.00", "")
    assert beta["gap to BP closed"] == "50%" and beta["here"].startswith("holds here. The gain is +6.00")
    assert beta["minus BP with SGD, by seed: mean (95% interval)"].startswith("+6.00 (")
    assert beta["chosen"] == "--learning-rate 0.1 --beta 0.5" and beta["tuning"] == "6 of 6 runs, 0.6 h"
    assert "--hold-out 0 " in beta["command"] and "--learning-rate 0.1 --beta 0.5 --seed S`" in beta["command"]
    assert told["4", "anticipate, last update"]["here"].startswith("does not hold here. Behind BP by +11.95")
    assert told["4", "PipeMare: rate or T1, and T2"]["here"].startswith("holds here. Behind BP by +0.30")
    blank = told["2", "Gap-Aware"]
    assert (blank["n"], blank["here"], blank["chosen"]) == ("", "", "--learning-rate 0.1 --momentum 0.9")
    text = corrections_images.document(lines)
    assert "K = 4: 102 of 102 tuning runs (10.2 core-hours), 12 of 51 final runs (1.2 core-hours)" in text
    assert "**The best arm at K = 4** of the 4 of 17 that have all seeds is PipeMare" in text
    assert "The aim of 28%, half of the gap that was known before, is reached." in text
    assert re.search(r"^\*\*At the edge", text, re.M) is None  # run 1 of each grid has the usual rate
    edge = {name: each for part in images.PARTS for name, each in tuned(part, 0).items()}
    assert "32 of 32 arms chose the smallest or the largest rate" in corrections_images.document(edge)


def test_an_arm_with_another_optimizer_is_told_beside_the_best_with_sgd_and_beside_its_own_bp(monkeypatch, tmp_path):
    lines = {name: each for part in images.PARTS for name, each in tuned(part, 1).items()}
    errors = {"bp": 22.0, "bp-rotation": 16.5, "fdg": 34.0, "beta": 29.0, "rotation": 18.0}
    for run, arm, seed in finals(images.PARTS[:3], errors, lines):
        lines[run.name] = line(run, errors[arm.name] + NOISE[seed])
    text = corrections_images.document(lines)
    best = "is basis rotation: 18.00%; of those with SGD, FDG, β: 29.00%. BP with SGD: 22.00% (n = 3)"
    assert best in text and "is reached, but not with SGD. Of the gap in this table FDG, β closes 42%." in text
    assert "with the 95% interval: basis rotation, K = 4: +1.50 (+1.50 to +1.50), n = 3." in text
    (own,) = [cells for cells in rows(text) if cells[1] == "BP, basis rotation"]
    found = dict(zip(corrections_images.HEADS, own, strict=True))
    assert (found["K"], found["gap to BP closed"]) == ("any", "")
    assert found["minus BP with SGD, by seed: mean (95% interval)"] == "-5.50 (-5.50 to -5.50)"
    drawn = {}
    monkeypatch.setattr(corrections_images.bars, "draw", lambda groups, *_: drawn.update(groups))
    corrections_images.picture(lines, tmp_path / "images.png")
    assert list(drawn["BP: nothing is late"]) == ["BP, SGD", "BP, basis rotation"]
    lost = {"diverged": True, **WHENCE}
    lines |= {"final-K4-rotation-seed0": lost, "final-K1-bp-rotation-seed1": lost, "final-K4-nadam-seed0": lost}
    told = corrections_images.optimizers(lines)
    assert "(NAdam), K = 4: 1 diverged; basis" in told
    assert told.endswith("basis rotation, K = 4: +1.50, n = 1, 1 diverged, 1 of BP diverged.")


def test_the_page_on_images_tells_what_has_diverged_and_closes_no_gap_that_may_be_chance():
    lines = {name: each for part in images.PARTS for name, each in tuned(part, 1).items()}
    errors = {"bp": 22.0, "fdg": 22.1, "beta": 21.9, "rate": 21.9}
    for run, arm, seed in finals(images.PARTS, errors, lines):
        shift = seed + (arm.name == "bp")
        lines[run.name] = line(run, errors[arm.name] + NOISE[shift % 3])
    last = images.FOUR.final_name(next(arm for arm in images.FOUR.arms if arm.name == "rate"), 2)
    lines[last] = {"options": lines[last]["options"], "diverged": True, **WHENCE}
    told = {(cells[0], cells[1]): dict(zip(corrections_images.HEADS, cells, strict=True)) for cells in
            rows(corrections_images.document(lines))}  # fmt: skip
    assert told["4", "FDG, β"]["gap to BP closed"] == ""  # FDG is behind BP by 0.1, and the interval has 0
    rate = told["4", "rates by staleness, or PipeMare's T1"]
    assert rate["n"] == "3, 1 diverged" and rate["by seed"] == "0: 21.90, 1: 22.00, 2: diverged"
    assert rate["here"] == "does not hold here. 1 of its runs have diverged. T1 was tried and not chosen."


def test_the_page_on_text_tells_tokens_to_bps_loss():
    lines = {name: each for part in texts.PARTS[:2] for name, each in tuned(part, 1, 3.0).items()}
    losses = {"bp": 3.0, "fdg": 3.5, "t1": 3.05, "bp-muon": 2.6, "fdg-muon": 2.65}
    for run, arm, seed in finals(texts.PARTS, losses, lines):
        lines[run.name] = line(run, loss=losses[arm.name] + NOISE[seed] / 100 * (1 + len(arm.name)))
    text = corrections_text.document(lines)
    of_eight, of_growth = tables(text)
    told = {tuple(cells[:3]): dict(zip(corrections_text.HEADS, cells, strict=True)) for cells in of_eight}
    times = "tokens to BP's loss / BP's tokens"
    assert told["transformer8x64", "8", "BP, adamw"]["test loss, mean (nats/byte)"] == "2.9000"  # after 2,000 steps
    assert told["transformer8x64", "8", "FDG, adamw"][times] == "more than 1.5 (0 of 3 seeds reach it)"
    assert told["transformer8x64", "8", "PipeMare's T1, adamw"][times].startswith("1.22 (")  # exp(log(1.5) / 2)
    muon = told["transformer8x64", "8", "FDG, muon"]
    assert muon["here"].startswith("holds here. Its gap is smaller by +0.450 (") and muon[times].startswith("1.22 (")
    grown = {cells[0]: dict(zip(corrections_text.OF_GROWTH, cells, strict=True)) for cells in of_growth}
    assert grown["BP, adamw"]["K = 16"] == "2.900, n = 3" and grown["BP, muon"]["K = 2"] == "2.500, n = 1"
    assert grown["FDG, adamw"]["K = 4"] == "+0.500 (+0.498 to +0.502), n = 3; more than 1.5 (0 of 3 seeds reach it)"
    assert grown["rates by staleness, adamw"]["K = 2"] == "as PipeMare's T1, adamw"
    assert grown["FDG, muon"]["K = 8"].startswith("+0.050, n = 1; 1.") and grown["cosine gate, adamw"]["K = 8"] == ""
    assert "--K K " in grown["FDG, adamw"]["command"] and grown["FDG, adamw"]["chosen"] == "--learning-rate 0.001"
    assert corpus.SHA256 in text and f"--text {texts.TEXT}" in grown["FDG, adamw"]["command"]
    assert re.search(r"with all seeds is PipeMare's T1, adamw: 1\.22 .* aim of 1\.1 is not reached", text)
    behind = {name: each for name, each in lines.items() if "final-K8-t1-" not in name and "muon" not in name}
    assert "of 1 arms that have all seeds none reaches its BP's loss with any seed" in corrections_text.document(behind)


def test_growth_tells_what_has_diverged_and_draws_the_rest(tmp_path):
    lines, losses = tuned(texts.EIGHT, 1, 3.0), {"bp": 3.0, "fdg": 3.5, "t1": 3.2}
    for run, arm, seed in finals(texts.GROWTH, losses, lines):
        lines[run.name] = line(run, loss=losses[arm.name] + NOISE[seed])
    lost = {"diverged": True, **WHENCE}
    (first,) = [part for part in texts.GROWTH if part.shared["K"] == 16]
    for seed in (1, 2):
        run = first.final_run(texts.STALE, first.choice(lines, texts.STALE), seed)
        lines[run.name] = {"options": dict(run.flags), **lost}
    _, of_growth = tables(corrections_text.document(lines))
    told = {cells[0]: dict(zip(corrections_text.OF_GROWTH, cells, strict=True)) for cells in of_growth}
    assert told["FDG, adamw"]["K = 16"].startswith("+0.500, n = 1; more than 1.5 (0 of 3")
    assert told["FDG, adamw"]["K = 16"].endswith("; 2 diverged")
    assert "diverged" not in told["FDG, adamw"]["K = 8"]
    corrections_text.picture(lines, tmp_path / "text.png")
    assert (tmp_path / "text_growth.png").read_bytes().startswith(b"\x89PNG")


def test_arms_that_have_diverged_are_in_the_pictures_and_end_the_search(monkeypatch, tmp_path):
    drawn = {}
    monkeypatch.setattr(corrections_images.bars, "draw", lambda groups, *_: drawn.update(groups))
    lines = {name: each for part in images.PARTS for name, each in tuned(part, 1).items()}
    everyone = {arm.name: 34.0 for arm in images.FOUR.arms} | {"bp": 22.0, "fdg": 33.0}
    for run, arm, seed in finals(images.PARTS[:2], everyone, lines):
        lines[run.name] = line(run, everyone[arm.name] + NOISE[seed])
    lost = {"diverged": True, **WHENCE}
    t2, cosine = (next(arm for arm in images.FOUR.arms if arm.name == name) for name in ("t2", "cosine"))
    for seed in images.SEEDS:
        lines[images.FOUR.final_name(t2, seed)] = lost
        del lines[images.FOUR.final_name(cosine, seed)]
    corrections_images.picture(lines, tmp_path / "images.png")
    assert drawn["K = 4"]["PipeMare's T2 (3 diverged)"] == [] and "cosine gate" not in drawn["K = 4"]
    assert "is not reached yet." in corrections_images.aim(lines)
    lines |= {run.name: lost for run in images.FOUR.grid(cosine)}  # nothing is left to be trained
    assert images.FOUR.choice(lines, cosine) is None and "is not reached." in corrections_images.aim(lines)


def test_a_bar_without_values_is_drawn_as_a_label(tmp_path):
    groups = {"one": {"a": [1.0, 2.0], bars.label("b", 3): []}, "other": {bars.label("c", 0): [1.0]}}
    bars.draw(groups, tmp_path / "bars.png", "title", "x", None, by_number=True)
    assert (tmp_path / "bars.png").read_bytes().startswith(b"\x89PNG")


def test_names_beside_lines_do_not_cover_each_other():
    assert growth.spread([1.0, 0.2, 0.98, 0.99, 0.21], 0.05, 1.0) == pytest.approx([1.0, 0.2, 0.9, 0.95, 0.25])


def test_some_results_leave_the_rest_blank_and_draw(tmp_path):
    lines = tuned(images.OF_BP)
    run = images.OF_BP.final_runs(lines)[0]
    lines[run.name] = line(run, 22.5)
    told = rows(corrections_images.document(lines))
    assert told[0][2:4] == ["1 of 3", "22.50"] and all(cells[2] == "" for cells in told[1:])
    corrections_images.picture(lines, tmp_path / "some.png")
    assert interval([22.5]).deviation is None


# The text


def test_the_text_is_the_pinned_one_and_any_other_is_refused(tmp_path, monkeypatch):
    text = corpus.content()
    assert len(text) == 5_639_682 and f"{len(text):,} bytes" in (
        run_table.ROOT / "experiments" / "corrections.md"
    ).read_text()
    pins = (run_table.ROOT / "requirements.txt").read_text()
    assert all(f"\n{name}=={version} " in pins for name, version in corpus.WHEELS.items())
    corpus.write(tmp_path / "below" / "text")
    assert (tmp_path / "below" / "text").read_bytes() == text
    names = [*corpus.files()]
    for some in (names[:40], names[-40:]):
        assert {name.split("/")[0] for name in some} == {"optax", "orbax", "grain"}
    monkeypatch.setattr(corpus, "SHA256", "0" * 64)
    with pytest.raises(BadInput, match=r"have the sha256 69f2e4a56da27704\.\.\., not 0000"):
        corpus.content()
    monkeypatch.setitem(corpus.WHEELS, "optax", "0.0")
    with pytest.raises(BadInput, match=r"needs optax 0\.0, and "):
        corpus.content()


def test_a_table_on_text_asks_for_no_directory_of_data(capsys):
    with pytest.raises(SystemExit):
        table_command.main(corrections_text.TABLE, ["run", "--help"])
    helped = capsys.readouterr().out
    assert "--only" in helped and "--data-dir" not in helped


def test_an_estimate_of_text_counts_blocks():
    run = texts.EIGHT.tune_runs[0]
    assert estimate.steps_left(run, run_table.State(run_table.MISSING)) == 1000
    assert estimate.examples_per_second(run, {"tokens_per_second": 6400.0}) == 100.0
    held = images.OF_BP.tune_runs[0]
    assert estimate.steps_left(held, run_table.State(run_table.MISSING)) == 2 * 352  # 45,000 images
    assert estimate.examples_per_second(held, {"images_per_second": 400.0}) == 400.0


def test_a_step_on_text_is_measured_by_the_command_for_text(monkeypatch):
    asked = []
    made = ["python", "-c", "raise SystemExit(3)"]
    monkeypatch.setattr(estimate, "command", lambda run, *_: asked.append(run) or made)
    for run in (texts.EIGHT.tune_runs[0], images.OF_BP.tune_runs[0]):
        assert estimate.once(run, 9, None) == (None, "exit code 3")
    text, pictures = asked
    assert text.module == "fdg_jax.experiments.language_model" and pictures.module == "fdg_jax.experiments.cifar"
    assert (text.flags["dataset"], text.flags["hold_out"], text.flags["text"]) == ("text", texts.BATCH, texts.TEXT)
    assert pictures.flags["dataset"] == "synthetic" and "hold_out" not in pictures.flags


# The whole way


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


def test_the_page_of_images_says_which_runs_were_made_on_a_gpu_and_counts_their_hours_apart():
    shown = corrections_images.machines
    cpu, gpu = ({"hardware": {"backend": name, "xla_flags": "--deft"}, "seconds": 1800.0} for name in ("cpu", "gpu"))
    part, arm = images.FOUR, images.FOUR.arms[1]
    lines = {run.name: cpu for run in part.grid(arm)} | {part.final_name(arm, 0): cpu}
    assert shown(lines) == ""
    lines |= {part.final_name(arm, 1): gpu, part.grid(arm)[2].name: gpu}
    told = "**Two kinds of machine.** 2 of 8 runs were made on a GPU, all others on a CPU. K = 4: "
    told += "the tuning of FDG, β; the final run with seed 1 of FDG, β. By seed"
    assert shown(lines).startswith(told) and shown(lines).endswith("a GPU: `XLA_FLAGS=--deft`.")
    assert arms.tuning_cost(part, lines, arm) == "6 of 6 runs, 2.5 h, 0.5 h on a shared GPU"
    assert arms.hours([gpu]) == "0.5 h on a shared GPU" and arms.hours([]) == "0.0 core-hours"
