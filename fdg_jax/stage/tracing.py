"""Traces what a user wrote, and turns what it raises into one sentence: the fact, the part that raised, the way out."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax

from fdg_jax.errors import BadInput, sentence
from fdg_jax.stage.switches import SWITCHES, WAY_OUT


def trace_or_refuse(fact: str, run: Callable, *arguments, way_out: str = "", who: str = ""):
    """The result of tracing something of the user's, or BadInput with the fact and what the user's code raised.

    who: what is traced, where this library itself may refuse it.
    """
    try:
        with nn.intercept_methods(located):
            return run(*arguments)
    except BadInput as error:
        raise BadInput(": ".join(filter(None, (who, getattr(error, "part", ""), str(error))))) from error
    except Exception as error:  # whatever a user's module raises when shapes do not fit
        part = getattr(error, "part", "")
        fact = f"{fact} In {part}:" if part else fact
        raise BadInput(f"{fact} {sentence(error)} {way_out or way_out_of(error)}") from error


def located(next_call: Callable, args: Any, kwargs: Any, context: Any) -> Any:
    """For flax.linen.intercept_methods: adds to an error the part of the module that raised it, as `error.part`."""
    try:
        return next_call(*args, **kwargs)
    except Exception as error:
        path = "/".join(context.module.path) if context.module.scope else ""
        if not hasattr(error, "part"):
            setattr(error, "part", path and f"{path} ({type(context.module).__name__})")  # noqa: B010
        raise


def way_out_of(error: Exception) -> str:
    """What to do about an exception that a module raised."""
    text = str(error)
    if any(f"'{name}'" in text or f'"{name}"' in text for name in SWITCHES):
        return WAY_OUT
    if "not a valid JAX type" in text:
        return "A stage gives arrays, in dictionaries or tuples where there are several. Leave the rest out."
    if "unbound axis name" in text:
        fact = "A stage is one device's program, which has no named axes: leave axis_name out"
        return f"{fact}. The replicas of method='data_parallel' share their batch statistics with batch_norm='sync'."
    if isinstance(error, jax.errors.ConcretizationTypeError):
        fact = "Where nn.remat or nn.jit is around a module that takes `train`, that is static: nn.remat(Block, "
        return f"{fact}static_argnums=(2,)), if __call__ is (self, x, train). Pipeline(remat=) needs no nn.remat."
    return "Change one of the two, or cut the network elsewhere."
