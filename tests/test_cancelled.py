"""What cannot work with late gradients is said, with what to do instead; what can work is left alone."""

import warnings

import jax
import optax
import pytest
from small import batches, mostly_slow, pipeline

from fdg_jax import cli, recipe
from fdg_jax.checks import no_effect
from fdg_jax.checks.plan import of_config
from fdg_jax.errors import NoEffect
from fdg_jax.options.fields import as_flags
from fdg_jax.training.job import learning_rates, rate_by_batch

BETA = "--beta 0.5: the optimizer divides each gradient by its typical size, so scaling gradients has almost no effect."
SAID = {
    "": [],
    "--beta 0.5": [],
    "--K 1": [],
    "--K 1 --beta 0.5 --correct cosine": ["--correct cosine: no gradient is late", "--beta 0.5: no"],
    "--optimizer adamw --beta 0.5": [BETA],
    "--optimizer muon --method ddg --correct shrink --beta 0.5": [BETA],
    "--optimizer rotation --beta 0.5 --correct rate --K 3": [BETA],
    "--optimizer adamw --correct rate --K 3": [],
    "--correct rate --K 3 --accumulate 3": ["the largest staleness is 1, so rate divides by 1"],
    "--correct rate,cosine": ["--correct rate: the largest staleness is 1"],
    "--optimizer muon --correct gap_aware": ["--correct gap_aware: the optimizer divides each gradient by its typical"],
    "--correct gap_aware": [],
    "--K 1 --method ddg --one-version --accumulate 2 --correct cosine": [],  # there K = 1 is late, too
    "--optimizer nadam --correct cosine": [],
    "--optimizer nadam --correct cosine --gate-decay 0.1": ["--gate-decay 0.1: the optimizer divides"],
    "--correct anticipate": ["division of the learning rate by 10, the next prediction goes 10 times too far"],
    "--correct anticipate --lr-schedule cosine": [],
    "--correct anticipate --lr-schedule cosine --momentum 0": ["without momentum it predicts no change"],
    "--K 3 --correct rate,anticipate --lr-schedule wsd --momentum 0 --prediction linear": ["lowers the largest"],
    "--K 3 --correct anticipate --lr-schedule wsd --momentum 0 --prediction combined": ["lowers the largest"],
    "--correct rate --clip-norm 1 --K 3": ["each stage clips its own gradient"],
    "--beta 0.5 --clip-norm 1": ["each stage clips its own gradient"],
    "--clip-norm 1": [],
    "--clip-norm 1 --method bp --K 2": ["with --K 2 each stage clips its own gradient; the whole"],
    "--clip-norm 1 --method bp": [],
}


def said_of(words, per_epoch=2, batches=None):
    options, given = cli.parse(words.split(), "command")
    plan, divides = of_config(options, given), options.optimizer in recipe.SCALE_FREE
    rates = learning_rates(rate_by_batch(options, per_epoch), options.epochs * per_epoch)
    with as_flags():
        nothing = no_effect.lines(plan, options.momentum, lambda: divides)
        return [*nothing, *no_effect.of_run(options, plan, rates[:batches])]


def test_what_cannot_work_is_said():
    for words, expected in SAID.items():
        found = said_of(words)
        assert len(found) == len(expected), (words, found)
        for line, said in zip(found, expected, strict=True):
            assert said in line


@pytest.mark.parametrize(("words", "batches", "said"), [
    ("--lr-schedule cosine --warmup-steps 50", 50, "steps 50: the warm-up does not end within the run of 50 batches"),
    ("--lr-schedule wsd --warmup-steps 50", 30, "only reaches 0.0588 of 0.1. Use a shorter warm-up, or a longer run."),
    ("--warmup on", 3, "--warmup on: the warm-up does not end within the run of 3 batches"),
    ("--lr-schedule cosine --warmup-steps 50", 51, None),
    ("", 1, None),
])  # fmt: skip
def test_a_run_that_ends_within_its_warm_up_says_how_high_its_learning_rate_gets(words, batches, said):
    found = said_of(words, batches=batches)
    assert len(found) == (said is not None) and (not said or said in found[0])


PARAMS = {"kernel": jax.ShapeDtypeStruct((3, 3, 8, 16), "float32"), "bias": jax.ShapeDtypeStruct((16,), "float32")}


@pytest.mark.parametrize("name", mostly_slow(["sgd", *recipe.SCALE_FREE], "sgd", "adamw", "lion", "nadam"))
def test_trying_an_optimizer_finds_what_the_command_knows_by_name(name):
    rate = optax.linear_schedule(0.0, 0.1, 100)  # the first update is none
    made = recipe.optimizer(name, rate, momentum=0.9, weight_decay=0.1, clip_norm=1.0)
    assert no_effect.divides_by_size(made, PARAMS) == (name in recipe.SCALE_FREE)


@pytest.mark.parametrize("clipping", [0.01, 10.0])
def test_clipping_in_proportion_to_the_parameters_is_not_taken_for_division(clipping):
    assert not no_effect.divides_by_size(optax.chain(optax.adaptive_grad_clip(clipping), optax.sgd(0.1)), PARAMS)


def for_the_true_shapes_only(updates, params):
    assert all(max(leaf.shape) > 2 for leaf in jax.tree.leaves(params))
    return updates


DIVIDES = "the optimizer divides each gradient by its typical size"


@pytest.mark.parametrize(("optimizer", "options", "said"), [
    (optax.adam(1e-3), {"beta": 0.5}, [f"beta=0.5: {DIVIDES}"]),
    (lambda k: optax.chain(optax.clip_by_global_norm(1.0), optax.lion(1e-3)), {"beta": 0.5}, [DIVIDES]),
    (optax.sgd(0.1), {"beta": 0.5}, []),
    (optax.chain(optax.adam(1e-3), optax.stateless(for_the_true_shapes_only)), {"beta": 0.5}, []),
    (optax.sgd(0.1), {"correct": "anticipate", "momentum": 0.0}, ["momentum=0.0: anticipate predicts weights from"]),
    (optax.sgd(0.1), {"correct": "rate", "method": "bp"}, ["correct='rate': no gradient is late"]),
    (optax.sgd(0.1), {"correct": "cosine", "beta": 0.5, "K": 1}, ["'cosine': no gradient", "beta=0.5: no"]),
])  # fmt: skip
def test_a_pipeline_says_what_does_nothing(optimizer, options, said):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", NoEffect)
        pipeline(example=batches(1)[0], optimizer=optimizer, **{"K": 2, **options})
    told = [warning for warning in told if warning.category is NoEffect]
    assert len(told) == len(said)
    for warning, words in zip(told, said, strict=True):
        assert words in str(warning.message)
        assert warning.filename == pipeline.__code__.co_filename
