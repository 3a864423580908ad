"""The page and picture of corrections on images, with none, some and all of its results."""

import re

from correction_lines import NOISE, WHENCE, finals, line, tuned
from made_up_runs import rows

from experiments import corrections_images
from experiments.harness import pictures
from experiments.harness.intervals import interval
from experiments.tuning import images


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
    late = "not judged. It was published for a staleness of 1 at most, and here it is up to 5."
    assert told["4", "anticipate, last update"]["here"] == late
    assert told["2", "anticipate, last update"]["here"].startswith("does not hold here. Behind BP by +11.95")
    assert told["4", "PipeMare: rate or T1, and T2"]["here"].startswith("holds here. Behind BP by +0.30")
    blank = told["2", "Gap-Aware"]
    assert (blank["n"], blank["here"], blank["chosen"]) == ("", "", "--learning-rate 0.1 --momentum 0.9")
    text = corrections_images.document(lines)
    assert "K = 4: 114 of 114 tuning runs (11.4 core-hours), 12 of 57 final runs (1.2 core-hours)" in text
    assert "**The best arm at K = 4** of the 4 of 19 that have all seeds is PipeMare" in text
    assert "The registered aim of 28%, about half of the gap that single runs had shown before" in text
    assert "(BP 22.2%, FDG 34.2%), is reached." in text
    assert re.search(r"^\*\*At the edge", text, re.M) is None  # run 1 of each grid has the usual rate
    edge = {name: each for part in images.PARTS for name, each in tuned(part, 0).items()}
    assert "34 of 34 arms chose the smallest or the largest rate" in corrections_images.document(edge)


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
    closed = {cells[1]: cells[corrections_images.HEADS.index("gap to BP closed")] for cells in rows(text)[:19]}
    assert (closed["FDG, β"], closed["basis rotation"]) == ("42%", "")
    drawn = {}
    monkeypatch.setattr(pictures, "bars", lambda path, title, label, groups, *_, **__: drawn.update(groups))
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


def test_arms_that_have_diverged_are_in_the_pictures_and_end_the_search(monkeypatch, tmp_path):
    drawn = {}
    monkeypatch.setattr(pictures, "bars", lambda path, title, label, groups, *_, **__: drawn.update(groups))
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
    groups = {"one": {"a": [1.0, 2.0], pictures.bar_label("b", 3): []}, "other": {pictures.bar_label("c", 0): [1.0]}}
    pictures.bars(tmp_path / "bars.png", "title", "x", groups, by_number=True)
    assert (tmp_path / "bars.png").read_bytes().startswith(b"\x89PNG")


def test_some_results_leave_the_rest_blank_and_draw(tmp_path):
    lines = tuned(images.OF_BP)
    run = images.OF_BP.final_runs(lines)[0]
    lines[run.name] = line(run, 22.5)
    told = rows(corrections_images.document(lines))
    assert told[0][2:4] == ["1 of 3", "22.50"] and all(cells[2] == "" for cells in told[1:])
    corrections_images.picture(lines, tmp_path / "some.png")
    assert interval([22.5]).deviation is None
