"""The processes of one training: how they join, and what they decide together.

Every process runs the same training loop over its own stages. All processes see the same losses, so most of their
decisions are the same. Some facts are known to one process only: a signal, a checkpoint that cannot be written, a
missing file. These have to reach all processes. If such a fact changes what is computed, all processes act on it after
the same batch.
"""

import contextlib
import json
import math
import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from concurrent import futures
from pathlib import Path
from threading import Condition, Thread
from typing import Any, TypeVar

import jax
from jax.errors import JaxRuntimeError

from fdg_jax.checkpoint.run_checkpoints import Processes
from fdg_jax.checks.options import check_numbers, replicas
from fdg_jax.config import FIELDS, Config
from fdg_jax.errors import BadInput, reason
from fdg_jax.machine import facts, jax_settings
from fdg_jax.machine.signals import Stopped
from fdg_jax.options.common import AUTO, Joining
from fdg_jax.options.fields import spelled
from fdg_jax.runs import reading, run_files
from fdg_jax.transport import joining as transport
from fdg_jax.transport.joining import Absent
from fdg_jax.transport.notices import Notices, first_difference

Answer = TypeVar("Answer")

LATE_SECONDS = 10.0  # after which a late process is reported
KEEPER_SECONDS = 1.0  # time for process 0, which keeps the notices, to answer
END_SECONDS = 5.0  # time for the other processes to end, too
FIRST_ENDS_SECONDS = 60.0  # time for process 0 to end, which still writes the report
SHARED_SECONDS = 60.0  # for another host to see the run directory: network file systems cache that a file is missing
current: list["JoinedPeers"] = []  # the processes that this one has joined
OF_A_PROCESS = ("run_dir", "data_dir")  # options that may differ between hosts: paths


class Elsewhere(BadInput):
    """Another process has refused the input and prints the error itself."""


class Silent(Exception):
    """Another process has not answered in time: the process or the connection is gone."""


class Peers(Processes):
    """The `Processes` of a training that runs in one process. `JoinedPeers` is for several.

    seconds: how long to wait for another process.
    """

    seconds = math.inf
    lost = False  # whether this process must end alone, for a reason unknown to the others

    @property
    def first(self) -> bool:
        """Whether this is process 0, which writes the run directory and prints."""
        return self.process == 0

    def from_zero(self, make: Callable[[], Any]) -> Any:
        """Calls `make` in process 0 and returns its JSON value in all processes.

        Raises: BadInput or Stopped in every process, if `make` raises it.
        """
        return self.all_gather(self.on_all(lambda: make() if self.first else None))[0]

    def on_all(self, make: Callable[[], Any]) -> Any:
        """Calls `make` in every process, and waits for all.

        Returns: this process's result.
        Raises: BadInput or Stopped in every process, if `make` raises it in any process.
        """
        made = ended = None
        try:
            made = make()
        except (BadInput, Stopped) as error:
            ended = error
        said = self.all_gather(ended and (ended.number if isinstance(ended, Stopped) else str(ended)))
        where = next((process for process, fact in enumerate(said) if fact is not None), None)
        if where is None:
            return made
        if where == self.process and ended:
            raise ended
        fact = said[where]
        raise Elsewhere(fact) if isinstance(fact, str) else Stopped(fact)

    def compare(self, settings: Mapping[str, Any]) -> None:
        """Raises BadInput in every process if the settings (name -> value) of any process differ from those of process
        0."""
        said = self.all_gather({name: str(value) for name, value in settings.items()})

        def check() -> None:
            if difference := first_difference(said):
                raise BadInput(f"{difference} Start all with the same command line, data, code and versions.")

        self.from_zero(check)

    def on_one_core(self) -> bool | None:
        """Whether process 0 may use one core only. All processes then act as on one core, since the last bits depend on
        it. None for a single process."""
        return None if self.processes == 1 else self.from_zero(lambda: facts.usable_cores() == 1)

    def agree(self, **facts: Any) -> Mapping[str, Any]:
        """Called between two batches: returns the events in any process on which all have to act now.

        Arguments:
            facts: the events in this process, as JSON values; None or False: nothing has happened.

        Returns: the facts of all processes; {} if there is nothing to act on yet.
        """
        return {name: value for name, value in facts.items() if value}


