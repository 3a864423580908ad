"""A peer of several processes. This one starts them, each pinned to a core of its own, and answers for all.

A window lasts from the first request until the last answer, so the time that one process waits for another counts.
"""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.harness.side_specs import Side
from fdg_jax.errors import BadInput

# The environment of a rank:
RANK, MEETING = "FDG_JAX_PEER_RANK", "FDG_JAX_PEER_MEETING"  # number from 0 on; a file over which they find each other


class Ranks:
    """K processes that answer as one."""

    def __init__(self, side: Side):
        if side.split is not None:
            side = dataclasses.replace(side, split=cut(side))
        common = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
        with tempfile.TemporaryDirectory(prefix="fdg_jax-peer-") as folder:
            common[MEETING] = os.path.join(folder, "meeting")
            self.ranks = [start(side, {**common, RANK: str(rank)}) for rank in range(side.K)]
            self.answers = [answer(rank) for rank in self.ranks]

    def run(self, batches: int) -> dict[str, float]:
        start = time.perf_counter()
        for rank in self.ranks:
            tell(rank, {"run": batches})
        answers = [answer(rank) for rank in self.ranks]
        seconds = time.perf_counter() - start
        sums = {name: sum(each[name] for each in answers) for name in ("busy_seconds", "page_faults")}
        return {"seconds": seconds, **sums, "loss": answers[-1]["loss"]}

    def about(self) -> dict[str, Any]:
        return self.answers[0] | {"split": self.answers[-1]["split"]}


def pin() -> None:
    """Pins this rank to a core of its own, before any library makes its threads."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, [cores[int(os.environ[RANK]) % len(cores)]])


def start(side: Side, environment: Mapping[str, str]) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.peers.worker", json.dumps(dataclasses.asdict(side))],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def tell(rank: subprocess.Popen, what: dict) -> None:
    assert rank.stdin
    rank.stdin.write(json.dumps(what) + "\n")
    rank.stdin.flush()


def answer(rank: subprocess.Popen) -> dict[str, Any]:
    assert rank.stdout
    line = rank.stdout.readline()
    if not line:
        sys.exit(f"a rank ended with exit code {rank.wait()}")
    reply = json.loads(line)
    if "refused" in reply:
        raise BadInput(reply["refused"])
    return reply


def cut(side: Side) -> str:
    """The block numbers at which our own pipeline would cut this network."""
    from fdg_jax import models, split
    from fdg_jax.data.sets import synthetic

    blocks = models.blocks(side.model, synthetic.CLASSES)
    costs = split.block_costs(side.model, synthetic.CLASSES, (1, 32, 32, 3))
    assert side.split is not None
    return ",".join(map(str, split.parse(side.split, side.model, side.K, len(blocks), costs)))
