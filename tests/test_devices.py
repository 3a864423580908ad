"""What travels to a stage's device arrives as `jax.device_put` would have brought it."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdg_jax.machine import jax_internals
from fdg_jax.transport.devices import Place

MESSAGES = {
    "an array elsewhere": lambda there: jax.device_put(jnp.arange(6.0).reshape(2, 3), jax.devices()[0]),
    "an array that is there": lambda there: jax.device_put(jnp.ones(3), there),
    "an array that nobody placed": lambda there: jnp.ones(3),
    "bfloat16": lambda there: jnp.ones(3, jnp.bfloat16),
    "a masked array": lambda there: np.ma.masked_less(np.arange(3.0, dtype=np.float32), 1),
    "a random key": lambda there: jax.random.key(7),
    "images": lambda there: np.arange(12, dtype=np.uint8).reshape(2, 6)[:, ::2],
    "64 bits": lambda there: np.arange(3),
    "one number": lambda there: np.int32(5),
    "a number of 64 bits": lambda there: np.float64(5),
    "a Python number": lambda there: 2.5,
    "a tree": lambda there: {"x": np.ones(2, np.float32), "rest": [jnp.zeros(1), None]},
}


@pytest.mark.parametrize("what", MESSAGES)
def test_a_place_brings_what_device_put_brings(what):
    there = jax.devices()[2]
    message = MESSAGES[what](there)
    try:
        expected = jax.device_put(message, there)
    except ValueError as error:
        with pytest.raises(ValueError, match=re.escape(str(error))):
            Place(there).put_batch(message)
        return
    with jax.transfer_guard("disallow"):  # which lets through only what is asked for
        found = Place(there).put_batch(message)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (ours.aval, ours.sharding, ours.committed) == (theirs.aval, theirs.sharding, True)
        if what == "a random key":
            ours, theirs = map(jax.random.key_data, (ours, theirs))
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
def test_what_is_there_is_not_copied_and_what_is_not_computed_yet_is_not_waited_for():
    here, there = jax.devices()[:2]
    slow = jax.jit(lambda x: jax.lax.fori_loop(0, 200, lambda _, x: jnp.tanh(x @ x), x))
    x = jax.device_put(jnp.full((400, 400), 0.01), here)
    slow(x).block_until_ready()
    assert Place(here).put_batch(x) is x
    y = slow(x)
    moved = Place(there).put_batch(y)
    assert not y.is_ready()
    np.testing.assert_array_equal(moved, y)


def test_what_is_read_is_what_device_get_reads():
    arrays = [jax.device_put(np.float32(3), jax.devices()[1]), jnp.arange(3), np.int32(7)]
    for ours, theirs in zip(jax_internals.fetch(arrays), jax.device_get(arrays), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
