"""What is done about late gradients: every file of fdg_jax/corrections, and files as a user would write them."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from correction_files import put_into
from small import (
    CurrentPart,
    batches,
    close,
    fed,
    goes_on_exactly,
    parts,
    pipeline,
)
from test_memory import SCALARS, predicted_and_live

from fdg_jax import corrections
from fdg_jax.corrections.interface import NONE, Correction, CorrectionSpec, Late
from fdg_jax.corrections.rate import make as make_rate
from fdg_jax.errors import BadInput, NoEffect

# As in test_engines.py: the oracle is one program, the engines are one a stage, and XLA sums in another order.
ROUNDING = {"rtol": 0, "atol": 3e-6}
DATA = batches(12)


@pytest.fixture(autouse=True)
def files_of_a_user(tmp_path, monkeypatch):
    put_into(tmp_path, monkeypatch)


EVERY = [*corrections.names(), "taylor", "ahead", "smooth"]
ASKED = {"learning_rate": 0.1, "momentum": 0.9}
# With other options than the defaults, where these are another computation.
VARIANTS = {
    "anticipate linear": {"prediction": "linear"},
    "anticipate nesterov": {"prediction": "nesterov"},
    "rate gradually": {"anneal_updates": 6},
    "dc_asgd adaptive": {"compensation": "adaptive"},
    "shrink,anticipate": {"beta": 0.5},
    "gap_aware,anticipate,rate": {},
}


def at_current_weights(correct):
    """Whether the correction is for gradients at current weights, which no delay line has."""
    return any(kind.weights == "current" for kind in corrections.parse(correct.partition(" ")[0]))


def trained(K, correct, engine="pipeline", data=DATA, **options):
    asked = options_of(correct) if K == 3 else {"correct": correct}
    made = pipeline(K, data[0], engine=engine, **{**ASKED, **asked, **options})
    start = fed(made, data)
    return made, start


def options_of(correct):
    """How `correct`, a name or one of VARIANTS, is asked for."""
    other = {"stages": parts(3, CurrentPart), "weights": "current"} if at_current_weights(correct) else {}
    beta = {"beta": 0.5} if correct == "shrink" else {}
    strong = {"compensation_strength": 20.0} if correct == "dc_asgd" else {}
    return {"correct": correct.partition(" ")[0], **other, **beta, **strong, **VARIANTS.get(correct, {})}


@pytest.mark.filterwarnings("ignore:.*no gradient is late")
@pytest.mark.slow
@pytest.mark.parametrize("correct", EVERY)
def test_where_nothing_is_late_training_stays_as_it_is_bit_for_bit(correct):
    options = {"beta": 0.5} if correct == "shrink" else {"method": "bp"}
    current = at_current_weights(correct)
    options |= {"weights": "current", "method": "ddg"} if current else {}
    K = 1 if correct == "shrink" or current else 2
    corrected, _ = trained(K, correct, **options)
    assert corrected.parameters_sha256() == uncorrected(K, **options)


@cache
def uncorrected(K, **options):
    """The hash of the weights after the same training without a correction."""
    return trained(K, "none", **options)[0].parameters_sha256()


@pytest.mark.slow
def test_looking_no_update_ahead_trains_bit_for_bit_as_without():
    with pytest.warns(NoEffect, match="it predicts no change"):
        corrected, _ = trained(2, "anticipate", momentum=0.0)  # spike's c is 0 then
    assert corrected.parameters_sha256() == uncorrected(2)


def test_a_staleness_below_one_divides_nothing():
    chain = make_rate(Late(1, 2, 0.5), anneal_updates=0).around(optax.identity())
    assert float(chain.update(jnp.asarray(3.0), chain.init(jnp.asarray(0.0)))[0]) == 3.0


OTHERWISE = {"order": "forward-first", "accumulate": 2}


@pytest.mark.parametrize(("correct", "asked"), [
    ("anticipate", {}), pytest.param("t2", {}, marks=pytest.mark.slow),
    *[pytest.param(correct, OTHERWISE, marks=pytest.mark.slow) for correct in (*EVERY, *VARIANTS)],
])  # fmt: skip
def test_both_engines_agree_bit_for_bit_or_one_is_refused(correct, asked):
    one, _ = trained(3, correct, **asked)
    plain_options = {}
    if at_current_weights(correct):
        plain_options = {name: options_of(correct)[name] for name in ("weights", "stages")}
        with pytest.raises(BadInput, match="takes each gradient at the weights of its forward pass"):
            trained(3, correct, engine="delay-line", **asked)
    else:
        other, _ = trained(3, correct, engine="delay-line", **asked)
        assert one.parameters_sha256() == other.parameters_sha256()
    plain, _ = trained(3, "none", **asked, **plain_options)
    assert (plain.parameters_sha256() == one.parameters_sha256()) is (correct == "none")


@pytest.mark.slow
@pytest.mark.parametrize("correct", ["dc_asgd adaptive", "gap_aware,anticipate,rate"])
def test_a_scan_agrees_up_to_rounding(correct):
    """One program for a whole batch: XLA contracts the same operations into other fused multiply-adds."""
    one, _ = trained(3, correct)
    other, _ = trained(3, correct, engine="scan")
    close(one.params, other.params, **ROUNDING)
    assert one.staleness == other.staleness


@pytest.mark.slow
@pytest.mark.parametrize(("correct", "engine"), [
    ("anticipate", "delay-line"), ("gap_aware,anticipate,rate", "scan"), *((correct, "pipeline") for correct in EVERY),
])  # fmt: skip
def test_a_resumed_run_is_the_same_run(correct, engine):
    goes_on_exactly(lambda: pipeline(3, DATA[0], engine=engine, **ASKED, **options_of(correct)), DATA, at=7)


@pytest.mark.slow
def test_a_guarded_run_keeps_what_a_correction_remembers_free_of_what_is_not_finite():
    data = [*DATA[:5], (np.full_like(DATA[5][0], np.nan), DATA[5][1]), *DATA[6:]]
    made, _ = trained(2, "ahead", data=data, guard=True)
    assert any(made.refused())
    kept = {name: value for name, value in made.state().items() if "correction" in name}
    assert kept and all(np.isfinite(value).all() for value in kept.values())


@pytest.mark.slow
@pytest.mark.parametrize("correct", EVERY)
def test_the_memory_of_a_corrected_stage_is_predicted_to_the_byte(correct):
    asked = {**ASKED, **options_of(correct)}
    predicted, live, _ = predicted_and_live(3, data=batches(14), **asked)
    for stage, here in zip(predicted, live, strict=True):
        assert 0 <= here - stage.total <= SCALARS, stage


def test_a_correction_is_told_the_staleness_of_the_schedule():
    told: list[Late] = []

    def make(late: Late) -> Correction:
        told.append(late)
        return NONE

    kind = CorrectionSpec("told", "", make)
    for accumulate, expected in ((1, [3.0, 1.0]), (2, [1.5, 0.5]), (4, [0.75, 0.25])):
        told.clear()
        pipeline(3, DATA[0], correct=kind, accumulate=accumulate)
        assert [late.staleness for late in told] == expected  # stage 3 is not late, so nobody is asked


def test_optimizer_and_front_of_several_corrections_are_nested_in_order():
    more = optax.stateless(lambda updates, params: jax.tree.map(lambda u: u + 1.0, updates))
    twice = optax.scale(2.0)
    first = Correction(before=twice, optimizer=lambda chain: optax.chain(chain, twice))
    second = Correction(before=more, optimizer=lambda chain: optax.chain(chain, more))
    chain = corrections.together([first, NONE, second]).around(optax.scale(10.0))
    updates, _ = chain.update(jnp.asarray(1.0), chain.init(jnp.asarray(0.0)))
    assert float(updates) == ((1 * 2 + 1) * 10) * 2 + 1


@pytest.mark.slow
@pytest.mark.parametrize("correct", ["anticipate", "t2"])
def test_after_a_drain_a_prediction_begins_anew(correct):
    """The batches that fill the pipeline again meet as few updates as the first ones did."""
    made, _ = trained(3, correct, data=DATA[:5])
    remembered = lambda: [value for name, value in made.state().items() if ".correction" in name]  # noqa: E731
    assert len(remembered()) and not any(map(np.any, remembered()))
    for batch in DATA[5:11]:
        made.step(batch)
    assert any(map(np.any, remembered()))


def test_several_corrections_act_one_after_the_other_and_each_remembers_its_own():
    def counting(by):
        return Correction(
            init=lambda params: jnp.zeros(()),
            forward=lambda params, n: params * by + n,
            gradient=lambda grads, then, now, n: (grads * by + n, n + 1),
            updated=lambda before, after, n: n + 10,
        )

    both: Any = corrections.together([counting(2.0), NONE, counting(3.0)])
    assert both.init and both.forward and both.gradient and both.updated and both.backward is None
    state = both.start(jnp.zeros(()))
    grads, state = both.gradient(jnp.asarray(1.0), None, None, state)
    state = both.updated(None, None, state)
    assert (float(grads), *map(float, state)) == (6.0, 11.0, 11.0)
    assert float(both.forward(jnp.asarray(1.0), state)) == (1 * 2 + 11) * 3 + 11
