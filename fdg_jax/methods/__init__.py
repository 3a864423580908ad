"""The training methods: one file each, with the method's name, its schedule and its options.

`METHOD` in `methods/<name>.py` defines a method; nothing needs to be registered. The method's options are fields of a
class `Options` in the same file (fdg_jax.options.fields). If its stages store or compute more than ordinary stages, the
file also has a subclass of `fdg_jax.stages.stage.Stage`. This module and the files of FDG and BP do not import JAX, so
that schedules are drawn without a delay.
"""

from typing import Any

from fdg_jax.methods.interface import Method
from fdg_jax.options.folder import Folder

# Alternative names. Each means the given method with stashed weights.
ALIASES = {"pipedream": "ddg"}
FOLDER = Folder(__name__, "method", "METHOD", Method, tuple(ALIASES))
names = FOLDER.names


def find(name: Any) -> Method:
    """The method with this name or alias; a `Method` is returned unchanged. Raises BadInput if there is no such method,
    or if its file contradicts itself."""
    if isinstance(name, Method):
        name.declared  # noqa: B018  # refuses a class that declares no options
        return name
    return FOLDER.find(ALIASES.get(name, name) if isinstance(name, str) else name)
