"""The options that the files of a folder declare, for rooms where a file is a method, a correction and the like."""

import pkgutil
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from fdg_jax.errors import BadInput
from fdg_jax.options import source
from fdg_jax.options.fields import Option


class Declared(NamedTuple):
    """An option, and the names of those whose files declare it."""

    option: Option
    by: tuple[str, ...]


def files(folders: Iterable[str]) -> dict[str, Path]:
    """The files of those folders by the name of their module: packages too, but neither `interface` nor what begins
    with an underscore."""
    found = {}
    for module in sorted(pkgutil.iter_modules(folders), key=lambda module: module.name):
        if not module.name.startswith("_") and module.name != "interface":
            folder = Path(getattr(module.module_finder, "path", ""))
            found[module.name] = folder / module.name / "__init__.py" if module.ispkg else folder / f"{module.name}.py"
    return found


def check_class_named(module: ModuleType, options: type | None, file: str, constant: str) -> None:
    """Raises BadInput where a file has a class `Options` that its METHOD or CORRECTION does not name.

    Arguments:
        module: the file, imported. options: what its constant names. file, constant: what messages call them.
    """
    if options is None and hasattr(module, "Options"):
        fact = f"{file} has a class Options, which its {constant} does not name"
        raise BadInput(f"{fact}. Add options=Options to {constant}.")


def check_name(found: str, name: str, file: str, constant: str) -> None:
    """Raises BadInput where METHOD or CORRECTION has another name than its file: it is looked up by the file's."""
    if found != name:
        raise BadInput(f"{file}: {constant} has the name {found!r}, the file has {name!r}. Write name={name!r}.")


def declared(
    files: Mapping[str, Path], room: str, taken: Collection[str] = ()
) -> tuple[list[Declared], BadInput | None]:
    """The options that the files declare, read from their text.

    Arguments:
        files: as `files` gives them.
        room: the folder as messages show it, such as fdg_jax/methods.
        taken: names that none of these options can have.

    Returns: (the options, each name once; the first thing that is wrong with a file, which is then left out).
    """
    found: dict[str, Declared] = {}
    wrong: BadInput | None = None
    for name, file in files.items():
        shown = f"{room}/{name}.py"
        try:
            options = source.options(file, shown)
            for option in options.values():
                check(shown, room, option, found.get(option.name), taken)
        except BadInput as error:
            wrong = wrong or error
            continue
        for option in options.values():
            before = found.get(option.name, Declared(option, ()))
            found[option.name] = before._replace(by=(*before.by, name))
    return list(found.values()), wrong


def check(shown: str, room: str, option: Option, before: Declared | None, taken: Collection[str]) -> None:
    """Raises BadInput where a file cannot have an option of that name.

    before: what another file of the room declares by that name; the same type and default are shared.
    """
    if option.name in taken or option.name.startswith("_"):
        raise BadInput(f"{shown} declares the option {option.name}, a name with another meaning. Choose another one.")
    if before and (option.kind, option.default) != (before.option.kind, before.option.default):
        fact = f"{shown} and {room}/{before.by[0]}.py declare the option {option.name} differently"
        raise BadInput(f"{fact}. Give both the same type and default, or one of them another name.")
