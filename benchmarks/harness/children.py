"""Child processes of benchmarks and experiments. They answer questions and end with this process
(fdg_jax.machine.child).

A question and its answer are a line of JSON each, on a process's standard input and output.
"""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fdg_jax.errors import BadInput
from fdg_jax.machine import child
from fdg_jax.machine.child import POLL_SECONDS, end

ROOT = Path(__file__).resolve().parents[2]


class ChildFailed(Exception):
    """A process ended with an error, or without an expected answer."""


class Child(child.Child):
    """A child process that answers questions. Arguments as for fdg_jax.machine.child.Child; it starts in the
    repository."""

    def __init__(self, words: Sequence[str], name: str = "", **options: Any):
        super().__init__(words, name, folder=ROOT, **options)

    def failure(self) -> ChildFailed:
        """The exception for a process that has ended too early, or with an error."""
        said = f"its last line: {child.last_line(self.log)}" if self.log else "its output is above"
        return ChildFailed(f"{self.name} ended with exit code {self.process.wait()}; {said}")

    def tell(self, what: Any) -> None:
        """Sends a question; `answer` waits for the reply."""
        assert self.process.stdin
        try:
            self.process.stdin.write(json.dumps(what) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # answer() raises the error

    def answer(self) -> Any:
        """The next answer. Raises ChildFailed if the process has ended, and BadInput if it has refused its input."""
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


def ask_all(children: Sequence[Child], what: Any) -> list[Any]:
    """Sends a question to all children at once. Returns their answers."""
    for one in children:
        one.tell(what)
    return [one.answer() for one in children]


def run(*words: str, **options: Any) -> str:
    """Runs a process to its end and returns its output ("" if it has a log). Arguments as for `Child`.

    Raises: ChildFailed. BadInput if the exit code is 2 and there is no log.
    """
    with Child(words, **options) as one:
        said = one.process.communicate()[0] or ""
        if one.process.returncode == 2 and not one.log:
            raise BadInput(f"{one.name} refused its options; its message is above.")
        if one.process.returncode:
            raise one.failure()
    return said


def run_all(wanted: Sequence[Mapping[str, Any]]) -> None:
    """Runs processes with logs side by side to their ends. Raises ChildFailed for the first process that failed."""
    going: list[Child] = []
    try:
        going += [Child(**each) for each in wanted]
        while any(one.running for one in going):
            time.sleep(POLL_SECONDS)
    finally:
        end(going)
    for one in going:
        if one.process.returncode:
            raise one.failure()
