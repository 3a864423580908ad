"""Every reduction of one method to another, and what every method promises."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracle
import pytest
from small import (
    CLASSES,
    CurrentPart,
    as_functions,
    batches,
    close,
    cross_entropy,
    fed,
    goes_on_exactly,
    leaves,
    mostly_slow,
    parts,
    pipeline,
    recipe,
)
from stages_of_layers import ROUNDING, Dropped, Two
from trained_methods import agree, seen, trained

from fdg_jax import methods
from fdg_jax.errors import BadInput

# Reductions.


def hashed(K, data, **options):
    return trained(K, data, **options)[0].parameters_sha256()


ALIKE = [name for name in methods.names() if name not in ("fa", "dfa")]


@pytest.mark.parametrize("method", mostly_slow(ALIKE, "fdg", "fr", "dgl", "gpipe"))
def test_with_one_stage_every_method_is_backprop(method):
    whole = {"micro_batches": 1} if method == "gpipe" else {}
    assert seen(method, 1, **whole).sha256 == seen("bp", 1).sha256  # the very same programs


def test_scaled_bp_by_one_is_backprop_bit_for_bit():
    K, data = 2, batches(8)
    assert hashed(K, data, method="scaled_bp", scale=1.0) == hashed(K, data, method="bp")


def test_a_scale_outside_0_to_1_is_refused():
    for scale in (0.0, -0.3, 1.5, float("nan")):
        with pytest.raises(BadInput, match=r"scale=.*it must lie in \(0, 1\]"):
            pipeline(2, batches(1)[0], method="scaled_bp", scale=scale)


def test_gpipes_gradient_is_backprops_without_batch_norm():
    K, M, data = 2, 4, batches(6)
    stages = [Two(CLASSES if k == K else 12) for k in range(1, K + 1)]
    one, two = (trained(K, data, stages=stages, **options)[0] for options in
                ({"method": "gpipe", "micro_batches": M}, {"method": "bp"}))  # fmt: skip
    close(one.params, two.params, **ROUNDING)
    np.testing.assert_allclose(*([m.loss for m in each.losses(wait=True)] for each in (one, two)), **ROUNDING)


def test_ddg_is_a_delay_line_of_K_minus_k():
    K, data = 3, batches(10)
    ours, start, _ = trained(K, data, method="ddg")
    delays = [K - k for k in range(1, K + 1)]
    agree(ours, oracle.stashed(as_functions(parts(K)), cross_entropy, recipe(), start, data, delays))
    assert ours.parameters_sha256() == hashed_on_one_device(K, data)


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["stashed", "current"])
def test_ddg_of_two_stages_is_fdg_of_two_stages(weights):
    """Backward first and without shrinking, at whichever weights: one algorithm under two names."""
    data, stages = batches(8), parts(2, CurrentPart)
    one, two = (hashed(2, data, stages=stages, weights=weights, method=name) for name in ("ddg", "fdg"))
    assert one == two


def hashed_on_one_device(K, data):
    ours = pipeline(K, data[0], method="ddg", engine="delay-line")
    fed(ours, data)
    return ours.parameters_sha256()


def test_fr_with_frozen_weights_has_ddgs_gradients():
    """The optimizer takes no step and keeps the sum of the gradients it saw, weights apart."""
    seen = optax.GradientTransformation(
        lambda params: jax.tree.map(jnp.zeros_like, params),
        lambda grads, state, params=None: (
            jax.tree.map(jnp.zeros_like, grads), jax.tree.map(jnp.add, state, grads),
        ),
    )  # fmt: skip
    K, data = 2, batches(9)
    sums = []
    for method in ("ddg", "fr"):
        ours, _, _ = trained(K, data, method=method, optimizer=seen)
        sums.append(leaves([stage.state.opt_state for stage in ours.engine.stages.values()]))
    for a, b in zip(*sums, strict=True):
        np.testing.assert_array_equal(a, b)
    assert max(np.abs(a).max() for a in sums[0]) > 0.01


def test_dni_with_the_true_gradient_for_a_synthesizer_is_backprop():
    """BP's own cotangents, recorded batch by batch, are what the synthesizers answer."""
    K, data = 3, batches(8)
    answers = {k: [] for k in range(1, K)}
    true = pipeline(K, data[0], method="bp")
    for k, stage in list(true.engine.stages.items())[:-1]:

        def recording(batch, dy, stage=stage, k=k, backward=stage.backward):
            answers[k].append(dy)
            return backward(batch, dy)

        stage.backward = recording
    ours = pipeline(K, data[0], method="dni")
    for batch in data:
        true.step(batch)
    for k, stage in list(ours.engine.stages.items())[:-1]:
        stage._guess = lambda own, y, labels, k=k: answers[k].pop(0)
    fed(ours, data)
    assert ours.parameters_sha256() == true.parameters_sha256()  # the same programs on the same numbers


