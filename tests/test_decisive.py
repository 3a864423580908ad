"""The registered experiment: its runs, its rules on hand-made results, and its page with none, some and all of them."""

import itertools
import json
import re

import pytest
from made_up_runs import make, rows

from experiments import decisive
from experiments.decision import rules
from experiments.decision.rules import (
    BOTH,
    BP,
    CONFIRMED,
    FROZEN,
    LONG,
    MIDDLE,
    NO_REPAIR,
    REFUTED,
    REPAIRS,
    SCALED,
    SHORT,
    SHRUNK,
    STALE,
    UNDECIDED,
)
from experiments.harness import result_files, run_table
from fdg_jax import split
from fdg_jax.runs import option_checks
from fdg_jax.training import command_line

TABLE = decisive.TABLE
NOISE = (0.0, 0.1, -0.1, 0.05, -0.05)  # of the seeds; deviation 0.079, so intervals of differences are within 0.14


def errors(seeds=5, noise=1.0, **arms):
    """arm -> epochs -> seed -> error. arms: arm=(at 5, at 20, at 80 epochs). Arm and length shift whose noise is
    whose, so that differences have noise as well."""
    names = {"bp": BP, "stale": STALE, "shrunk": SHRUNK, "scaled": SCALED, "frozen": FROZEN}
    return {
        names[arm]: {
            epochs: {seed: mean + noise * NOISE[(seed + i + j) % 5] for seed in range(seeds)}
            for j, (epochs, mean) in enumerate(zip((SHORT, MIDDLE, LONG), means, strict=True))
        }
        for i, (arm, means) in enumerate(arms.items())
    }


# As the paper has it: the gap closes, shrinking helps, and only where gradients are late.
PAPER = {
    "bp": (33, 24, 20), "stale": (40, 27, 22), "shrunk": (36, 25, 20.2), "scaled": (33.5, 24.3, 20.3),
    "frozen": (50, 40, 38),
}  # fmt: skip


# The runs


def test_the_runs_are_those_that_were_registered_in_that_order():
    names = [run.name for run in TABLE.runs]
    assert len(names) == len(set(names)) == 25 + 20 + 20 + 9
    assert names[:6] == [
        "resnet8-bp-20-epochs-seed0", "resnet8-fdg-beta1-20-epochs-seed0", "resnet8-fdg-beta0.3-20-epochs-seed0",
        "resnet8-scaled_bp-0.3-20-epochs-seed0", "resnet8-fdg-beta0.001-20-epochs-seed0", "resnet8-bp-20-epochs-seed1",
    ]  # fmt: skip
    lengths = [(run.flags["model"], run.flags["epochs"]) for run in TABLE.runs]
    assert [key for key, _ in itertools.groupby(lengths)] == [
        ("resnet8", 20), ("resnet8", 5), ("resnet8", 80), ("resnet20", 30)
    ]  # fmt: skip


@pytest.mark.parametrize("run", TABLE.runs[:5] + TABLE.runs[-3:], ids=lambda run: run.name)
def test_every_command_line_is_one_the_training_command_accepts(run):
    words = run_table.command(run, "data", "somewhere")
    options, given = command_line.parse(words[3:], words[2])
    option_checks.check(options, given)
    assert {name: getattr(options, name) for name in run.flags} == run.flags


@pytest.mark.parametrize("part", decisive.PARTS[2:], ids=lambda part: part.model)
def test_the_cut_is_the_balanced_one(part):
    image = (1, 16, 16, 3) if part.dataset == "cifar10_16" else (1, 32, 32, 3)
    costs = split.block_costs(part.model, 10, image)
    assert decisive.SPLITS[part.model] == ",".join(map(str, split.parse("balanced", part.model, 4, len(costs), costs)))


def test_arms_differ_in_method_and_shrinking_only():
    own = {"method", "engine", "beta", "scale", "seed"}
    for part in decisive.PARTS:
        alike = {
            tuple(sorted((name, value) for name, value in part.run(arm, seed).flags.items() if name not in own))
            for arm in part.arms
            for seed in part.seeds
        }
        assert len(alike) == 1
    assert {arm: flags.get("beta", flags.get("scale")) for arm, flags in decisive.ARMS.items()} == {
        BP: None, STALE: 1.0, SHRUNK: 0.3, SCALED: 0.3, FROZEN: 0.001
    }  # fmt: skip


