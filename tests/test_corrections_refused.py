"""What a correction is refused for: options, files, stages and saved states that do not go with it."""

import re
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
import pytest
from correction_files import AHEAD, put_into
from small import CLASSES, batches, pipeline

from fdg_jax.corrections.interface import NONE, Correction, CorrectionSpec
from fdg_jax.errors import BadInput
from fdg_jax.methods.fdg import fdg
from fdg_jax.methods.interface import Method
from fdg_jax.stages.stage import Stage

DATA = batches(6)
ASKED = {"learning_rate": 0.1, "momentum": 0.9}
BACKWARD = CorrectionSpec("mine", "", lambda late: Correction(backward=lambda params, state: params))


@pytest.fixture(autouse=True)
def files_of_a_user(tmp_path, monkeypatch):
    put_into(tmp_path, monkeypatch)


REFUSED = [
    ({"correct": "tailor"}, "correction 'tailor' is not known. Did you mean taylor"),
    ({"correct": "rate,rate"}, "names rate twice"),
    ({"correct": "rate,none"}, "none cannot be combined"),
    ({"correct": "t2"}, "correction t2 needs gradients at current weights, not at stashed"),
    ({"correct": "dc_asgd", "weights": "current"}, "needs gradients at stashed weights, not at current"),
    ({"correct": "anticipate"}, "correction anticipate needs the optimizer's momentum"),
    ({"correct": "anticipate", "weights": "current", "momentum": 0.9}, "gradients at stashed weights"),
    ({"correct": "anticipate", "momentum": 1.0}, "momentum=1.0: it must lie in"),
    ({"momentum": "0.9"}, "momentum='0.9' is not a number"),
    ({"correct": "gap_aware"}, "correction gap_aware needs the optimizer's learning rate"),
    ({"correct": "rate", "anneal_updates": -1}, "Use a number of updates, or 0 for never"),
    ({"correct": "dc_asgd", "compensation_strength": -1.0}, "it must be 0 or more"),
    ({"correct": "gap_aware", "learning_rate": -0.1}, "learning_rate=-0.1: it must lie in"),
    ({"correct": "t2,dc_asgd"}, "t2 needs gradients at current weights, and dc_asgd needs .* Use one of them"),
    ({"correct": BACKWARD}, "weights of backward passes, but with stashed weights"),
    ({"correct": "taylor", "strong": 1.0}, "strong=1.0"),
    ({"correct": "taylor", "method": "fr"}, "changes the backward pass of stage k=1"),
    ({"gate_decay": 0.1}, "none has no such option .it has: none.. Add correct='cosine', which has it"),
    ({"correct": "cosine", "gate_deca": 0.1}, "gate_decay.. Did you mean gate_decay"),
    ({"correct": CorrectionSpec("mine", "", lambda: Correction())}, "`make` has no argument. Write def make.late."),
    ({"correct": CorrectionSpec("mine", "", lambda late: NONE, needs="momentum")}, "needs=.'momentum',., with a comma"),
    ({"correct": CorrectionSpec("mine", "", lambda late: NONE, weights="new")}, "weights is 'new'. It can be '' or"),
]


def test_what_cannot_be_corrected_is_refused():
    for asked, fact in REFUSED:
        with pytest.raises(BadInput, match=fact.replace("?", r"\?")):
            pipeline(3, DATA[0], **asked)


FILES = [  # what is changed in a good file, and what is said of it
    (
        ("    horizon: float", "    reach: float"),
        "make takes horizon, but the options are reach.",
    ),
    (('NEEDS = ("learning_rate",)', 'NEEDS = ("rate",)'), "`needs` contains 'rate'. It can contain 'learning_rate'"),
    (("needs=NEEDS)", 'needs=NEEDS, takes=("momentum",))'), "`takes` contains 'momentum'. It can contain 'beta' only"),
    (("options=Options, ", ""), "has a class Options, which its CORRECTION does not name"),
    (
        ('name="ahead"', 'name="before"'),
        "CORRECTION has the name 'before', but the file has 'ahead'. Write name='ahead'",
    ),
    (("CORRECTION =", "OTHER ="), "has no CORRECTION of type CorrectionSpec"),
    (("    return Correction(", "    return dict("), "make in fdg_jax/corrections/ahead.py returned dict"),
    (("horizon", "order"), "correction ahead and method fdg both have the option order"),
    (("horizon", "guard"), "Options.guard has a name that is already in use"),
]


def test_a_file_that_contradicts_itself_is_refused_in_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # two files of one second and size have one bytecode
    for changed, fact in FILES:
        sys.modules.pop("fdg_jax.corrections.ahead", None)
        (tmp_path / "ahead.py").write_text(AHEAD.replace(*changed))
        with pytest.raises(BadInput, match=re.escape(fact)):
            pipeline(3, DATA[0], correct="ahead", **ASKED)


