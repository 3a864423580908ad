"""The optimizers for late gradients that optax does not have: NAdam as PyTorch has it, and basis rotation (SOAP)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small import batches, goes_on_exactly, leaves, pipeline

from fdg_jax import recipe
from fdg_jax.optimizers.nadam import nadam
from fdg_jax.optimizers.rotation import RotationState, rotation, scale_by_rotation

RNG = np.random.default_rng(0)
GRADS = [{"kernel": RNG.normal(size=(4, 3)), "bias": RNG.normal(size=3)} for _ in range(25)]
ROUNDING = {"rtol": 1e-9, "atol": 1e-12}  # of float64


def path(chain, grads, start) -> Any:
    with jax.enable_x64(True):
        params = jax.tree.map(jnp.asarray, start)
        state = chain.init(params)
        update = jax.jit(chain.update)
        found = []
        for g in grads:
            updates, state = update(jax.tree.map(jnp.asarray, g), state, params)
            params = optax.apply_updates(params, updates)
            found.append(jax.device_get(params))
        return found, state


def test_nadam_is_pytorchs_with_decoupled_decay():
    b1, b2, eps, psi, rate, decay = 0.99, 0.999, 1e-8, 0.004, 0.02, 0.1
    w = {name: np.ones_like(g) for name, g in GRADS[0].items()}
    found, _ = path(nadam(rate, b1, b2, eps, decay), GRADS, w)
    m, v, product = [{name: np.zeros_like(g) for name, g in GRADS[0].items()} for _ in "mv"] + [1.0]
    for t, (g, mine) in enumerate(zip(GRADS, found, strict=True), 1):
        mu, after = (b1 * (1 - 0.5 * 0.96 ** (n * psi)) for n in (t, t + 1))
        product *= mu
        for name in w:
            m[name] = b1 * m[name] + (1 - b1) * g[name]
            v[name] = b2 * v[name] + (1 - b2) * g[name] ** 2
            below = np.sqrt(v[name] / (1 - b2**t)) + eps
            step = (1 - mu) / (1 - product) * g[name] / below + after / (1 - product * after) * m[name] / below
            w[name] = w[name] * (1 - rate * decay) - rate * step
            np.testing.assert_allclose(mine[name], w[name], **ROUNDING)


def test_nadam_with_a_constant_momentum_is_the_textbooks():
    """With a large psi 0.96^(n psi) is 0, so mu is b1 from the first update on: optax.nadam."""
    w = {name: np.ones_like(g) for name, g in GRADS[0].items()}
    found, _ = path(nadam(0.02, 0.9, psi=1e6), GRADS, w)
    textbook, _ = path(optax.nadam(0.02, b1=0.9), GRADS, w)
    for a, b in zip(leaves(found), leaves(textbook), strict=True):
        np.testing.assert_allclose(a, b, **ROUNDING)


def soap(grads, every, turns_first, b1=0.9, b2=0.999, eps=1e-8):
    """SOAP (Vyas et al., 2409.11321, Algorithm 3) from bases that are the identity, with Adam's corrections."""
    rows, columns = grads[0].shape
    L, R, QL, QR = np.zeros((rows, rows)), np.zeros((columns, columns)), np.eye(rows), np.eye(columns)
    M, V, steps = np.zeros_like(grads[0]), np.zeros_like(grads[0]), []
    for t, G in enumerate(grads, 1):
        L, R, M = b2 * L + (1 - b2) * G @ G.T, b2 * R + (1 - b2) * G.T @ G, b1 * M + (1 - b1) * G
        turned = (np.linalg.qr(L @ QL)[0], np.linalg.qr(R @ QR)[0]) if t % every == 0 else (QL, QR)
        if turns_first:
            QL, QR = turned
        V = b2 * V + (1 - b2) * (QL.T @ G @ QR) ** 2
        N = QL.T @ M @ QR / (1 - b1**t) / (np.sqrt(V / (1 - b2**t)) + eps)
        steps.append(QL @ N @ QR.T)
        QL, QR = turned
    return steps


def test_rotation_is_soap_whose_bases_turn_one_update_earlier():
    grads = [g["kernel"] for g in GRADS]
    chain = scale_by_rotation(every=10)
    found = []
    with jax.enable_x64(True):
        state = chain.init({"kernel": jnp.zeros((4, 3))})
        for g in grads:
            step, state = chain.update({"kernel": jnp.asarray(g)}, state)
            found.append(np.asarray(step["kernel"]))
    np.testing.assert_allclose(found, soap(grads, 10, turns_first=True), **ROUNDING)
    later = soap(grads, 10, turns_first=False)
    apart = [not np.allclose(a, b, rtol=1e-6) for a, b in zip(found, later, strict=True)]
    assert apart.index(True) == 9 and not any(apart[:9])