# The rules


def claims(found):
    return [rule(found).word for rule in decisive.CLAIMS.values()]


def test_results_as_the_paper_has_them_confirm_it():
    found = errors(**PAPER)
    assert claims(found) == [CONFIRMED] * 3
    assert rules.overall(*(rule(found) for rule in decisive.CLAIMS.values())) == CONFIRMED
    assert rules.attribution(found, LONG).word == REPAIRS


@pytest.mark.parametrize("seeds", [0, 1, 2])
def test_nothing_is_decided_with_fewer_than_three_seeds(seeds):
    found = errors(seeds, **PAPER)
    assert claims(found) == [UNDECIDED] * 3
    assert rules.attribution(found, LONG) == rules.Verdict(UNDECIDED, f"{seeds} of at least 3 seeds have been run.")


def test_three_seeds_can_decide():
    assert claims(errors(3, **PAPER)) == [CONFIRMED] * 3


def test_without_the_long_runs_nothing_is_confirmed_but_that_the_lower_stages_learn():
    found = {arm: {epochs: seeds for epochs, seeds in each.items() if epochs != LONG} for arm, each in
             errors(**PAPER).items()}  # fmt: skip
    assert claims(found) == [UNDECIDED, UNDECIDED, CONFIRMED]
    assert rules.overall(*(rule(found) for rule in decisive.CLAIMS.values())) == UNDECIDED


@pytest.mark.parametrize(
    ("stale", "noise", "word"),
    [
        (20.9, 1.0, CONFIRMED),
        (20.2, 1.0, REFUTED),  # no gain, and none of 0.5 points is possible
        (19.0, 1.0, REFUTED),  # worse with shrinking
        (20.4, 10.0, UNDECIDED),  # it may be none, it may be a point
        (20.0, 10.0, UNDECIDED),  # at or below, but the seeds are too far apart to say so
    ],
)
def test_shrinking_helps_or_not(stale, noise, word):
    assert rules.shrinking_helps(errors(noise=noise, **PAPER | {"stale": (40, 27, stale)})).word == word


@pytest.mark.parametrize(
    ("shrunk", "noise", "word"),
    [
        ((36, 25, 20.2), 1.0, CONFIRMED),
        ((36, 25, 19.0), 1.0, CONFIRMED),  # ahead of BP in the end
        ((36, 25, 21.2), 1.0, REFUTED),  # behind by more than 0.75, though less than before
        ((33.4, 24.5, 20.5), 1.0, REFUTED),  # within 0.75, but surely behind and no closer than after 5 epochs
        ((33.0, 24.0, 20.0), 1.0, UNDECIDED),  # level at every length: nothing closes
        ((36, 25, 20.7), 1.0, UNDECIDED),  # the interval reaches over 0.75
        ((36, 25, 20.2), 10.0, UNDECIDED),
    ],
)
def test_the_gap_closes_or_not(shrunk, noise, word):
    assert rules.gap_closes(errors(noise=noise, **PAPER | {"shrunk": shrunk})).word == word


@pytest.mark.parametrize(("frozen", "noise", "word"), [(40, 1, CONFIRMED), (28, 1, REFUTED), (30, 10, UNDECIDED)])
def test_the_lower_stages_learn_or_not(frozen, noise, word):
    found = errors(noise=noise, **PAPER | {"frozen": (0, frozen, 0)})
    assert rules.lower_stages_learn(found).word == word


@pytest.mark.parametrize(
    ("stale", "scaled", "noise", "word"),
    [
        (22.0, 20.3, 1.0, REPAIRS),
        (22.0, 20.0, 1.0, REPAIRS),
        (22.0, 19.5, 1.0, BOTH),  # 1.8 with the delay, 0.5 without
        (22.0, 18.2, 1.0, NO_REPAIR),  # as much without the delay as with it
        (20.2, 20.0, 1.0, UNDECIDED),  # no gain that could be attributed
        (22.0, 19.0, 5.0, UNDECIDED),
    ],
)
def test_what_shrinking_gains_is_attributed(stale, scaled, noise, word):
    arms = PAPER | {"stale": (40, 27, stale), "scaled": (33.5, 24.3, scaled)}
    verdict = rules.attribution(errors(noise=noise, **arms), LONG)
    assert verdict.word == word
    assert ("not about staleness alone" in verdict.why) is (scaled <= 20.0)


