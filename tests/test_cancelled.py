"""What cannot work with late gradients is said, with what to do instead; what can work is left alone."""

import pytest

from fdg_jax import corrections, methods
from fdg_jax.training import cancelled, command_line

BETA = "a constant factor cancels (nearly). Use --optimizer sgd where it is to matter, or --correct rate"
SAID = {
    "": [],
    "--beta 0.5": [],
    "--K 1 --optimizer adamw --beta 0.5": [],
    "--optimizer adamw --beta 0.5": [BETA],
    "--optimizer muon --method ddg --correct shrink --beta 0.5": [BETA],
    "--optimizer rotation --beta 0.5 --correct rate": [BETA],
    "--optimizer adamw --correct rate": [],
    "--optimizer nadam --correct cosine": [],
    "--optimizer nadam --correct cosine --gate-decay 0.1": ["--gate-decay 0.1: nadam divides"],
    "--correct anticipate": ["drop of the learning rate by 10 it looks 10 times too far ahead"],
    "--correct anticipate --lr-schedule cosine": [],
    "--correct anticipate --lr-schedule cosine --momentum 0": ["without momentum it looks no update ahead"],
    "--correct rate,anticipate --lr-schedule wsd --momentum 0 --prediction linear": ["it makes the largest stable"],
    "--correct rate --clip-norm 1": ["each stage clips its own gradient"],
}


@pytest.mark.parametrize("words", SAID)
def test_what_cannot_work_is_said(words):
    options, _ = command_line.parse(words.split(), "command")
    kinds = {kind.name for kind in corrections.parse(options.correct)}
    found = list(cancelled.warnings(options, methods.find(options.method), kinds))
    assert len(found) == len(SAID[words])
    for line, said in zip(found, SAID[words], strict=True):
        assert said in line
