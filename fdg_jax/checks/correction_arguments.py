"""Checks the arguments of `fdg_jax.Pipeline` that are about late gradients, before anything is traced."""

import inspect
import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from fdg_jax import corrections
from fdg_jax.checks.arguments import kind
from fdg_jax.corrections.interface import Correction, Kind
from fdg_jax.errors import BadInput, did_you_mean
from fdg_jax.methods import interface
from fdg_jax.options import declared
from fdg_jax.stage.stage import Stage


def check_corrections(
    name: Any, beta: float, options: Mapping[str, Any], method: interface.Method
) -> tuple[list[tuple[Kind, dict[str, Any]]], dict[str, Any]]:
    """(the corrections with their options, the options left for the method).

    Shrinking by beta comes first, unless the correction asked for takes beta itself. Raises BadInput for a correction
    that there is not, and for options that it cannot have.
    """
    asked = []
    for found in corrections.parse(name):
        if both := found.declared.keys() & set(method.answers_to):
            fact = f"correction {found.name} and method {method.name} both have the option {min(both)}"
            raise BadInput(f"{fact}. Give the one in fdg_jax/corrections/{found.name}.py another name.")
        asked.append((found, found.accepted({**options, "beta": float(beta)})))
        options = {option: value for option, value in options.items() if option not in found.declared}
    for option, value in options.items():
        if option not in (*method.answers_to, "weights", "beta"):
            refuse_option(option, value, [found for found, _ in asked], method)
    if any("beta" in found.takes for found, _ in asked):
        options = {option: value for option, value in options.items() if option != "beta"}
    else:
        asked.insert(0, (corrections.find("shrink"), {"beta": float(beta)}))
    return asked, dict(options)


def refuse_option(option: str, value: Any, corrected: Sequence[Kind], method: interface.Method) -> None:
    """Raises BadInput for an option that neither the method nor a correction has; the method itself refuses it where
    nothing else is known of it.

    Arguments:
        option, value: what was given. corrected: the corrections asked for. method: the method.
    """
    own = [name for kind in corrected for name in kind.declared]
    for one in declared.declared(corrections.files(), "fdg_jax/corrections")[0]:
        if one.option.name == option:
            fact = f"{option}={value}: correction {','.join(kind.name for kind in corrected)} has no such option"
            has = ", ".join(own) or "none"
            raise BadInput(f"{fact} (it has: {has}). Add correct={one.by[0]!r}, whose it is, or leave it out.")
    if own:
        known = [*method.answers_to, *own]
        fact = f"{option}={value}: neither method {method.name} nor the correction has such an option"
        raise BadInput(f"{fact} (they have: {', '.join(known)}).{did_you_mean(option, known)} Leave it out.")


def check_correctable(k: int, correction: Correction, stage: type[Stage], weights: str) -> None:
    """Raises BadInput where the correction cannot change a stage's forward or backward pass.

    Arguments:
        k: the stage's number. correction: what is done about its late gradients.
        stage: the class of the method's stages. weights: at which weights gradients are taken, "stashed" or "current".
    """
    if correction.backward and weights != "current":
        raise BadInput(
            f"the correction of stage k={k} changes the weights of its backward passes, and these are "
            f"{weights}: those of the forward pass. Add --weights current (in Python weights='current')."
        )
    parts = (
        *(("forward", "forward", correction.forward), ("backward", "backward", correction.gradient)),
        *(("backward", "backward", correction.backward), ("backward", "backward_params", correction.backward)),
    )
    for what, member, part in parts:
        if part and getattr(stage, member) is not getattr(Stage, member):
            raise BadInput(
                f"the correction changes the {what} pass of stage k={k}, but the method's stages ({stage.__name__}) "
                "have one of their own. Use a method with ordinary stages, such as fdg or ddg."
            )
    if correction.gradient and not takes_old_weights(stage):
        raise BadInput(
            f"the correction of stage k={k} needs the weights of the forward pass, and the method's stages "
            f"({stage.__name__}) do not pass them on. Write def use(self, grads, version, then=None) there."
        )


def takes_old_weights(stage: type[Stage]) -> bool:
    """Whether the stages' `use` takes the weights of the forward pass beside a gradient and its version."""
    try:
        inspect.signature(stage.use).bind(None, None, None, None)
    except TypeError:
        return False
    return True


def check_rate(learning_rate: Any) -> Any:
    """The learning rate as a function of the number of updates; None where none was given."""
    if learning_rate is None or callable(learning_rate):
        return learning_rate
    if isinstance(learning_rate, bool) or not isinstance(learning_rate, numbers.Real):
        raise BadInput(f"learning_rate is {kind(learning_rate)}, neither a number nor an optax schedule.")
    if not 0 < float(learning_rate) < math.inf:
        raise BadInput(f"learning_rate={learning_rate}: it is positive. Give that of the optimizer, such as 0.1.")
    return lambda _: jnp.asarray(float(learning_rate))


def check_momentum(momentum: Any) -> None:
    """Raises BadInput if it is neither None nor a number in [0, 1)."""
    if momentum is None:
        return
    if isinstance(momentum, bool) or not isinstance(momentum, numbers.Real) or not 0 <= float(momentum) < 1:
        raise BadInput(f"momentum={momentum!r}: it lies in [0, 1). Give that of the optimizer, such as 0.9.")
