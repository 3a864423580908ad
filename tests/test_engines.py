"""Both engines against the oracle, and against each other bit for bit."""

from functools import cache, partial
from itertools import product
from types import SimpleNamespace
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracle
import pytest
from small import (
    CLASSES,
    CurrentPart,
    Part,
    as_functions,
    batches,
    close,
    cross_entropy,
    fed,
    goes_on_exactly,
    jit,
    leaves,
    mostly_slow,
    parts,
    pipeline,
    recipe,
)
from stages_of_layers import ORDERS, ROUNDING, Dropped

from fdg_jax.engine import host_engine
from fdg_jax.methods.fdg import fdg


def run(K, data, engine="pipeline", **options):
    made = pipeline(K, data[0], engine=engine, **options)
    start = fed(made, data)
    return made, start


class Trained(NamedTuple):
    """What a drained pipeline leaves: numbers only, so that it can be kept for several tests."""

    start: list
    params: list
    sha256: str
    losses: list
    staleness: list
    updates: list


DATA, BETA = batches(12), 0.3  # whose powers are no floating-point numbers, so that the shrink rounds too


@cache
def trained(K, order, engine) -> Trained:
    ours, start = run(K, DATA, engine, order=order, beta=BETA)
    ends = jax.device_get(ours.params), ours.parameters_sha256(), ours.losses(wait=True), ours.staleness, ours.updates
    return Trained(start, *ends)


@cache
def truth(K, order):
    """The oracle's variables, losses and staleness for the same start; it has no engine."""
    start, staleness = trained(K, order, "pipeline").start, fdg(K, order).staleness
    return oracle.stashed(as_functions(parts(K)), cross_entropy, recipe(), start, DATA, staleness, beta=BETA)


# The orders differ in what lies between the first stage and the last, so three stages are tried in both.
FAST = [(3, "backward-first"), (3, "forward-first")]
K_AND_ORDER = mostly_slow(list(product((1, 2, 3, 4), ORDERS)), *FAST)


@pytest.mark.parametrize(("K", "order"), K_AND_ORDER)
def test_stashed_weights_are_the_oracle(K, order):
    ours, (variables, losses, staleness) = trained(K, order, "pipeline"), truth(K, order)
    close(ours.params, variables, **ROUNDING)
    np.testing.assert_allclose([m.loss for m in ours.losses], losses, **ROUNDING)
    assert ours.staleness == staleness == list(fdg(K, order).staleness)
    assert ours.updates == [12] * K


@pytest.mark.parametrize(("K", "order"), K_AND_ORDER)
def test_the_two_engines_agree_bit_for_bit(K, order):
    one, two = trained(K, order, "pipeline"), trained(K, order, "delay-line")
    assert one.sha256 == two.sha256
    close(one.params, two.params, rtol=0)
    assert one.losses == two.losses


@pytest.mark.parametrize(("K", "n"), mostly_slow([(2, 1), (3, 8), (4, 12)], (3, 8)))
def test_a_scan_over_a_window_is_the_same_training(K, n):
    data, stages = batches(n, features=CLASSES), [Chain((f"d{k}",)) for k in range(K)]
    one, _ = run(K, data, stages=stages, beta=0.5)
    two = pipeline(K, data[0], engine="scan", stages=stages, beta=0.5)
    x, y = (np.concatenate(arrays) for arrays in zip(*data, strict=True))
    two.train(x, y, np.arange(16 * n).reshape(n, 16))
    two.drain()
    # One program for forward, backward and update rounds differently (see ROUNDING).
    close(one.params, two.params, **ROUNDING)
    assert (two.staleness, two.updates) == (one.staleness, one.updates)


class Chain(nn.Module):
    names: tuple[str, ...]

    @nn.compact
    def __call__(self, x):
        for name in self.names:
            x = jnp.tanh(nn.Dense(CLASSES, name=name)(x))
        return x


@pytest.mark.slow
def test_bp_does_not_depend_on_the_number_of_stages():
    data = batches(8, features=CLASSES)
    chains = [(("a", "b", "c", "d"),), (("a", "b"), ("c", "d")), (("a",), ("b",), ("c",), ("d",))]
    whole = Chain(chains[0][0])
    variables = jit(whole.init)(jax.random.PRNGKey(1), data[0][0])["params"]
    results = []
    for groups in chains:
        given = [{"params": {name: variables[name] for name in group}} for group in groups]
        stages = [Chain(group) for group in groups]
        ours = pipeline(len(groups), data[0], stages=stages, variables=given, method="bp")
        for batch in data:
            ours.step(batch)
        results.append(ours)
    merged = [{name: leaf for v in r.params for name, leaf in v["params"].items()} for r in results]
    for other in merged[1:]:
        for a, b in zip(leaves(merged[0]), leaves(other), strict=True):
            np.testing.assert_allclose(a, b, **ROUNDING)  # other programs, other rounding


@pytest.mark.slow
def test_beta_one_removes_the_shrink_and_beta_shrinks_by_its_powers():
    """Without momentum and decay the first update of stage k is -lr * beta**(K-k) * gradient, exactly."""
    data, K = batches(1), 3
    sgd = optax.sgd(0.5)

    def moves(beta):
        ours = pipeline(K, data[0], optimizer=sgd, beta=beta)
        before = [leaves(v["params"]) for v in ours.params]
        ours.step(data[0])
        ours.drain()
        after = [leaves(v["params"]) for v in ours.params]
        return [[a - b for a, b in zip(*stage, strict=True)] for stage in zip(after, before, strict=True)]

    plain, shrunk = moves(1.0), moves(0.5)
    for k, (a, b) in enumerate(zip(plain, shrunk, strict=True), 1):
        for x, y in zip(a, b, strict=True):
            # p + step is rounded to float32 around weights of order 1, so the difference carries 1e-7
            np.testing.assert_allclose(y, x * 0.5 ** (K - k), rtol=0, atol=2e-7)


