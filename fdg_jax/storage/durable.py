"""Writes files so that they survive a power cut. A disk keeps only what was flushed to it (fsync).

A new file needs two flushes: one of the file, for its content, and one of its folder, for its name. A rename and a new
folder are changes of the folder that they happen in, too.
"""

import contextlib
import errno
import os
from pathlib import Path

# Errors that mean that a folder cannot be flushed at all: on some network file systems, on Windows, and in folders that
# we may use but not list. Nothing can be done there, so they are ignored.
FOLDERS_CANNOT = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF, errno.EACCES, errno.EPERM)


def flush_file(path: Path) -> None:
    """Flushes the content of a file. Raises OSError if the disk refuses."""
    handle = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def flush_folder(path: Path) -> None:
    """Flushes the names in a folder, not the files' content. Raises OSError if the disk refuses."""
    try:
        flush_file(path)
    except OSError as error:
        if error.errno not in FOLDERS_CANNOT:
            raise


def flush_tree(folder: Path) -> None:
    """Flushes a folder and everything below it, from the inside outwards. Raises OSError."""
    for place, _, names in os.walk(folder, topdown=False, onerror=reraise):
        for name in names:
            flush_file(Path(place, name))
        flush_folder(Path(place))


def reraise(error: OSError) -> None:
    """Raises an error of os.walk, which otherwise skips folders that it cannot list."""
    raise error


def make_folder(path: Path) -> None:
    """Makes a folder, with missing ones above it, and flushes their names. Raises OSError."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in reversed(missing):
        flush_folder(folder.parent)


def is_same_folder(path: Path, before: os.stat_result) -> bool:
    """Whether a path still has the folder of which `before` is os.stat: not deleted, renamed or replaced. False where
    that cannot be seen."""
    try:
        return os.path.samestat(os.stat(path), before)
    except OSError:
        return False


def rename(old: Path, new: Path) -> None:
    """Renames within a folder and flushes it. `new` is replaced if it is a file. Raises OSError."""
    old.replace(new)
    flush_folder(new.parent)


def put_back(aside: Path, path: Path) -> None:
    """Renames `aside` to its old name `path`, unless something has that name by now."""
    if aside.exists() and not path.exists():
        rename(aside, path)


def write(path: Path, content: bytes) -> None:
    """Writes a file completely or not at all: under a temporary name, which is flushed and then renamed.

    Arguments:
        path: the file; it is replaced if it exists.
        content: its bytes.

    Raises:
        OSError: it could not be written. The temporary file has been removed.
    """
    beside = path.with_name(path.name + ".part")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        rename(beside, path)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise


def is_disk_full(error: BaseException) -> bool:
    """Whether an error says that a disk, or a user's share of it, is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
