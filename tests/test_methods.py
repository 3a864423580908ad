"""Every method against its own plain oracle, and every reduction of one method to another."""

import flax.linen as nn
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
from test_engines import ROUNDING, Affine, Dropped, Normed, Two

from fdg_jax import methods
from fdg_jax.layers import EPSILON
from fdg_jax.methods._auxiliary import HEADS, Synthesizer, local_loss

Ks = [2, 3, 4]
RAGGED = pytest.param(2, True, marks=pytest.mark.slow)  # compiles for two sizes


def data_of(n, ragged=False):
    """n batches; one in the middle is smaller where they are ragged, as an epoch's last one is."""
    data = batches(n)
    if ragged:
        data[n // 2] = tuple(array[:7] for array in data[n // 2])
    return data


def trained(K, data, **options):
    """(the drained pipeline, its first variables, its first engine's stages' own state)."""
    ours = pipeline(K, data[0], **options)
    stages = ours.engine.stages.values()
    start = jax.device_get((ours.params, [stage.layout.open(stage.state) for stage in stages]))
    for batch in data:
        ours.step(batch)
    ours.drain()
    return ours, *start


def agree(ours, truth, tolerance=ROUNDING):
    variables, losses, staleness = truth[:3]
    for mine, true in zip(ours.params, variables, strict=True):
        chosen = {name: true[name] for name in mine}
        for a, b in zip(leaves(mine), leaves(chosen), strict=True):
            np.testing.assert_allclose(a, b, **tolerance)
    np.testing.assert_allclose([m.loss for m in ours.losses(wait=True)], losses, **tolerance)
    assert ours.staleness == staleness


@pytest.mark.parametrize("method", ["ddg", "fr"])
@pytest.mark.parametrize(("K", "ragged"), [*[(K, False) for K in Ks], RAGGED])
def test_ddg_and_fr_are_their_oracles(K, ragged, method):
    data = data_of(10, ragged)
    ours, start, _ = trained(K, data, method=method)
    agree(ours, getattr(oracles, method)(as_functions(parts(K)), cross_entropy, recipe(), start, data))
    assert ours.staleness == [K - k for k in range(1, K + 1)]


def heads(K, kind="mlp-sr"):
    module = HEADS[kind](CLASSES)

    def local(params, extra, y, labels):
        outputs, extra = module.apply({"params": params, **extra}, y, True, mutable=list(extra))
        return local_loss(cross_entropy, outputs, labels), extra

    return [local] * (K - 1)


@pytest.mark.parametrize(("K", "kind"), [*[(K, "mlp-sr") for K in Ks], (3, "linear"), (3, "predsim")])
def test_dgl_is_its_oracle(K, kind):
    dgl_is_its_oracle(K, batches(8), parts(K), kind)


@pytest.mark.slow
def test_dgl_is_its_oracle_on_ragged_batches_of_feature_maps():
    dgl_is_its_oracle(2, maps(data_of(6, True)), [Map(), Scores()])


def dgl_is_its_oracle(K, data, stages, kind="mlp-sr"):
    ours, start, states = trained(K, data, stages=stages, method="dgl", aux=kind)
    aux = [{"params": state.params[1], **state.extra["auxiliary"]} for state in states[:-1]]
    truth = oracles.dgl(as_functions(stages), cross_entropy, recipe(), start, data, heads(K, kind), aux)
    agree(ours, truth)
    for a, b in zip(leaves(ours.engine.auxiliary()[:-1]), leaves([t["params"] for t in truth[3]]), strict=True):
        np.testing.assert_allclose(a, b, **ROUNDING)
    assert ours.auxiliary_parameter_count == sum(leaf.size for leaf in leaves([v["params"] for v in aux]))


class Map(nn.Module):
    """A stage that gives feature maps [b, 4, 4, 6]."""

    @nn.compact
    def __call__(self, x, train: bool):
        return jnp.tanh(nn.Conv(6, (3, 3))(x))


class Scores(nn.Module):
    """The rest: maps [b, h, w, c] -> [b, classes]."""

    @nn.compact
    def __call__(self, x, train: bool):
        return nn.Dense(CLASSES)(x.reshape(len(x), -1))


def maps(data):
    """Batches of 8 numbers an example as images [b, 4, 4, 8]."""
    return [(x[:, None, None, :] * np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4, 1), y) for x, y in data]


