"""PipeDream, PACI, PipeDream-2BW and DSP: what they are here, against plain simulations of what they are elsewhere."""

from itertools import count

import jax
import method_oracles as oracles
import numpy as np
import oracle
import pytest
from small import (
    CLASSES,
    as_functions,
    batches,
    close,
    cross_entropy,
    fed,
    goes_on_exactly,
    leaves,
    parts,
    pipeline,
    recipe,
)
from stages_of_layers import LAYERS_OF_TWO, ROUNDING, Two, layered
from test_memory import SCALARS, predicted_and_live
from trained_methods import agree, trained

from fdg_jax import cli
from fdg_jax.errors import BadInput
from fdg_jax.methods import find
from fdg_jax.methods.ddg import forward_locked
from fdg_jax.schedule import Op
from fdg_jax.schedule.running import trace_run, validate


def one_forward_one_backward(K, n):
    """{(kind, k, batch): the updates that stage k has made by then}, of PipeDream's 1F1B with an update per batch.

    Stage k goes forward on K-k+1 batches, then by turns backward and forward on one; a B needs the B of stage k+1, and
    an F the F of stage k-1."""
    todo = {}
    for k in range(1, K + 1):
        forward, backward = count(1), count(1)
        start = [("F", next(forward)) for _ in range(K - k + 1)]
        todo[k] = start + [op for _ in range(n) for op in (("B", next(backward)), ("F", next(forward)))]
    done, updates = {}, dict.fromkeys(todo, 0)
    while any(todo.values()):
        before = dict(done)
        for k, ops in todo.items():
            if not ops:
                continue
            kind, batch = ops[0]
            if batch > n:
                ops.pop(0)
                continue
            there = ("F", k - 1, batch) if kind == "F" else ("B", k + 1, batch)
            if there[1] in (0, K + 1) or there in before:
                done[kind, k, batch] = updates[k]
                updates[k] += kind == "B"
                ops.pop(0)
    return done


@pytest.mark.parametrize("K", [1, 3, 7])
def test_ddg_goes_forward_with_the_weight_versions_of_pipedreams_1f1b(K):
    n = 4 * K
    theirs, ours = one_forward_one_backward(K, n), trace_run(forward_locked(K), n).version
    for k in range(1, K + 1):
        for batch in range(1, n + 1):
            assert ours[Op("F", k, batch)] == theirs["F", k, batch] == max(0, batch - 1 - (K - k))
            assert ours[Op("B", k, batch)] == theirs["B", k, batch]


def test_pipedream_is_a_name_of_ddg_with_stashed_weights():
    assert find("pipedream") is find("ddg")
    options, given = cli.parse(["--method", "pipedream", "--beta", "0.5", "--accumulate", "2"], "command")
    assert (options.method, options.weights, "method" in given) == ("ddg", "stashed", True)
    made = pipeline(3, batches(1)[0], method="pipedream", weights="stashed", beta=0.5, accumulate=2)
    assert (made.method.name, made.schedule.staleness, made.beta) == ("ddg", (1, 1, 0), 0.5)
    with pytest.raises(BadInput, match="method pipedream takes gradients at stashed weights"):
        pipeline(3, batches(1)[0], method="pipedream", weights="current")


@pytest.mark.slow
def test_beta_and_accumulation_of_ddg_are_those_of_its_oracle():
    """With two stages ADL's oracle is one for DDG too: backward first, its gradients are one batch late as well."""
    data = batches(9)
    ours = pipeline(2, data[0], method="ddg", accumulate=2, accumulation="mean", beta=0.5)
    start = fed(ours, data)
    agree(ours, oracles.adl(as_functions(parts(2)), cross_entropy, recipe(), start, data, 2, "mean", beta=0.5))


