"""The one supervisor of benchmarks and experiments: processes that end with this one, and that can be asked.

Every process is started through `fdg_jax.machine.leash`, so that the kernel sends it a signal when this process is
gone, by kill -9 too (Linux). A question and its answer are a line of JSON each, on its standard input and output.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from fdg_jax.errors import BadInput
from fdg_jax.machine import leash
from fdg_jax.machine.cores import pinned

ROOT = Path(__file__).resolve().parents[2]
POLL_SECONDS = 0.1


class ChildFailed(Exception):
    """A process ended with an error, or without the answer that it owed."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Child:
    """A process. As a context, it is killed at the end.

    Arguments:
        words: for Python, e.g. ("-m", "a.module").
        name: what messages call it.
        env: its environment; None is this one's.
        cores: those that it is pinned to, for all its threads; none pins nothing.
        before: what comes in front of its command, e.g. to start it on another host.
        interpreter: the Python that runs it; "" is this one.
        log: the file to which its output is added; None: its stdout is read by `answer`, its stderr is ours.
        answers: whether `answer` reads its stdout although there is a log.
        stop: the signal that ends it when this process is gone.
    """

    def __init__(
        self, words: Sequence[str], name: str = "", *, env: Mapping[str, str] | None = None,
        cores: Collection[int] = (), before: Sequence[str] = (), interpreter: str = "", log: Path | None = None,
        answers: bool = False, stop: int = signal.SIGKILL,
    ):  # fmt: skip
        self.name, self.log, self.stop = name or " ".join(words[:2]), log, stop
        command = [*before, *leash.command(stop, interpreter), *words]
        if log:
            log.parent.mkdir(parents=True, exist_ok=True)
        with open(log or os.devnull, "a", encoding="utf-8") as file, pinned(cores):
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=None if env is None else dict(env), text=True, start_new_session=True,
                stdin=subprocess.DEVNULL if log else subprocess.PIPE,
                stdout=file if log and not answers else subprocess.PIPE, stderr=file if log else None,
            )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        end([self])

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def failure(self) -> ChildFailed:
        """What to raise for a process that has ended too early, or with an error."""
        said = f"it said last: {last_line(self.log)}" if self.log else "what it said is above"
        return ChildFailed(f"{self.name} ended with exit code {self.process.wait()}; {said}")

    def tell(self, what: Any) -> None:
        """Sends a question; `answer` waits for the reply."""
        assert self.process.stdin
        try:
            self.process.stdin.write(json.dumps(what) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # answer() says what happened

    def answer(self) -> Any:
        """The next answer. Raises ChildFailed if the process has ended, BadInput if it refuses what it was given."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise self.failure()
        reply = json.loads(line)
        if isinstance(reply, dict) and "refused" in reply:
            raise BadInput(f"{self.name}: {reply['refused']}")
        return reply

    def ask(self, what: Any) -> Any:
        self.tell(what)
        return self.answer()


def last_line(log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "nothing"


def ask_all(children: Sequence[Child], what: Any) -> list[Any]:
    """Asks all of them at once. Returns their answers."""
    for child in children:
        child.tell(what)
    return [child.answer() for child in children]


def end(children: Sequence[Child], seconds: float = 0.0) -> None:
    """Stops those that still run: by their own signal, and after so many seconds by SIGKILL."""
    running = [child for child in children if child.running]
    for child in running:
        child.process.send_signal(child.stop)
    until = time.monotonic() + seconds
    while any(child.running for child in running) and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
    for child in children:
        child.process.kill()
        child.process.wait()
        for pipe in (child.process.stdin, child.process.stdout):
            if pipe:
                with contextlib.suppress(BrokenPipeError):  # a question that nobody has read
                    pipe.close()


def run(*words: str, **options: Any) -> str:
    """Runs a process to its end; returns what it printed ("" if that went to a log). Arguments as those of `Child`.

    Raises: ChildFailed. BadInput where its exit code is 2 and it has no log.
    """
    with Child(words, **options) as child:
        said = child.process.communicate()[0] or ""
        if child.process.returncode == 2 and not child.log:
            raise BadInput(f"{child.name} refused what it was given; what it said is above.")
        if child.process.returncode:
            raise child.failure()
    return said


def run_all(wanted: Sequence[Mapping[str, Any]]) -> None:
    """Runs processes with logs side by side to their ends. Raises ChildFailed for the first that failed."""
    going: list[Child] = []
    try:
        going += [Child(**each) for each in wanted]
        while any(child.running for child in going):
            time.sleep(POLL_SECONDS)
    finally:
        end(going)
    for child in going:
        if child.process.returncode:
            raise child.failure()
