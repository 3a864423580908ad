"""A folder in which every file defines a method, a correction, a family of models or a data set of the file's name.

Nothing needs to be registered. `interface` and names with a leading underscore are helpers, not values.
A user's own file, wherever it is, may join the folder (fdg_jax.own_files).
"""

import hashlib
import os
import pkgutil
import sys
from importlib import import_module
from importlib.abc import SourceLoader
from importlib.util import module_from_spec, spec_from_loader
from typing import Any, NamedTuple

from fdg_jax.errors import BadInput, did_you_mean, sentence


class OwnFile(NamedTuple):
    """A file that has joined a folder. path: as it was given. content: what was executed."""

    path: str
    content: bytes

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


OWN: dict[str, OwnFile] = {}  # by the full names of their modules


class Loader(SourceLoader):
    """Makes a module from bytes that have been read already, so that exactly the hashed code is executed."""

    def __init__(self, file: OwnFile):
        self.file = file

    def get_filename(self, fullname: str) -> str:
        return self.file.path

    def get_data(self, path: str) -> bytes:
        return self.file.content


class Folder(NamedTuple):
    """A folder in which every file defines one value of an option.

    package: such as fdg_jax.methods. what: what each file defines, such as "method". constant: the name of the constant
        that a file must have, such as METHOD. kind: the constant's type. aliases: other names, which a message may
        suggest."""

    package: str
    what: str
    constant: str = ""
    kind: type = object
    aliases: tuple[str, ...] = ()

    def names(self) -> list[str]:
        """The names of the files, without ".py"."""
        found = (module.name for module in pkgutil.iter_modules(sys.modules[self.package].__path__))
        inside = (name for name in found if not name.startswith("_") and name != "interface")
        return sorted({*inside, *self.own()})

    def own(self) -> dict[str, OwnFile]:
        """The files that have joined, by name."""
        packages = ((module.rpartition("."), file) for module, file in OWN.items())
        return {name: file for (package, _, name), file in packages if package == self.package}

    def shown(self, name: str) -> str:
        """The path of a file, for messages."""
        found = self.own().get(name)
        return found.path if found else f"{self.package.replace('.', '/')}/{name}.py"

    def join(self, name: str, file: OwnFile) -> None:
        """Executes a file from elsewhere as if it were in this folder. Raises BadInput where it cannot be executed."""
        module, loader = f"{self.package}.{name}", Loader(file)
        spec = spec_from_loader(module, loader)
        assert spec
        sys.modules[module] = made = module_from_spec(spec)
        try:
            loader.exec_module(made)
        except Exception as error:  # whatever the file does
            del sys.modules[module]
            fact = f"{file.path} cannot be executed: {type(error).__name__}: {sentence(error)}"
            raise BadInput(f"{fact} Correct the file.") from error
        OWN[module] = file

    def leave(self, name: str) -> None:
        """Undoes `join`."""
        for table in (OWN, sys.modules):
            table.pop(f"{self.package}.{name}", None)

    def module(self, name: str) -> Any:
        """Imports a file of the folder. Raises BadInput if that fails."""
        try:
            return import_module(f"{self.package}.{name}")
        except Exception as error:  # importing a file may raise anything
            way_out = "Correct the file, or move it out of that folder."
            raise BadInput(f"{self.shown(name)} cannot be imported: {sentence(error)} {way_out}") from error

    def find(self, name: Any) -> Any:
        """The constant of the file of that name. Raises BadInput if the file is missing, or its parts contradict one
        another."""
        known = self.names()
        if not isinstance(name, str) or name not in known:
            asked = did_you_mean(str(name), [*known, *self.aliases])
            if isinstance(name, str) and os.path.exists(name):
                way_out = f"On the command line write ./{name}"
                asked = f" {'In Python give the object in that file' if name.endswith('.py') else way_out}."
            raise BadInput(f"{self.what} {name!r} is not known.{asked} There are {', '.join(known)}.")
        module, file = self.module(name), self.shown(name)
        found: Any = getattr(module, self.constant, None)
        if not isinstance(found, self.kind):
            way_out = f"Write {self.constant} = {self.kind.__name__}(name=..., summary=..., ...)"
            raise BadInput(f"{file} has no {self.constant} of type {self.kind.__name__}. {way_out}.")
        if found.name != name:
            fact = f"{file}: {self.constant} has the name {found.name!r}, but the file has {name!r}"
            raise BadInput(f"{fact}. Write name={name!r}.")
        if found.options is None and hasattr(module, "Options"):
            fact = f"{file} has a class Options, which its {self.constant} does not name"
            raise BadInput(f"{fact}. Add options=Options to {self.constant}.")
        found.declared  # noqa: B018  # refuses a class that declares no options
        return found
