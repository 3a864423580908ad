"""Every reduction of one method to another, and what every method promises."""

import jax
import jax.numpy as jnp
import method_oracles as oracles
import numpy as np
import optax
import oracle
import pytest
from small import (
    CLASSES,
    CurrentPart,
    as_functions,
    batches,
    cross_entropy,
    goes_on_exactly,
    leaves,
    mostly_slow,
    parts,
    pipeline,
    recipe,
)
from stages_of_layers import ROUNDING, Affine, Dropped, Two
from trained_methods import Ks, agree, seen, trained

from fdg_jax import methods
from fdg_jax.errors import BadInput

# Reductions.


def hashed(K, data, **options):
    return trained(K, data, **options)[0].parameters_sha256()


ALIKE = [name for name in methods.names() if name not in ("fa", "dfa")]


@pytest.mark.parametrize("method", ALIKE)
def test_with_one_stage_every_method_is_backprop(method):
    whole = {"micro_batches": 1} if method == "gpipe" else {}
    assert seen(method, 1, **whole).sha256 == seen("bp", 1).sha256  # the very same programs


@pytest.mark.parametrize("K", Ks)
def test_scaled_bp_by_one_is_backprop_bit_for_bit(K):
    data = batches(8)
    assert hashed(K, data, method="scaled_bp", scale=1.0) == hashed(K, data, method="bp")


def test_a_scale_outside_0_to_1_is_refused():
    for scale in (0.0, -0.3, 1.5, float("nan")):
        with pytest.raises(BadInput, match=r"scale=.*the factor lies in \(0, 1\]"):
            pipeline(2, batches(1)[0], method="scaled_bp", scale=scale)


@pytest.mark.slow
def test_micro_batches_of_one_stage_have_backprops_gradient_but_for_batch_norm():
    data, stages = batches(8), [Two(CLASSES)]
    results = [trained(1, data, stages=stages, **options)[0] for options in ({"method": "gpipe"}, {"method": "bp"})]
    for a, b in zip(leaves(results[0].params), leaves(results[1].params), strict=True):
        np.testing.assert_allclose(a, b, **ROUNDING)  # a sum of four sums


@pytest.mark.parametrize(("K", "M"), mostly_slow([*[(K, 4) for K in Ks], (2, 2), (2, 16)], (2, 2)))
def test_gpipes_gradient_is_backprops_without_batch_norm(K, M):
    data = batches(6)
    stages = [Two(CLASSES if k == K else 12) for k in range(1, K + 1)]
    one, two = (trained(K, data, stages=stages, **options)[0] for options in
                ({"method": "gpipe", "micro_batches": M}, {"method": "bp"}))  # fmt: skip
    for a, b in zip(leaves(one.params), leaves(two.params), strict=True):
        np.testing.assert_allclose(a, b, **ROUNDING)
    np.testing.assert_allclose(*([m.loss for m in each.losses(wait=True)] for each in (one, two)), **ROUNDING)


@pytest.mark.parametrize("K", Ks)
def test_ddg_is_a_delay_line_of_K_minus_k(K):
    data = batches(10)
    ours, start, _ = trained(K, data, method="ddg")
    delays = [K - k for k in range(1, K + 1)]
    agree(ours, oracle.stashed(as_functions(parts(K)), cross_entropy, recipe(), start, data, delays))
    assert ours.parameters_sha256() == hashed_on_one_device(K, data)


@pytest.mark.parametrize("weights", ["stashed", "current"])
def test_ddg_of_two_stages_is_fdg_of_two_stages(weights):
    """Backward first and without shrinking, at whichever weights: one algorithm under two names."""
    data, stages = batches(8), parts(2, CurrentPart)
    one, two = (hashed(2, data, stages=stages, weights=weights, method=name) for name in ("ddg", "fdg"))
    assert one == two


@pytest.mark.slow  # a scan is slow to compile on a CPU
def test_ddg_in_one_dispatch_is_its_oracle():
    data = batches(10)
    ours = pipeline(3, data[0], method="ddg", engine="scan")
    start = jax.device_get(ours.params)
    for batch in data:
        ours.step(batch)
    ours.drain()
    agree(ours, oracles.ddg(as_functions(parts(3)), cross_entropy, recipe(), start, data))


def hashed_on_one_device(K, data):
    ours = pipeline(K, data[0], method="ddg", engine="delay-line")
    for batch in data:
        ours.step(batch)
    ours.drain()
    return ours.parameters_sha256()


@pytest.mark.parametrize("K", Ks)
def test_fr_with_frozen_weights_has_ddgs_gradients(K):
    """The optimizer takes no step and keeps the sum of the gradients it saw, weights apart."""
    seen = optax.GradientTransformation(
        lambda params: jax.tree.map(jnp.zeros_like, params),
        lambda grads, state, params=None: (
            jax.tree.map(jnp.zeros_like, grads), jax.tree.map(jnp.add, state, grads),
        ),
    )  # fmt: skip
    data = batches(9)
    sums = []
    for method in ("ddg", "fr"):
        ours, _, _ = trained(K, data, method=method, optimizer=seen)
        sums.append(leaves([stage.state.opt_state for stage in ours.engine.stages.values()]))
    for a, b in zip(*sums, strict=True):
        np.testing.assert_array_equal(a, b)
    assert max(np.abs(a).max() for a in sums[0]) > 0.01


