"""The recipe, number by number."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fdg_jax.corrections import shrink as correction
from fdg_jax.corrections.interface import Late
from fdg_jax.recipe import paper_schedule, paper_sgd


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