@pytest.mark.parametrize(("K", "M"), [(1, 3), (3, 3), (4, 8)])
def test_in_2bw_every_stage_is_late_by_one_update_and_all_gradients_of_an_update_are_of_one_version(K, M):
    schedule = forward_locked(K, accumulate=M, one_version=True)
    assert schedule.staleness == (1,) * K and schedule.mean_staleness == (1.0,) * K
    n = 5 * M
    trace = validate(schedule, n)
    for k in range(1, K + 1):
        versions = [trace.version[Op("F", k, batch)] for batch in range(1, n + 1)]
        assert versions == [max(0, (batch - 1) // M - 1) for batch in range(1, n + 1)]


@pytest.mark.slow
def test_2bw_is_its_oracle_in_both_engines():
    """w(j+1) = w(j) - step of the mean gradient of M batches at w(j-1), in every stage."""
    M, data, stages = 3, batches(12), [Two(12), Two(CLASSES)]
    asked = {"method": "ddg", "one_version": True, "accumulate": M, "accumulation": "mean", "engine": "delay-line"}
    ours = pipeline(2, data[0], stages=stages, **asked)
    start = [variables["params"] for variables in jax.device_get(ours.params)]
    fed(ours, data)

    def loss(params, x, labels):
        for module, w in zip(stages, params, strict=True):
            x = module.apply({"params": w}, x)
        return cross_entropy(x, labels)

    gradient, chain = oracle.jit(jax.grad(loss)), recipe()
    before = now = start
    states = [chain.init(w) for w in start]
    for group in range(0, len(data), M):
        found = [gradient(before, *batch) for batch in data[group : group + M]]
        mean = jax.tree.map(lambda *g: sum(g) / M, *found)
        moved = [oracle.updated(chain, 1.0, w, s, g) for w, s, g in zip(now, states, mean, strict=True)]
        before, now, states = now, [w for w, _ in moved], [s for _, s in moved]
    close([variables["params"] for variables in ours.params], now, **ROUNDING)
    assert (ours.staleness, ours.updates) == ([1, 1], [4, 4])
    other = pipeline(2, data[0], stages=stages, **asked | {"engine": "pipeline"})
    fed(other, data)
    assert other.parameters_sha256() == ours.parameters_sha256()


@pytest.mark.slow
def test_2bw_goes_on_exactly_and_its_memory_and_that_of_replay_are_predicted():
    data = batches(12)
    asked = {"method": "ddg", "one_version": True, "accumulate": 4}
    goes_on_exactly(lambda: pipeline(3, data[0], engine="delay-line", **asked), data, at=7)
    for options in (asked, {"method": "replay"}):
        predicted, live, _ = predicted_and_live(3, data=batches(24), **options)
        for stage, here in zip(predicted, live, strict=True):
            assert 0 <= here - stage.total <= SCALARS, stage


@pytest.mark.slow
def test_replay_of_two_stages_is_fr_of_two_stages():
    data = batches(8)
    one, two = (trained(2, data, method=name)[0] for name in ("fr", "replay"))
    assert one.parameters_sha256() == two.parameters_sha256() and one.staleness == two.staleness == [1, 0]


@pytest.mark.slow
def test_replay_is_its_oracle():
    K, data = 3, batches(10)
    ours, start, _ = trained(K, data, method="replay")
    agree(ours, oracles.adl(as_functions(parts(K)), cross_entropy, recipe(), start, data, 1, replay=True))


@pytest.mark.slow
def test_paci_trains_as_gradients_at_the_newest_weights_whose_sum_makes_an_update():
    data, stages = batches(24), [Two(CLASSES if k == 3 else 12) for k in (1, 2, 3)]
    ours = pipeline(3, data[0], stages=stages, method="ddg", weights="current", accumulate=8)
    start = layered(jax.device_get(ours.params))
    fed(ours, data)
    given = ([LAYERS_OF_TWO] * 3, cross_entropy, recipe(), start, data, "ddg")
    truth, losses = oracle.current(*given, accumulate=8)
    close(layered(ours.params), truth, **ROUNDING)
    # The losses are of order 1.6, so they round by ten times what the weights do.
    np.testing.assert_allclose([m.loss for m in ours.losses(wait=True)], losses, rtol=0, atol=1e-5)
    assert ours.staleness == [1, 1, 0] and ours.schedule.mean_staleness == (2 / 8, 1 / 8, 0)
    one_by_one, _ = oracle.current(*given)
    assert max(np.abs(a - b).max() for a, b in zip(leaves(truth), leaves(one_by_one), strict=True)) > 1e-3
