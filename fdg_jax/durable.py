"""Writes files so that they survive a power cut. Only flushed data (fsync) is sure to be on the disk.

A new file needs two flushes: one of the file, for its content, and one of its folder, for its name. After a rename, or
after making a folder, the folder that contains the name must be flushed, too.
"""

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

# Errors that mean that a folder cannot be flushed at all: on some network file systems, on Windows, and for folders
# that this user may not list. They are ignored, because nothing can be done about them.
FOLDERS_CANNOT = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF, errno.EACCES, errno.EPERM)

ABANDONED_SECONDS = 24 * 3600  # a temporary file that has not changed for this long belongs to no running process


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
    for entry in os.scandir(folder):
        (flush_tree if entry.is_dir() else flush_file)(Path(entry.path))
    flush_folder(folder)


def make_folder(path: Path) -> None:
    """Makes a folder and its missing parents, and flushes their names. Raises OSError."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in reversed(missing):
        flush_folder(folder.parent)


def make_private(folder: Path) -> None:
    """Makes a folder and its missing parents, all with access for their owner only. Raises OSError."""
    for each in reversed((folder, *folder.parents)):
        if not each.is_dir():
            each.mkdir(mode=0o700, exist_ok=True)


def is_same_folder(path: Path, before: os.stat_result) -> bool:
    """Whether the folder at a path is still the folder that `before` (an earlier os.stat) describes: not deleted,
    renamed or replaced. False if os.stat fails."""
    try:
        return os.path.samestat(os.stat(path), before)
    except OSError:
        return False


def rename(old: Path, new: Path) -> None:
    """Renames a file or folder within its folder, and flushes that folder. Replaces `new` if it is a file. Raises
    OSError."""
    old.replace(new)
    flush_folder(new.parent)


def write(path: Path, content: bytes) -> None:
    """Writes a file atomically: writes and flushes a temporary file, then renames it.

    Arguments:
        path: the file; it is replaced if it exists.
        content: its bytes.

    Raises:
        OSError: the file could not be written. The temporary file has been removed.
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
    """Whether an error says that a disk, or a user's quota, is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A context for writing a cache file. It yields a temporary path in the same folder, which is renamed to `path` at
    the end, or removed after an exception.

    It also removes temporary files of `path` that are older than a day: killed processes have left them.
    """
    for left in path.parent.glob(f".{path.name}.*.tmp"):
        with contextlib.suppress(OSError):  # the file belongs to another user, or another process has just removed it
            if time.time() - left.stat().st_mtime > ABANDONED_SECONDS:
                left.unlink()
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{time.time_ns()}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):  # if writing fails, removing may fail, too
            temporary.unlink(missing_ok=True)
