"""What the two pages of corrections make of results: verdicts, tokens to a loss, rows and pictures."""


import pytest
from correction_lines import NOISE, WHENCE, finals, line, tables, tuned

from experiments import corrections_images, corrections_text
from experiments.harness.intervals import Seeds
from experiments.tuning import images, texts, tokens, verdicts
from experiments.tuning.verdicts import FAILS, HOLDS, UNDECIDED, Scale

SCALE = Scale("points", 0.5, 2)
LOST = {"diverged": True, **WHENCE}


# Verdicts


def of(mean, seeds=3, shift=0, noise=1.0):
    return Seeds({seed: mean + noise * NOISE[(seed + shift) % 3] for seed in range(seeds)})


def test_an_arm_errs_less_or_not_and_is_level_with_bp_or_behind_it():
    for arm, noise, less, none in (
        (28.0, 1.0, HOLDS, FAILS), (30.0, 0.1, FAILS, HOLDS), (32.0, 1.0, FAILS, HOLDS),
        (29.8, 0.1, HOLDS, HOLDS),  # surely less, and surely by less than half a point
        (29.5, 5.0, UNDECIDED, UNDECIDED),
    ):  # fmt: skip
        stale, found = of(30.0, noise=noise), of(arm, shift=1, noise=noise)
        assert verdicts.less(found, stale, SCALE).word == less
        assert verdicts.no_gain(found, stale, SCALE).word == none
    for arm, level, worse in ((20.5, HOLDS, HOLDS), (22.0, FAILS, HOLDS), (19.0, HOLDS, FAILS)):
        assert verdicts.level(of(arm, shift=1), of(20.0), 1.0, SCALE).word == level
        assert verdicts.worse(of(arm, shift=1), of(20.0), SCALE).word == worse
    for times, word in (((1.0, 1.1, 0.9), HOLDS), ((1.2, None, 1.3), FAILS), ((1.0, 1.2, 1.0), UNDECIDED)):
        assert verdicts.within(dict(enumerate(times)), 1.1, of(1.0), of(1.0)).word == word


def test_two_seeds_decide_nothing_and_an_arm_that_diverges_more_often_does_not_hold():
    few, short = (UNDECIDED, "2 of at least 3 seeds can be compared."), of(1, 2)
    assert verdicts.less(short, of(9), SCALE) == verdicts.worse(of(9, 2), of(1), SCALE) == few
    assert verdicts.level(short, of(9), 1.0, SCALE) == verdicts.within({0: 1.0, 1: 1.0}, 1.1, short, of(9)) == few
    lost, diverged = Seeds({0: 1.0, 1: 1.0}, (2,)), (FAILS, "1 of its runs have diverged.")
    assert verdicts.less(lost, of(30.0), SCALE) == verdicts.no_gain(lost, of(30.0), SCALE) == diverged
    assert verdicts.within({0: 1.0, 1: 1.0, 2: None}, 1.1, lost, of(30.0)) == diverged
    assert verdicts.level(lost, lost, 1.0, SCALE).word == UNDECIDED


def test_the_gap_that_is_closed_is_of_the_seeds_that_all_have_and_may_not_be_chance():
    shared = Seeds({0: 28.0, 1: 28.0, 2: 28.0, 3: 99.0}), of(34, noise=0), Seeds({0: 22.0, 1: 22.0, 2: 22.0, 4: 9.0})
    assert verdicts.gap_closed(*shared) == 0.5
    assert verdicts.gap_closed(Seeds({0: 28.0}), of(34), of(22)) is None  # one seed says nothing of the gap's spread
    assert verdicts.gap_closed(of(30), of(20), of(25)) is None  # without a gap there is nothing to close
    assert verdicts.gap_closed(of(19), of(20.05), of(20, shift=1)) is None  # an interval of the gap has 0
    assert verdicts.gap_closed(Seeds({0: 1.0, 1: 1.0}, (2,)), of(34), of(22)) is None


# Tokens


def test_tokens_to_a_loss_are_found_between_two_tests():
    tests = [{"step": step, "test_loss": loss} for step, loss in ((500, 3.0), (2000, 2.0), (2500, 2.1), (3000, 1.9))]
    assert tokens.steps_to(tests, 2.5) == pytest.approx(1000)  # half of the way from log 500 to log 2000
    assert tokens.steps_to(tests, 2.0) == pytest.approx(2000)
    assert (tokens.steps_to(tests, 3.5), tokens.steps_to(tests, 1.8)) == (500, None)
    assert tokens.steps_to([{"step": 250, "test_loss": None}, *tests], 2.5) == pytest.approx(1000)


# Pages and pictures


def told_of(table, lines, key):
    """The rows of a page's first table by these columns, each by the columns' names."""
    found = (dict(zip(table.HEADS, cells, strict=True)) for cells in tables(table.TABLE.document(lines))[0])
    return {tuple(cells[name] for name in key): cells for cells in found}


