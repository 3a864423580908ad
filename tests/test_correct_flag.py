"""`--correct`: what the command says of a correction, refuses and trains."""

import json

import pytest
from correction_files import put_into
from test_own_options import run

from fdg_jax import cli, corrections, methods
from fdg_jax.checks import options as checks
from fdg_jax.errors import BadInput


@pytest.fixture(autouse=True)
def files_of_a_user(tmp_path, monkeypatch):
    put_into(tmp_path, monkeypatch)


# The command where a folder of one's own is searched for corrections too.
SEARCHED = (
    "import sys, fdg_jax.corrections as corrections\n"
    "corrections.__path__.append(sys.argv.pop(1))\n"
    "from fdg_jax.experiments import cifar\n"
    "sys.exit(max(cifar.main(words.split()) for words in sys.argv[1:]))\n"
)
WRONG = [
    (f"--correct rate --anneal-updates 1{'0' * 42}", "whole numbers lie below 9,007,199,254,740,992 here"),
    ("--correct dc_asgd --compensation-strength nan", "--compensation-strength nan: it is 0 or more"),
    ("--method pipedream --weights current", "method pipedream takes gradients at stashed weights"),
    ("--method ddg --one-version --accumulate 2 --K 3", "Use --accumulate 3 or more"),
    ("--method ddg --one-version --accumulate 3 --weights current", "Use --weights stashed, or leave --one-v"),
    ("--strength 2", "correction none has no such option (it has: none). Add --correct taylor, whose it is, or"),
    ("--correct ahead --strength 2", "correction ahead has no such option (it has: --horizon)"),
    ("--correct taylor --strength -1", "strength=-1.0: it cannot be negative"),
    ("--correct taylor --strength much", "--strength: 'much' is not a number"),
    ("--correct shrink", "--correct shrink: with beta 1, which is the default, shrink changes no gradient. Add"),
    ("--correct shrink --method fr --K 3", "such as --beta 0.5 (or --beta 1, if that is what you want)."),
    ("--method gpipe --correct taylor", "--correct taylor: with method gpipe no gradient is late"),
]


def test_the_command_explains_the_options_of_a_correction_that_was_added(tmp_path):
    code, out, err = run(tmp_path, "--help", script=SEARCHED)
    assert (code, err) == (0, "")
    known = corrections.names()
    assert {"ahead", "smooth", "taylor", "none", "shrink"} < {*known}
    assert f"late gradients: {', '.join(known)};" in " ".join(out.split())
    assert "--strength FLOAT" in out and "--horizon H" in out and "(default: 0.5)" in " ".join(out.split())


def test_the_command_refuses_what_a_correction_cannot_be_asked_for_in_one_sentence(tmp_path):
    code, out, err = run(tmp_path, *(words for words, _ in WRONG), script=SEARCHED)
    assert (code, out) == (2, "")
    for line, (_, said) in zip(err.splitlines(), WRONG, strict=True):
        assert line.startswith("error: ") and said in line


def test_spaces_between_corrections_are_not_part_of_what_a_run_is_compared_by():
    options, _ = cli.parse(["--correct", "rate, anticipate"], "command")
    assert options.correct == "rate,anticipate"


@pytest.mark.parametrize("words", ["--beta 1", "--K 1", "--beta 0.5"])
def test_shrinking_by_1_is_accepted_where_it_was_asked_for_or_nothing_can_be_late(words):
    options, given = cli.parse(f"--correct shrink {words}".split(), "command")
    checks.check(options, given)


def test_a_run_that_shrinks_by_1_goes_on():
    options, _ = cli.parse(["--correct", "shrink"], "command")
    checks.check(options, frozenset())


@pytest.mark.parametrize("method", [name for name in methods.names() if "beta" not in methods.find(name).takes])
def test_a_method_that_is_refused_beta_names_shrink_only_where_shrink_then_runs(method):
    words = ["--method", method, "--beta", "0.5"]
    with pytest.raises(BadInput, match=r"^beta=0\.5: .* Leave it out[,.]") as refused:
        checks.check(*cli.parse(words, "command"))
    says = "or add correct='shrink', which takes it" in str(refused.value)
    asked = cli.parse([*words, "--correct", "shrink"], "command")
    if says:
        checks.check(*asked)
    else:
        with pytest.raises(BadInput, match="no gradient is late"):
            checks.check(*asked)
    assert says or method not in ("replay", "fr")  # whose gradients are late


@pytest.mark.slow
def test_the_command_trains_with_a_correction_in_both_engines_and_goes_on(tmp_path):
    small = "--dataset digits --model resnet8 --train-size 12 --batch-size 4 --epochs 2 --K 2"
    short = f"{small} --warmup off --no-tensorboard"
    asked = f"{short} --correct taylor --strength 20"
    lines = [
        f"{asked} --engine pipeline --run-dir pipeline",
        f"{asked} --engine delay-line --run-dir delay-line",
        f"{short} --run-dir plain",
        f"{asked} --no-drain --run-dir whole",
        f"{asked} --no-drain --run-dir halves --steps 3",
        "--run-dir halves --resume --steps 6",
    ]
    code, out, err = run(tmp_path, *lines, script=SEARCHED)
    assert code == 0, err
    assert "correct=taylor, strength=20.0" in out
    folders = ("pipeline", "delay-line", "plain", "whole", "halves")
    found = {name: json.loads((tmp_path / name / "summary.json").read_text()) for name in folders}
    assert (found["pipeline"]["correct"], found["pipeline"]["strength"]) == ("taylor", 20.0)
    assert "correct" not in found["plain"]
    hashes = {name: summary["final_parameters_sha256"] for name, summary in found.items()}
    assert hashes["pipeline"] == hashes["delay-line"] != hashes["plain"]
    assert hashes["whole"] == hashes["halves"] != hashes["pipeline"]
    code, _, err = run(tmp_path, "--run-dir halves --resume --strength 2", script=SEARCHED)
    assert code == 2 and "--strength 2.0 contradicts" in err


@pytest.mark.slow
def test_several_corrections_train_by_the_command_and_go_on_exactly(tmp_path):
    small = "--dataset digits --model resnet8 --train-size 12 --batch-size 4 --epochs 3 --K 2"
    asked = f"{small} --warmup off --no-tensorboard --no-drain --correct rate,anticipate --anneal-updates 4"
    lines = [
        f"{asked} --engine pipeline --run-dir whole --steps 6",
        f"{asked} --engine pipeline --run-dir halves --steps 3",
        "--run-dir halves --resume --steps 6",
    ]
    code, _, err = run(tmp_path, *lines, script=SEARCHED)
    assert code == 0, err
    assert "for one update after each drop of the learning rate" in err
    found = {path.parent.name: json.loads(path.read_text()) for path in tmp_path.glob("*/summary.json")}
    assert found["whole"]["correct"] == "rate,anticipate" and found["whole"]["anneal_updates"] == 4
    hashes = {name: summary["final_parameters_sha256"] for name, summary in found.items()}
    assert hashes["whole"] == hashes["halves"]
