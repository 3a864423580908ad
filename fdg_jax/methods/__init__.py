"""A training method is one file here: its name on the command line, a schedule, and what it can be asked.

`METHOD` in `methods/<name>.py` is all there is to it; nothing needs to be registered. Options of its own are fields of
a class `Options` in the same file (fdg_jax.options.fields). Where a stage has to remember or compute something of its
own, the file has a subclass of `fdg_jax.stage.stage.Stage` as well. This module and the files of FDG and BP import no
JAX, so that a schedule can be drawn, and an option refused, at once.
"""

from importlib import import_module
from pathlib import Path

from fdg_jax.errors import BadInput, did_you_mean
from fdg_jax.methods.interface import Method
from fdg_jax.options import declared

# Other names of a method, which stand for it with stashed weights.
ALIASES = {"pipedream": "ddg"}


def files() -> dict[str, Path]:
    """The file of every method, by the method's name: what lies in this folder."""
    return declared.files(__path__)


def names() -> list[str]:
    """Every method there is."""
    return list(files())


def find(name: str) -> Method:
    """The method of that name, or of that alias. BadInput names the nearest ones, or says that the method has another
    name than its file.

    AttributeError where the file has no METHOD (`fdg_jax.checks.names.find_method` explains it to a user).
    """
    name = ALIASES.get(name, name)
    if name not in names():
        asked = did_you_mean(name, names())
        raise BadInput(f"method {name!r} is not known.{asked} There are {', '.join(names())}.")
    found = import_module(f"{__name__}.{name}").METHOD
    if isinstance(found, Method):
        declared.check_name(found.name, name, f"fdg_jax/methods/{name}.py", "METHOD")
    return found