class Compensated(Stage):
    """What a new user wrote: a stage that corrects its gradient where it is used."""

    def backward(self, batch, dy=None):
        return super().backward(batch, dy)


def test_a_stage_of_its_own_is_refused_on_the_delay_line_where_it_would_not_see_the_delay():
    method = Method("mine", "", lambda K: fdg(K), delay_line=True, stage=Compensated)
    pipeline(2, DATA[0], method=method)
    with pytest.raises(BadInput, match="has its own stage class"):
        pipeline(2, DATA[0], method=method, engine="delay-line")


def remembers(params):
    return jnp.zeros((), jnp.int32)


WRONG_PARTS = {
    "gradient fails. ": {"gradient": lambda grads, then, now: grads},
    "`gradient` does not return (gradients, state)": {"gradient": lambda grads, then, now, state: [grads, state]},
    "`gradient` returns gradients, ['bias'] of bfloat16[12], where float32[12] is needed": {
        "gradient": lambda grads, then, now, state: (jax.tree.map(lambda g: g.astype(jnp.bfloat16), grads), state)
    },
    "`gradient` returns a state, float32[], where int32[] is needed": {
        "init": remembers,
        "gradient": lambda grads, then, now, n: (grads, 0.9 * n + 1),
    },
    "`gradient` returns a state, a tree of 2 arrays, not of 0": {
        "init": lambda params: None,
        "gradient": lambda grads, then, now, state: (grads, grads),
    },
    "init fails. ": {"init": lambda: ()},
    "`updated` returns int32[3], where int32[] is needed": {
        "init": remembers,
        "updated": lambda before, after, n: jnp.zeros(3, jnp.int32),
    },
    "`drained` returns a tree of 0 arrays, not of 1": {"init": remembers, "drained": lambda n: ()},
    "`forward` returns a tree with other keys": {"forward": lambda params, state: list(params.values())},
    "`before` is int, not an optax transformation": {"before": 3},
    "`optimizer` returns NoneType, not an optax transformation": {"optimizer": lambda chain: None},
    "the corrected optimizer fails. ": {"before": optax.trace(0.9)._replace(update=lambda grads: grads)},
}


@pytest.mark.slow
def test_a_function_that_cannot_train_a_stage_is_refused_before_anything_runs():
    """What a correction remembers is in every checkpoint. One that changed its dtype was trained, and then not read."""
    parts = {}
    kind, stages = CorrectionSpec("mine", "", lambda late: Correction(**parts)), [nn.Dense(12), nn.Dense(CLASSES)]
    for said, wrong in WRONG_PARTS.items():
        parts = wrong
        with pytest.raises(BadInput, match=re.escape(f"correction mine, stage k=1: {said}")):
            pipeline(2, DATA[0], correct=kind, stages=stages)


def test_several_corrections_may_be_a_list_with_kinds_of_ones_own():
    mine = CorrectionSpec("mine", "", lambda late: Correction(gradient=lambda grads, then, now, state: (grads, state)))
    made = pipeline(2, DATA[0], correct=[mine, "cosine"], gate_decay=0.1)
    assert [kind.name for kind, _ in made.corrections] == ["shrink", "mine", "cosine"]
    with pytest.raises(BadInput, match="names mine twice"):
        pipeline(2, DATA[0], correct=(mine, mine))


class WithoutOldWeights(Stage):
    """A stage that changes gradients and was written before a correction needed the weights of the forward pass."""

    def use(self, grads, version):
        super().use(grads, version)


def test_a_stage_that_does_not_pass_on_the_old_weights_is_refused_where_they_are_needed():
    method = Method("mine", "", lambda K: fdg(K), stage=WithoutOldWeights)
    pipeline(2, DATA[0], method=method, correct="rate")
    with pytest.raises(BadInput, match=r"WithoutOldWeights does not pass them on. Write def use\(self, grads, version"):
        pipeline(2, DATA[0], method=method, correct="dc_asgd")


@pytest.mark.slow
def test_a_saved_state_of_another_correction_is_refused_though_its_arrays_have_the_same_shapes():
    state = pipeline(2, DATA[0], correct="anticipate", momentum=0.9).state()
    pipeline(2, DATA[0], correct="anticipate", prediction="linear", momentum=0.9).restore(state)
    with pytest.raises(BadInput, match=r"of another run \(.* corrected by anticipate, .* corrected by cosine"):
        pipeline(2, DATA[0], correct="cosine").restore(state)