def test_dgl_with_one_stage_has_no_auxiliary_network_and_with_two_it_has():
    data = batches(2)
    assert pipeline(1, data[0], method="dgl").auxiliary_parameter_count == 0
    assert pipeline(2, data[0], method="dgl").auxiliary_parameter_count > 0
    assert pipeline(2, data[0], method="fdg").auxiliary_parameter_count == 0


@pytest.mark.parametrize("order", ["backward-first", "forward-first"])
@pytest.mark.parametrize("K", Ks)
def test_adl_with_one_backward_pass_an_update_is_fdg(K, order):
    data = batches(9)
    assert hashed(K, data, order=order, accumulate=1) == hashed(K, data, order=order)


@pytest.mark.parametrize("K", Ks)
def test_dni_with_the_true_gradient_for_a_synthesizer_is_backprop(K):
    """BP's own cotangents, recorded batch by batch, are what the synthesizers answer."""
    data = batches(8)
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
    for batch in data:
        ours.step(batch)
    ours.drain()
    assert ours.parameters_sha256() == true.parameters_sha256()  # the same programs on the same numbers


@pytest.mark.parametrize("K", mostly_slow([1, *Ks], 2))
def test_fa_with_the_transposed_weights_for_feedback_is_backprop(K):
    data = batches(8)
    stages = [Two(CLASSES if k == K else 12) for k in range(1, K + 1)]
    ours, true = pipeline(K, data[0], stages=stages, method="fa"), pipeline(K, data[0], stages=stages, method="bp")
    assert ours.parameters_sha256() == true.parameters_sha256()
    for batch in data:
        for stage in ours.engine.stages.values():
            stage.state = stage.state._replace(own=stage.state.params)
        ours.step(batch)
        true.step(batch)
    assert ours.parameters_sha256() == true.parameters_sha256()


def test_fa_goes_back_through_its_own_weights():
    data = batches(4)
    stages = [Affine(12), Affine(CLASSES)]
    results = [hashed(2, data, stages=stages, method=method) for method in ("fa", "bp")]
    assert results[0] != results[1]


# What every method promises, whoever wrote it.


@pytest.mark.parametrize("method", mostly_slow(methods.names(), "dni"))
@pytest.mark.parametrize("at", [4])  # tests/test_engines.py stops FDG elsewhere too
def test_a_restored_run_of_any_method_is_the_same_run_bit_for_bit(method, at):
    data = batches(8)
    goes_on_exactly(lambda: pipeline(3, data[0], method=method), data, at)


@pytest.mark.parametrize("method", methods.names())
@pytest.mark.parametrize("K", [pytest.param(1, marks=pytest.mark.slow), 2, 3, 4])
def test_every_methods_staleness_is_its_schedules_and_every_batch_updates_every_stage(method, K):
    ours = seen(method, K)
    assert ours.staleness == list(ours.expected)
    assert ours.updates == [9] * K
    assert [m.step for m in ours.losses] == list(range(1, 10))
    assert not ours.mail


@pytest.mark.parametrize("method", methods.names())
@pytest.mark.parametrize("K", [2, 3])
def test_the_loop_of_any_method_makes_no_implicit_transfer(method, K):
    assert len(seen(method, K).losses) == 9


@pytest.mark.slow
@pytest.mark.parametrize("method", methods.names())
def test_dropout_of_any_method_goes_on_exactly(method):
    data = batches(7)
    goes_on_exactly(lambda: pipeline(2, data[0], stages=[Dropped(12), Dropped(CLASSES)], method=method), data, 4)


@pytest.mark.parametrize("method", ["fr", "replay"])
def test_a_replay_drops_what_the_first_forward_pass_dropped(method):
    """Before the first update the weights of both passes are the same, so the gradient is that of BP."""
    data, found = batches(1), []
    for name in ("bp", method):
        ours = pipeline(2, data[0], stages=[Dropped(12), Dropped(CLASSES)], method=name)
        ours.step(data[0])
        ours.drain()
        found.append(leaves([variables["params"] for variables in ours.params]))
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, **ROUNDING)


@pytest.mark.slow
@pytest.mark.parametrize("method", methods.names())
def test_a_batch_of_another_size_is_trained_on_by_any_method(method):
    data = batches(4)
    ours = pipeline(2, data[0], method=method)
    for i, (x, y) in enumerate(data):
        ours.step((x[:7], y[:7]) if i == 1 else (x, y))
    ours.drain()
    assert ours.updates == [4, 4]
    assert np.isfinite([m.loss for m in ours.losses(wait=True)]).all()


@pytest.mark.parametrize("method", mostly_slow(methods.names(), "dni", "fa", "data_parallel"))
def test_the_network_alone_is_evaluated_and_hashed(method):
    data = batches(3)
    ours = pipeline(2, data[0], method=method)
    true = pipeline(2, data[0], method="bp", variables=ours.params)
    assert ours.parameter_count == true.parameter_count
    assert ours.parameters_sha256() == true.parameters_sha256()
    one, two = ours.evaluate(data), true.evaluate(data)
    assert one.error_percent == two.error_percent
    np.testing.assert_allclose(one.loss, two.loss, rtol=1e-6)  # a batch spread over devices is summed in other parts
