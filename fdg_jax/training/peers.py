"""What the processes of one training decide together. A training in one process has nobody to ask.

Every process runs the same training loop over its own stages. Whatever it sees of losses is the same everywhere, so
most decisions are too. The others begin in one process: a signal, a checkpoint that cannot be written, a file that is
not there. Such a fact has to reach all of them, and for whatever changes what is computed they act on it after the same
batch.
"""

import math
import os
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fdg_jax.errors import BadInput, reason
from fdg_jax.machine.signals import Stopped


class Elsewhere(BadInput):
    """Another process refuses something, and says so itself."""


class Silent(Exception):
    """Another process has not answered in time, so it is gone, or the way to it is."""


class Peers:
    """A training in one process. One in several has `JoinedPeers` (fdg_jax.training.joined).

    process: the number of this process, from 0. processes: how many there are. seconds: for which another one is waited
        for.
    """

    process, processes, seconds = 0, 1, math.inf
    lost = False  # whether this process has to end alone, because of what the others do not know

    @property
    def first(self) -> bool:
        """Whether this is process 0, which writes the run directory and talks to the terminal."""
        return self.process == 0

    def all_gather(self, value: Any, name: str = "") -> list[Any]:
        """Tells all processes a value that JSON can hold.

        Arguments:
            value: this process's.
            name: of this exchange, if a thread makes it; all others are counted.

        Returns: the values of the processes 0, 1, ..., for which it waits.
        """
        return [value]

    def from_zero(self, make: Callable[[], Any]) -> Any:
        """Has process 0 make a value that JSON can hold, and tells it to all.

        Raises: BadInput or Stopped in every process, if making it does.
        """
        return self.all_gather(self.on_all(lambda: make() if self.first else None))[0]

    def on_all(self, make: Callable[[], Any]) -> Any:
        """Has every process make something of its own, and waits for all.

        Returns: what this process has made.
        Raises: BadInput or Stopped, in every process, if making it raises that in one of them.
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
        """Raises BadInput in every process if one of them has other settings, by name, than process 0."""

    def on_one_core(self) -> bool | None:
        """Whether each of several processes computes on one core, which they do alike; None for one process."""
        return None

    def agree(self, **facts: Any) -> Mapping[str, Any]:
        """Called between two batches: learns whether something has happened anywhere that all have to act on now.

        Arguments:
            facts: what has happened here, in JSON's values; None or False: nothing.

        Returns: the facts of all processes; {} if there is nothing to act on yet.
        """
        return {name: value for name, value in facts.items() if value}


SHARED_SECONDS = 60.0  # for another host to see the run directory: network file systems remember what was not there


def check_shared(path: Path, peers: Peers, flag: str) -> None:
    """Raises BadInput where another process does not see the run directory that process 0 has claimed for a flag."""
    seen = path / ".seen-by-all"

    def leave() -> str:
        token = secrets.token_hex(8)
        try:
            seen.write_text(token, encoding="utf-8")
        except OSError as error:
            raise BadInput(f"run directory {path} cannot be written: {reason(error)}. Choose another one.") from None
        return token

    token = peers.from_zero(leave)

    def is_seen() -> bool:
        with suppress(OSError):
            os.listdir(path.parent)  # makes a network file system look again
            return seen.read_text(encoding="utf-8") == token
        return False

    def look() -> None:
        until = time.monotonic() + SHARED_SECONDS
        while not is_seen() and time.monotonic() < until:
            time.sleep(1.0)
        if not is_seen():
            fact = f"{flag} {path} is not the same folder in processes 0 and {peers.process}"
            raise BadInput(f"{fact}. Give one that all of their hosts share, with its whole path.")

    try:
        peers.on_all(look)
    finally:
        if peers.first:
            seen.unlink(missing_ok=True)
