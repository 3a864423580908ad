"""A training method is one file here: its name on the command line, its schedule, and its options.

`METHOD` in `methods/<name>.py` defines it; nothing needs to be registered. Its own options are fields of a class
`Options` in the same file (fdg_jax.options.fields). If its stages have to remember or compute anything else, the file
also has a subclass of `fdg_jax.stages.stage.Stage`. This module and the files of FDG and BP import no JAX, so that a
schedule can be drawn at once.
"""

from typing import Any

from fdg_jax.methods.interface import Method
from fdg_jax.options.folder import Folder

# Other names of methods; each means the method with stashed weights.
ALIASES = {"pipedream": "ddg"}
FOLDER = Folder(__name__, "method", "METHOD", Method, tuple(ALIASES))
names = FOLDER.names


def find(name: Any) -> Method:
    """The method of that name or alias; a `Method` is returned as it is. Raises BadInput if there is no such method, or
    if its file contradicts itself."""
    if isinstance(name, Method):
        name.declared  # noqa: B018  # refuses a class that declares no options
        return name
    return FOLDER.find(ALIASES.get(name, name) if isinstance(name, str) else name)
