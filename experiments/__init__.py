"""The paper's tables as code: one file a table, which lists its runs, runs what is missing, renders itself.

A table is a module here that holds `TABLE` (see `_runs.Table`); its file name is its name, and nothing needs
to be registered. Modules with an underscore are what the tables share. Numbers live in
`results/<table>.jsonl`, a line a finished run, and everything that is shown is made from these lines alone.
"""

import pkgutil
from importlib import import_module
from pathlib import Path

from experiments._runs import Table

RESULTS = Path(__file__).resolve().parent / "results"


def names() -> list[str]:
    """Every table there is: the files of this folder."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def find(name: str) -> Table:
    """The table of that name, one of `names()`."""
    return import_module(f"{__name__}.{name}").TABLE
