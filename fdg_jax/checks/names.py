"""Finds what a user asks for by name: a method (whose file may be the user's own), a model, a data set.

Corrections are found by `fdg_jax.corrections.find`.

Both the command and `fdg_jax.Pipeline` look names up here, so that a misspelled name or an unfinished file gives the
same one-sentence error in both. JAX is imported only by those methods' files that need it, so that commands answer at
once.
"""

import ast
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fdg_jax import methods
from fdg_jax.errors import BadInput
from fdg_jax.methods import interface
from fdg_jax.options.declared import check_class_named
from fdg_jax.options.source import assigned


def refuse_other_spelling(what: str, name: str, known: Sequence[str]) -> None:
    """Raises BadInput if a name is not known but differs from a known one in case and punctuation only.

    Arguments:
        what: what the name is of, such as "model".
        name: what was written, such as ResNet-20.
        known: the names that exist, such as resnet20.
    """

    def plain(text: str) -> str:
        return re.sub(r"[^a-z0-9]", "", text.lower())

    alike = [each for each in known if plain(each) == plain(name)]
    if name not in known and alike:
        raise BadInput(f"{what} {name!r} is not known. Did you mean {' or '.join(alike)}?")


def settled_method(name: str, weights: str | None) -> str:
    """The method that a name stands for. Raises BadInput where it is an alias, and other weights are asked for."""
    if name in methods.ALIASES and weights == "current":
        fact = f"method {name} takes gradients at stashed weights, and weights={weights} was asked for"
        raise BadInput(f"{fact}. Use method {methods.ALIASES[name]} for these, or leave weights out.")
    return methods.ALIASES.get(name, name)


def find_method(name: Any) -> interface.Method:
    """The method of that name; a `Method` is itself. Raises BadInput if there is none, or if its file does not define
    METHOD."""
    if isinstance(name, interface.Method):
        name.accepted({})
        return name
    known = methods.names()
    if not isinstance(name, str):
        raise BadInput(f"method={name!r} is no name. Use one of {', '.join(known)}, in quotes.")
    refuse_other_spelling("method", name, [*known, *methods.ALIASES])
    name = methods.ALIASES.get(name, name)
    file = f"fdg_jax/methods/{name}.py"
    way_out = "Write METHOD = Method(name=..., summary=..., schedule=...), as fdg_jax/methods/fdg.py does."
    try:
        found = methods.find(name)
    except AttributeError as error:
        if error.name != "METHOD":  # a defect inside the file, not its absence
            raise
        raise BadInput(f"{file} has no METHOD. {way_out}") from None
    if not isinstance(found, interface.Method):
        raise BadInput(f"METHOD in {file} is of type {type(found).__name__}, not a fdg_jax.methods.Method. {way_out}")
    check_class_named(sys.modules[f"fdg_jax.methods.{name}"], found.options, file, "METHOD")
    found.accepted({})
    return found


def model_names() -> list[str]:
    """The names of all models, then the patterns of those families that answer to any size (`wrn<d>_<k>`).

    The names are read from the text of the files in `fdg_jax/models`: importing the files would import JAX, for which
    --help should not wait. Names that a file computes are left out.
    """
    names: list[ast.expr | None] = []
    patterns: list[ast.expr | None] = []
    for file in sorted((Path(__file__).parent.parent / "models").glob("*.py")):
        for name, value in assigned(ast.parse(file.read_text(encoding="utf-8"))):
            if name == "NAMES" and isinstance(value, ast.Dict):
                names += value.keys
            elif name == "PATTERNS" and isinstance(value, ast.Tuple):
                patterns += value.elts
    return [str(each.value) for each in (*names, *patterns) if isinstance(each, ast.Constant)]
