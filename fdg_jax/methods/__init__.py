"""A training method is one file here: its name on the command line, a schedule, and what it can be asked.

`METHOD` in `methods/<name>.py` is all there is to it; nothing needs to be registered. Options of its own are fields of
a class `Options` in the same file (fdg_jax.options.fields). Where a stage has to remember or compute something of its
own, the file has a subclass of `fdg_jax.stage.stage.Stage` as well. This module and the files of FDG and BP import no
JAX, so that a schedule can be drawn, and an option refused, at once.
"""

import pkgutil
from collections.abc import Collection
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from fdg_jax.errors import BadInput, did_you_mean
from fdg_jax.methods.interface import Method
from fdg_jax.options import source
from fdg_jax.options.fields import Option


class Declared(NamedTuple):
    """An option, and the names of the methods whose files declare it."""

    option: Option
    methods: tuple[str, ...]


def files() -> dict[str, Path]:
    """The file of every method, by the method's name: what lies in this folder."""
    found = {}
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name):
        if not module.name.startswith("_") and module.name != "interface":
            folder = Path(getattr(module.module_finder, "path", ""))
            found[module.name] = folder / module.name / "__init__.py" if module.ispkg else folder / f"{module.name}.py"
    return found


def names() -> list[str]:
    """Every method there is."""
    return list(files())


def find(name: str) -> Method:
    """The method of that name. BadInput names the nearest ones."""
    if name not in names():
        asked = did_you_mean(name, names(), cutoff=0.3)
        raise BadInput(f"method {name!r} is not known.{asked} There are {', '.join(names())}.")
    return import_module(f"{__name__}.{name}").METHOD


def declared(taken: Collection[str] = ()) -> tuple[list[Declared], BadInput | None]:
    """The options that the files of all methods declare, read from their text.

    Arguments:
        taken: names that an option of a method cannot have.

    Returns: (the options, each name once; the first thing that is wrong with a file, which is then left out).
    """
    found: dict[str, Declared] = {}
    wrong: BadInput | None = None
    for name, file in files().items():
        try:
            options = source.options(file, f"fdg_jax/methods/{name}.py")
            for option in options.values():
                check(name, option, found.get(option.name), taken)
        except BadInput as error:
            wrong = wrong or error
            continue
        for option in options.values():
            before = found.get(option.name, Declared(option, ()))
            found[option.name] = before._replace(methods=(*before.methods, name))
    return list(found.values()), wrong


def check(method: str, option: Option, before: Declared | None, taken: Collection[str]) -> None:
    """Raises BadInput where a method cannot have an option of that name.

    before: what another method's file declares by that name; the same type and default are shared.
    """
    file = f"fdg_jax/methods/{method}.py"
    if option.name in taken or option.name.startswith("_"):
        raise BadInput(f"{file} declares the option {option.name}, a name with another meaning. Choose another one.")
    if before and (option.kind, option.default) != (before.option.kind, before.option.default):
        fact = f"{file} and fdg_jax/methods/{before.methods[0]}.py declare the option {option.name} differently"
        raise BadInput(f"{fact}. Give both the same type and default, or one of them another name.")