def test_one_refuted_claim_refutes_and_one_undecided_leaves_it_open():
    yes, no, open_ = (rules.Verdict(word, "") for word in (CONFIRMED, REFUTED, UNDECIDED))
    assert rules.overall(yes, yes, yes) == CONFIRMED
    assert rules.overall(yes, open_, no) == REFUTED
    assert rules.overall(yes, open_, yes) == UNDECIDED


def test_differences_are_by_seed():
    found = {STALE: {LONG: {0: 23.0, 1: 20.0, 2: 30.0}}, SHRUNK: {LONG: {0: 22.0, 1: 19.5, 3: 1.0}}}
    gain = rules.difference(found, STALE, SHRUNK, LONG)
    assert (gain.n, gain.mean) == (2, 0.75)
    assert rules.shrinking_helps(found).word == UNDECIDED


# The page


def lines_of(found, large=()):
    """Result lines with these errors. large: (arm, error) of ResNet-20, seed 0."""
    lines = {}
    for part in decisive.SMALL:
        for arm, seed in itertools.product(part.arms, part.seeds):
            if seed in found.get(arm, {}).get(part.epochs, {}):
                lines[part.name(arm, seed)] = {"test_error_percent": found[arm][part.epochs][seed]}
    lines |= {decisive.LARGE.name(arm, 0): {"test_error_percent": error} for arm, error in large}
    whence = {
        "versions": {"python": "3", "jax": "1", "flax": "2", "optax": "3"},
        "hardware": {"devices": ["cpu:0"], "cpus": 2},
        "git_commits": ["a" * 40],
    }
    return {run.name: {**lines[run.name], **whence} for run in TABLE.runs if run.name in lines}


def results(text: str) -> list[list[str]]:
    """The rows of the table of results; that of predictions has fewer cells."""
    return [cells for cells in rows(text) if len(cells) == len(decisive.HEADS)]


def test_without_results_every_row_is_blank_and_everything_is_undecided(tmp_path):
    text = TABLE.document({})
    found = results(text)
    assert len(found) == 4 + 5 + 4 + 3
    assert all(cell == "" for cells in found for cell in cells[4:9])
    assert "by the registered rules: undecided" in text and "**confirmed**" not in text and "**refuted**" not in text
    assert "That is final" not in text and "In how many places" not in text
    assert text.startswith("**How much has run:** 0 of 74 runs are finished. ResNet-8, 16x16, 5 epochs: 0 of 20; ")
    assert "Nothing has been run yet" in text
    TABLE.picture({}, tmp_path / "none.png")


def test_with_some_results_the_rest_is_blank_and_n_says_how_many_there_are(tmp_path):
    found = errors(3, bp=(33, 24, 20), stale=(40, 27, 22))
    del found[STALE][MIDDLE][2], found[BP][LONG], found[STALE][LONG], found[STALE][SHORT]
    lines = lines_of(found)
    text = TABLE.document(lines)
    told = {(cells[0], cells[1], cells[3]): cells for cells in results(text)}
    bp, stale = told["ResNet-8, 16x16", "20", "BP"], told["ResNet-8, 16x16", "20", "FDG, β = 1"]
    assert bp[4:6] == ["3 of 5", "24.02"] and bp[8] == ""  # NOISE 0.1, -0.1, 0.05
    assert stale[4] == "2 of 5" and stale[8].startswith("+2.9")
    assert told["ResNet-8, 16x16", "80", "BP"][4:9] == [""] * 5
    assert "by the registered rules: undecided" in text
    assert text.startswith(
        "**How much has run:** 8 of 74 runs are finished. ResNet-8, 16x16, 5 epochs: 3 of 20; "
        "ResNet-8, 16x16, 20 epochs: 5 of 25; ResNet-8, 16x16, 80 epochs: 0 of 20; ResNet-20, 32x32, 30 epochs: 0 of 9."
    )
    TABLE.picture(lines, tmp_path / "some.png")