@pytest.mark.slow
def test_fa_with_the_transposed_weights_for_feedback_is_backprop():
    K, data = 2, batches(8)
    stages = [Two(CLASSES if k == K else 12) for k in range(1, K + 1)]
    ours, true = pipeline(K, data[0], stages=stages, method="fa"), pipeline(K, data[0], stages=stages, method="bp")
    assert ours.parameters_sha256() == true.parameters_sha256()
    for batch in data:
        for stage in ours.engine.stages.values():
            stage.state = stage.state._replace(own=stage.state.params)
        ours.step(batch)
        true.step(batch)
    assert ours.parameters_sha256() == true.parameters_sha256()


# What every method promises, whoever wrote it.


@pytest.mark.parametrize("method", methods.names())
@pytest.mark.parametrize("K", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_every_method_is_as_late_as_its_schedule_updates_every_stage_and_makes_no_implicit_transfer(method, K):
    ours = seen(method, K)
    assert ours.staleness == list(ours.expected)
    assert ours.updates == [9] * K
    assert [m.step for m in ours.losses] == list(range(1, 10))
    assert not ours.mail


@pytest.mark.slow
@pytest.mark.parametrize("method", methods.names())
def test_any_method_goes_on_exactly_with_dropout_a_smaller_batch_and_norms_of_gradients(method):
    data = batches(8)
    data[2] = tuple(array[:8] for array in data[2])
    stages, last = [Dropped(12), Dropped(12), Dropped(CLASSES)], []

    def made():
        last[:] = [pipeline(3, data[0], stages=stages, method=method, gradient_norms=True)]
        return last[0]

    goes_on_exactly(made, data, at=4)
    losses = last[0].losses(wait=True)
    assert np.isfinite([m.loss for m in losses]).all() and all(value > 0 for value in losses[-1].gradient_norms)


@pytest.mark.parametrize("method", mostly_slow(["fr", "replay"], "replay"))
def test_a_replay_drops_what_the_first_forward_pass_dropped(method):
    """Before the first update the weights of both passes are the same, so the gradient is that of BP."""
    data, found = batches(1), []
    for name in ("bp", method):
        ours = pipeline(1, data[0], stages=[Dropped(CLASSES)], method=name)
        ours.step(data[0])
        ours.drain()
        found.append(leaves([variables["params"] for variables in ours.params]))
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, **ROUNDING)


@pytest.mark.parametrize("method", mostly_slow(["dni", "fa", "data_parallel"], "fa"))
def test_the_network_alone_is_evaluated_and_hashed(method):
    data = batches(3)
    ours = pipeline(2, data[0], method=method)
    true = pipeline(2, data[0], method="bp", variables=ours.params)
    assert ours.parameter_count == true.parameter_count
    assert ours.parameters_sha256() == true.parameters_sha256()
    one, two = ours.evaluate(data), true.evaluate(data)
    assert one.error_percent == two.error_percent
    np.testing.assert_allclose(one.loss, two.loss, rtol=1e-6)  # a batch spread over devices is summed in other parts
