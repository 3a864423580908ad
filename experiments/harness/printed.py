"""Reads a table of test errors, as the paper prints it, into cells.

The numbers are in the tables' files in the paper's own layout, so that they can be compared with the paper by eye.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple


class Cell(NamedTuple):
    """A number that the paper prints, or a further setting of this package in the same table.

    network: as printed.
    error: the test error in percent as printed, with * if it is marked as rerun; "" if there is none.
    published: the error of the original publication, if the table prints it beside a rerun.
    parameters: the network's number of parameters, as printed.
    """

    network: str
    dataset: str
    method: str
    K: int
    beta: float | None
    error: str
    published: str = ""
    order: str = ""
    parameters: str = ""


def read(printed: str, dataset: str) -> tuple[Cell, ...]:
    """The cells of a table, each once.

    printed: a line with the names of the columns, then a line per network, with columns separated by |. An error column
        has 8.75/7.78* for published/rerun, 7.92(1)/7.23(0.2) for error(beta), and - for none. The columns K (2 if it is
        absent) and parameters are the same for the whole line.
    """
    head, *lines = [[part.strip() for part in line.split("|")] for line in printed.strip().splitlines()]
    found: list[Cell] = []
    for line in lines:
        row = dict(zip(head, line, strict=True))
        make = partial(Cell, network=row.pop("network"), dataset=dataset, parameters=row.pop("parameters", ""))
        K = int(row.pop("K", 2))
        found += [cell for method, text in row.items() for cell in cells(make, method, K, text)]
    return tuple(dict.fromkeys(found))


def cells(make: Callable[..., Cell], method: str, K: int, text: str) -> list[Cell]:
    """The cells of one printed entry, which may hold two numbers of FDG. make: makes a Cell of the entry's network."""
    if text == "-":
        return []
    if "(" not in text:
        published, _, error = text.rpartition("/")
        return [make(method=method, K=1 if method == "BP" else K, beta=None, error=error, published=published)]
    method, _, order = method.partition("-")
    order = f"{order}-first" if order else ""
    pairs = [part.rstrip(")").split("(") for part in text.split("/")]
    return [make(method=method, K=K, beta=float(beta), error=error, order=order) for error, beta in pairs]
