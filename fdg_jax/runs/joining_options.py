"""The flags that put a process among the others of its training. They are no options of the run: another start of it
may have other ones, and none at all."""

import dataclasses
import math

from fdg_jax.errors import BadInput
from fdg_jax.runs.options import Options

AUTO = "auto"
HELP = {
    "coordinator": "Where process 0 listens, an IPv4 address and a port such as 10.0.0.1:1234. auto: SLURM, Open MPI "
    "or Kubernetes say that, and which process this is.",
    "processes": "How many processes train together, 1 to K. Neighbouring stages share a process.",
    "process_id": "The number of this process, from 0. Process 0 writes the run directory and prints.",
    "address": "The IPv4 address at which the other processes reach this one.",
    "peer_timeout": "How long a stage of another process is waited for, four times as long while programs compile. It "
    "is named on stderr after 10 s.",
}
METAVARS = {
    "coordinator": "HOST:PORT",
    "processes": "N",
    "process_id": "I",
    "address": "IP",
    "peer_timeout": "SECONDS",
}
SHOWN = {"address": "the one that leads to the coordinator"}
ABOUT = (
    "The stages in several processes, on one host or on several; python -m fdg_jax.launch starts them on one. Nothing "
    "that they exchange is encrypted or authenticated, so use a private network."
)


@dataclasses.dataclass(frozen=True)
class Joining:
    """The flags by their names, as given or by default. The default is a training in one process."""

    coordinator: str | None = None
    processes: int | None = None
    process_id: int | None = None
    address: str | None = None
    peer_timeout: float = 300.0

    @property
    def wanted(self) -> bool:
        """Whether there are other processes to join."""
        return self.coordinator is not None


FIELDS = {field.name: field for field in dataclasses.fields(Joining)}


def check(joining: Joining, given: frozenset[str], options: Options) -> None:
    """Raises BadInput for flags that contradict one another, or options that need a single process.

    given: the names of those on the command line.
    """
    j = joining
    if not j.wanted:
        if given:
            fact = f"--{min(given).replace('_', '-')} is for a training in several processes"
            raise BadInput(f"{fact}, and --coordinator is not given. Add it, or use python -m fdg_jax.launch.")
        return
    numbers = {"processes", "process_id"}
    if j.coordinator == AUTO:
        if named := sorted(numbers & given):
            flag = f"--{named[0].replace('_', '-')}"
            raise BadInput(f"--coordinator auto: {flag} comes from the scheduler. Leave it out, or give HOST:PORT.")
    else:
        if missing := sorted(numbers - given):
            flag = f"--{missing[0].replace('_', '-')}"
            raise BadInput(f"--coordinator {j.coordinator} needs {flag}, too. python -m fdg_jax.launch adds them all.")
        if not options.resume:  # else K is in config.json
            check_numbers(j.process_id or 0, j.processes or 0, options.K)
    if not (j.peer_timeout > 0 and math.isfinite(j.peer_timeout)):
        raise BadInput(f"--peer-timeout {j.peer_timeout:g}: give a positive number of seconds.")
    check_engine(options)


def check_engine(options: Options) -> None:
    """Raises BadInput for an engine that several processes do not have."""
    if options.engine == "delay-line":
        raise BadInput("--engine delay-line trains in one process. Use --engine pipeline, or leave --coordinator out.")


def check_numbers(process: int, processes: int, K: int) -> None:
    """Raises BadInput unless there is a stage for each process."""
    if not 1 <= processes <= K:
        raise BadInput(f"--processes {processes}: each process needs a stage, and there are K={K}. Use 1 to {K}.")
    if not 0 <= process < processes:
        raise BadInput(f"--process-id {process}: {processes} processes are counted from 0 to {processes - 1}.")