def test_rotation_without_a_turn_is_adam():
    start = {name: np.ones_like(g) for name, g in GRADS[0].items()}
    adam, _ = path(optax.adamw(0.02, weight_decay=0.1), GRADS, start)
    for other in (rotation(0.02, weight_decay=0.1, every=1000), chained(scale_by_rotation(largest=0))):
        found, _ = path(other, GRADS, start)
        for a, b in zip(leaves(found), leaves(adam), strict=True):
            np.testing.assert_allclose(a, b, **ROUNDING)


def chained(scale):
    return optax.chain(scale, optax.add_decayed_weights(0.1), optax.scale_by_learning_rate(0.02))


def eigenvectors(grads):
    """Of the sums of both products of ten gradients, which have full rank: found anew for each problem."""
    G = [g["kernel"] for g in grads[:10]]
    return np.linalg.eigh(sum(g @ g.T for g in G))[1], np.linalg.eigh(sum(g.T @ g for g in G))[1]


@pytest.mark.parametrize("begun_by", ["turned identities", "eigenvectors"])
def test_rotation_turns_into_the_eigenvectors_and_is_the_same_in_turned_coordinates(begun_by):
    """A problem whose rows and columns are turned takes the turned path: from bases that are turned alike, and from
    the eigenvectors of each problem."""
    P, Q = (np.linalg.qr(RNG.normal(size=(n, n)))[0] for n in (4, 3))
    scales = np.outer([8.0, 4.0, 2.0, 1.0], [9.0, 3.0, 1.0])  # so that the power iteration converges
    grads = [{"kernel": scales * RNG.normal(size=(4, 3))} for _ in range(60)]
    turned = [{"kernel": P @ g["kernel"] @ Q.T} for g in grads]
    start = {"kernel": np.zeros((4, 3))}
    chain = scale_by_rotation(every=7)  # by then the products have full rank, so that QR is well conditioned
    with jax.enable_x64(True):
        own = eigenvectors(grads), eigenvectors(turned)
        bases = own if begun_by == "eigenvectors" else ((np.eye(4), np.eye(3)), (P, Q))
        first, second = (begin(chain.init(start), *each) for each in bases)
        update = jax.jit(chain.update)
        for g, h in zip(grads, turned, strict=True):
            a, first = update(jax.tree.map(jnp.asarray, g), first)
            b, second = update(jax.tree.map(jnp.asarray, h), second)
            # In float64. A QR makes the rounding of its product larger by the product's condition number.
            np.testing.assert_allclose(P @ a["kernel"] @ Q.T, b["kernel"], rtol=1e-6, atol=1e-8)
        basis, product = first.leaves["kernel"].left[::-1]
        inner = np.asarray(basis.T @ product @ basis)
    # The power iteration has made eight steps: it has nearly converged.
    assert np.abs(inner - np.diag(np.diag(inner))).max() < 0.02 * inner.max()


def begin(state: Any, U, V) -> Any:
    """The state with these bases."""
    leaf = state.leaves["kernel"]
    left, right = (side._replace(basis=jnp.asarray(basis)) for side, basis in ((leaf.left, U), (leaf.right, V)))
    return RotationState(state.updates, {"kernel": leaf._replace(left=left, right=right)})


def test_rotation_takes_bfloat16_and_a_stage_without_parameters():
    """It computes in float32 what bfloat16 parameters get; LAPACK has no QR of bfloat16."""
    chain, params = rotation(0.1, every=2), {"kernel": jnp.ones((4, 3), jnp.bfloat16)}
    exact = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params)
    states: list[Any] = [chain.init(params), chain.init(exact)]
    for g in GRADS[:4]:
        rounded = {"kernel": jnp.asarray(g["kernel"], jnp.bfloat16)}
        one, states[0] = chain.update(rounded, states[0], params)
        other, states[1] = chain.update(jax.tree.map(jnp.float32, rounded), states[1], exact)
        assert one["kernel"].dtype == jnp.bfloat16
        np.testing.assert_allclose(np.float32(one["kernel"]), other["kernel"], rtol=2**-7)  # of its 8 bits
    assert chain.update({}, chain.init({}), {})[0] == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nadam", "rotation", "muon"])
def test_the_commands_optimizers_train_late_gradients_and_go_on_exactly_in_both_engines(name):
    data = batches(14)
    made = {
        engine: lambda engine=engine: pipeline(
            2, data[0], recipe.optimizer(name, 0.01, momentum=0.9, weight_decay=0.1, decay="matrices"),
            engine=engine, correct="rate",
        )
        for engine in ("pipeline", "delay-line")
    }
    for make in made.values():
        goes_on_exactly(make, data, at=11)
    one, other = (make() for make in made.values())
    for batch in data:
        one.step(batch)
        other.step(batch)
    one.drain()
    other.drain()
    assert one.parameters_sha256() == other.parameters_sha256()