def test_with_all_results_the_page_says_what_they_confirm(tmp_path):
    lines = lines_of(errors(**PAPER), [(BP, 10.0), (STALE, 11.5), (SHRUNK, 10.5)])
    text = TABLE.document(lines)
    assert "by the registered rules: confirmed" in text and text.count(REPAIRS) >= 1
    told = {(cells[1], cells[3]): cells for cells in results(text)}
    assert told["20", "FDG, β = 0.3"][4:6] == ["5", "25.00"]
    assert re.fullmatch(r"\+1\.00 \(\+0\.\d\d to \+1\.\d\d\)", told["20", "FDG, β = 0.3"][8])
    assert told["20", "FDG, β = 0.3"][9].endswith("--seed S --evaluate-every 4`")
    assert "ResNet-20, 32x32, 30 epochs: FDG with β = 1 minus β = 0.3: +1.00 points with one seed (n = 1)" in text
    assert "That is final" in text
    predicted = {cells[0]: cells[1:] for cells in rows(text) if len(cells) == 5}
    assert predicted["BP"][1] == "24.5; 24.00"
    assert predicted["FDG, β = 0.3 minus BP"][1].startswith("+0.8; +1.00 (")
    assert predicted["FDG, β = 1 minus BP"][3] == "+1.2; +1.50"
    where = ": 1; ".join(part.title for part in (*decisive.SMALL, decisive.LARGE))
    assert f"that is machines or commits with other names: {where}: 1. " in text and "Several cores" not in text
    lines[decisive.SMALL[0].name(BP, 0)] |= {
        "git_commits": ["b" * 40],
        "hardware": {"devices": [], "cpus": 2, "usable_cores": 2},
    }
    told = TABLE.document(lines)
    assert ": ResNet-8, 16x16, 5 epochs: 2; " in told and "Several cores trained `resnet8-bp-5-epochs-seed0`, " in told
    TABLE.picture(lines, tmp_path / "all.png")
    assert (tmp_path / "all.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_that_has_diverged_is_named_and_in_no_mean(tmp_path):
    lines = lines_of(errors(**PAPER))
    lost = decisive.SMALL[1].name(STALE, 4)
    lines[lost] = {key: value for key, value in lines[lost].items() if "error" not in key} | {"diverged": True}
    text = TABLE.document(lines)
    assert f"**Diverged**, not repeated, and in no mean: `{lost}`." in text
    assert [cells[4] for cells in results(text) if cells[1] == "20" and cells[3] == "FDG, β = 1"] == ["4 of 5"]
    TABLE.picture(lines, tmp_path / "some.png")
    assert "Diverged" not in TABLE.document(lines_of(errors(**PAPER)))


def test_a_run_that_was_made_is_collected_and_shown(tmp_path):
    run = TABLE.runs[0]
    make(tmp_path / "runs", run, error=24.5, trained=20, lines=1)
    config = tmp_path / "runs" / run.name / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"split": "1,2,3"}))  # the made-up one has another
    result_files.collect(TABLE, tmp_path / "runs", tmp_path)
    text = TABLE.document(result_files.read(TABLE, tmp_path))
    assert "0: 24.50" in text and "1 of 74 runs" in text and "Python 3.11.7" in text


def test_what_the_page_registers_is_what_the_rules_do():
    text = (run_table.ROOT / "experiments" / "decisive.md").read_text()
    for number in (rules.GAIN, rules.LEVEL, rules.FAR, rules.MIN_SEEDS):
        assert f"**{number:g}**" in text
    for part in decisive.PARTS:
        runs = len(part.arms) * len(part.seeds)
        assert f"| {part.epochs} | {part.updates:,} | {len(part.arms)} | {len(part.seeds)} | {runs} |" in text


def test_what_the_words_say_of_the_options_is_what_the_committed_results_say():
    for line in result_files.read(TABLE, run_table.RESULTS).values():
        said = {
            "learning_rate": 0.1, "momentum": 0.9, "weight_decay": 5e-4, "order": "backward-first",
            "weights": "stashed", "drain": True, "train_size": 50000, "dtype": "float32", "warmup": "on",
        }  # fmt: skip
        assert {name: line["options"][name] for name in said} == said
        late = [0] * 4 if line["method"] in ("bp", "scaled_bp") else [5, 3, 1, 0]
        assert line["staleness"] == late


def test_the_predictions_are_the_registered_ones():
    text = (run_table.ROOT / "experiments" / "decisive.md").read_text()
    table = text[text.index("| predicted |") :].split("\n\n")[0].splitlines()[2:]
    registered = [[cell.strip() for cell in line.strip("|").split("|")][1:] for line in table]
    values = [
        [decisive.as_predicted(value, other) for value in of_parts]
        for (_, other), of_parts in decisive.PREDICTED.items()
    ]
    assert values == registered
