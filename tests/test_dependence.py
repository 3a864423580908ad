"""Which arguments the results of a function depend on, read off its trace."""

import jax
import jax.numpy as jnp
import numpy as np

from fdg_jax.layers import batch_norm
from fdg_jax.stage.dependence import dependences

A, B, C = (np.ones((3,), np.float32) for _ in range(3))


def test_results_depend_on_what_they_are_made_of():
    def run(a, b, c):
        return {"both": a * b, "const": jnp.zeros(2), "one": jnp.exp(c) + 1, "self": b}

    assert dependences(run, A, B, C) == [{0, 1}, set(), {2}, {1}]


def test_calls_are_followed_into_their_bodies():
    @jax.jit
    def inner(a, b):
        return jnp.tanh(a), a + jax.jit(jnp.sin)(b)

    again = jax.checkpoint(lambda a, b: (a * 2, b * 3))
    assert dependences(lambda a, b: (inner(a, b), again(a, b)), A, B) == [{0}, {0, 1}, {0}, {1}]


def test_of_a_loop_or_a_branch_every_result_counts_as_made_of_everything():
    def run(a, b):
        (x, y), _ = jax.lax.scan(lambda carry, _: ((carry[0] * 2, carry[1] + carry[0]), None), (a, b), None, length=3)
        return x, y

    assert dependences(run, A, B) == [{0, 1}, {0, 1}]


def test_hand_written_gradients_keep_the_arguments_apart():
    """What the closure of a batch norm keeps: the input's, and of the weights nothing but the argument itself."""
    x = np.ones((2, 4, 4, 3), np.float32)

    def kept(scale, x):
        _, closure = jax.vjp(lambda scale, x: batch_norm(x, scale, B)[0], scale, x)
        closure.args_res = [None, None]
        return closure

    assert set().union(*dependences(kept, A, x)) == {1}