@pytest.mark.slow
def test_shrinking_the_cotangent_at_every_boundary_is_the_same_as_the_power_in_the_optimizer():
    """Eq. 15 (the cotangent, as printed) against Eq. 17 (ours); beta = 0.5 is exact in floating point."""
    data, K = batches(10), 3
    ours, start = run(K, data, beta=0.5)

    def shrunk(module):
        function = as_functions([module])[0]

        @jax.custom_vjp
        def boundary(y):
            return y

        boundary.defvjp(lambda y: (y, None), lambda _, dy: (0.5 * dy,))

        def stage(params, extra, x):
            y, extra = function(params, extra, x)
            return boundary(y), extra

        return stage

    modules = parts(K)
    functions = [shrunk(m) if k < K else as_functions([m])[0] for k, m in enumerate(modules, 1)]
    truth, _, _ = oracle.stashed(functions, cross_entropy, recipe(), start, data, fdg(K).staleness)
    close(ours.params, truth, **ROUNDING)


def test_dropout_draws_anew_for_every_batch_and_alike_in_both_engines():
    data = batches(6)
    stages = [Dropped(12), Part(CLASSES)]
    results = []
    for name in ("pipeline", "delay-line"):
        ours = pipeline(2, data[0], stages=stages, engine=name)
        fed(ours, [data[0]] * 6)
        results.append((ours.parameters_sha256(), [m.loss for m in ours.losses(wait=True)]))
    assert results[0] == results[1]
    frozen = pipeline(2, data[0], stages=stages, optimizer=optax.sgd(0.0))
    for _ in range(5):
        frozen.step(data[0])
    frozen.drain()
    assert len({m.loss for m in frozen.losses(wait=True)}) == 5  # same batch, same weights, other masks


@pytest.mark.parametrize("engine", mostly_slow(["pipeline", "delay-line", "scan"], "pipeline"))
def test_training_goes_on_after_a_drain_as_from_an_empty_pipeline(engine):
    K = 2
    data = batches(9)
    ours = pipeline(K, data[0], engine=engine)
    for i, batch in enumerate(data, 1):
        ours.step(batch)
        if i == 4:
            ours.drain()
    ours.drain()
    assert ours.updates == [9] * K
    assert [m.step for m in ours.losses(wait=True)] == list(range(1, 10))


LONG = partial(pytest.param, marks=pytest.mark.slow)
RUNS = [
    LONG("pipeline", {"weights": "current"}), LONG("delay-line", {"accumulate": 3}), ("pipeline", {}),
    LONG("pipeline", {"order": "forward-first"}), LONG("pipeline", {"accumulate": 3}), LONG("scan", {"accumulate": 3}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options"), RUNS)
def test_a_restored_run_is_the_same_run_bit_for_bit(name, options):
    data, K = batches(10), 3
    kind = CurrentPart if "weights" in options else Part
    stages = [Dropped(12), kind(12), kind(CLASSES)]
    goes_on_exactly(lambda: pipeline(K, data[0], stages=stages, engine=name, **options), data, 5)


def test_a_stage_alone_on_an_accelerator_trains_in_one_program_and_shares_states_with_three(monkeypatch):
    """Here on a CPU. A batch that is lost is refused, and told of in the same losses."""
    data = batches(8)
    data[3] = np.full_like(data[3][0], np.nan), data[3][1]

    def made():
        return pipeline(1, data[0], stages=[Part(CLASSES)], guard=True, gradient_norms=True, ema=0.9)

    three, again = made(), made()
    monkeypatch.setattr(host_engine, "in_one_program", lambda problem: True)
    one, another = made(), made()
    for ours in (three, one):
        for number, batch in enumerate(data):
            if number == 5:
                state = ours.state()
            ours.step(batch)
    for ours in (one, three):
        assert (ours.updates, ours.staleness, ours.refused()) == ([8], [0], (4,))
    for mine, theirs in ((one.params, three.params), (one.ema, three.ema)):
        close(mine, theirs, **ROUNDING)
    told = [[(m.loss, *m.gradient_norms) for m in ours.losses(wait=True)] for ours in (one, three)]
    np.testing.assert_allclose(*told, **ROUNDING)
    (stage,) = one.engine.stages.values()
    programs = stage._step, stage._forward, stage._backward, stage._update
    assert [program._cache_size() for program in programs] == [1, 0, 0, 0]
    assert one.evaluate(data[:1]).loss == pytest.approx(three.evaluate(data[:1]).loss, abs=3e-6)
    assert one.first_nonfinite(data[3]) == three.first_nonfinite(data[3])
    one.drain()
    for ours in (again, another):  # from a state of one program, in three and in one
        ours.restore(state)
        fed(ours, data[5:])
    close(again.params, one.params, **ROUNDING)
    assert another.state_sha256() == one.state_sha256()


@pytest.mark.slow
def test_what_is_not_alone_or_waits_for_several_gradients_or_is_on_a_cpu_is_no_single_program():
    def answer(platform="gpu", K=1, **options):
        problem = pipeline(K, DATA[0], stages=[nn.Dense(CLASSES) for _ in range(K)], **options).engine.problem
        place = SimpleNamespace(device=SimpleNamespace(platform=platform))
        return host_engine.in_one_program(problem._replace(places=[place] * K))

    assert answer() and answer(method="bp")
    assert not any([answer("cpu"), answer(K=2), answer(accumulate=2), answer(method="gpipe"), answer(method="fr")])
