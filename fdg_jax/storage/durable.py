"""What a disk still has after the power fails: only what was flushed to it (fsync).

A file needs two flushes. The first is its own, for its content. The second is that of the folder that it is in, for its
name: a new file, a rename and a new folder are all changes of the folder that they happen in.
"""

import contextlib
import errno
import os
from pathlib import Path

# What systems answer where folders cannot be flushed at all: some network file systems, Windows, and folders that we
# may use and not list. Nothing can be done there, so it counts as done.
FOLDERS_CANNOT = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF, errno.EACCES, errno.EPERM)


def flush_file(path: Path) -> None:
    """The content of a file. Raises OSError where the disk did not take it."""
    handle = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def flush_folder(path: Path) -> None:
    """The names in a folder, and not what is in the files. Raises OSError where the disk did not take them."""
    try:
        flush_file(path)
    except OSError as error:
        if error.errno not in FOLDERS_CANNOT:
            raise


def flush_tree(folder: Path) -> None:
    """All files and folders below a folder, and itself; what is inside comes first."""
    for place, _, names in os.walk(folder, topdown=False, onerror=reraise):
        for name in names:
            flush_file(Path(place, name))
        flush_folder(Path(place))


def reraise(error: OSError) -> None:
    """os.walk passes over a folder that it cannot list, unless it is told otherwise."""
    raise error


def make_folder(path: Path) -> None:
    """Makes a folder and those above it that are missing, and flushes their names."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in reversed(missing):
        flush_folder(folder.parent)


def rename(old: Path, new: Path) -> None:
    """Within one folder. `new` is replaced if it is a file."""
    old.replace(new)
    flush_folder(new.parent)


def put_back(aside: Path, path: Path) -> None:
    """Gives a file or folder its name again, if nothing else has it by now."""
    if aside.exists() and not path.exists():
        rename(aside, path)


def write(path: Path, content: bytes) -> None:
    """A file whole or not at all, whatever happens: it is written beside, flushed, and then renamed. Where that fails,
    nothing is left beside it."""
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