class JoinedPeers(Peers):
    """A training in several processes that have joined (fdg_jax.transport.joining).

    `agree` never waits for a batch of another process. A process with an event asks for a meeting. A thread in each
    process then sends how often its process has called `agree`. All processes act on the event at the call after the
    largest of these counts.

    Arguments:
        process, processes: as in `Peers`.
        seconds: how long to wait for another process.
        notices: the message board of the processes.
    """

    def __init__(self, process: int, processes: int, seconds: float, notices: Notices):
        self.process, self.processes, self.seconds, self.notices = process, processes, seconds, notices
        self.shared = 0  # exchanges so far
        self.silence = ""  # the message about a process that does not answer
        self.condition = Condition()
        self.calls, self.meetings = 0, 0
        self.mine: dict[str, Any] = {}
        self.asked = self.deciding = False
        self.agreed: tuple[int, dict[str, Any]] | None = None  # (call at which all meet, the facts)
        Thread(target=self.listen, name="meetings", daemon=True).start()

    def all_gather(self, value: Any, name: str = "") -> list[Any]:
        """As `Peers.all_gather`. Raises Silent where another process does not answer."""
        if not name:
            self.shared, name = self.shared + 1, f"shared {self.shared}"
        self.leave(f"{name}/{self.process}", json.dumps(value))
        return [json.loads(self.wait(name, process)) for process in range(self.processes)]

    def leave(self, name: str, text: str) -> None:
        """Posts a notice. Process 0 keeps all notices, so the call waits for process 0."""
        if self.process == 0:
            self.notices.put(name, text)
            return
        left: futures.Future[None] = futures.Future()

        def put() -> None:
            try:
                left.set_result(self.notices.put(name, text))
            except Exception as error:
                left.set_exception(error)

        Thread(target=put, name="notice", daemon=True).start()
        self.answer(lambda seconds: futures.wait([left], seconds).done or None, lambda: 0)
        left.result()

    def wait(self, name: str, process: int) -> str:
        """Waits for the notice that a process posts under a name, and returns it. This process must have posted its own
        notice under the same name."""

        def who() -> int:
            return process if self.notices.wait(f"{name}/{self.process}", KEEPER_SECONDS) is not None else 0

        return self.answer(lambda seconds: self.notices.wait(f"{name}/{process}", seconds), who)

    def answer(self, ask: Callable[[float], Answer | None], who: Callable[[], int]) -> Answer:
        """Waits for another process's answer, and reports if the answer is late.

        Arguments:
            ask: ask(seconds) -> the answer; None if no answer came in this time.
            who: () -> the number of the awaited process; 0 if even this process's own notice cannot be read.
        """
        began, waited = time.monotonic(), 0.0
        while True:
            seconds = 0.0 if self.silence else max(0.0, min(LATE_SECONDS, self.seconds - waited))
            if (answer := ask(seconds)) is not None:
                return answer
            waited = time.monotonic() - began
            if waited >= self.seconds and not self.silence:
                self.silence = (
                    f"process {who()} has not answered for {waited:,.0f} s. It has ended, or its connection is cut."
                )
            if self.silence:  # perhaps found by another thread: no second wait for a process that is gone
                raise Silent(self.silence)
            fact = f"process {self.process} has waited {waited:,.0f} s for process {who()}"
            print(f"WARNING: {fact}.", file=sys.stderr, flush=True)

    def agree(self, **found: Any) -> Mapping[str, Any]:
        """As `Peers.agree`."""
        self.mine = {name: value for name, value in found.items() if value}
        with self.condition:
            if self.mine and not self.asked:
                self.asked = True
                self.leave(f"meeting {self.meetings}", "asked for")
            while self.deciding:
                self.condition.wait()
            self.calls += 1
            if self.agreed is None or self.agreed[0] != self.calls:
                return {}
            found, self.agreed, self.asked = self.agreed[1], None, False
            self.meetings += 1
            self.condition.notify_all()
            return found

    def listen(self) -> None:
        """The thread: agrees with the threads of the other processes on the next meeting."""
        with contextlib.suppress(JaxRuntimeError, Silent):  # the others are gone; the training notices this itself
            while True:
                self.decide(self.meetings)
        with self.condition:
            self.deciding = False
            self.condition.notify_all()

    def decide(self, number: int) -> None:
        """Waits for a request for meeting `number`. If a request comes, settles the meeting and waits until it is
        over."""
        if self.notices.wait(f"meeting {number}", LATE_SECONDS) is not None:
            with self.condition:
                self.deciding, calls, mine = True, self.calls, self.mine
            said = self.all_gather([calls, mine], f"meeting {number} of")
            with self.condition:
                found = {name: value for _, facts_of_one in reversed(said) for name, value in facts_of_one.items()}
                self.agreed = max(calls for calls, _ in said) + 1, found
                self.deciding = False
                self.condition.notify_all()
                self.condition.wait_for(lambda: self.meetings > number)


