"""`--correct`: what the command says of a correction, refuses and trains."""

import json

import pytest
from correction_files import put_into
from test_own_options import run

from fdg_jax import cli
from fdg_jax.checks import options as checks


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
@pytest.mark.parametrize("words", ["--beta 1", "--K 1", "--beta 0.5"])
def test_shrinking_by_1_is_accepted_where_it_was_asked_for_or_nothing_can_be_late(words):
    options, given = cli.parse(f"--correct shrink {words}".split(), "command")
    checks.check(options, given)


@pytest.mark.slow
def test_the_command_trains_with_a_correction_of_an_added_file_and_keeps_its_options(tmp_path):
    short = "--dataset digits --model resnet8 --train-size 12 --batch-size 4 --epochs 2 --K 2 --no-tensorboard"
    asked = f"{short} --correct taylor --strength 20 --run-dir corrected"
    code, out, err = run(tmp_path, asked, f"{short} --run-dir plain", script=SEARCHED)
    assert code == 0, err
    assert "correct=taylor, strength=20.0" in out
    corrected, plain = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("corrected", "plain"))
    assert (corrected["correct"], corrected["strength"]) == ("taylor", 20.0) and "correct" not in plain
    assert corrected["final_parameters_sha256"] != plain["final_parameters_sha256"]
    code, _, err = run(tmp_path, "--run-dir corrected --resume --strength 2", script=SEARCHED)
    assert code == 2 and "--strength 2.0 contradicts" in err
