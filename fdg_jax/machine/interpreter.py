"""The Python interpreter of this process, as a person can type it."""

import sys
from pathlib import Path


def python_command() -> str:
    """The interpreter's path, relative to the working directory if it lies below that. A command that is printed names
    it because fdg_jax may be installed in its environment only."""
    path, here = Path(sys.executable), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
