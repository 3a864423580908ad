"""States as few vectors in a window: for which optimizers, that no bit changes, and how many operations are left."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small import batches, close, pipeline
from stages_of_layers import ROUNDING

from fdg_jax import recipe
from fdg_jax.machine.programs import equations
from fdg_jax.stages import flat
from fdg_jax.stages.functions import StageState
from fdg_jax.stages.update import UpdateRule

PARAMS = {"a": {"kernel": jnp.ones((3, 2)), "bias": jnp.ones(2)}, "b": {"kernel": jnp.ones((2, 2)), "c": jnp.ones(())}}
SCHEDULE = recipe.paper_schedule(0.1, 300, 390, warmup=True)


def named(name, **options):
    return recipe.optimizer(name, SCHEDULE, momentum=0.9, weight_decay=5e-4, **options)


@pytest.mark.parametrize("optimizer", [
    *map(named, ("sgd", "adamw", "lion", "nadam")), optax.chain(optax.clip(1.0), optax.sgd(0.1, 0.9, nesterov=True)),
    optax.inject_hyperparams(optax.adam)(0.1), optax.adabelief(0.1), optax.sgd(0.1, 0.9, accumulator_dtype="bfloat16"),
], ids=range(8))  # fmt: skip
def test_an_update_of_each_number_by_itself_is_seen(optimizer):
    assert flat.is_alike(UpdateRule(optimizer), PARAMS)


def by_name(params):
    return jax.tree_util.tree_map_with_path(lambda path, _: "b" if "bias" in str(path) else "k", params)


@pytest.mark.parametrize("optimizer", [
    named("sgd", decay="matrices"), named("sgd", clip_norm=1.0), named("muon"), named("rotation"), optax.adafactor(0.1),
    optax.lamb(0.1), optax.noisy_sgd(0.1), optax.adaptive_grad_clip(0.1), optax.centralize(),
    optax.multi_transform({"b": optax.sgd(SCHEDULE), "k": optax.sgd(lambda n: SCHEDULE(n + 1))}, by_name),
], ids=range(10))  # fmt: skip
def test_an_update_that_looks_at_several_numbers_or_at_names_and_shapes_is_seen(optimizer):
    assert not flat.is_alike(UpdateRule(optimizer), PARAMS)


@pytest.mark.parametrize("name", ["sgd", "adamw", "lion", "nadam"])
def test_updates_of_vectors_are_those_of_trees_in_every_bit(name):
    """Operation by operation: in a compiled window, XLA may contract other multiplications and additions."""
    rule, rng = UpdateRule(named(name), guard=True, ema=0.9), np.random.default_rng(0)
    state = StageState(PARAMS, {"batch_stats": {"mean": jnp.ones(2)}, "rng": jnp.zeros(2)}, rule.start(PARAMS)[0])
    flattened = flat.pack(state, rule)
    for factor in (1, np.nan, 1):  # the second update is refused
        grads = jax.tree.map(lambda p, by=factor: jnp.asarray(by * rng.normal(size=p.shape), jnp.float32), PARAMS)
        params, opt_state, _ = rule.new_weights(state.params, state.opt_state, grads)
        state = state._replace(params=params, opt_state=opt_state)
        params, opt_state, _ = rule.new_weights(flattened.params, flattened.opt_state, flat.packed(grads))
        flattened = flattened._replace(params=params, opt_state=opt_state)
    assert len(jax.tree.leaves(flattened.params)) == 1
    ours = flat.plain(flattened)
    assert jax.tree.structure(ours) == jax.tree.structure(state)
    close(ours, state, rtol=0)


def run_of(data, **options):
    return pipeline(2, data[0], engine="scan", guard=True, beta=0.5, **options)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"accumulate": 2, "ema": 0.9}], ids=str)
def test_a_window_of_vectors_trains_what_one_of_trees_trains(options, monkeypatch):
    data, ends = batches(9), []
    x, y = (np.concatenate(arrays) for arrays in zip(*data, strict=True))
    for _ in range(2):
        ours = run_of(data, **options)
        ours.train(x, y, np.arange(16 * 9).reshape(9, 16))
        ends.append((ours.state(), [metrics.loss for metrics in ours.losses(wait=True)]))
        monkeypatch.setattr(flat, "is_alike", lambda rule, params: False)
    assert ends[0][0].keys() == ends[1][0].keys()
    close(*ends, **ROUNDING)


def test_the_operations_of_a_batch_do_not_grow_with_the_number_of_arrays():
    """The bounds are what there is for two stages. With trees, the guard alone looks at each of their 16 arrays."""
    data = batches(2)
    run = run_of(data)
    x, y = (np.concatenate(arrays) for arrays in zip(*data, strict=True))
    traced = jax.make_jaxpr(run.engine._window)(run.engine.run, x, y, np.arange(32).reshape(2, 16))
    print(Counter(each.primitive.name for each in equations(traced.jaxpr)), sum(1 for _ in equations(traced.jaxpr)))
    assert 0
