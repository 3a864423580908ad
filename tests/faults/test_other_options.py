"""As tests/faults/test_options.py, of the commands for text, and of those that use what a run has trained."""

import shutil

import pytest
from fuzzing import OWN, fuzz, values
from hypothesis import strategies as st

from fdg_jax import evaluate, export
from fdg_jax.experiments import language_model
from fdg_jax.runs.options import FIELDS, SWITCHES, spelled
from fdg_jax.training import launch

POOLS = {
    "model": "transformer1x32 transformer2x32 transformer1x33 transformer0x32 transformer transformer4x64 resnet8",
    "dataset": "text text digits Text cifar10",
    "text": "words words words:words words:file file there nowhere empty : words: /dev/null none",
    "block_size": "8 16 32 1 0 -1 100000",
    "dropout": "0 0.1 0.5 0.99 1 -0.1 nan x",
    "positions": "rotary learned none",
    "warmup_steps": "0 1 2 5 99 -1 x",
    "clip_norm": "0 1 0.5 -1 inf nan",
    "b2": "0.9 0.999 0 1 2 x",
    "K": "1 2 3 4 0",
    "batch_size": "1 2 4 8 0",
    "split": "even balanced paper measured 1 1,2 2 x",
    "remat": "none all 1 2 1,2 9",
}
OWN_OF_TEXT = {**OWN, **{name: words.split() for name, words in POOLS.items()}}
PLAIN = {"model": "transformer1x32", "text": "words", "block_size": "8", "batch_size": "2", "train_size": "4"}
LIKELY = [*POOLS, "optimizer", "lr_schedule", "tied", "decay", "method", "engine", "dtype", "weights"]


@st.composite
def texts(draw):
    """A small run on text with up to four flags changed, more often those that only it has."""
    words = dict(PLAIN, epochs="1", run_dir="fresh", K=draw(st.sampled_from("1223")))
    bare = []
    for name in draw(st.lists(st.sampled_from([*LIKELY, *LIKELY, *sorted(FIELDS)]), max_size=4)):
        if name in SWITCHES:
            bare.append(draw(st.sampled_from(["--", "--no-", "--no_"])) + name.replace("_", "-"))
        else:
            words[name] = draw(values(name, OWN_OF_TEXT))
    said = [word for name, value in words.items() for word in (spelled(name), value)]
    stray = draw(st.sampled_from([[]] * 12 + [["--text", "words", "file"], ["--text"], ["--help"], ["--image", "1"]]))
    return [*said, *bare, *stray]


def with_words(place):
    """What writes a text into the place, and returns an example's words."""

    def arranged(words):
        (place / "words").write_bytes(b"The quick brown fox jumps over the lazy dog. " * 20)
        return words

    return arranged


def test_flags_of_text_are_taken_or_refused_in_a_sentence(all_of_them, place, monkeypatch, capsys, tell):
    """Up to where the work would begin; 500 with --hundred."""
    monkeypatch.setattr(launch, "prepare_and_run", lambda *_: 0)
    count = 500 if all_of_them else 15
    tell(fuzz(1, count, texts(), with_words(place), place, capsys, language_model.main))


@pytest.mark.slow
@pytest.mark.cases(sample=1, hundred=10)
def test_a_command_line_for_text_trains_or_is_refused_in_a_sentence(seed, all_of_them, place, capsys, tell):
    count = 50 if all_of_them else 15
    tell(fuzz(seed, count, texts(), with_words(place), place, capsys, language_model.main))


CHECKPOINTS = ["1", "2", "3", "best", "0", "9", "-1", "x", "1.5", "", "１"]
TARGETS = [*6 * ["out"], "o.safetensors", "file", "there", "no/x", "", "mine", "o\n"]


@st.composite
def uses(draw, to):
    """Words for `evaluate`, or for `export` if `to`: of a run that there is, of what is none, and nonsense."""
    said = [draw(st.sampled_from([*9 * ["mine"], "run", "there", "file", "nowhere", "damaged", "", "--"]))]
    if draw(st.booleans()):
        said += ["--checkpoint", draw(st.sampled_from([*CHECKPOINTS, *CHECKPOINTS[:3]]))]
    if draw(st.booleans()) and draw(st.booleans()):
        said += ["--data-dir", draw(st.sampled_from(["there", "nowhere", "file", ""]))]
    if to and draw(st.integers(0, 9)):
        said += ["--to", draw(st.sampled_from(TARGETS))]
    return said + draw(st.sampled_from([[]] * 9 + [["--help"], ["--chekpoint", "1"], ["--to"], ["more"]]))


@pytest.mark.slow
@pytest.mark.parametrize("command", [evaluate, export], ids=["evaluate", "export"])
def test_what_uses_a_run_does_so_or_is_refused_in_a_sentence(command, all_of_them, place, begun, capsys, tell):
    def arranged(words):
        shutil.copytree(begun, place / "mine")
        return words

    count, drawn = 100 if all_of_them else 15, uses(command is export)
    tell(fuzz(2, count, drawn, arranged, place, capsys, command.main))
