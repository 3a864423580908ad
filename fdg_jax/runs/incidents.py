"""`incidents.jsonl` lists non-finite values and rollbacks to a checkpoint. `stalls.jsonl` lists operations without
progress.

Both files keep their lines when `metrics.jsonl` is cut back.

A file is created with its first line. Failures to write or read are ignored, since the run does not need these files.
"""

import contextlib
import json
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from fdg_jax import strict_json

INCIDENTS, STALLS = "incidents.jsonl", "stalls.jsonl"
MOST = 1000  # lines that are read


class Incident(NamedTuple):
    """An event in a run. step: the batch that had entered last. fact: a sentence."""

    step: int
    fact: str


def append(path: Path, event: Mapping[str, Any]) -> None:
    """Adds an event to a JSON lines file."""
    with contextlib.suppress(OSError), path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(event) + "\n")


def add(run: Path, step: int, fact: str) -> None:
    """Adds an incident."""
    append(run / INCIDENTS, {"step": step, "fact": fact})


def read(run: Path) -> list[Incident]:
    """All of a run's incidents, in the order in which they happened."""
    pairs = [(line.get("step"), line.get("fact")) for line in lines(run / INCIDENTS)]
    return [Incident(step, fact) for step, fact in pairs if isinstance(step, int) and isinstance(fact, str)]


def stalls(run: Path) -> int:
    """The number of reported stalls."""
    return len(lines(run / STALLS))


def lines(path: Path) -> list[dict[str, Any]]:
    """The objects in a JSON lines file."""
    found = []
    with contextlib.suppress(OSError, ValueError):  # ValueError: a line that is too long
        for line in islice(strict_json.lines(path), MOST):
            with contextlib.suppress(ValueError):
                found.append(strict_json.parse(line))
    return [each for each in found if isinstance(each, dict)]
