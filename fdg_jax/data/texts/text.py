"""Any files that a user names; by default the text of Python's own help, which comes with every Python.

The default text is one file with 0.75 MB of English about Python. It differs between versions of Python. So its
fingerprint differs, and a run on it cannot be resumed with another version.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from fdg_jax.data.text import Text, read
from fdg_jax.errors import BadInput

HELP = "pydoc_data.topics"


def load(files: Sequence[str], block_size: int) -> Text:
    """Opens the files as a `Text`; without files, Python's help.

    Raises:
        BadInput: a file cannot be read, or there is too little text.
    """
    return read("text", [Path(file).expanduser() for file in files] or [of_help()], block_size)


def of_help() -> Path:
    """The file of Python's help. Raises BadInput if this Python comes without it."""
    found = find_spec(HELP) if find_spec(HELP.partition(".")[0]) else None
    if found is None or not found.origin:
        raise BadInput("this Python lacks its help texts (pydoc_data), the default data. Name files with --text FILE.")
    return Path(found.origin)
