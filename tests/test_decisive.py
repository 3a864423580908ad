"""The registered experiments: their runs, the rules on hand-made results, and their pages with some and all of them."""


from experiments import decisive
from experiments.decision import rules
from experiments.decision.rules import BP, CONFIRMED, LONG, REFUTED, SHRUNK, STALE, UNDECIDED
from experiments.harness.intervals import Seeds

TABLE = decisive.TABLE
NOISE = (0.0, 0.1, -0.1, 0.05, -0.05)  # of the seeds; deviation 0.079, so intervals of differences are within 0.14


def errors(seeds=5, noise=1.0, **arms):
    """arm -> epochs -> seed -> error. arms: arm=(at 5, at 20, at 80 epochs). Arm and length shift whose noise is
    whose, so that differences have noise as well."""
    names = {"bp": BP, "stale": STALE, "shrunk": SHRUNK, "scaled": rules.SCALED, "frozen": rules.FROZEN}
    return {
        names[arm]: {
            epochs: Seeds({seed: mean + noise * NOISE[(seed + i + j) % 5] for seed in range(seeds)})
            for j, (epochs, mean) in enumerate(zip((rules.SHORT, rules.MIDDLE, LONG), means, strict=True))
        }
        for i, (arm, means) in enumerate(arms.items())
    }


# As the paper has it: the gap closes, shrinking helps, and only where gradients are late.
PAPER = {
    "bp": (33, 24, 20), "stale": (40, 27, 22), "shrunk": (36, 25, 20.2), "scaled": (33.5, 24.3, 20.3),
    "frozen": (50, 40, 38),
}  # fmt: skip


# The runs


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
        BP: None, STALE: 1.0, SHRUNK: 0.3, rules.SCALED: 0.3, rules.FROZEN: 0.001
    }  # fmt: skip


# The rules


def attribution(found):
    return rules.attribution(found, LONG)


def claims(found):
    return [rule(found).word for _, rule, _ in decisive.CLAIMS]


def test_results_as_the_paper_has_them_confirm_it():
    found = errors(**PAPER)
    assert claims(found) == [CONFIRMED] * 3
    assert rules.overall(*(rule(found) for _, rule, _ in decisive.CLAIMS)) == CONFIRMED
    assert attribution(found).word == rules.REPAIRS


def test_nothing_is_decided_with_fewer_than_three_seeds_and_three_can_decide():
    found = errors(2, **PAPER)
    assert claims(found) == [UNDECIDED] * 3
    assert rules.attribution(found, LONG) == rules.Verdict(UNDECIDED, "2 of at least 3 seeds have been run.")
    assert claims({}) == [UNDECIDED] * 3 and rules.attribution({}, LONG).why.startswith("0 of at least 3")
    assert claims(errors(3, **PAPER)) == [CONFIRMED] * 3


CASES = [  # rule, error of arms at 5, 20 and 80 epochs where it is not PAPER's, noise, word
    (rules.shrinking_helps, {"stale": (40, 27, 20.9)}, 1, CONFIRMED),
    (rules.shrinking_helps, {"stale": (40, 27, 20.2)}, 1, REFUTED),  # no gain, and none of 0.5 points is possible
    (rules.shrinking_helps, {"stale": (40, 27, 19.0)}, 1, REFUTED),  # worse with shrinking
    (rules.shrinking_helps, {"stale": (40, 27, 20.4)}, 10, UNDECIDED),  # it may be none, it may be a point
    (rules.gap_closes, {"shrunk": (36, 25, 20.2)}, 1, CONFIRMED),
    (rules.gap_closes, {"shrunk": (36, 25, 19.0)}, 1, CONFIRMED),  # ahead of BP in the end
    (rules.gap_closes, {"shrunk": (36, 25, 21.2)}, 1, REFUTED),  # behind by more than 0.75, though less than before
    (rules.gap_closes, {"shrunk": (33.4, 24.5, 20.5)}, 1, REFUTED),  # within 0.75, but no closer than after 5 epochs
    (rules.gap_closes, {"shrunk": (33.0, 24.0, 20.0)}, 1, UNDECIDED),  # level at every length: nothing closes
    (rules.gap_closes, {"shrunk": (36, 25, 20.7)}, 1, UNDECIDED),  # the interval reaches over 0.75
    (rules.gap_closes, {"shrunk": (36, 25, 20.2)}, 10, UNDECIDED),
    (rules.lower_stages_learn, {"frozen": (0, 40, 0)}, 1, CONFIRMED),
    (rules.lower_stages_learn, {"frozen": (0, 28, 0)}, 1, REFUTED),
    (rules.lower_stages_learn, {"frozen": (0, 30, 0)}, 10, UNDECIDED),
    (attribution, {"scaled": (33.5, 24.3, 20.3)}, 1, rules.REPAIRS),
    (attribution, {"scaled": (33.5, 24.3, 19.5)}, 1, rules.BOTH),  # 1.8 with the delay, 0.5 without
    (attribution, {"scaled": (33.5, 24.3, 18.2)}, 1, rules.NO_REPAIR),  # as much without the delay as with it
    (attribution, {"stale": (40, 27, 20.2), "scaled": (33, 24, 20.0)}, 1, UNDECIDED),  # no gain to attribute
    (attribution, {"scaled": (33.5, 24.3, 19.0)}, 5, UNDECIDED),
]


def test_each_registered_rule_decides_by_its_bounds():
    for rule, changed, noise, word in CASES:
        verdict = rule(errors(noise=noise, **PAPER | changed))
        assert verdict.word == word, (rule, changed, noise)
        assert ("not about staleness alone" in verdict.why) is (rule is attribution and changed["scaled"][2] <= 20.0)


def test_one_refuted_claim_refutes_and_one_undecided_leaves_it_open():
    yes, no, open_ = (rules.Verdict(word, "") for word in (CONFIRMED, REFUTED, UNDECIDED))
    assert rules.overall(yes, yes, yes) == CONFIRMED
    assert rules.overall(yes, open_, no) == REFUTED
    assert rules.overall(yes, open_, yes) == UNDECIDED
