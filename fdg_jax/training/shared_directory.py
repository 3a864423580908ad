"""Checks that all processes of a training see the same run directory."""

import os
import secrets
import time
from contextlib import suppress
from pathlib import Path

from fdg_jax.errors import BadInput, reason
from fdg_jax.training.peers import Peers

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

    token = peers.told(leave)

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
        peers.each(look)
    finally:
        if peers.first:
            seen.unlink(missing_ok=True)
