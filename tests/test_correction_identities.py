"""Corrections that are the same thing under another name, and what others' rules of prediction come to."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small import CurrentPart, fed, leaves, parts, pipeline
from stages_of_layers import ROUNDING
from test_correction_oracles import DATA, M, each

from fdg_jax.corrections import cosine, shrink
from fdg_jax.corrections.anticipate import coefficient, make
from fdg_jax.corrections.interface import Correction, CorrectionSpec, Late
from fdg_jax.methods.fdg import fdg
from fdg_jax.recipe import optimizer

# In float64, where 40 steps round by less than 1e-13 of weights of order 1.
STEPS, DELAY = 40, 4
EXACTLY = {"rtol": 0, "atol": 1e-12}
CURVES = np.asarray([0.3, 1.0, 2.0])


def delayed(step, delay=DELAY, steps=STEPS):
    """The weights at which gradients of a parabola are taken, of a rule step(g) -> (weights to go forward at next)."""
    path = [np.ones(3)]
    for n in range(steps):
        path.append(step(CURVES * path[n - delay] if n >= delay else None))
    return np.stack(path)


def anticipated(prediction, tau, m=M, rate=0.02, start=1.0):
    """The weights that `--correct anticipate` goes forward at, where momentum SGD trains."""
    correction = make(Late(1, 9, tau, momentum=m), prediction)
    assert correction.forward and correction.updated
    with jax.enable_x64(True):
        y, v = jnp.full(3, start), jnp.zeros(3)
        last = correction.start(y)

    def step(g):
        nonlocal y, v, last
        with jax.enable_x64(True):
            if g is not None:
                before, v = y, m * v + jnp.asarray(g)
                y = y - rate * v
                last = correction.updated(before, y, last)
            return np.asarray(correction.forward(y, last))

    return step


@pytest.mark.parametrize(("prediction", "ahead", "rate"), [("spike", 0, 0.02), ("combined", DELAY, 0.002)])
def test_spike_compensation_is_anticipation_alone_and_with_a_prediction_behind_it(prediction, ahead, rate):
    """Kosson et al.: v <- m v + g; w <- w - rate (a v + b g) with a = m^D, b = (1 - m^D) / (1 - m). The forward pass is
    at w, or at w - D rate v."""
    w, v = np.ones(3), np.zeros(3)

    def spike(g):
        nonlocal w, v
        if g is not None:
            v = M * v + g
            w = w - rate * (M**DELAY * v + (1 - M**DELAY) / (1 - M) * g)
        return w - ahead * rate * v

    np.testing.assert_allclose(delayed(spike), delayed(anticipated(prediction, DELAY, rate=rate)), **EXACTLY)


def test_error_feedback_is_anticipation_by_the_last_update():
    """2606.30634, for a delay of one: x <- x - 2 s + (s before), s the optimizer's step."""
    x, v, before = np.ones(3), np.zeros(3), np.zeros(3)

    def feedback(g):
        nonlocal x, v, before
        if g is not None:
            v = M * v + g
            s = 0.02 * v
            x, before = x - 2 * s + before, s
        return x

    np.testing.assert_allclose(delayed(feedback, 1), delayed(anticipated("last", 1), 1), **EXACTLY)


def test_spike_compensation_of_one_update_is_nesterov_and_of_none_is_momentum():
    assert coefficient("spike", 1, M) == pytest.approx(coefficient("nesterov", 1, M), rel=1e-15)
    assert coefficient("spike", 0, M) == coefficient("linear", 0, M) == 0
    with jax.enable_x64(True):
        chain = optax.sgd(0.02, momentum=M, nesterov=True)
        w = jnp.ones(3)
        state = chain.init(w)

        def nesterov(g):
            nonlocal w, state
            if g is not None:
                updates, state = chain.update(jnp.asarray(g), state, w)
                w = w + updates
            return np.asarray(w)

        found = delayed(nesterov)
    np.testing.assert_allclose(found, delayed(anticipated("nesterov", DELAY)), **EXACTLY)


def far_ahead(tau):
    """FTPipe's msnag: the next tau updates, if all gradients are 0, as a multiple of the last one."""
    return sum(M**ahead for ahead in range(1, tau + 1))


@pytest.mark.slow
def test_prediction_from_the_momentum_buffer_is_prediction_from_the_last_difference():
    """w <- w - rate v, so the last difference is -rate v where the rate is constant. This library's SGD decays and
    clips gradients before its momentum, so both are in v."""
    for prediction, ahead, decay, tau in (
        ("linear", 3, 0.1, 3), ("double", 6, 0.0, 3), ("spike", far_ahead(3), 0.1, 3), ("spike", far_ahead(1), 0.0, 1),
    ):  # fmt: skip
        chain = optimizer("sgd", 0.02, momentum=M, weight_decay=decay, clip_norm=1.0 if decay else 0.0)
        correction = make(Late(1, 3, tau, momentum=M), prediction)
        assert correction.forward and correction.updated
        with jax.enable_x64(True):
            y = jnp.ones(3)
            state, last, v = chain.init(y), correction.start(y), np.zeros(3)
            for n in range(STEPS):
                g = np.sin(n + CURVES)
                if decay:
                    g = g * min(1, 1 / np.linalg.norm(g)) + decay * np.asarray(y)
                updates, state = chain.update(jnp.asarray(np.sin(n + CURVES)), state, y)
                before, y, v = y, y + updates, M * v + g
                last = correction.updated(before, y, last)
                np.testing.assert_allclose(correction.forward(y, last), y - ahead * 0.02 * v, **EXACTLY)


