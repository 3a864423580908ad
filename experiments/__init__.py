"""The paper's tables as code: one file per table, which lists its runs, makes missing runs and writes its page.

A table is a module here that holds `TABLE` (see `harness.run_table.Table`); the file's name is the table's name, and
nothing needs to be registered. A table's page is `pages/<table>.md.in`, filled in from `results/<table>.jsonl`, which
has a line for every finished run. The tables' common code is in `harness/`.
"""

import pkgutil
from importlib import import_module

from experiments.harness.run_table import Table


def names() -> list[str]:
    """The names of all tables: the files of this folder."""
    return sorted(
        module.name for module in pkgutil.iter_modules(__path__) if not module.ispkg and module.name != "__main__"
    )


def find(name: str) -> Table:
    """The table of that name, one of `names()`."""
    return import_module(f"{__name__}.{name}").TABLE
