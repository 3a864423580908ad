"""bfloat16 is for what is computed, float32 for what is remembered, whatever the method and the engine."""

import warnings

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import CLASSES, Part, batches, goes_on_exactly, pipeline

from fdg_jax import layers, methods
from fdg_jax.checkpoint import folder
from fdg_jax.checkpoint import state as states
from fdg_jax.errors import BadInput
from fdg_jax.stages.functions import ComputeOptions, functions
from fdg_jax.stages.precision import precision

HALF = {"dtype": "bfloat16"}


class Rounded(nn.Module):
    """`small.Part` as it has to be written for bfloat16: layers compute in the dtype of what they are given."""

    width: int

    @nn.compact
    def __call__(self, x, train: bool):
        x = nn.Dense(self.width, dtype=x.dtype)(x)[:, None, None, :]
        return jnp.tanh(layers.BatchNorm()(x, train))[:, 0, 0, :]


def rounded(K):
    return [Rounded(CLASSES if k == K else 12) for k in range(1, K + 1)]


def run(K, data, **options):
    ours = pipeline(K, data[0], stages=rounded(K), **options)
    for batch in data:
        ours.step(batch)
    return ours


def floats(tree):
    return {leaf.dtype for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fdg", *(name for name in methods.names() if name != "fdg")])
def test_what_is_remembered_is_float32_and_what_travels_is_bfloat16_in_any_method(method):
    data, K = batches(4), 2
    ours, travelled = pipeline(K, data[0], stages=rounded(K), method=method, **HALF), []
    send = ours.engine.loop.send
    ours.engine.loop.send = lambda *sent: (travelled.append(sent[:2]), send(*sent))[1]
    for batch in data:
        ours.step(batch)
    for stage in ours.engine.stages.values():
        assert floats((stage.state, stage.sum, list(stage.line))) == {jnp.dtype(jnp.float32)}
    for address, message in travelled:
        if address.what == "x" and address.k == 2:
            assert message.dtype == jnp.bfloat16
        if address.what == "dy" and method != "dfa":  # its message is the loss's error
            assert message.dtype == (jnp.bfloat16 if address.k < K else jnp.float32)  # gpipe: the loss's own cotangent
    assert {address.what for address, _ in travelled} >= {"x", "labels"}
    ours.drain()
    losses = [m.loss for m in ours.losses(wait=True)]
    assert len(losses) == 4
    assert np.isfinite(losses).all()
    assert np.isfinite(ours.evaluate(data).loss)


def test_a_stash_holds_activations_in_bfloat16_and_no_weights():
    ours = run(2, batches(4), **HALF)
    stage = ours.engine.stages[1]
    assert len(stage.stashes) == 2
    for stash in stage.stashes:
        kept = [leaf for leaf in jax.tree.leaves(stash.closure) if leaf.ndim > 1]
        assert {leaf.shape[0] for leaf in kept} == {16}  # all of them grow with the batch
        assert {leaf.dtype for leaf in kept} == {jnp.dtype(jnp.bfloat16)}
        assert floats(stash.params) == {jnp.dtype(jnp.float32)}


@pytest.mark.slow
def test_training_in_bfloat16_follows_training_in_float32():
    """The same batch twelve times: the loss falls, and stays near float32's.

    A rounding to bfloat16 is off by 2^-9 at most, 0.2%. Two stages round a handful of times each, forward and backward,
    and so do twelve steps; 2% of a loss that starts at 1.6 leaves room for ten of these in the same direction. With
    kernels or gradients lost in the cast, the loss would not fall from 1.6 to below 1 at all.
    """
    data = [batches(1)[0]] * 12
    losses = []
    for dtype in ("float32", "bfloat16"):
        ours = run(2, data, dtype=dtype)
        ours.drain()
        losses.append(np.array([m.loss for m in ours.losses(wait=True)]))
    np.testing.assert_allclose(*losses, rtol=0, atol=0.03)
    assert losses[1][-1] < 0.7 * losses[1][0]
    assert (losses[0] != losses[1]).any()


@pytest.mark.slow
def test_a_restored_bfloat16_run_is_the_same_run_and_no_float32_run(tmp_path):
    data, stages = batches(7), rounded(2)
    goes_on_exactly(lambda: pipeline(2, data[0], stages=stages, **HALF), data, 5)
    state = run(2, data[:4], **HALF).state()
    folder.save(tmp_path / "c", state)  # bfloat16 activations in flight among it
    assert any(value.dtype == jnp.bfloat16 for value in state.values())
    assert states.sha256(folder.load(tmp_path / "c")[0]) == states.sha256(state)
    with pytest.raises(BadInput, match=r"stashed weights in bfloat16, .* this run is .* stashed weights, "):
        pipeline(2, data[0], stages=stages).restore(state)


def test_a_layer_that_casts_its_weights_back_is_told_how_not_to():
    data = batches(1)
    with pytest.warns(UserWarning, match=r"stage k=1 \(Part\) keeps .*\[8, 12\].* dtype=jax.numpy.bfloat16") as warned:
        pipeline(2, data[0], stages=[Part(12), Rounded(CLASSES)], **HALF)
    (text,) = [str(each.message) for each in warned]
    assert "384 bytes" in text  # of float32[8, 12]
    assert "Results are correct" in text
    with pytest.raises(BadInput, match="Even with weights=current the backward pass would use"):
        pipeline(2, data[0], stages=[Part(12), Part(CLASSES)], weights="current", **HALF)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pipeline(2, data[0], stages=[Rounded(12), Part(CLASSES)])  # nothing to say of float32


def test_another_dtype_is_refused():
    with pytest.raises(BadInput, match=r"Use float32 .* or bfloat16"):
        pipeline(2, batches(1)[0], dtype="float16")


def test_whole_numbers_enter_a_bfloat16_pipeline_as_they_are():
    class Embedded(nn.Module):
        @nn.compact
        def __call__(self, x):
            assert x.dtype == jnp.int32
            return nn.Embed(7, 4, dtype=jnp.bfloat16)(x).mean(1)

    x = jax.ShapeDtypeStruct((6, 3), jnp.int32)
    stage = functions(Embedded(), compute=ComputeOptions(precision("bfloat16", last=False)))
    params = jax.eval_shape(Embedded().init, jax.random.key(0), x)["params"]
    messages, _, closure = jax.eval_shape(stage.forward, params, {}, x)
    grads, dx = jax.eval_shape(stage.backward, closure, params, x, messages["x"])
    assert messages["x"].dtype == jnp.bfloat16
    assert floats(grads) == {jnp.dtype(jnp.float32)}
    assert dx.dtype == jax.dtypes.float0  # nothing goes back through integers