def test_nesterov_is_the_iteration_of_asynchronous_nesterovs_theorem():
    """2505.01099: d = m (w - w before); w <- w + d - rate (1 - m) g, g taken at the w + d of its forward pass."""
    w, before = np.ones(3), np.ones(3)

    def theorem(g):
        nonlocal w, before
        if g is not None:
            w, before = w + M * (w - before) - 0.2 * (1 - M) * g, w
        return w + M * (w - before)

    nesterov = anticipated("nesterov", DELAY, rate=0.2 * (1 - M))
    np.testing.assert_allclose(delayed(theorem), delayed(nesterov), **EXACTLY)


@pytest.mark.slow
@pytest.mark.parametrize("prediction", ["linear", "spike"])
def test_behind_adamw_prediction_is_pipeoptims_but_for_which_weights_decay_and_behind_adam_msnags(prediction):
    """PipeOptim: w - s rate (M^ / (sqrt(V^) + eps) + decay w); here the last w is that before the update.

    msnag: s updates by gradients of 0 with V^ as it is; so late that 1 - b1^n is 1 in float64."""
    rate, b1, b2, eps, s = 0.01, M, 0.99, 1e-8, 3
    decay, n = (0.1, 12) if prediction == "linear" else (0.0, 400)
    chain = optax.adamw(rate, b1, b2, eps, weight_decay=decay)
    correction = make(Late(1, 3, s, momentum=b1), prediction)
    assert correction.forward and correction.updated
    with jax.enable_x64(True):
        w = jnp.ones(3)
        state, last, mean, square = chain.init(w), correction.start(w), np.zeros(3), np.zeros(3)
        for step in range(1, n + 1):
            g = np.asarray(CURVES * w) + np.sin(step)
            mean, square = b1 * mean + (1 - b1) * g, b2 * square + (1 - b2) * g**2
            updates, state = chain.update(jnp.asarray(g), state, w)
            before, w = w, w + updates
            last = correction.updated(before, w, last)
        found = np.asarray(correction.forward(w, last))
    below, expected = np.sqrt(square / (1 - b2**n)) + eps, np.asarray(w)
    for ahead in range(1, s + 1):
        if prediction == "linear":
            expected = expected - rate * (mean / (1 - b1**n) / below + decay * np.asarray(before))
        else:
            expected = expected - rate * b1**ahead * mean / below
    np.testing.assert_allclose(found, expected, **EXACTLY)


class SpecTrain:
    """w - s rate v, where v is a mean of gradients and not their sum: v <- m v + (1-m) g, w <- w - rate v."""

    def __init__(self, s, m, rate, w):
        self.s, self.m, self.rate, self.w, self.v = s, m, rate, w, np.zeros_like(w)

    def __call__(self, g):
        if g is not None:
            self.v = self.m * self.v + (1 - self.m) * g
            self.w = self.w - self.rate * self.v
        return self.w - self.s * self.rate * self.v


def test_spectrain_is_the_linear_prediction():
    linear = anticipated("linear", DELAY)
    np.testing.assert_allclose(delayed(SpecTrain(DELAY, M, 0.02 / (1 - M), np.ones(3))), delayed(linear), **EXACTLY)


def summed(late):
    """LayerPipe2's weights to go backward with: those of now without the last tau updates, which are all kept."""
    tau = int(late.staleness)

    def updated(before, after, kept):
        return each(lambda a, b, kept: jnp.concatenate([kept[1:], (b - a)[None]]), before, after, kept)

    return Correction(
        init=lambda params: each(lambda w: jnp.zeros((tau, *w.shape), w.dtype), params),
        backward=lambda params, kept: each(lambda w, d: w - d.sum(0), params, kept),
        updated=updated,
    )


@pytest.mark.slow
def test_the_newest_weights_without_the_last_tau_updates_are_the_stashed_ones():
    """It telescopes, so the gradients are those of stashed weights, which the newest weights' are not."""
    kind = CorrectionSpec(name="summed", summary="LayerPipe2, the exact sum", make=summed, weights="current")
    asked = {"summed": {"weights": "current", "correct": kind}, "stashed": {}, "current": {"weights": "current"}}
    found = {}
    for name, options in asked.items():
        ours = pipeline(3, DATA[0], stages=parts(3, CurrentPart), **options)
        fed(ours, DATA)
        found[name] = leaves([variables["params"] for variables in ours.params])
    for a, b in zip(found["summed"], found["stashed"], strict=True):
        np.testing.assert_allclose(a, b, **ROUNDING)
    off = max(np.abs(a - b).max() for a, b in zip(found["current"], found["stashed"], strict=True))
    assert off > 1e-3  # as ROUNDING says of what is wrong


@pytest.mark.parametrize(("order", "less"), [("forward-first", 0), ("backward-first", 1)])
def test_cgads_decay_is_fdgs_beta_where_the_staleness_is_constant(order, less):
    """2605.09126 without its gate: g exp(-a τ). In Figure 1's order τ = 2(K-k), so β = exp(-2a); in the experiments'
    order τ is 1 less, and every late stage has exp(a) times that."""
    a, K, g = 0.3, 4, jnp.ones(3)
    for k, tau in enumerate(fdg(K, order).staleness[:-1], 1):
        late = Late(k, K, tau)
        # The gradient points the way of the mean, so the cosine is 1 and of our gate only the decay is left.
        gated, _ = cosine.make(late, a).gradient(g, None, None, g)
        shrunk, _ = shrink.make(late, math.exp(-2 * a)).before.update(g, optax.EmptyState())
        np.testing.assert_allclose(gated, math.exp(a * less) * shrunk, rtol=1e-6)  # float32
