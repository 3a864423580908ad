"""The stages of a side in processes that have joined: one process per stage, each pinned to a core of its own.

This process only starts the others and answers for all. It sleeps while they train.
"""

import json
import os
import time
from functools import partialmethod
from pathlib import Path
from typing import Any

from benchmarks.harness.ranks import Ranks, of_stages
from benchmarks.harness.side_specs import Side
from fdg_jax.machine.ports import hold_port

HOST = "127.0.0.1"
COORDINATOR = "FDG_JAX_COORDINATOR"  # in the environment of a rank: where rank 0 listens
HOSTS = "FDG_JAX_HOSTS"  # in this process's environment: as JSON, the words in front of a command on each host, if any


class Trainer(Ranks):
    """K processes of one pipeline that answer as one. With HOSTS and COORDINATOR they are on these hosts
    (benchmarks.harness.hosts), each with a network of its own; else all are on this host."""

    def __init__(self, side: Side):
        hosts = json.loads(os.environ.get(HOSTS, "[]"))
        meeting = dict[str, str]()
        if not hosts:
            meeting[COORDINATOR], self.held = hold_port(HOST)
        super().__init__(of_stages("benchmarks.harness.joined_process", side, {**os.environ, **meeting}, hosts))

    def each(self, what: str, batches: int) -> dict[str, Any]:
        """Asks every process. `processes` has their answers, in the order of the ranks.

        seconds: until the last answer. loopback_bytes: the bytes on the loopback interface meanwhile, of all programs,
            with headers; None if the system does not say.
        """
        before, start = loopback_bytes(), time.perf_counter()
        found = self.ask({what: batches})
        seconds, after = time.perf_counter() - start, loopback_bytes()
        carried = None if before is None or after is None else after - before
        return {"processes": found, "seconds": seconds, "loopback_bytes": carried}

    memory = partialmethod(each, "memory")
    recorded = partialmethod(each, "recorded")
    lateness = partialmethod(each, "lateness")

    def operations(self, batches: int) -> dict[str, Any]:
        """The time of each operation, merged from the processes, each of which has those of its own stages."""
        found = self.ask({"operations": batches})
        together = dict(found[0])
        for each in found[1:]:
            alone = {name: {**each["alone"][name], **together["alone"][name]} for name in ("host", "device")}
            together |= {"alone": alone, "busy_seconds": together["busy_seconds"] + each["busy_seconds"]}
        return together

    def messages(self, tries: int) -> dict[str, Any]:
        """The seconds that a message of each kind takes alone. All processes read the same clock.

        Returns: `messages`, [what, k, to, bytes, seconds of each try] for each kind.
        """
        found: list[list[Any]] = []
        for kinds in zip(*(each["messages"] for each in self.ask({"messages": tries})), strict=True):
            times = {end: moments for *_, end, moments in kinds}
            seconds = [there - here for here, there in zip(times["sent"], times["arrived"], strict=True)]
            found.append([*kinds[0][:4], seconds])
        return {"messages": found}


def loopback_bytes() -> int | None:
    """The bytes that this machine has sent to itself over the network so far; None if the system does not say."""
    try:
        lines = Path("/proc/net/dev").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.partition(":")[2].split()[8]) for line in lines if line.strip().startswith("lo:")), None)
