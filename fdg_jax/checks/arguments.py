"""Checks the arguments of `fdg_jax.Pipeline` and `init` before anything is traced.

Shapes that do not fit are found by tracing (fdg_jax.stage.own_modules). Batches are checked in fdg_jax.checks.batches.
"""

import inspect
import numbers
import warnings
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from fdg_jax.config import FIELDS
from fdg_jax.errors import BadInput
from fdg_jax.options.fields import checked
from fdg_jax.transport.devices import stage_devices


def kind(value: Any) -> str:
    """Describes a value for an error message: "the class Dense", "float32[8, 3]", "a list of 2"."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if inspect.isroutine(value):
        return f"the function {value.__name__}"
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    if value is None or isinstance(value, str | bytes | numbers.Number):
        return repr(value)
    where = "flax.nnx " if any(base.__module__.startswith("flax.nnx") for base in type(value).__mro__) else ""
    return f"a {where}{type(value).__name__}"


def check_problem(stages: Any, loss: Any, optimizer: Any, of: str = "stage") -> list[nn.Module]:
    """Checks what a pipeline is made of.

    Arguments:
        stages: a list of Flax linen modules, one for each stage or block.
        of: "stage", or "block" where the list is to be cut into stages.
        loss: loss(outputs, labels) -> scalar.
        optimizer: an optax optimizer, or whatever `stage_optimizers` takes.

    Returns: the stages.

    Raises:
        BadInput: one of the three is something else.
    """
    if not isinstance(stages, list | tuple):
        raise BadInput(f"stages is {kind(stages)}, not a list. Write stages=[module, ...], one linen module a stage.")
    if not stages:
        raise BadInput("0 stages: a pipeline has at least one. Give stages=[module, ...].")
    for k, stage in enumerate(stages, 1):
        if not isinstance(stage, nn.Module):
            who = f"stage k={k}" if of == "stage" else f"block {k - 1}"
            raise BadInput(
                f"{who} is {kind(stage)}, not a Flax linen module. Give an instance of a class on flax.linen.Module "
                "(functions go into flax.linen.Sequential([...]), flax.nnx modules into fdg_jax.from_nnx(...))."
            )
    if not callable(loss):
        raise BadInput(f"loss is {kind(loss)}, not a function. Give loss(outputs, labels) -> scalar.")
    if not (is_optimizer(optimizer) or isinstance(optimizer, list | tuple) or is_of_stage(optimizer)):
        raise BadInput(f"optimizer is {kind(optimizer)}, no optax optimizer. Give what optax.sgd(0.1) returns, say.")
    return list(stages)


def is_optimizer(value: Any) -> bool:
    """Whether it is an optax optimizer (which is a tuple, too)."""
    return callable(getattr(value, "init", None)) and callable(getattr(value, "update", None))


def is_of_stage(value: Any) -> bool:
    """Whether it may be a function k -> optimizer: one with a single argument, as optax.sgd itself is not."""
    try:
        return callable(value) and len(inspect.signature(value).parameters) == 1
    except (TypeError, ValueError):  # a callable without a signature
        return False


def stage_optimizers(optimizer: Any, K: int) -> list[optax.GradientTransformation]:
    """The optimizer of each stage k = 1..K.

    Arguments:
        optimizer: one for all stages, a list of K, or a function k -> optimizer.
        K: number of stages.

    Raises:
        BadInput: it is something else.
    """
    if is_optimizer(optimizer):
        return [optimizer] * K
    way_out = "Give one optax optimizer, a list with one for each stage, or a function of k = 1..K that returns one."
    found: list[Any] = [optimizer(k) for k in range(1, K + 1)] if callable(optimizer) else list(optimizer)
    if len(found) != K:
        raise BadInput(f"optimizer is a list of {len(found)}, but there are K={K} stages. {way_out}")
    for k, each in enumerate(found, 1):
        if not is_optimizer(each):
            raise BadInput(f"the optimizer of stage k={k} is {kind(each)}, no optax optimizer. {way_out}")
    return found


def check_switches(**switches: Any) -> None:
    """Raises BadInput for a value that is neither True nor False, by its name."""
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise BadInput(f"{name}={value!r} is neither True nor False. Give one of the two.")


def check_read_behind(read_behind: Any) -> None:
    """Raises BadInput if it is not an integer of 1 or more."""
    if isinstance(read_behind, bool) or not isinstance(read_behind, numbers.Integral) or read_behind < 1:
        raise BadInput(f"read_behind={read_behind!r}: losses are read 1 or more dispatches late. Use 16, say.")


def rate_of(learning_rate: Any) -> Any:
    """The learning rate as a function of the number of updates; None where none was given. Raises BadInput."""
    if learning_rate is None or callable(learning_rate):
        return learning_rate
    rate = checked(FIELDS["learning_rate"], learning_rate)
    return lambda _: jnp.asarray(rate)


def check_devices(devices: Any, K: int, alone: bool = False) -> list[Any]:
    """The devices of the stages.

    Arguments:
        devices: a list of K JAX devices, or None for the default ones.
        K: number of stages.
        alone: whether one device computes all stages (the delay line), so that a list of one will do.

    Returns: a device for each stage k = 1..K; K times the first if one computes all. If stages must share devices, a
        warning is given.

    Raises:
        BadInput: it is not a list of K devices.
    """
    if devices is None:
        found, remark = stage_devices(K)
        if alone and jax.process_count() == 1:
            return found[:1] * K
        if remark:
            warnings.warn(remark, stacklevel=4)
        return found
    way_out = f"Give one for each stage, e.g. devices=jax.devices()[:{K}], or leave it out."
    if alone:
        way_out = "Give the one that computes all stages, devices=jax.devices()[:1], or leave it out."
    if isinstance(devices, str) or not hasattr(devices, "__len__"):
        raise BadInput(f"devices={devices!r} is not a list of JAX devices. {way_out}")
    if alone and len(devices) == 1:
        devices = [devices[0]] * K
    if len(devices) != K:
        raise BadInput(f"K={K} stages need {K} devices, {len(devices)} were given. {way_out}")
    for k, device in enumerate(devices, 1):
        if not isinstance(device, jax.Device):
            raise BadInput(f"the device of stage k={k} is {kind(device)}, not a JAX device. {way_out}")
    return [devices[0]] * K if alone else list(devices)


def check_key(key: Any) -> None:
    """Raises BadInput if key is not a JAX random key, new style (`jax.random.key`) or old (`jax.random.PRNGKey`)."""
    array = isinstance(key, jax.Array | np.ndarray)
    new = array and jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.ndim == 0
    if not new and not (array and key.dtype == np.uint32 and key.ndim == 1):
        raise BadInput(
            f"init takes a JAX random key, then an example batch; the key given is {kind(key)}. "
            "Use init(jax.random.key(0), (inputs, labels))."
        )
