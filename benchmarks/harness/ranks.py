"""A side of several processes, each pinned to a core of its own. This one starts them and answers for all.

A window lasts from the first request until the last answer, so the time that one process waits for another counts.
"""

import atexit
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.harness.side_specs import Side
from fdg_jax.errors import BadInput

RANK = "FDG_JAX_RANK"  # in the environment of each of the processes: its number, from 0 on


class Ranks:
    """K processes that answer as one.

    Arguments:
        module: what each of them runs, with the side as its argument.
        side: what they train.
        environment: in which they are started, beside RANK.
        inside: what comes in front of the command of each, e.g. to start it on another host; () is nothing.
    """

    def __init__(
        self, module: str, side: Side, environment: Mapping[str, str], inside: Sequence[Sequence[str]] = ()
    ):
        self.ranks = list[subprocess.Popen]()
        atexit.register(self.close)  # one that waits for another that is gone would stay for ever
        for rank in range(side.K):
            before = inside[rank] if inside else ()
            self.ranks.append(start(module, side, {**environment, RANK: str(rank)}, before))
        self.answers = [answer(rank) for rank in self.ranks]

    def ask(self, what: dict[str, int]) -> list[dict[str, Any]]:
        """Asks all of them at once. Returns their answers."""
        for rank in self.ranks:
            tell(rank, what)
        return [answer(rank) for rank in self.ranks]

    def run(self, batches: int) -> dict[str, float]:
        start = time.perf_counter()
        answers = self.ask({"run": batches})
        seconds = time.perf_counter() - start
        sums = {name: sum(each[name] for each in answers) for name in ("busy_seconds", "page_faults")}
        return {"seconds": seconds, **sums, "loss": answers[-1]["loss"]}

    def about(self) -> dict[str, Any]:
        return self.answers[0] | {"split": self.answers[-1]["split"]}

    def close(self) -> None:
        """Ends the processes at once."""
        for rank in self.ranks:
            rank.kill()
        for rank in self.ranks:
            rank.wait()


def pin() -> None:
    """Pins this rank to a core of its own, before any library makes its threads."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, [cores[int(os.environ[RANK]) % len(cores)]])


def start(module: str, side: Side, environment: Mapping[str, str], before: Sequence[str] = ()) -> subprocess.Popen:
    return subprocess.Popen(
        [*before, sys.executable, "-m", module, json.dumps(dataclasses.asdict(side))],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def tell(rank: subprocess.Popen, what: dict) -> None:
    assert rank.stdin
    try:
        rank.stdin.write(json.dumps(what) + "\n")
        rank.stdin.flush()
    except BrokenPipeError:
        pass  # answer() says what happened


def answer(rank: subprocess.Popen) -> dict[str, Any]:
    assert rank.stdout
    line = rank.stdout.readline()
    if not line:
        sys.exit(f"a rank ended with exit code {rank.wait()}")
    reply = json.loads(line)
    if "refused" in reply:
        raise BadInput(reply["refused"])
    return reply
