"""Corrections of late gradients: one file each, found by its name.

`CORRECTION` in `corrections/<name>.py` defines a correction; nothing needs to be registered. The correction's options
are fields of a class `Options` in the same file (fdg_jax.options.fields).
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from fdg_jax.corrections.interface import NONE, Correction, CorrectionSpec, Late
from fdg_jax.errors import BadInput
from fdg_jax.options.fields import said
from fdg_jax.options.folder import Folder

TAKES, NEEDS, WEIGHTS = ("beta",), ("learning_rate", "momentum"), ("", "stashed", "current")
FOLDER = Folder(__name__, "correction", "CORRECTION", CorrectionSpec)
names = FOLDER.names


def find(name: Any) -> CorrectionSpec:
    """The correction with this name; a `CorrectionSpec` is returned unchanged.

    Raises: BadInput if there is no such correction, or if its file contradicts itself.
    """
    found = name if isinstance(name, CorrectionSpec) else FOLDER.find(name)
    check(found, f"correction {found.name}" if found is name else FOLDER.shown(found.name))
    return found


def check(kind: CorrectionSpec, file: str) -> None:
    """Raises BadInput if a correction's file contradicts itself."""
    if kind.weights not in WEIGHTS:
        raise BadInput(f"{file}: weights is {kind.weights!r}. It can be {' or '.join(map(repr, WEIGHTS))}.")
    for what, given, known in (("takes", kind.takes, TAKES), ("needs", kind.needs, NEEDS)):
        if isinstance(given, str):
            raise BadInput(f"{file}: `{what}` is the text {given!r}. Write {what}=({given!r},), with a comma.")
        if unknown := set(given) - set(known):
            fact = f"{file}: `{what}` contains {min(unknown)!r}"
            raise BadInput(f"{fact}. It can contain {' and '.join(map(repr, known))} only.")
    late, *parameters = inspect.signature(kind.make).parameters or ("",)
    if not late:
        raise BadInput(f"{file}: `make` has no argument. Write def make(late), as fdg_jax/corrections/shrink.py does.")
    if set(parameters) != set(kind.answers_to):
        fact = f"{file}: make takes {', '.join(parameters) or 'no option'}"
        has = ", ".join(kind.answers_to) or "none"
        raise BadInput(f"{fact}, but the options are {has}. Give make a parameter for each field of class Options.")


def parse(asked: Any) -> list[CorrectionSpec]:
    """The corrections of `--correct NAME[,NAME]`, or of a list of names and specs, in the given order. Raises BadInput
    if a name is unknown, or if corrections cannot be combined."""
    found = [find(name) for name in split_names(asked)]
    names = [kind.name for kind in found]
    if twice := [name for name in names if names.count(name) > 1]:
        raise BadInput(f"{said('correct', asked)} names {twice[0]} twice. Name each correction once.")
    if len(found) > 1 and "none" in names:
        raise BadInput(f"{said('correct', asked)}: none cannot be combined with a correction. Leave one of them out.")
    options: dict[str, str] = {}
    for kind in found:
        for option in kind.declared:
            if option in options:
                fact = f"corrections {options[option]} and {kind.name} both have the option {option}"
                raise BadInput(f"{fact}. Use one of them.")
            options[option] = kind.name
    return found


def split_names(asked: Any) -> list[Any]:
    """Splits "a, b" into names; returns a list unchanged. Any other value is put into a list (and refused later)."""
    if isinstance(asked, list | tuple) and not isinstance(asked, CorrectionSpec):
        return list(asked)
    return [name.strip() for name in asked.split(",")] if isinstance(asked, str) else [asked]


def check_weights(found: Sequence[CorrectionSpec], weights: str) -> None:
    """Raises BadInput unless all corrections fit gradients that are taken at these weights. weights: "stashed" or
    "current"."""
    wanted = {kind.weights: kind.name for kind in found if kind.weights}
    if len(wanted) > 1:
        (at, name), (other_at, other) = wanted.items()
        fact = f"correction {name} needs gradients at {at} weights, and {other} needs them at {other_at} weights"
        raise BadInput(f"{fact}. Use one of them.")
    for kind in found:
        if kind.weights not in ("", weights):
            fact = f"correction {kind.name} needs gradients at {kind.weights} weights, not at {weights} weights"
            raise BadInput(f"{fact}. Add {said('weights', kind.weights)}.")


def for_stage(
    asked: Sequence[tuple[CorrectionSpec, Mapping[str, Any]]], late: Late
) -> list[tuple[CorrectionSpec, Correction]]:
    """The corrections of one stage, in the order in which they act; [] if its gradients are not late.

    asked: [(correction, its options)]. Raises BadInput if a correction needs a learning rate or momentum that is not
    known.
    """
    if not late.staleness:
        return []
    made = []
    for kind, options in asked:
        for need in kind.needs:
            late.check(need, kind.name)
        correction = kind.make(late, **options)
        if not isinstance(correction, Correction):
            fact = f"make in {FOLDER.shown(kind.name)} returned {type(correction).__name__}"
            raise BadInput(f"{fact}. Return a Correction, or NONE if there is nothing to do.")
        if correction is not NONE:
            made.append((kind, correction))
    return made


def together(corrections: Sequence[Correction]) -> Correction:
    """Combines several corrections into one. Each keeps its own state. When a gradient is used, the `gradient`
    functions of all corrections act first, in order. Then come all `before` transformations, the stage's optimizer, and
    the wrappers of all `optimizer` functions."""
    if len(corrections) < 2:
        return corrections[0] if corrections else NONE

    def optimizer(chain):
        import optax  # here, because commands that list corrections do not wait for JAX

        for each in reversed(corrections):  # innermost first, so that the first correction sees a gradient first
            chain = optax.chain(each.before, chain) if each.before else chain
        for each in corrections:
            chain = each.optimizer(chain) if each.optimizer else chain
        return chain

    active = [each for each in corrections if each.init or each.forward or each.backward or each.gradient]
    if len(active) < 2:
        return (active[0] if active else NONE)._replace(before=None, optimizer=optimizer)

    def weights(part):
        def change(params, states):
            for each, state in zip(active, states, strict=True):
                params = getattr(each, part)(params, state) if getattr(each, part) else params
            return params

        return change if any(getattr(each, part) for each in active) else None

    def gradient(grads, then, now, states):
        after = []
        for each, state in zip(active, states, strict=True):
            grads, state = each.gradient(grads, then, now, state) if each.gradient else (grads, state)
            after.append(state)
        return grads, tuple(after)

    def updated(before, after, states):
        pairs = zip(active, states, strict=True)
        return tuple(each.updated(before, after, state) if each.updated else state for each, state in pairs)

    def drained(states):
        return tuple(each.drained(state) if each.drained else state for each, state in zip(active, states, strict=True))

    return Correction(
        optimizer=optimizer,
        init=lambda params: tuple(each.start(params) for each in active),
        forward=weights("forward"),
        backward=weights("backward"),
        gradient=gradient if any(each.gradient for each in active) else None,
        updated=updated if any(each.updated for each in active) else None,
        drained=drained if any(each.drained for each in active) else None,
    )
