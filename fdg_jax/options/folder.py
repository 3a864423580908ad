"""A folder in which every file is a method, a correction or a family of models: its name is the value of an option.

Nothing needs to be registered. `interface` and names with a leading underscore are helpers, not values.
"""

import pkgutil
import sys
from importlib import import_module
from typing import Any, NamedTuple

from fdg_jax.errors import BadInput, did_you_mean, sentence


class Folder(NamedTuple):
    """A folder of such files.

    package: such as fdg_jax.methods. what: what each file defines, such as "method". constant: the name of the file's
        constant for it, such as METHOD. kind: the constant's type. aliases: other names, which a message may
        suggest."""

    package: str
    what: str
    constant: str = ""
    kind: type = object
    aliases: tuple[str, ...] = ()

    def names(self) -> list[str]:
        """The names of the files, without ".py"."""
        found = (module.name for module in pkgutil.iter_modules(sys.modules[self.package].__path__))
        return sorted(name for name in found if not name.startswith("_") and name != "interface")

    def shown(self, name: str) -> str:
        """The path of a file, for messages."""
        return f"{self.package.replace('.', '/')}/{name}.py"

    def module(self, name: str) -> Any:
        """Imports a file of the folder. Raises BadInput if that fails."""
        try:
            return import_module(f"{self.package}.{name}")
        except Exception as error:  # importing a file may raise anything
            way_out = "Mend it, or move it out of that folder."
            raise BadInput(f"{self.shown(name)} cannot be imported: {sentence(error)} {way_out}") from error

    def find(self, name: Any) -> Any:
        """The constant of the file of that name. Raises BadInput if there is no such file, or it contradicts itself."""
        known = self.names()
        if not isinstance(name, str) or name not in known:
            asked = did_you_mean(str(name), [*known, *self.aliases])
            raise BadInput(f"{self.what} {name!r} is not known.{asked} There are {', '.join(known)}.")
        module, file = self.module(name), self.shown(name)
        found: Any = getattr(module, self.constant, None)
        if not isinstance(found, self.kind):
            way_out = f"Write {self.constant} = {self.kind.__name__}(name=..., summary=..., ...)"
            raise BadInput(f"{file} has no {self.constant} of type {self.kind.__name__}. {way_out}.")
        if found.name != name:
            fact = f"{file}: {self.constant} has the name {found.name!r}, the file has {name!r}"
            raise BadInput(f"{fact}. Write name={name!r}.")
        if found.options is None and hasattr(module, "Options"):
            fact = f"{file} has a class Options, which its {self.constant} does not name"
            raise BadInput(f"{fact}. Add options=Options to {self.constant}.")
        found.declared  # noqa: B018  # refuses a class that declares no options
        return found