class Plain(nn.Module):
    """No batch norm behind a boundary: it would make the boundary's gradients sum to 0 but for rounding, and Adam
    divides such a sum in the synthesizer by its own size."""

    width: int

    @nn.compact
    def __call__(self, x, train: bool):
        return jnp.tanh(nn.Dense(self.width)(x))


@pytest.mark.parametrize(("K", "conditional"), [*[(K, True) for K in Ks], (3, False)])
def test_dni_is_its_oracle(K, conditional):
    dni_is_its_oracle(K, batches(9), [Plain(CLASSES if k == K else 12) for k in range(1, K + 1)], conditional)


@pytest.mark.slow
def test_dni_is_its_oracle_on_ragged_batches_of_feature_maps():
    dni_is_its_oracle(2, maps(data_of(6, True)), [Map(), Scores()])


def dni_is_its_oracle(K, data, stages, conditional=True):
    ours, start, states = trained(K, data, stages=stages, method="dni", conditional=conditional)
    module = Synthesizer(CLASSES, conditional)

    def synthesizer(params, extra, y, labels):
        guess, extra = module.apply({"params": params, **extra}, y, labels, True, mutable=list(extra))
        return guess / len(y), extra

    aux = [{"params": state.own.params, **state.own.extra} for state in states[:-1]]
    truth = oracles.dni(as_functions(stages), cross_entropy, recipe(), start, data, [synthesizer] * (K - 1), aux)
    agree(ours, truth)
    mine = [state.state.own for state in list(ours.engine.stages.values())[:-1]]
    for own, true in zip(mine, truth[3], strict=True):
        for a, b in zip(leaves(own.params), leaves(true["params"]), strict=True):
            np.testing.assert_allclose(a, b, **ROUNDING)
        assert np.abs(own.params["gradient"]["kernel"]).max() > 1e-5  # it did learn


@pytest.mark.parametrize(
    ("K", "M", "ragged"), mostly_slow([*[(K, 3, False) for K in Ks], (2, 4, False), (2, 3, True)], (2, 4, False))
)
def test_gpipe_is_its_oracle(K, M, ragged):
    data = data_of(6, ragged)
    ours, start, _ = trained(K, data, method="gpipe", micro_batches=M)
    agree(ours, oracles.gpipe(as_functions(parts(K)), cross_entropy, recipe(), start, data, M=M))
    assert ours.updates == [6] * K