def test_the_page_on_images_says_what_was_chosen_what_it_cost_and_what_holds():
    lines = {name: each for part in images.PARTS for name, each in tuned(part, 1).items()}
    errors = {"bp": 22.0, "fdg": 34.0, "beta": 28.0, "last": 33.95, "pipemare": 22.3, "rotation": 18.0, "rate": 30.0}
    for run, arm, seed in finals(images.PARTS, errors | {"bp-rotation": 16.5}, lines):
        lines[run.name] = line(run, (errors | {"bp-rotation": 16.5})[arm.name] + NOISE[seed] * (1 + len(arm.name) / 10))
    lines |= {"final-K4-rate-seed2": LOST, **{f"final-K4-t2-seed{seed}": LOST for seed in images.SEEDS}}
    told = told_of(corrections_images, lines, ("K", "arm"))
    beta, minus = told["4", "FDG, β"], "minus BP with SGD, by seed: mean (95% interval)"
    bp = told["any", "BP, SGD"]
    assert (bp["n"], bp["test error %, mean"], bp["gap to BP closed"], bp[minus]) == ("3", "22.00", "", "")
    assert beta["gap to BP closed"] == "50%" and beta["here"].startswith("holds here. The gain is +6.00")
    assert beta[minus].startswith("+6.00 (") and beta["chosen"] == "--learning-rate 0.1 --beta 0.5"
    assert beta["tuning"] == "6 of 6 runs, 0.6 core-hours" and "--hold-out 0 " in beta["command"]
    assert "--learning-rate 0.1 --beta 0.5 --seed S`" in beta["command"]
    late = "not judged. It was published for a staleness of 1 at most, and here it is up to 5."
    assert told["4", "anticipate, last update"]["here"] == late
    assert told["2", "anticipate, last update"]["here"].startswith("does not hold here. Behind BP by +11.95")
    assert told["4", "PipeMare: rate or T1, and T2"]["here"].startswith("holds here. Behind BP by +0.30")
    rotation = told["4", "basis rotation"]
    assert rotation["gap to BP closed"] == "" and rotation["minus BP with the same optimizer"].startswith("+1.50 (")
    rate = told["4", "rates by staleness, or PipeMare's T1"]
    assert rate["n"] == "3, 1 diverged" and rate["by seed"].endswith(", 2: diverged")
    assert rate["here"] == "does not hold here. 1 of its runs have diverged. T1 was tried and not chosen."
    blank = told["2", "Gap-Aware"]
    assert (blank["n"], blank["here"], blank["chosen"]) == ("", "", "--learning-rate 0.1 --momentum 0.9")
    best = corrections_images.blocks(lines)
    assert (best["best"], best["best_sgd"]) == ("basis rotation, 18.00%", "PipeMare: rate or T1, and T2, 22.30%")
    edge = {name: each for part in images.PARTS for name, each in tuned(part, 0).items()}
    assert all(each["chosen"].endswith(" (edge)") for each in told_of(corrections_images, edge, ("K", "arm")).values())


def test_the_page_on_text_tells_tokens_to_bps_loss():
    lines = {name: each for part in texts.AT_EIGHT for name, each in tuned(part, 1, 3.0).items()}
    losses = {"bp": 3.0, "fdg": 3.5, "t1": 3.05, "bp-muon": 2.6, "fdg-muon": 2.65}
    for run, arm, seed in finals(texts.PARTS, losses, lines):
        lines[run.name] = line(run, loss=losses[arm.name] + NOISE[seed] / 100 * (1 + len(arm.name)))
    told = {arm: cells for (arm,), cells in told_of(corrections_text, lines, ("arm",)).items()}
    times, at_end = "tokens to BP's loss / BP's tokens", "tokens of 3,000 steps / BP's to the same loss"
    assert told["BP, adamw"]["test loss, mean (nats/byte)"] == "2.9000"  # after 2,000 steps
    assert told["FDG, adamw"][times] == "more than 1.5 (0 of 3 seeds reach it)"
    assert told["FDG, adamw"][at_end] == "3 or more (3 of 3 seeds)"
    t1, muon = told["PipeMare's T1, adamw"], told["FDG, muon"]
    assert t1[times].startswith("1.22 (") and t1[at_end].startswith("1.22 (")  # exp(log(1.5) / 2); 3,000 / 2,449
    assert muon["here"].startswith("holds here. Its gap is smaller by +0.450 (") and muon[times].startswith("1.22 (")
    # 2.65 after 1,000 steps, where AdamW's BP has 2.9 after 2,000
    adamw = "tokens to AdamW BP's loss / its tokens"
    assert muon[adamw].startswith("0.50") and told["BP, muon"][adamw].startswith("0.50") and t1[adamw] == ""
    assert corrections_text.goal(lines).startswith("PipeMare's T1, adamw: 1.22 (")
