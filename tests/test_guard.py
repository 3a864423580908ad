"""A number that is none is stopped where it arises, and the stage and the batch are told."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracle
import pytest
from flax import linen as nn
from small import CLASSES, batches, close, cross_entropy, fed, leaves, pipeline, recipe

from fdg_jax.checkpoint.run_checkpoints import NotFinite, Saver
from fdg_jax.checkpoint.state import first_refused_updates
from fdg_jax.corrections import gap_aware
from fdg_jax.corrections.interface import Late
from fdg_jax.methods.fdg import fdg
from fdg_jax.optimizers.rotation import rotation
from fdg_jax.stages.nonfinite import after_refusal, as_finite
from fdg_jax.stages.update import UpdateRule
from fdg_jax.training.record import Diverged, raise_diverged

DATA = batches(10)
LONG = partial(pytest.param, marks=pytest.mark.slow)


def test_a_gradient_that_is_not_finite_moves_nothing_and_is_counted():
    chain, params = recipe(), {"a": jnp.ones(3)}
    plain, ours = UpdateRule(chain), UpdateRule(chain, guard=True)
    state, _ = ours.start(params)
    good, bad, worse = ({"a": jnp.asarray([1.0, value, 2.0])} for value in (0.5, np.nan, -np.inf))
    *expected, _ = plain.new_weights(params, state.inner, good)
    for grads in (good, bad, worse):
        params, state, changes = ours.new_weights(params, state, grads)
        close([params, state.inner], expected, rtol=0)
        assert jnp.any(changes["a"]) == (grads is good)
    assert (int(state.updates), int(state.bad), int(state.refused)) == (3, 2, 2)


RATE = optax.linear_schedule(0.1, 0.01, 8)
MOMENTS = {"sgd": optax.trace(0.9), "adam": optax.scale_by_adam(), "inject": optax.scale_by_adam()}
OPTIMIZERS = {
    "sgd": optax.sgd(RATE, momentum=0.9),
    "adam": optax.chain(optax.clip_by_global_norm(1e6), optax.adam(RATE)),
    "inject": optax.inject_hyperparams(optax.adam)(learning_rate=RATE),
}


@pytest.mark.parametrize(("engine", "name"), [("pipeline", "adam"), LONG("pipeline", "inject"), LONG("scan", "sgd")])
def test_after_a_refused_update_the_moments_are_the_old_ones_and_the_rate_is_that_of_the_batch(engine, name):
    stages, data = [nn.Dense(12), nn.Dense(CLASSES)], [(x.copy(), labels) for x, labels in DATA]
    for lost in (0, 4):
        data[lost][0][0] = np.nan
    ours = pipeline(2, data[0], guard=True, stages=stages, optimizer=OPTIMIZERS[name], engine=engine)
    start = fed(ours, data)
    truth = optax.chain(optax.apply_if_finite(MOMENTS[name], 9), optax.scale_by_learning_rate(RATE))
    modules = [lambda p, extra, x, stage=stage: (stage.apply({"params": p}, x), extra) for stage in stages]
    true, *_ = oracle.stashed(modules, cross_entropy, truth, start, data, fdg(2).staleness)
    for one, other in zip(leaves(ours.params), leaves(true), strict=True):
        # Programs round sums differently, and Adam divides by their size: 1e-5 at steps of 0.1.
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("state", "counts"), [  # after a made and a refused update
    (optax.partition({0: optax.adam(RATE), 1: optax.sgd(RATE)}, {"a": 0, "b": 1}), [1, 2, 2]),  # Adam's, two schedules'
    (optax.masked(optax.adam(RATE), {"a": True, "b": False}), [1, 2]),
    LONG(rotation(RATE), [1, 2]),
    (optax.MultiSteps(optax.sgd(RATE), 2).gradient_transformation(), [1, 0, 0]),  # waits for its second gradient
    (gap_aware.make(Late(1, 2, 2.0, RATE)), [1, 2]),
])  # fmt: skip
def test_a_refused_update_counts_for_schedules_and_not_for_means(state, counts):
    params = {"a": jnp.ones((2, 2)), "b": jnp.ones(2)}

    def after(before):
        if isinstance(state, optax.GradientTransformation):
            return state.update(params, before, params)[1]
        return state.updated(params, params, before)

    made = after(state.init(params))
    refused = after_refusal(made, after(made))
    integers = [leaf for leaf in leaves(refused) if leaf.dtype == np.int32]
    assert [int(leaf) for leaf in integers] == counts
    for old, new in zip(leaves(made), leaves(refused), strict=True):
        assert old.dtype == np.int32 or np.array_equal(old, new)


@pytest.mark.slow
def test_a_guard_changes_no_bit_of_a_sound_run():
    """Of the host loop; a scan is one program, which rounds otherwise."""
    hashes, K = [], 2
    for guard in (True, False):
        ours = pipeline(K, DATA[0], guard=guard, beta=0.5)
        fed(ours, DATA)
        hashes.append(ours.parameters_sha256())
        assert ours.losses(wait=True)[-1].bad == ((0,) * K if guard else ())
        assert ours.first_nonfinite(DATA[0]) is None
    assert len(set(hashes)) == 1


def poison(ours, k):
    """Puts a NaN into every weight of stage k, as a fault of its device might."""
    if ours.engine_name == "scan":
        stages = list(ours.engine.run.stages)
        stages[k - 1] = stages[k - 1]._replace(params=jax.tree.map(lambda a: a * np.nan, stages[k - 1].params))
        ours.engine.run = ours.engine.run._replace(stages=tuple(stages))
    else:
        stage = ours.engine.stages[k]
        stage.state = stage.state._replace(params=jax.tree.map(lambda a: a * np.nan, stage.state.params))


@pytest.mark.slow
def test_a_pipeline_that_goes_back_forgets_what_was_refused_since():
    ours = pipeline(2, DATA[0], guard=True)
    for batch in DATA[:3]:
        ours.step(batch)
    state = ours.state()
    poison(ours, 2)
    for batch in DATA[3:6]:
        ours.step(batch)
    assert any(ours.losses(wait=True)[-1].bad)
    ours.restore(state)
    ours.step(DATA[3])
    assert ours.losses(wait=True)[-1].bad == (0, 0)


@pytest.mark.parametrize("engine", ["pipeline", LONG("scan")])
def test_a_state_says_what_was_refused(engine):
    ours = pipeline(2, DATA[0], guard=True, engine=engine)
    assert first_refused_updates(ours.state()) == ours.refused() == (0, 0)
    fed(ours, [DATA[0], (DATA[1][0] * np.float32(np.nan), DATA[1][1])])
    assert first_refused_updates(ours.state()) == ours.refused() == (2, 2)


def test_what_an_update_was_refused_to_is_saved_where_that_is_known_only(tmp_path):
    saver = Saver(tmp_path, {}, keep=3)
    state = {f"stage{k}/state/.opt_state.bad": np.int32(3 * (k > 1)) for k in (1, 10, 2)}
    saver.save(1, state, {}, refused=())
    with pytest.raises(NotFinite, match=r"stage k=3 got a gradient .* update 3, so there is no"):
        saver.wait()
    for step, known in ((2, (0, 3, 3)), (3, None)):
        saver.save(step, state, {}, refused=known)
        saver.wait()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000002", "step-000000003"]


def test_of_gradients_of_one_batch_the_highest_stage_is_named():
    from fdg_jax.engine.losses import Metrics

    with pytest.raises(Diverged, match="stage k=2 got a gradient that is not finite, for its update 7") as found:
        raise_diverged(Metrics(9, 1.5, (7, 7, 0)))
    assert found.value.step == 9


def test_inputs_that_are_lost_are_lost_in_the_first_stage_and_update_nothing():
    ours = pipeline(2, DATA[0], guard=True)
    start = leaves([stage["params"] for stage in ours.params])
    bad = (DATA[0][0] * np.float32(np.nan), DATA[0][1])
    for _ in range(4):
        ours.step(bad)
    ours.drain()
    for one, other in zip(leaves([stage["params"] for stage in ours.params]), start, strict=True):
        np.testing.assert_array_equal(one, other)
    assert ours.first_nonfinite(bad) == (1, "outputs")
    assert ours.losses(wait=True)[-1].bad == (1, 1)


@pytest.mark.parametrize("options", [
    {"engine": "delay-line"}, *map(LONG, [
        {"engine": "scan"}, {"method": "gpipe", "micro_batches": 3}, {"method": "data_parallel"}, {"method": "dgl"},
        {"method": "dfa"},
    ])], ids=str)  # fmt: skip
def test_a_loss_that_is_not_finite_updates_nothing_though_its_gradients_are_finite(options):
    ours = pipeline(2, DATA[0], guard=True, **options)
    before = leaves([stage["params"] for stage in ours.params])
    labels = DATA[0][1].copy()
    labels[3] = 99  # optax's cross-entropy is NaN outside the classes, and its gradient is that of other labels
    ours.step((DATA[0][0], labels))
    ours.drain()
    assert np.isnan(ours.losses(wait=True)[0].loss) and ours.refused() == (1, 1)
    for one, other in zip(leaves([stage["params"] for stage in ours.params]), before, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"method": "dni"}, {"engine": "scan"}, {"method": "fr"}], ids=str)
def test_running_statistics_of_a_lost_batch_are_not_kept(options):
    ours = pipeline(2, DATA[0], guard=True, **options)
    for number, (x, labels) in enumerate(DATA):
        ours.step((x * np.float32(np.nan if number == 3 else 1), labels))
    ours.drain()
    assert any(ours.refused()) and all("batch_stats" in stage for stage in ours.params)
    assert np.isfinite(ours.evaluate(DATA[:1]).loss)
    ours.restore(ours.state())  # refuses what is not finite
    before = leaves([stage["params"] for stage in ours.params])
    ours.step(DATA[0])
    ours.drain()
    for one, other in zip(leaves([stage["params"] for stage in ours.params]), before, strict=True):
        assert not np.array_equal(one, other)  # every stage still learns


def test_what_a_module_holds_of_infinities_on_purpose_does_not_count_as_lost():
    before = [jnp.asarray([0.0, -jnp.inf]), jnp.asarray(2)]
    assert as_finite([before[0] + 1, before[1]], before)
    assert not as_finite([before[0].at[0].set(jnp.inf), before[1]], before)
