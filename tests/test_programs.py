"""Programs on a CPU: what YNNPACK may compute, and that sums are right here which jaxlib 0.10.2 computes wrongly."""

import ast
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

import fdg_jax
from fdg_jax import models, split
from fdg_jax.corrections.interface import Correction
from fdg_jax.machine import programs
from fdg_jax.stages import functions
from fdg_jax.stages.update import UpdateRule

ROWS = 33_000  # more than 32,768


def numbers(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, 3)).astype(np.float32)


def lengths(x):
    """The squared length of each row of x [n, 3], through a product that contracts three numbers (jax issue 39103)."""
    return jnp.sum((jnp.eye(3) @ x.T) ** 2, axis=0)


def right_lengths(x: np.ndarray) -> np.ndarray:
    return np.square(x.astype(np.float64)).sum(axis=1)


def test_the_jaxlibs_that_sum_wrongly_are_known():
    """Fails in a jaxlib that computes wrongly and is not listed, and in one that is listed and does not."""
    x = numbers(ROWS)
    wrong = np.abs(np.asarray(jax.jit(lengths)(x)) - right_lengths(x)) > 1e-3
    assert bool(wrong.any()) is programs.reductions_can_be_wrong()


def gradient(w, x):
    """(w @ x.T).max(axis=0) by the backward pass of a function whose forward pass has no product."""
    given = jax.custom_vjp(lambda x: 0.0)
    given.defvjp(lambda x: (0.0, x), lambda x, _: (jnp.max(w @ x.T, axis=0)[:, None] + 0 * x,))
    return jax.grad(given)(x)[:, 0]


@pytest.mark.parametrize(("dtype", "rows", "width", "largest"), [
    (np.float32, ROWS, 3, lambda w, x: jnp.max(w @ x.T, axis=0)),
    (np.float64, 17_000, 7, lambda w, x: jnp.max(w @ x.T, axis=0)),
    (np.float32, ROWS, 3, lambda w, x: jnp.max(jnp.sum(w[:, None] * x[None], axis=2), axis=0)),
    (np.float32, ROWS, 3, gradient),
    (np.float32, ROWS, 3, lambda w, x: lax.fori_loop(0, 1, lambda i, sum: sum + jnp.max(w @ x.T, 0), 0 * x[:, 0])),
])  # fmt: skip
def test_such_sums_are_right_however_they_are_written(dtype, rows, width, largest):
    random = np.random.default_rng(0)
    w, x = random.normal(size=(2, width)).astype(dtype), random.normal(size=(rows, width)).astype(dtype)
    with jax.enable_x64(dtype == np.float64):
        found = programs.jit(largest)(w, x)
    np.testing.assert_allclose(found, (w @ x.T).max(axis=0), atol=1e-5)  # sums of products near 1, in float32


def test_a_program_is_right_for_every_shape():
    program = programs.jit(lengths)
    for rows in (20, ROWS, 20, ROWS):  # the fast program is kept for the first
        np.testing.assert_allclose(program(numbers(rows)), right_lengths(numbers(rows)), rtol=1e-5)
    assert jax.eval_shape(lambda x: program(x), numbers(20)).shape == (20,)  # inside another program


class Lengths(nn.Module):
    """A stage of one's own that meets it: [n, 3] -> [n, 1], with three weights."""

    @nn.compact
    def __call__(self, x):
        weights = self.param("weights", nn.initializers.ones, (3,))
        return jnp.sum((jnp.diag(weights) @ x.T) ** 2, axis=0)[:, None]


