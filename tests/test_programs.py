"""Programs on a CPU: what YNNPACK may compute, and that sums are right here which jaxlib 0.10.2 computes wrongly."""

import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fdg_jax
from fdg_jax import models, split
from fdg_jax.machine import programs
from fdg_jax.stage import functions

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


def test_a_program_without_these_reductions_is_right():
    x = numbers(ROWS)
    found = programs.jit(lengths, "cpu", reductions=False)(x)
    np.testing.assert_allclose(found, right_lengths(x), rtol=1e-5)  # three squares, rounded to float32


class Lengths(nn.Module):
    """A stage of one's own that meets it: [n, 3] -> [n, 1], with three weights."""

    @nn.compact
    def __call__(self, x):
        weights = self.param("weights", nn.initializers.ones, (3,))
        return jnp.sum((jnp.diag(weights) @ x.T) ** 2, axis=0)[:, None]


@pytest.mark.parametrize("K", [1, 2])
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


@pytest.mark.parametrize(
    ("function", "shapes", "small"),
    [
        (lengths, [(50, 3)], True),
        (lambda x, w: x @ w, [(50, 16), (16, 8)], False),
        (lambda x, w: x @ w, [(50, 16), (16, 3)], True),  # the gradient by x contracts 3
        (jax.jit(lambda x, w: x @ w), [(50, 3), (3, 8)], True),  # inside another function
        (lambda x, w: (x * w).sum(axis=1), [(50, 3), (50, 3)], True),  # which XLA may turn into products
        (lambda x: x.mean(axis=(0, 1)), [(50, 8, 16)], False),
        (lambda x, w: jnp.einsum("bij,bjk->bik", x, w), [(3, 8, 16), (3, 16, 8)], False),  # three products
    ],
)
def test_small_products_are_found(function, shapes, small):
    assert programs.has_small_products(function, *(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes)) is small


@pytest.mark.parametrize("name", ["resnet8", "wrn10_1", "mobilenet_v2"])
def test_the_models_keep_their_fast_reductions(name):
    (module,) = split.stages(models.blocks(name, 10), ())
    x = jax.ShapeDtypeStruct((8, 32, 32, 3), jnp.float32)
    variables = jax.eval_shape(lambda x: functions.init_variables(module, jax.random.PRNGKey(0), x), x)
    forward = functions.functions(module, optax.sgd(0.1)).forward
    assert not programs.has_small_products(forward, *functions.split_variables(variables), x)


def convolutions_by_ynnpack(program, *arguments) -> int:
    """How many of a compiled program's convolutions YNNPACK computes."""
    text = program.lower(*arguments).compile().as_text()
    bodies = dict(re.findall(r"^%([\w.\-]+) \([^\n]*\) -> [^\n]* \{\n(.*?)^\}", text, re.S | re.M))
    called = re.findall(r"calls=%([\w.\-]+)[^\n]*__ynn_fusion", text)
    return sum(" convolution(" in bodies[name] for name in called)


def test_a_stage_trains_without_convolutions_by_ynnpack():
    x, labels = np.zeros((16, 16, 16, 32), np.float32), np.zeros(16, np.int32)
    block = split.stages(models.blocks("resnet8", 10)[2:3], ())
    pipeline = fdg_jax.Pipeline(block, lambda outputs, labels: outputs.mean(), optax.sgd(0.1), method="bp")
    stage = pipeline.init(jax.random.key(0), (x, labels)).engine.stages[1]
    params, extra = stage.state.params, stage.state.extra
    _, _, closure = stage._forward(params, extra, x, labels)
    assert convolutions_by_ynnpack(stage._forward, params, extra, x, labels) == 0
    assert convolutions_by_ynnpack(stage._backward, closure, params, x, None) == 0
    plainly = jax.jit(stage.functions.forward)
    assert convolutions_by_ynnpack(plainly, params, extra, x, labels) > 0  # so what is asserted above can fail


def test_only_cpu_programs_are_compiled_otherwise(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    assert programs.compiler_options("gpu", reductions=False) is None
    (chosen,) = programs.compiler_options("cpu").values()
    assert chosen.split(",") == [programs.PRODUCTS, programs.REDUCTIONS]


def test_a_flag_of_the_user_decides_alone(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", f"--{programs.FLAG}=-reduce")
    assert programs.compiler_options("cpu") is None
