"""`incidents.jsonl`: what a run refused, and where it went back. Its lines stay when `metrics.jsonl` is cut back.

The file is there from the first incident on. What cannot be written or read is left out, since the run goes on without.
"""

import contextlib
import json
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from fdg_jax import strict_json

INCIDENTS, STALLS = "incidents.jsonl", "stalls.jsonl"
MOST = 1000  # lines that are read


class Incident(NamedTuple):
    """step: the batch that had entered last. fact: a sentence."""

    step: int
    fact: str


def add(run: Path, step: int, fact: str) -> None:
    """Adds a line."""
    with contextlib.suppress(OSError), (run / INCIDENTS).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"step": step, "fact": fact}) + "\n")


def read(run: Path) -> list[Incident]:
    """All of a run's incidents, in the order in which they happened."""
    found = []
    for line in lines(run / INCIDENTS):
        step, fact = line.get("step"), line.get("fact")
        if isinstance(step, int) and isinstance(fact, str):
            found.append(Incident(step, fact))
    return found


def stalls(run: Path) -> int:
    """How often something was reported that made no progress."""
    return len(lines(run / STALLS))


def lines(path: Path) -> list[dict[str, object]]:
    """The objects in a file of lines."""
    found = []
    with contextlib.suppress(OSError, ValueError):  # ValueError: a line that is too long
        for line in islice(strict_json.lines(path), MOST):
            with contextlib.suppress(ValueError):
                found.append(strict_json.parse(line))
    return [each for each in found if isinstance(each, dict)]
