"""Temporary names for files that are renamed when they are complete, and folders that only their owner may write in."""

import os
import re
import shutil
import socket
import time
from pathlib import Path


def make_private(folder: Path) -> None:
    """Makes a folder, with missing ones above it, in which only its owner may write. Raises OSError."""
    for each in reversed((folder, *folder.parents)):
        if not each.is_dir():
            each.mkdir(mode=0o700, exist_ok=True)


def temporary_beside(path: Path) -> Path:
    """A new name in the same folder, under which to write before renaming to `path`.

    It also removes temporary files of this kind that killed processes have left there.
    """
    names = (f".{path.name}.*.tmp", f"..{path.name}.*.tmp.*.tmp")  # the second: of a temporary's own temporary
    for leftover in [found for name in names for found in path.parent.glob(name)]:
        try:
            if abandoned(leftover):
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        except OSError:
            pass  # somebody else's, or just gone
    return path.with_name(f".{path.name}.{host()}-{os.getpid()}-{time.time_ns()}.tmp")


def abandoned(leftover: Path) -> bool:
    """Whether the process that wrote a temporary file has ended.

    It has if it ran on this machine, does not exist and has not written for a minute; or, wherever it ran, if nothing
    has been written for a day.
    """
    if time.time() - leftover.stat().st_mtime > 24 * 3600:
        return True
    made = re.fullmatch(rf".*\.{re.escape(host())}-(\d+)-\d+\.tmp", leftover.name)
    files = [leftover, *leftover.rglob("*")] if leftover.is_dir() else [leftover]
    newest = max(file.stat().st_mtime for file in files)
    return made is not None and not alive(int(made[1])) and time.time() - newest > 60


def alive(process: int) -> bool:
    """Whether a process with that number exists on this machine."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's
        return True
    return True


def host() -> str:
    """The name of this machine, with characters that a file name may have."""
    return re.sub(r"[^A-Za-z0-9]", "_", socket.gethostname())[:40]
