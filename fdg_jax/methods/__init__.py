"""A training method is one file here: its name on the command line, a schedule, and what it can be asked.

`METHOD` in `methods/<name>.py` is all there is to it; nothing needs to be registered. Where a stage has to remember or
compute something of its own, the file has a subclass of `fdg_jax.stage.stage.Stage` as well. This module and the files
of FDG and BP import no JAX, so that a schedule can be drawn, and an option refused, at once.
"""

import pkgutil
from importlib import import_module

from fdg_jax.errors import BadInput, did_you_mean
from fdg_jax.methods.interface import Method


def names() -> list[str]:
    """Every method there is: the files of this folder."""
    files = [module.name for module in pkgutil.iter_modules(__path__)]
    return sorted(name for name in files if not name.startswith("_") and name != "interface")


def find(name: str) -> Method:
    """The method of that name. BadInput names the nearest ones."""
    if name not in names():
        asked = did_you_mean(name, names(), cutoff=0.3)
        raise BadInput(f"method {name!r} is not known.{asked} There are {', '.join(names())}.")
    return import_module(f"{__name__}.{name}").METHOD