@pytest.mark.parametrize(("engine", "K", "M", "order", "accumulation"), [
    *[(engine, K, M, order, how) for engine, K in (*[("pipeline", K) for K in Ks], ("delay-line", 3))
      for M, order, how in ((2, "backward-first", "sum"), (3, "forward-first", "mean"))],
    ("scan", 3, 2, "backward-first", "sum"), ("scan", 3, 3, "forward-first", "mean"),  # slow to compile on a CPU
])  # fmt: skip
def test_adl_is_its_oracle(engine, K, M, order, accumulation):
    data = batches(11)
    gentle = optax.chain(optax.add_decayed_weights(5e-4), optax.sgd(0.02, momentum=0.9))  # the sum of M takes M steps
    ours = pipeline(
        K, data[0], optimizer=gentle, engine=engine, beta=0.5, order=order, accumulate=M, accumulation=accumulation
    )
    start = jax.device_get(ours.params)
    for batch in data:
        ours.step(batch)
    ours.drain()
    agree(ours, oracles.adl(as_functions(parts(K)), cross_entropy, gentle, start, data, M, accumulation, order, 0.5))
    assert ours.updates == [-(-11 // M)] * K


def layered(variables):
    return [[v["params"][name]["Dense_0"] for name in "ab"] for v in variables]


@pytest.mark.parametrize("K", Ks)
def test_fa_is_its_oracle(K):
    data = batches(10)
    stages = [Two(CLASSES if k == K else 12) for k in range(1, K + 1)]
    ours, start, states = trained(K, data, stages=stages, method="fa")

    def affine(p, x):
        return x @ p["kernel"] + p["bias"]

    def pairs(layers):
        return [[first, {}, second, {}] for first, second in layers]

    feedback = pairs(layered([{"params": state.own} for state in states]))
    layers = [[affine, lambda p, x: jnp.tanh(x)] * 2] * K
    truth, losses, _ = oracles.fa(layers, cross_entropy, recipe(), pairs(layered(start)), data, feedback)
    for a, b in zip(leaves(layered(ours.params)), leaves(truth), strict=True):
        np.testing.assert_allclose(a, b, **ROUNDING)
    np.testing.assert_allclose([m.loss for m in ours.losses(wait=True)], losses, **ROUNDING)


@pytest.mark.slow
def test_fa_keeps_the_scales_of_batch_norms_and_is_its_oracle_with_them():
    data, K = batches(8), 2
    stages = [Normed(12), Normed(CLASSES)]
    ours, start, states = trained(K, data, stages=stages, method="fa")

    def affine(p, x):
        return x @ p["kernel"] + p["bias"]

    def norm(p, x):
        return (x - x.mean(0)) / jnp.sqrt(x.var(0) + EPSILON) * p["scale"] + p["bias"]

    def pairs(variables):
        return [[v["params"]["affine"]["Dense_0"], v["params"]["norm"]] for v in variables]

    feedback = pairs([{"params": state.own} for state in states])
    truth, losses, _ = oracles.fa([[affine, norm]] * K, cross_entropy, recipe(), pairs(start), data, feedback)
    for a, b in zip(leaves(pairs(ours.params)), leaves(truth), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)  # two formulas of the variance; 1/std amplifies
    np.testing.assert_allclose([m.loss for m in ours.losses(wait=True)], losses, rtol=2e-5)


@pytest.mark.parametrize(("K", "ragged"), [*[(K, False) for K in Ks], RAGGED])
def test_dfa_is_its_oracle(K, ragged):
    data = data_of(10, ragged)
    ours, start, states = trained(K, data, method="dfa")
    projections = [state.own for state in states[:-1]]
    agree(ours, oracles.dfa(as_functions(parts(K)), cross_entropy, recipe(), start, data, projections))


# Reductions.


def hashed(K, data, **options):
    return trained(K, data, **options)[0].parameters_sha256()


ALIKE = [name for name in methods.names() if name not in ("fa", "dfa")]


@pytest.mark.parametrize("method", ALIKE)
def test_with_one_stage_every_method_is_backprop(method):
    data = batches(8)
    whole = {"micro_batches": 1} if method == "gpipe" else {}
    assert hashed(1, data, method=method, **whole) == hashed(1, data, method="bp")  # the very same programs


@pytest.mark.slow
def test_micro_batches_of_one_stage_have_backprops_gradient_but_for_batch_norm():
    data, stages = batches(8), [Two(CLASSES)]
    results = [trained(1, data, stages=stages, **options)[0] for options in ({"method": "gpipe"}, {"method": "bp"})]
    for a, b in zip(leaves(results[0].params), leaves(results[1].params), strict=True):
        np.testing.assert_allclose(a, b, **ROUNDING)  # a sum of four sums


@pytest.mark.parametrize(("K", "M"), mostly_slow([*[(K, 4) for K in Ks], (2, 2), (2, 16)], (2, 4)))
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


@pytest.mark.parametrize("K", [1, *Ks])
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


@pytest.mark.parametrize("method", mostly_slow(methods.names(), "dni", "data_parallel"))
@pytest.mark.parametrize("at", [4])  # tests/test_engines.py stops FDG elsewhere too
def test_a_restored_run_of_any_method_is_the_same_run_bit_for_bit(method, at):
    data = batches(8)
    goes_on_exactly(lambda: pipeline(3, data[0], method=method), data, at)


@pytest.mark.parametrize("method", methods.names())
@pytest.mark.parametrize("K", [1, 3, 4])
def test_every_methods_staleness_is_its_schedules_and_every_batch_updates_every_stage(method, K):
    data = batches(9)
    ours, _, _ = trained(K, data, method=method)
    assert ours.staleness == list(ours.schedule.staleness)
    assert ours.updates == [9] * K
    assert [m.step for m in ours.losses(wait=True)] == list(range(1, 10))
    assert not ours.engine.loop.mail


@pytest.mark.parametrize("method", methods.names())
def test_the_loop_of_any_method_makes_no_implicit_transfer(method):
    data = batches(7)
    ours = pipeline(3, data[0], method=method, preprocess=lambda x, step: x + 0 * step)
    with jax.transfer_guard("disallow"):
        for batch in data:
            ours.step(batch)
        ours.drain()
        assert len(ours.losses(wait=True)) == 7


@pytest.mark.slow
@pytest.mark.parametrize("method", methods.names())
def test_dropout_of_any_method_goes_on_exactly(method):
    data = batches(7)
    goes_on_exactly(lambda: pipeline(2, data[0], stages=[Dropped(12), Dropped(CLASSES)], method=method), data, 4)


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
