"""What can be done about late gradients: one file a correction, found by its name."""

import inspect
import pkgutil
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from fdg_jax.corrections.interface import NONE, Correction, Kind, Late
from fdg_jax.errors import BadInput, did_you_mean


def names() -> list[str]:
    """Every correction there is: the files of this folder."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name != "interface")


def find(name: Any) -> Kind:
    """The correction of that name. BadInput names the nearest ones."""
    if not isinstance(name, str) or name not in names():
        hint = did_you_mean(str(name), names(), cutoff=0.3)
        raise BadInput(f"correction {name!r} is not known.{hint} There are {', '.join(names())}.")
    found = getattr(import_module(f"{__name__}.{name}"), "CORRECTION", None)
    if not isinstance(found, Kind):
        way_out = "Write CORRECTION = Kind(name=..., summary=..., make=...), as fdg_jax/corrections/shrink.py does."
        raise BadInput(f"fdg_jax/corrections/{name}.py has no CORRECTION of type Kind. {way_out}")
    return found


def options_of(kind: Kind) -> dict[str, Any]:
    """The options of a correction with their defaults: the keyword arguments of its `make`."""
    _, *options = inspect.signature(kind.make).parameters.values()
    return {option.name: option.default for option in options}


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
        made.append(kind.make(late, **options))
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