def join(joining: Joining, options: Config, given: frozenset[str]) -> Peers:
    """Joins the other processes of the training, if there are any, and checks that all were started alike.

    Arguments:
        joining: how to find the others. options: those of this process. given: the names of the options on the command
            line.

    Raises:
        BadInput: the processes cannot be joined, or were started differently. Silent: a process does not join in time.
    """
    if not joining.wanted:
        return Peers()
    config, sizes = Path(options.run_dir or "") / run_files.CONFIG, vars(options)
    if options.resume and config.is_file():
        sizes = {**reading.config(config.parent), **{name: sizes[name] for name in given}}
    K = sizes["K"]
    R = [r * sizes.get("tensor", 1) for r in replicas(sizes.get("replicas", 1), K)]
    coordinator, process, processes = joining.coordinator or "", joining.process_id, joining.processes
    if detect := coordinator == AUTO:
        coordinator, processes, process = transport.detected()
    assert process is not None and processes is not None
    check_numbers(process, processes, K)
    if processes == 1:
        return Peers()
    try:
        transport.join_processes(coordinator, process, processes, K, joining.address, detect, R)
    except Absent as missing:
        raise Silent(f"after {transport.JOINING_SECONDS} s, {missing} has not joined.") from None
    peers = JoinedPeers(process, processes, joining.peer_timeout, Notices())
    current.append(peers)
    if process > 0:  # only process 0 prints
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    peers.compare(settings(options, given))
    return peers


def settings(options: Config, given: frozenset[str]) -> dict[str, Any]:
    """The settings (name -> value) that all processes must share, checked before any process loads data."""
    asked = {spelled(name): getattr(options, name) for name in FIELDS if name not in OF_A_PROCESS}
    versions = {name: run_files.version(name) for name in run_files.LIBRARIES}
    code = {"git commit": run_files.git_commit(), "XLA_FLAGS": os.environ.get("XLA_FLAGS")}
    flags = {"the flags": " ".join(sorted(map(spelled, given - set(OF_A_PROCESS)))) or "none"}
    return {**versions, **code, **asked, **flags, **jax_settings.current()}


def check_shared(path: Path, peers: Peers) -> None:
    """Raises BadInput where another process does not see the run directory that process 0 has claimed."""
    seen = path / ".seen-by-all"

    def leave() -> str:
        token = secrets.token_hex(8)
        try:
            seen.write_text(token, encoding="utf-8")
        except OSError as error:
            raise BadInput(f"run directory {path} cannot be written: {reason(error)}. Use another --run-dir.") from None
        return token

    token = peers.from_zero(leave)

    def is_seen() -> bool:
        with contextlib.suppress(OSError):
            os.listdir(path.parent)  # makes a network file system look again
            return seen.read_text(encoding="utf-8") == token
        return False

    def look() -> None:
        until = time.monotonic() + SHARED_SECONDS
        while not is_seen() and time.monotonic() < until:
            time.sleep(1.0)
        if not is_seen():
            fact = f"--run-dir {path} is not the same folder in processes 0 and {peers.process}"
            raise BadInput(f"{fact}. Give the absolute path of a folder that all hosts share.")

    try:
        peers.on_all(look)
    finally:
        if peers.first:
            seen.unlink(missing_ok=True)


def leave(code: int) -> None:
    """Ends this process at once, since JAX's own shutdown waits long for lost processes. If all processes end together,
    it first waits for the others. Otherwise some would report that the coordinator has failed."""
    if current:
        ending = Thread(target=take_leave, args=(current[0],), daemon=True)
        ending.start()
        ending.join(FIRST_ENDS_SECONDS + 2 * END_SECONDS)
        os._exit(code)


def take_leave(peers: JoinedPeers) -> None:
    """Waits for the others to end, and shuts the coordination service down."""
    if peers.lost:
        return
    with contextlib.suppress(JaxRuntimeError):
        peers.notices.put(f"ends/{peers.process}", "")
        seconds = [FIRST_ENDS_SECONDS, *[END_SECONDS] * (peers.processes - 1)]
        if all(peers.notices.wait(f"ends/{process}", seconds[process]) is not None for process in range(len(seconds))):
            jax.distributed.shutdown()
