"""JAX's settings that change a run's results. They are recorded, reported if unusual, and checked on resuming.

The settings come from the environment (JAX_ENABLE_X64 sets jax_enable_x64), so the command line of a run does not show
them. The list was found by training with each setting of JAX changed and comparing the final hashes. Settings that this
version of JAX does not have are ignored.
"""

import enum
import os
from collections.abc import Mapping
from typing import Any

from fdg_jax.errors import BadInput
from fdg_jax.machine.output import say

# Each setting with JAX's default. These change random numbers or precision: another value is another training.
TRAINING = {
    "jax_threefry_partitionable": True,
    "jax_default_prng_impl": "threefry2x32",
    "jax_random_seed_offset": 0,
    "jax_enable_x64": False,
    "jax_default_matmul_precision": None,
    "jax_disable_jit": False,
}
# These settings change how programs are compiled, and so how sums are rounded.
LAST_BITS = {
    "jax_disable_most_optimizations": False,
    "jax_optimization_level": "UNKNOWN",
    "jax_exec_time_optimization_effort": 0.0,
    "jax_memory_fitting_level": "O2",
    "jax_memory_fitting_effort": 0.0,
}
DEFAULTS = {**TRAINING, **LAST_BITS}
ABSENT = object()
# --precision -> JAX's setting for products of float32 numbers; the others leave the setting as it is.
PRODUCTS = {"float32": "highest", "tf32": "tensorfloat32"}
NUM_CPU_DEVICES = "JAX_NUM_CPU_DEVICES"  # this package changes JAX's setting; the user's value stays here


def current() -> dict[str, Any]:
    """{name: value} of the settings that this version of JAX has, as values that JSON can hold."""
    import jax

    known: Mapping[str, Any] = getattr(jax.config, "values", {})  # some settings are no attributes of jax.config
    found = {name: getattr(jax.config, name, known.get(name, ABSENT)) for name in DEFAULTS}
    return {name: plain(value) for name, value in found.items() if value is not ABSENT}


def plain(value: Any) -> Any:
    """A setting's value for JSON: an enumeration's member as its name."""
    value = value.name if isinstance(value, enum.Enum) else value
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def compute_in(precision: str) -> None:
    """Sets how products of float32 numbers are computed. precision: a value of --precision."""
    import jax

    if precision in PRODUCTS:
        jax.config.update("jax_default_matmul_precision", PRODUCTS[precision])


def check_new() -> None:
    """Warns if settings make a new run compute other results than JAX's defaults would."""
    now = current()
    unusual = [f"{name.upper()} ({now[name]} instead of {DEFAULTS[name]})" for name in differing(DEFAULTS, now)]
    if count := os.environ.get(NUM_CPU_DEVICES):
        unusual.append(f"{NUM_CPU_DEVICES} ({count} instead of as many as the run needs)")
    if unusual:
        fact = f"JAX settings differ from the defaults: {', '.join(unusual)}"
        slow = " Without compilation, training is far slower, too." if now.get("jax_disable_jit") else ""
        say(f"warning: {fact}. A run with the defaults would give other numbers.{slow}")


def check_resumed(before: Mapping[str, Any]) -> None:
    """Compares the settings with those of a run that is resumed. If only last bits may differ, it warns.

    Arguments:
        before: the run's config.json. If it has no settings (of an older version), nothing is checked.

    Raises:
        BadInput: the run would be trained in another way.
    """
    was, now = before.get("jax_settings") or {}, current()
    changed = differing(was, now)
    if other := [name for name in changed if name in TRAINING]:
        fact = "; ".join(f"{name} is {now[name]!r} and was {was[name]!r}" for name in other)
        ways = " and ".join(way_back(name, was[name]) for name in other)
        fact = f"--resume: the run began with other JAX settings ({fact}), so it would not go on exactly"
        raise BadInput(f"{fact}. {ways[:1].upper()}{ways[1:]}, or begin another run with its weights: --init-from RUN.")
    if changed:
        fact = "; ".join(f"{name} is {now[name]!r} and was {was[name]!r}" for name in changed)
        say(f"warning: the run began with other JAX settings: {fact}. Results may differ in the last bits.")


def differing(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The names of the settings that are in both and have different values."""
    return [name for name in DEFAULTS if name in was and name in now and was[name] != now[name]]


def way_back(name: str, was: Any) -> str:
    """How to set a setting back."""
    return f"unset {name.upper()}" if was == DEFAULTS[name] else f"set {name.upper()} to {was!r}"
