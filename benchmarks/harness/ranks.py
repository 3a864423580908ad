"""A side of several processes. This process starts the others and answers for all; it sleeps while they train.

A window lasts from the first request until the last answer, so the time that one process waits for another counts.
"""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.harness import side_specs
from benchmarks.harness.children import Child, ask_all
from benchmarks.harness.serving import RANK
from benchmarks.harness.side_specs import Side


class Ranks:
    """Newly started processes that answer as one."""

    def __init__(self, children: Sequence[Child]):
        self.children = children
        self.answers = [child.answer() for child in children]

    def ask(self, what: dict[str, int]) -> list[dict[str, Any]]:
        """Sends a request to all processes at once. Returns their answers."""
        return ask_all(self.children, what)

    def run(self, batches: int) -> dict[str, Any]:
        return self.window(batches)[0]

    def window(self, batches: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """(the times of a window over all processes, the answer of each)."""
        start = time.perf_counter()
        answers = self.ask({"run": batches})
        seconds = time.perf_counter() - start
        sums = {name: sum(each[name] for each in answers) for name in ("busy_seconds", "page_faults", "loss")}
        return {"seconds": seconds, **sums}, answers

    def about(self) -> dict[str, Any]:
        of_side = {"side", *(field.name for field in dataclasses.fields(Side))} - {"split"}
        found = self.answers[0] | {"split": self.answers[-1]["split"]}
        return {name: value for name, value in found.items() if name not in of_side}


def of_stages(
    worker: str, side: Side, environment: Mapping[str, str], inside: Sequence[Sequence[str]] = ()
) -> list[Child]:
    """Starts a process for each stage.

    Arguments:
        worker: the module that trains in each of them.
        environment: of the processes, besides RANK.
        inside: the words in front of the command of each, e.g. to start it on another host; (): none.
    """
    words = side_specs.words(dataclasses.replace(side, worker=worker))
    return [
        Child(words, f"rank {rank}", env={**environment, RANK: str(rank)}, before=inside[rank] if inside else ())
        for rank in range(side.K)
    ]
