"""Keeps decoded arrays on disk, so that only the first start pays for decoding.

One file per prepared directory, in the user's cache directory (data directories are often read-only and
shared). It may disappear or be damaged at any time: it is used only if it was made from exactly these
source files and its content still has the checksum it was written with, and otherwise made anew. Nothing
that goes wrong here ends a run; it only costs time, and says so.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from fdg_jax.data.directories import list_directory
from fdg_jax.data.prepared import Arrays, Expected
from fdg_jax.machine.stderr import say
from fdg_jax.storage.temporary_files import make_private, temporary_beside

FORMAT = 1  # to be raised when what is stored, or how images are decoded, changes


def cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "fdg_jax"


def cached(
    directory: Path, expected: Expected, make: Callable[[], Arrays], files: Iterable[Path] | None = None
) -> Arrays:
    """Returns the arrays made from the files in `directory`: from the cache, or by `make()`.

    files: all that the arrays depend on, where these lie deeper.
    """
    directory = directory.resolve()
    source = fingerprint(directory, expected, files)
    place = hashlib.sha256(os.fsencode(directory)).hexdigest()[:12]
    path = cache_dir() / f"{directory.parent.name}-{directory.name}-{place}.npz"
    arrays = load(path, source)
    if arrays is None:
        arrays = make()
        save(path, source, arrays)
    return arrays


def fingerprint(directory: Path, expected: Expected, paths: Iterable[Path] | None = None) -> str:
    """Changes whenever a file of the directory (or of `paths`) is added, removed, renamed, written to or replaced."""
    files = []
    for path in list_directory(directory) if paths is None else paths:
        with contextlib.suppress(OSError):  # a dangling link: `make` will say what is wrong with it
            stat = path.stat()
            files.append((path.name, stat.st_size, stat.st_mtime_ns))
    return hashlib.sha256(repr((FORMAT, os.fspath(directory), expected, files)).encode()).hexdigest()


def checksum(arrays: Arrays) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def load(path: Path, source: str) -> Arrays | None:
    """The arrays in a cache file, or None where there is none, it is of other source files, or is damaged."""
    try:
        with np.load(path, allow_pickle=False) as file:
            if str(file["source"]) != source:
                return None
            arrays = Arrays(*(file[name] for name in Arrays._fields))
            if str(file["checksum"]) == checksum(arrays):
                return arrays
        reason = "its checksum is wrong"
    except FileNotFoundError:
        return None
    except Exception as error:  # zipfile, zlib and numpy raise a dozen kinds for a damaged or unreadable file
        reason = f"{type(error).__name__}: {error}"
    say(f"the cache file {path} can't be used ({reason}); decoding again")
    return None


def save(path: Path, source: str, arrays: Arrays) -> None:
    """Writes the cache file under another name and renames it, so that no reader ever sees a part of one."""
    temporary = temporary_beside(path)
    try:
        make_private(path.parent)
        with open(temporary, "wb") as file:
            np.savez(file, source=np.array(source), checksum=np.array(checksum(arrays)), **arrays._asdict())
        temporary.replace(path)
    except OSError as error:
        say(
            f"the decoded images can't be kept in {path.parent} ({error.strerror or error}): the next start "
            f"will decode them again. XDG_CACHE_HOME chooses another place."
        )
    finally:
        with contextlib.suppress(OSError):  # it may be there, and may be impossible to remove, for one reason
            temporary.unlink(missing_ok=True)
