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
from tools import kernels

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
    """Of the guard: the bounds are 4 for a stage, two for its gradient and two for its statistics. With trees, it looks
    at each of 12 arrays by itself."""
    data = batches(2)
    run = run_of(data)
    x, y = (np.concatenate(arrays) for arrays in zip(*data, strict=True))
    traced = jax.make_jaxpr(run.engine._window)(run.engine.run, x, y, np.arange(32).reshape(2, 16))
    names = Counter(each.primitive.name for each in equations(traced.jaxpr))
    assert names["is_finite"] <= 8 and names["reduce_and"] <= 8


HLO = """
HloModule jit_window

%fused_add (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  ROOT %add.1 = f32[4]{0} add(%p, %p)
}

%fused_reduce (p: f32[4]) -> f32[] {
  ROOT %reduce.1 = f32[] reduce(%p, %zero), dimensions={0}, to_apply=%region
}

%inner_body (t: (f32[4])) -> (f32[4]) {
  %copy.1 = f32[4]{0} copy(%p), metadata={op_name="jit(window)/copy"}
}

%body (t: (f32[4], s32[])) -> (f32[4], s32[]) {
  %t = (f32[4]{0}, s32[]) parameter(0)
  %conv = (f32[4]{0}, u8[0]{0}) custom-call(%x, %k), custom_call_target="__cudnn$convForward"
  %loop_add_fusion = f32[4]{0} fusion(%x), kind=kLoop, calls=%fused_add
  %input_reduce_fusion = f32[] fusion(%x), kind=kInput, calls=%fused_reduce
  %while.1 = (f32[4]{0}) while(%t), condition=%none, body=%inner_body
  ROOT %tuple = (f32[4]{0}, s32[]) tuple(%a, %b)
}

%none (t: (f32[4])) -> pred[] {
  %c = pred[] constant(true)
}

ENTRY %main (x: f32[4]) -> f32[4] {
  %while.2 = (f32[4]{0}, s32[]) while(%t), condition=%none, body=%body
}
"""


def test_launches_are_counted_by_kind_with_those_of_inner_loops():
    launches = kernels.of_batch(HLO)
    kinds = kernels.CONVOLUTION, kernels.REST, kernels.REDUCTION, "transposition"
    assert kernels.counted(launches) == dict.fromkeys(kinds, 1)
    assert [each.source for kind, each in launches if kind == "transposition"] == ["jit(window)/copy"]
