"""The one place that knows how a VJP closure is laid out, which is not a promise JAX makes.

`jax.vjp` returns a pytree. The arguments it was called with are among its leaves, and a `jit` that returns the
closure would copy them: every memo would carry its own copy of the weights. `strip` takes the arguments out
before the closure leaves the forward program, `bind` puts arguments back inside the backward program. Which
weights are put back is the whole difference between `stashed` and `current`.
"""

import jax


def strippable() -> bool:
    """Whether this JAX lets the arguments be taken out of a closure (0.10.2 to 0.12 do)."""
    _, closure = jax.vjp(lambda p, x: p * x, 2.0, 3.0)
    arguments = getattr(closure, "args_res", None)
    return isinstance(arguments, list) and len(arguments) == 2


def strip(closure):
    """Takes the arguments out of a closure of `jax.vjp(f, params, x)`. Call it inside the forward program."""
    if hasattr(closure, "args_res"):
        closure.args_res = [None] * len(closure.args_res)
    return closure


def bind(closure, params, x):
    """Puts arguments into a stripped closure. Call it inside the backward program; it works on a copy."""
    if not hasattr(closure, "args_res"):
        return closure
    leaves, structure = jax.tree.flatten(closure)
    bound = jax.tree.unflatten(structure, leaves)
    bound.args_res = [params, x]
    return bound


def is_ready(array: jax.Array) -> bool:
    """Whether reading the array would return at once."""
    ready = getattr(array, "is_ready", None)
    return ready() if ready else True
