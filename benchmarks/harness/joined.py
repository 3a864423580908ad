"""The stages of a side in processes that have joined: one process a stage, each pinned to a core of its own.

This process only starts them and answers for all. It sleeps while they train.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.harness.ranks import Ranks, of_stages
from benchmarks.harness.serving import serve
from benchmarks.harness.side_specs import Side
from fdg_jax.machine.ports import hold_port

HOST = "127.0.0.1"
COORDINATOR = "FDG_JAX_COORDINATOR"  # in the environment of a rank: where rank 0 listens
HOSTS = "FDG_JAX_HOSTS"  # in that of this process: as JSON, what comes in front of a command on each host, if any


class Joined(Ranks):
    """K processes of one pipeline that answer as one. Their hosts are those of HOSTS (benchmarks.harness.hosts), each
    with a network of its own, and COORDINATOR is then given; else they are all on this one."""

    def __init__(self, side: Side):
        hosts = json.loads(os.environ.get(HOSTS, "[]"))
        meeting = dict[str, str]()
        if not hosts:
            meeting[COORDINATOR], self.held = hold_port(HOST)
        super().__init__(of_stages("benchmarks.harness.joined_process", side, {**os.environ, **meeting}, hosts))

    def memory(self, batches: int) -> dict[str, Any]:
        """Trains on so many batches. What is alive afterwards in each process is in `processes`."""
        start = time.perf_counter()
        return {"processes": self.ask({"memory": batches}), "seconds": time.perf_counter() - start}

    def recorded(self, batches: int) -> dict[str, Any]:
        """Trains on so many batches. What each process noted meanwhile is in `processes`, in the order of the ranks.

        loopback_bytes: what the loopback interface carried meanwhile, of whatever program, headers included; None if
        the system does not tell.
        """
        before = loopback_bytes()
        found = self.ask({"recorded": batches})
        after = loopback_bytes()
        carried = None if before is None or after is None else after - before
        return {"batches": batches, "loopback_bytes": carried, "processes": found}

    def operations(self, batches: int) -> dict[str, Any]:
        """The time of each operation: every process has those of its own stages, so their answers add up."""
        found = self.ask({"operations": batches})
        together = dict(found[0])
        for each in found[1:]:
            alone = {name: {**each["alone"][name], **together["alone"][name]} for name in ("host", "device")}
            together |= {"alone": alone, "busy_seconds": together["busy_seconds"] + each["busy_seconds"]}
        return together

    def messages(self, tries: int) -> dict[str, Any]:
        """The seconds that a message of each kind takes alone. All processes read the same clock.

        Returns: `messages`, [what, k, to, bytes, seconds of each try] of each kind.
        """
        found: list[list[Any]] = []
        for kinds in zip(*(each["messages"] for each in self.ask({"messages": tries})), strict=True):
            times = {end: moments for *_, end, moments in kinds}
            seconds = [there - here for here, there in zip(times["sent"], times["arrived"], strict=True)]
            found.append([*kinds[0][:4], seconds])
        return {"messages": found}

    def lateness(self, tries: int) -> dict[str, Any]:
        """By how many seconds each process sees an end late: see benchmarks.harness.recording."""
        return {"processes": [each["late"] for each in self.ask({"lateness": tries})]}


def loopback_bytes() -> int | None:
    """The bytes that this machine has sent to itself over the network so far; None if the system does not tell."""
    try:
        lines = Path("/proc/net/dev").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.partition(":")[2].split()[8]) for line in lines if line.strip().startswith("lo:")), None)


if __name__ == "__main__":
    sys.exit(serve(Joined))
