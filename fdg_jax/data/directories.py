"""Where prepared data sets lie: TFDS's layout `<data directory>/<name>/<version>/`, looked at carefully.

Every way in which a directory can be wrong (missing, a file, unreadable) is told apart here and named.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import time
from pathlib import Path

from fdg_jax.errors import BadInput


def default_data_dir() -> Path:
    """Where TFDS itself keeps data sets."""
    return Path(os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser()


def find(name: str, data_dir: Path) -> Path | None:
    """The newest prepared version of `name` in `data_dir`, or None if there is none."""
    versions = [path for path in list_directory(data_dir / name, missing_ok=True)
                if re.fullmatch(r"\d+\.\d+\.\d+", path.name) and list_directory(path)]  # fmt: skip
    return max(versions, key=lambda path: [int(part) for part in path.name.split(".")], default=None)


def list_directory(path: Path, missing_ok: bool = False) -> list[Path]:
    """The sorted entries of a directory; [] if it isn't there and may be missing."""
    try:
        return sorted(path.iterdir())
    except FileNotFoundError:
        if missing_ok:
            return []
        raise BadInput(f"the directory {path} doesn't exist.") from None
    except NotADirectoryError:
        raise BadInput(f"{path} is a file where a directory is needed.") from None
    except OSError as error:
        raise BadInput(f"the directory {path} can't be read: {error.strerror}.") from None


def make_private(folder: Path) -> None:
    """Makes a folder, and what is missing above it, so that only its owner may write there. Raises OSError."""
    for each in reversed((folder, *folder.parents)):
        if not each.is_dir():
            each.mkdir(mode=0o700, exist_ok=True)


def temporary_beside(path: Path) -> Path:
    """A new name in the same directory, to write under before renaming to `path`.

    Also removes what killed processes left there under such names.
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
    """Whether the process that wrote under such a name has ended: it ran on this machine, is not there and has written
    nothing for a minute; or nothing was written for a day, wherever it ran."""
    if time.time() - leftover.stat().st_mtime > 24 * 3600:
        return True
    made = re.fullmatch(rf".*\.{re.escape(host())}-(\d+)-\d+\.tmp", leftover.name)
    files = [leftover, *leftover.rglob("*")] if leftover.is_dir() else [leftover]
    newest = max(file.stat().st_mtime for file in files)
    return made is not None and not alive(int(made[1])) and time.time() - newest > 60


def alive(process: int) -> bool:
    """Whether there is a process of that number on this machine."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's
        return True
    return True


def host() -> str:
    """The name of this machine, as part of a file name."""
    return re.sub(r"[^A-Za-z0-9]", "_", socket.gethostname())[:40]
