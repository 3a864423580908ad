"""A training method is one file here: its name on the command line, a schedule, and what it can be asked.

`METHOD` in `methods/<name>.py` is all there is to it; nothing needs to be registered. The files import no JAX,
so that a schedule can be drawn, and an option refused, at once.
"""

import difflib
import pkgutil
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple

from fdg_jax.errors import BadInput
from fdg_jax.schedule import Schedule


class Method(NamedTuple):
    """What the engines need to know of a method.

    schedule(K, **schedule_options) -> Schedule.
    schedule_options: keyword arguments of `schedule`, and with them the flags it answers to.
    options: further flags it answers to ("beta", "weights").
    delay_line: True where, with stashed weights, the run is exactly BP with each stage's gradient delayed by
        `schedule.staleness` updates, so that one device can stand in for K.
    """

    name: str
    summary: str
    schedule: Callable[..., Schedule]
    schedule_options: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    delay_line: bool = False

    def accepted(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Refuses options this method does not have; returns those its schedule takes."""
        for option, value in options.items():
            if option not in (*self.schedule_options, *self.options):
                raise BadInput(
                    f"--{option} {value}: method {self.name} has no such option "
                    f"(it has: {', '.join((*self.schedule_options, *self.options)) or 'none'}). Leave it out."
                )
        return {option: value for option, value in options.items() if option in self.schedule_options}


def names() -> list[str]:
    """Every method there is: the files of this folder."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def find(name: str) -> Method:
    """The method of that name. BadInput names the nearest ones."""
    if name not in names():
        near = difflib.get_close_matches(name, names(), n=3, cutoff=0.3) or names()
        known = ", ".join(names())
        raise BadInput(f"method {name!r} is not known. Did you mean {' or '.join(near)}? There are {known}.")
    return import_module(f"{__name__}.{name}").METHOD