@pytest.mark.parametrize("K", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_pipeline_computes_such_sums_correctly(K):
    """Loss, update and evaluation of sum_i w_i^2 x_i^2; its mean over the batch has the gradient 2 w_i mean(x_i^2)."""
    x, y = numbers(ROWS), np.zeros(ROWS, np.int32)
    stages = [Lengths(), nn.Sequential([lambda x: 1.0 * x])][:K]
    pipeline = fdg_jax.Pipeline(stages, lambda outputs, labels: outputs.mean(), optax.sgd(0.1))
    pipeline.init(jax.random.key(0), (x, y))
    means = np.square(x.astype(np.float64)).mean(axis=0)
    # A sum of 33,000 float32 numbers: each partial sum is rounded, to about 1e-5 of the whole at worst.
    assert pipeline.evaluate([(x, y)]).loss == pytest.approx(means.sum(), rel=1e-5)
    pipeline.step((x, y))
    pipeline.drain()
    assert pipeline.losses(wait=True)[0].loss == pytest.approx(means.sum(), rel=1e-5)
    np.testing.assert_allclose(pipeline.params[0]["params"]["weights"], 1 - 0.1 * 2 * means, rtol=1e-5)


def scaled(g):
    """Each row of g [n, 3] times its squared length."""
    return g * lengths(g)[:, None]


class Table(nn.Module):
    """[n, 3] -> [n, 1], whose gradient by its table is its input."""

    @nn.compact
    def __call__(self, x):
        return jnp.sum(x * self.param("table", nn.initializers.zeros, x.shape), axis=1, keepdims=True)


@pytest.mark.slow
def test_the_users_functions_compute_such_sums_correctly():
    """The optimizer of a pipeline, the transform of evaluate and predict, preprocess, and a correction."""
    x, y = numbers(ROWS), np.zeros(ROWS, np.int32)
    optimizer = optax.stateless(lambda grads, params: jax.tree.map(lambda g: -scaled(g), grads))
    total = lambda outputs, labels: outputs.sum()  # noqa: E731
    right = x * right_lengths(x)[:, None]
    preprocess = lambda x, step: scaled(x)  # noqa: E731
    pipeline = fdg_jax.Pipeline([Table()], total, optimizer, preprocess=preprocess).init(jax.random.key(0), (x, y))
    pipeline.step((x, y))
    pipeline.drain()
    table = -right * right_lengths(right)[:, None]
    np.testing.assert_allclose(pipeline.params[0]["params"]["table"], table, rtol=1e-4)
    rows = (right * table).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(pipeline.predict(x, transform=scaled), rows, rtol=1e-4)
    assert pipeline.evaluate([(x, y)], transform=scaled).loss == pytest.approx(rows.sum(), rel=1e-4)
    correction = Correction(gradient=lambda grads, then, now, state: (scaled(grads), state))
    corrected, _ = programs.jit(UpdateRule(optax.sgd(0.1), correction).correct)(x, x, x, None)
    np.testing.assert_allclose(corrected, right, rtol=1e-5)


@pytest.mark.parametrize("name", ["resnet8", pytest.param("mobilenet_v2", marks=pytest.mark.slow)])
def test_the_models_keep_their_fast_reductions(name):
    (module,) = split.stages(models.blocks(name, 10), ())
    x = jax.ShapeDtypeStruct((64, 32, 32, 3), jnp.float32)
    variables = jax.eval_shape(lambda x: functions.init_variables(module, jax.random.PRNGKey(0), x), x)
    params, extra = functions.split_variables(variables)
    made = functions.functions(module)
    messages, _, closure = jax.eval_shape(made.forward, params, extra, x)
    opt_state = jax.eval_shape(optax.adamw(0.1).init, params)
    for function, *arguments in (
        (made.forward, params, extra, x),
        (made.backward, closure, params, x, messages["x"]),
        (UpdateRule(optax.adamw(0.1)).new_weights, params, opt_state, params),
    ):
        jaxpr = jax.make_jaxpr(function)(*arguments).jaxpr
        assert not any(map(programs.is_short_sum, programs.equations(jaxpr)))


COMPILES = {"jit", "pjit", "pmap"}


@pytest.mark.slow
def test_every_program_of_the_library_comes_from_one_door():
    for file in Path(fdg_jax.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            named = node.attr if isinstance(node, ast.Attribute) else ""
            if isinstance(node, ast.ImportFrom):
                named = next((alias.name for alias in node.names if alias.name in COMPILES), "")
            at_the_door = isinstance(node, ast.Attribute) and ast.unparse(node.value) == "programs"
            assert named not in COMPILES or at_the_door or file.name == "programs.py", f"{file}, line {node.lineno}"


def test_the_names_of_the_flag_are_those_of_this_jaxlib(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    assert programs.chosen_here()


def test_a_flag_of_the_user_decides_alone(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", f"--{programs.FLAG}=-reduce")
    assert not programs.chosen_here()
