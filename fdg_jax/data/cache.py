"""Caches decoded arrays on disk, so that only the first start has to decode.

There is one file for each prepared directory, in the user's cache directory (data directories are often read-only and
shared). It is used only if it was made from exactly these source files and its checksum is right. Otherwise it is made
again. No error here ends a run: it prints a sentence, and the images are decoded again.
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
from fdg_jax.durable import make_private, temporary_beside
from fdg_jax.machine.stderr import say

FORMAT = 1  # increase it if what is stored, or how images are decoded, changes


def cache_dir() -> Path:
    """The cache directory: $XDG_CACHE_HOME/fdg_jax, by default ~/.cache/fdg_jax."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "fdg_jax"


def cached(
    directory: Path, expected: Expected, make: Callable[[], Arrays], files: Iterable[Path] | None = None
) -> Arrays:
    """The arrays of a data set, from the cache or newly made.

    Arguments:
        directory: where the data set's files are.
        expected: what the data set must be.
        make: decodes the files; called if the cache does not have the arrays.
        files: the files that the arrays depend on, by default those in `directory`.

    Returns: the arrays.
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
    """A hash that changes if a file of the directory (or of `paths`) is added, removed, renamed or written."""
    files = []
    for path in list_directory(directory) if paths is None else paths:
        with contextlib.suppress(OSError):  # a dangling link, which `make` will report
            stat = path.stat()
            files.append((path.name, stat.st_size, stat.st_mtime_ns))
    return hashlib.sha256(repr((FORMAT, os.fspath(directory), expected, files)).encode()).hexdigest()


def checksum(arrays: Arrays) -> str:
    """A hash of dtype, shape and bytes of the arrays."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def load(path: Path, source: str) -> Arrays | None:
    """The arrays in a cache file; None if there is none, if it is damaged, or if its source files were others."""
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
    """Writes a cache file. It is renamed when it is complete, so that readers never see a part of it."""
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
        with contextlib.suppress(OSError):  # if it could not be written, it may be impossible to remove, too
            temporary.unlink(missing_ok=True)
