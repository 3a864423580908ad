"""What can be done about late gradients: one file a correction, found by its name.

`CORRECTION` in `corrections/<name>.py` is all there is to it; nothing needs to be registered. Options of its own are
fields of a class `Options` in the same file (fdg_jax.options.fields).
"""

import inspect
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from fdg_jax.corrections.interface import NONE, Correction, Kind, Late
from fdg_jax.errors import BadInput, did_you_mean
from fdg_jax.options import declared

WAY_OUT = "Write CORRECTION = Kind(name=..., summary=..., make=...), as fdg_jax/corrections/shrink.py does."
TAKES, NEEDS = ("beta",), ("learning_rate", "momentum")


def files() -> dict[str, Path]:
    """The file of every correction, by the correction's name: what lies in this folder."""
    return declared.files(__path__)


def names() -> list[str]:
    """Every correction there is."""
    return list(files())


def find(name: Any) -> Kind:
    """The correction of that name; a `Kind` is itself. BadInput where there is none, or where it is not whole."""
    if isinstance(name, Kind):
        check(name, f"correction {name.name}")
        return name
    if not isinstance(name, str) or name not in names():
        hint = did_you_mean(str(name), names())
        raise BadInput(f"correction {name!r} is not known.{hint} The corrections are {', '.join(names())}.")
    module, file = import_module(f"{__name__}.{name}"), f"fdg_jax/corrections/{name}.py"
    found = getattr(module, "CORRECTION", None)
    if not isinstance(found, Kind):
        raise BadInput(f"{file} has no CORRECTION of type Kind. {WAY_OUT}")
    declared.check_name(found.name, name, file, "CORRECTION")
    declared.check_class_named(module, found.options, file, "CORRECTION")
    check(found, file)
    return found


def check(kind: Kind, file: str) -> None:
    """Raises BadInput where a correction's file contradicts itself."""
    for what, given, known in (("takes", kind.takes, TAKES), ("needs", kind.needs, NEEDS)):
        if unknown := set(given) - set(known):
            fact = f"{file}: {what} names {min(unknown)!r}"
            raise BadInput(f"{fact}. It can name {' and '.join(map(repr, known))} only.")
    _, *parameters = inspect.signature(kind.make).parameters
    if set(parameters) != set(kind.answers_to):
        fact = f"{file}: make takes {', '.join(parameters) or 'no option'}"
        has = ", ".join(kind.answers_to) or "none"
        raise BadInput(f"{fact}, but the options are {has}. Give make a parameter for each field of class Options.")


def for_stage(asked: Sequence[tuple[Kind, Mapping[str, Any]]], late: Late) -> Correction:
    """What several corrections together do about one stage; nothing where its gradients are not late.

    asked: (kind, options) in the order in which they see a gradient. Raises BadInput where one lacks what it needs.
    """
    if not late.staleness:
        return NONE
    made = []
    for kind, options in asked:
        for need in kind.needs:
            if getattr(late, need) is None:
                raise BadInput(
                    f"correction {kind.name} needs the optimizer's {need.replace('_', ' ')}, which an optax chain does "
                    f"not tell. Give it as Pipeline(..., {need}=...)."
                )
        correction = kind.make(late, **options)
        if not isinstance(correction, Correction):
            fact = f"make in fdg_jax/corrections/{kind.name}.py returned {type(correction).__name__}"
            raise BadInput(f"{fact}. Return a Correction, NONE where there is nothing to do.")
        made.append(correction)
    return together([correction for correction in made if correction is not NONE])


def together(corrections: Sequence[Correction]) -> Correction:
    """Several corrections as one. BadInput where more than one changes weights or gradients."""
    if len(corrections) < 2:
        return corrections[0] if corrections else NONE
    active = [each for each in corrections if each.forward or each.gradient]
    if len(active) > 1:
        raise BadInput("only one of several corrections may change the forward weights or the gradients. Use one.")

    def optimizer(chain):
        for each in corrections:
            chain = each.around(chain)
        return chain

    rest = active[0] if active else NONE
    return Correction(optimizer=optimizer, init=rest.init, forward=rest.forward, gradient=rest.gradient)
