"""Every method against its own plain oracle."""

import flax.linen as nn
import jax.numpy as jnp
import method_oracles as oracles
import numpy as np
import optax
import pytest
from small import (
    CLASSES,
    as_functions,
    batches,
    close,
    cross_entropy,
    fed,
    leaves,
    mostly_slow,
    parts,
    pipeline,
    recipe,
)
from stages_of_layers import LAYERS_OF_TWO, ROUNDING, Normed, Two, affine, layered
from trained_methods import agree, trained

from fdg_jax.layers import EPSILON
from fdg_jax.methods._auxiliary import HEADS, Synthesizer, local_loss

RAGGED = pytest.param(2, True, marks=pytest.mark.slow)  # compiles for two sizes


def data_of(n, ragged=False):
    """n batches; one in the middle is smaller where they are ragged, as an epoch's last one is."""
    data = batches(n)
    if ragged:
        data[n // 2] = tuple(array[:7] for array in data[n // 2])
    return data


@pytest.mark.parametrize("method", mostly_slow(["ddg", "fr"], "fr"))
@pytest.mark.parametrize(("K", "ragged"), mostly_slow([(2, False), (3, False), (2, True)], (2, False)))
def test_ddg_and_fr_are_their_oracles(K, ragged, method):
    data = data_of(10, ragged)
    ours, start, _ = trained(K, data, method=method)
    agree(ours, getattr(oracles, method)(as_functions(parts(K)), cross_entropy, recipe(), start, data))
    assert ours.staleness == [K - k for k in range(1, K + 1)]


def heads(K, kind):
    module = HEADS[kind](CLASSES)

    def local(params, extra, y, labels):
        outputs, extra = module.apply({"params": params, **extra}, y, True, mutable=list(extra))
        return local_loss(cross_entropy, outputs, labels), extra

    return [local] * (K - 1)


@pytest.mark.parametrize(("K", "kind"), mostly_slow([(2, "linear"), (2, "mlp-sr"), (3, "predsim")], (2, "linear")))
def test_dgl_is_its_oracle(K, kind):
    data, stages = batches(8), parts(K)
    ours, start, states = trained(K, data, stages=stages, method="dgl", aux=kind)
    aux = [{"params": state.params[1], **state.extra["auxiliary"]} for state in states[:-1]]
    truth = oracles.dgl(as_functions(stages), cross_entropy, recipe(), start, data, heads(K, kind), aux)
    agree(ours, truth)
    close(ours.engine.auxiliary()[:-1], [t["params"] for t in truth[3]], **ROUNDING)
    assert ours.auxiliary_parameter_count == sum(leaf.size for leaf in leaves([v["params"] for v in aux]))


class Plain(nn.Module):
    """No batch norm behind a boundary: it would make the boundary's gradients sum to 0 but for rounding, and Adam
    divides such a sum in the synthesizer by its own size."""

    width: int

    @nn.compact
    def __call__(self, x, train: bool):
        return jnp.tanh(nn.Dense(self.width)(x))


@pytest.mark.parametrize(("K", "conditional"), mostly_slow([(2, True), (3, True), (3, False)], (2, True)))
def test_dni_is_its_oracle(K, conditional):
    data, stages = batches(9), parts(K, Plain)
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
        close(own.params, true["params"], **ROUNDING)
        assert np.abs(own.params["gradient"]["kernel"]).max() > 1e-5  # it did learn


@pytest.mark.slow
@pytest.mark.parametrize(("K", "M", "ragged"), [(2, 3, False), (3, 3, True)])
def test_gpipe_is_its_oracle(K, M, ragged):
    data = data_of(6, ragged)
    ours, start, _ = trained(K, data, method="gpipe", micro_batches=M)
    agree(ours, oracles.gpipe(as_functions(parts(K)), cross_entropy, recipe(), start, data, M=M))
    assert ours.updates == [6] * K


def scaled_bp(modules, loss_fn, optimizer, variables, batches, scale):
    """BP, where the optimizer of stage k gets the gradient times scale**(K-k)."""
    stages = oracles.made(modules, optimizer, variables, scale)
    return oracles.result(stages, oracles.in_parts(loss_fn, batches, [stages]))


def test_scaled_bp_is_its_oracle():
    K, scale, data = 3, 0.3, batches(6)
    ours, start, _ = trained(K, data, method="scaled_bp", scale=scale)
    truth = scaled_bp(as_functions(parts(K)), cross_entropy, recipe(), start, data, scale)
    agree(ours, truth)
    assert ours.parameters_sha256() != trained(K, data, method="bp")[0].parameters_sha256()


@pytest.mark.parametrize(("engine", "M", "order", "accumulation"), [
    pytest.param("pipeline", 2, "backward-first", "sum", marks=pytest.mark.slow),
    ("delay-line", 3, "forward-first", "mean"),
    pytest.param("scan", 2, "forward-first", "sum", marks=pytest.mark.slow),  # slow to compile on a CPU
])  # fmt: skip
def test_adl_is_its_oracle(engine, M, order, accumulation):
    K, data = 3, batches(11)
    gentle = optax.chain(optax.add_decayed_weights(5e-4), optax.sgd(0.02, momentum=0.9))  # the sum of M takes M steps
    ours = pipeline(
        K, data[0], optimizer=gentle, engine=engine, beta=0.5, order=order, accumulate=M, accumulation=accumulation
    )
    start = fed(ours, data)
    agree(ours, oracles.adl(as_functions(parts(K)), cross_entropy, gentle, start, data, M, accumulation, order, 0.5))
    assert ours.updates == [-(-11 // M)] * K


def test_fa_is_its_oracle():
    K, data = 2, batches(10)
    stages = [Two(CLASSES if k == K else 12) for k in range(1, K + 1)]
    ours, start, states = trained(K, data, stages=stages, method="fa")
    feedback = layered([{"params": state.own} for state in states])
    layers = [LAYERS_OF_TWO] * K
    truth, losses, _ = oracles.fa(layers, cross_entropy, recipe(), layered(start), data, feedback)
    close(layered(ours.params), truth, **ROUNDING)
    np.testing.assert_allclose([m.loss for m in ours.losses(wait=True)], losses, **ROUNDING)


@pytest.mark.slow
def test_fa_keeps_the_scales_of_batch_norms_and_is_its_oracle_with_them():
    data, K = batches(8), 2
    stages = [Normed(12), Normed(CLASSES)]
    ours, start, states = trained(K, data, stages=stages, method="fa")

    def norm(p, x):
        return (x - x.mean(0)) / jnp.sqrt(x.var(0) + EPSILON) * p["scale"] + p["bias"]

    def pairs(variables):
        return [[v["params"]["affine"]["Dense_0"], v["params"]["norm"]] for v in variables]

    feedback = pairs([{"params": state.own} for state in states])
    truth, losses, _ = oracles.fa([[affine, norm]] * K, cross_entropy, recipe(), pairs(start), data, feedback)
    close(pairs(ours.params), truth, rtol=2e-5, atol=2e-5)  # two formulas of the variance; 1/std amplifies
    np.testing.assert_allclose([m.loss for m in ours.losses(wait=True)], losses, rtol=2e-5)


@pytest.mark.parametrize(("K", "ragged"), [(3, False), RAGGED])
def test_dfa_is_its_oracle(K, ragged):
    data = data_of(10, ragged)
    ours, start, states = trained(K, data, method="dfa")
    projections = [state.own for state in states[:-1]]
    agree(ours, oracles.dfa(as_functions(parts(K)), cross_entropy, recipe(), start, data, projections))
