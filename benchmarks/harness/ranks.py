"""A side of several processes. This process starts the others and answers for all; it sleeps while they train.

A window lasts from the first request until the last answer, so the time that one process waits for another counts.
"""

import dataclasses
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from functools import partialmethod
from pathlib import Path
from typing import Any

from benchmarks.harness import serving, side_specs, turns
from benchmarks.harness.children import Child, ask_all
from fdg_jax.machine.child import hold_port

HOST = "127.0.0.1"
HOSTS = "FDG_JAX_HOSTS"  # in this process's environment: as JSON, the words in front of a command on each host, if any


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
        of_side = {"side", *(field.name for field in dataclasses.fields(side_specs.Side))} - {"split"}
        found = self.answers[0] | {"split": self.answers[-1]["split"]}
        return {name: value for name, value in found.items() if name not in of_side}


def of_stages(
    worker: str, side: side_specs.Side, environment: Mapping[str, str], inside: Sequence[Sequence[str]] = ()
) -> list[Child]:
    """Starts a process for each stage.

    Arguments:
        worker: the class that trains in each process.
        environment: further variables of the processes, besides RANK.
        inside: for each process, the words in front of its command, e.g. to start it on another host; (): none.
    """
    words = side_specs.words(dataclasses.replace(side, worker=worker))
    return [Child(words, f"rank {rank}", env={**environment, serving.RANK: str(rank)}, before=before)
            for rank, before in enumerate(inside or [()] * side.K)]  # fmt: skip


class Joined(Ranks):
    """The stages of a side in processes that have joined: one process per stage, each pinned to a core of its own. If
    the variables HOSTS and COORDINATOR are set, the processes are on other hosts (benchmarks.harness.hosts). Otherwise
    all are on this host."""

    def __init__(self, side: side_specs.Side):
        hosts = json.loads(os.environ.get(HOSTS, "[]"))
        meeting = dict[str, str]()
        if not hosts:
            meeting[serving.COORDINATOR], self.held = hold_port(HOST)
        super().__init__(of_stages("benchmarks.harness.joined_process.Trainer", side, {**os.environ, **meeting}, hosts))

    def each(self, what: str, batches: int) -> dict[str, Any]:
        """Asks every process. In the result, `processes` has the answers in the order of the ranks.

        seconds: until the last answer. loopback_bytes: the bytes that all programs sent over the loopback interface in
            this time, with headers; None if the system does not say.
        """
        before, start = loopback_bytes(), time.perf_counter()
        found = self.ask({what: batches})
        seconds, after = time.perf_counter() - start, loopback_bytes()
        carried = None if before is None or after is None else after - before
        return {"processes": found, "seconds": seconds, "loopback_bytes": carried}

    memory = partialmethod(each, "memory")
    recorded = partialmethod(each, "recorded")

    def operations(self, batches: int) -> dict[str, Any]:
        """The time of each operation, merged from all processes. Each process measures the operations of its own
        stages."""
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


class EachCore(Ranks):
    """Independent processes of a side, all at once: on a CPU one per core, to find the limit of the machine itself.

    Cores share caches and memory bandwidth, so two cores need not be twice as fast as one core. On a GPU, the processes
    share the device. `batches` is the total. The processes get equal shares of it, rounded up.
    """

    def __init__(self, side: side_specs.Side):
        cores = sorted(os.sched_getaffinity(0))
        shares = [cores] * side.copies if side.device == "gpu" else [[core] for core in cores]
        alone = dataclasses.replace(side, cores=len(shares[0]), copies=1, worker=side_specs.Side.worker, xla="")
        # The other processes inherit the XLA flags from this process's environment.
        super().__init__([turns.Worker(alone, share) for share in shares])

    def run(self, batches: int) -> dict[str, Any]:
        share, n = math.ceil(batches / len(self.children)), len(self.children)
        window, answers = self.window(share)
        return window | {"batches": share * n, "each_seconds": [each["seconds"] for each in answers]}


def loopback_bytes() -> int | None:
    """The bytes that this machine has sent to itself over the network so far; None if the system does not say."""
    file = Path("/proc/net/dev")
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return next((int(line.partition(":")[2].split()[8]) for line in lines if line.strip().startswith("lo:")), None)
