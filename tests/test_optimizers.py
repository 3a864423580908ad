"""Optimizers, number by number: the paper's recipe, NAdam as PyTorch has it, and basis rotation (SOAP)."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fdg_jax import recipe
from fdg_jax.corrections import shrink as correction
from fdg_jax.corrections.interface import Late
from fdg_jax.optimizers.nadam import nadam
from fdg_jax.optimizers.rotation import rotation, scale_by_rotation
from fdg_jax.recipe import paper_schedule, paper_sgd

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


@pytest.mark.slow
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


def authors_rotation(grads, every, b1=0.9, b2=0.99, eps=1e-3):
    """The steps of a matrix in Algorithm 1 of 2602.03515 (two sides, second moment), from the authors' description: the
    optimizer's state as a dictionary, and one side after the other. The rate is 1 and nothing is decayed."""
    state: dict[str, Any] = {"M": 0, "V": 0, "GG": [0, 0], "Q": [None, None]}
    for step, G in enumerate(grads, 1):
        for side, product in enumerate((G @ G.T, G.T @ G)):
            A = state["GG"][side] = b2 * state["GG"][side] + (1 - b2) * product
            if state["Q"][side] is None:
                values, vectors = np.linalg.eigh(A)
                state["Q"][side] = vectors[:, np.argsort(values)[::-1]]
            elif step % every == 0:
                Q = state["Q"][side]
                order = np.argsort(np.diag(Q.T @ A @ Q))[::-1]
                state["V"] = state["V"].take(order, axis=side)
                state["Q"][side] = np.linalg.qr(A @ Q[:, order])[0]
        QL, QR = state["Q"]
        state["M"] = b1 * state["M"] + (1 - b1) * G
        state["V"] = b2 * state["V"] + (1 - b2) * (QL.T @ G @ QR) ** 2
        rate = np.sqrt(1 - b2**step) / (1 - b1**step)
        yield rate * QL @ (QL.T @ state["M"] @ QR / (np.sqrt(state["V"]) + eps)) @ QR.T


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(4, 3), (2, 2, 2, 5)])
def test_rotation_is_its_authors_over_100_updates(shape):
    """The largest difference seen is 1e-12 of the largest number: rounding of float64, grown by ten QR products."""
    rows, columns = math.prod(shape[:-1]), shape[-1]
    grads = RNG.normal(size=(100, rows, columns)) * np.geomspace(1, 9, columns)
    chain, found = scale_by_rotation(b2=0.99, eps=1e-3), []
    with jax.enable_x64(True):
        update, state = jax.jit(chain.update), chain.init({"kernel": jnp.zeros(shape)})
        for g in grads:
            step, state = update({"kernel": jnp.asarray(g.reshape(shape))}, state)
            found.append(np.asarray(step["kernel"]).reshape(rows, columns))
    wanted = np.array(list(authors_rotation(grads, every=10)))
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-10 * np.abs(wanted).max())


@pytest.mark.slow
def test_embeddings_output_layers_and_vectors_have_adam():
    start = {
        "block000": {"table": np.ones((5, 3))},
        "block001": {"wide": {"kernel": np.ones((3, 3))}, "norm": {"scale": np.ones(3)}},
        "block002": {"scores": {"kernel": np.ones((3, 5))}, "dense": {"kernel": np.ones((3, 5))}},
    }
    grads = [jax.tree.map(lambda leaf: RNG.normal(size=leaf.shape), start) for _ in range(12)]
    adam, _ = path(optax.adamw(0.02, weight_decay=0.1), grads, start)
    by_recipe = recipe.optimizer("rotation", 0.02, momentum=0.9, weight_decay=0.1)
    for chain, turned in ((rotation(0.02, weight_decay=0.1), ["dense", "wide"]), (by_recipe, ["wide"])):
        found, _ = path(chain, grads, start)
        same = jax.tree.map(lambda a, b: np.allclose(a, b, **ROUNDING), found[-1], adam[-1])
        told = [jax.tree_util.keystr(name) for name, alike in jax.tree.leaves_with_path(same) if not alike]
        assert [name.split("'")[3] for name in told] == sorted(turned, key=lambda n: n == "dense")


def shrink(beta: float, K: int, k: int) -> optax.GradientTransformation:
    return correction.make(Late(k, K, staleness=1.0), beta).around(optax.identity())


def test_two_steps_by_hand():
    """g <- beta g; g <- g + wd p; v <- m v + g; p <- p - lr v: beta before weight decay before momentum."""
    beta, wd, m, lr, p, g = 0.5, 0.1, 0.9, 0.2, 1.0, 2.0
    chain = optax.chain(shrink(beta, K=3, k=1), paper_sgd(lr, m, wd))
    params = jnp.asarray(p)
    state, v = chain.init(params), 0.0
    for _ in range(2):
        updates, state = chain.update(jnp.asarray(g), state, params)
        params = optax.apply_updates(params, updates)
        v = m * v + (beta**2 * g + wd * p)
        p -= lr * v
        assert float(params) == pytest.approx(p, rel=1e-6)  # float32 against Python's float64


def test_the_last_stage_is_never_shrunk_and_beta_one_shrinks_none():
    K, g = 4, jnp.asarray(3.0)
    for k in range(1, K + 1):
        for beta in (1.0, 0.5):
            chain = shrink(beta, K, k)
            value, _ = chain.update(g, chain.init(g))
            assert float(value) == 3.0 * beta ** (K - k)


def test_the_learning_rate_drops_at_150_225_and_275_of_300_epochs():
    steps = 391
    rate = paper_schedule(0.1, 300, steps, warmup=False)
    for epoch, before, after in ((150, 0.1, 0.01), (225, 0.01, 0.001), (275, 0.001, 0.0001)):
        assert float(rate(epoch * steps - 1)) == pytest.approx(before)
        assert float(rate(epoch * steps)) == pytest.approx(after)


def test_the_warm_up_is_three_epochs_of_a_hundredth():
    rate = paper_schedule(0.1, 300, 391, warmup=True)
    assert float(rate(0)) == float(rate(3 * 391 - 1)) == pytest.approx(0.01)
    assert float(rate(3 * 391)) == pytest.approx(0.1)


def test_another_length_keeps_the_proportions():
    epochs, steps = 10, 240
    short, paper = paper_schedule(0.1, epochs, steps, True), paper_schedule(0.1, 300, steps, True)
    for fraction in np.linspace(0, 0.999, 37):
        ours, theirs = short(int(fraction * epochs * steps)), paper(int(fraction * 300 * steps))
        assert float(ours) == pytest.approx(float(theirs))


def test_a_stages_learning_rate_belongs_to_the_batch_whose_gradient_it_applies():
    """optax counts the stage's own updates and the fill makes none, so update b has the rate of batch b."""
    chain = paper_sgd(lambda count: 10.0**-count, momentum=0.0, weight_decay=0.0)
    p = jnp.asarray(0.0)
    state = chain.init(p)
    moves = []
    for _ in range(3):
        updates, state = chain.update(jnp.asarray(1.0), state, p)
        moves.append(-float(updates))
    assert moves == pytest.approx([1.0, 0.1, 0.01])
