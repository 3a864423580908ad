"""Packing changes how many arrays there are, and no number."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small import batches, fed, mostly_slow, pipeline

from fdg_jax.errors import BadInput
from fdg_jax.stages.packing import SMALL, Packed, Packing, on_packed, small_vector
from fdg_jax.stages.stage import Stage

SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)
LEAVES = st.tuples(SHAPES, st.sampled_from(["float32", "int32", "bool", "bfloat16"]))


def arrays(leaves):
    made, start = [], 0
    for shape, dtype in leaves:
        content = (np.arange(start, start + np.prod(shape, dtype=int)) % 100).reshape(shape)
        made.append(jnp.asarray(content.astype(jnp.dtype(dtype))))
        start += 7
    return made


def equal(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype and x.shape == y.shape and np.array_equal(np.asarray(x), np.asarray(y))


@settings(deadline=None, max_examples=10)
@given(st.lists(LEAVES, max_size=6), st.lists(LEAVES, max_size=2))
def test_what_is_packed_comes_out_as_it_was_from_one_array_a_dtype(ours, more):
    tree = {"a": arrays(ours), "b": (None, arrays(more))}
    packing = Packing(tree)
    closed = packing.pack(tree)
    assert len(closed) == len({str(leaf.dtype) for leaf in jax.tree.leaves(tree)})
    equal(packing.unpack(closed), tree)


def test_large_arrays_are_the_very_arrays_that_went_in():
    large, small = jnp.zeros(SMALL // 4 + 1), [jnp.ones(3), jnp.ones((2, 2))]
    packing = Packing((small, large))
    closed = packing.pack_now((small, large))
    assert [leaf.size for leaf in closed] == [7, large.size]
    assert closed[1].unsafe_buffer_pointer() == large.unsafe_buffer_pointer()
    assert packing.unpack_now(closed)[1].unsafe_buffer_pointer() == large.unsafe_buffer_pointer()


def test_of_a_closure_vectors_are_packed_and_activations_are_not():
    tree = [jnp.ones((1, 2)), jnp.ones(2), jnp.float32(3), jnp.ones(2)]
    assert [leaf.shape for leaf in Packed.pack(tree).arrays] == [(1, 2), (5,)]
    assert not small_vector(jnp.ones((1, 2)))


def test_a_closure_made_anew_is_no_reason_to_compile():
    traced = []

    @jax.jit
    def use(closure):
        traced.append(closure)
        return closure.unpack()[0]

    for _ in range(2):
        use(Packed.pack([jnp.ones(2), jnp.ones(3)]))
    use(Packed.pack([jnp.ones(2), jnp.ones(4)]))
    assert len(traced) == 2


@pytest.mark.parametrize("other", [
    {"a": jnp.ones(2)}, {"a": [jnp.ones(2)], "b": jnp.int32(1)}, {"a": jnp.ones(3), "b": jnp.int32(1)},
    {"a": jnp.ones(2), "b": jnp.float32(1)}, {"a": jnp.ones(2), "b": 1.5},
])  # fmt: skip
def test_a_tree_that_has_become_another_is_refused_and_not_mixed_up(other):
    packing = Packing({"a": jnp.ones(2), "b": jnp.int32(1)})
    with pytest.raises(BadInput, match="at first and became"):
        packing.pack(other)


def test_a_function_on_packed_trees_gives_what_it_gives_on_plain_ones():
    tree = {"a": jnp.arange(3.0), "b": [jnp.ones(2), jnp.int32(4)]}
    packing, double = Packing(tree), lambda tree, by: jax.tree.map(lambda leaf: leaf * by, tree)
    equal(packing.unpack(on_packed(double, [packing, None], [packing])(packing.pack(tree), 2)), double(tree, 2))
    both = on_packed(lambda tree: (tree, tree["a"]), [packing], [Packed, None])(packing.pack(tree))
    equal((both[0].unpack(), both[1]), (tree, tree["a"]))


@pytest.mark.parametrize("method", mostly_slow(["fdg", "fr", "dgl"], "fdg"))
def test_a_stage_takes_few_arrays(method):
    data = batches(4)
    ours = pipeline(2, data[0], method=method)
    for batch in data:
        ours.step(batch)
    for stage in ours.engine.stages.values():
        # One of weights, one of statistics; a guarded or counting optimizer has an int32 beside its float32.
        assert all(len(jax.tree.leaves(part)) <= most for part, most in zip(stage.state[:3], [1, 1, 2], strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("options", [
    {}, {"method": "fr"}, {"method": "dgl", "guard": True}, {"method": "dni"},
], ids=str)  # fmt: skip
def test_training_packed_is_training_unpacked(options, monkeypatch):
    """Within rounding: in one program with its copies XLA contracts other multiplications and additions."""
    data, ends = batches(6), []
    for packs in (True, False):
        monkeypatch.setattr(Stage, "packs", packs)
        ours = pipeline(2, data[0], **options)
        fed(ours, data)
        ends.append(jax.device_get((ours.params, [each.loss for each in ours.losses(wait=True)])))
        arrays = len(jax.tree.leaves(ours.engine.stages[1].state.params))
        assert (arrays == 1) is packs
    for ours, other in zip(*map(jax.tree.leaves, ends), strict=True):
        np.testing.assert_allclose(ours, other, rtol=1e-5, atol=1e-6)
