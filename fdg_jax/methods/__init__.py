"""A training method is one file here: its name on the command line, a schedule, and what it can be asked.

`METHOD` in `methods/<name>.py` is all there is to it; nothing needs to be registered. Options of its own are fields of
a class `Options` in the same file (fdg_jax.options.fields). Where a stage has to remember or compute something of its
own, the file has a subclass of `fdg_jax.stage.stage.Stage` as well. This module and the files of FDG and BP import no
JAX, so that a schedule can be drawn at once.
"""

from typing import Any

from fdg_jax.methods.interface import Method
from fdg_jax.options.folder import Folder

# Other names of a method, which stand for it with stashed weights.
ALIASES = {"pipedream": "ddg"}
FOLDER = Folder(__name__, "method", "METHOD", Method, tuple(ALIASES))
names = FOLDER.names


def find(name: Any) -> Method:
    """The method of that name, or of that alias; a `Method` is itself. Raises BadInput where there is none, or where
    its file contradicts itself."""
    if isinstance(name, Method):
        name.declared  # noqa: B018  # refuses a class that declares no options
        return name
    return FOLDER.find(ALIASES.get(name, name) if isinstance(name, str) else name)
