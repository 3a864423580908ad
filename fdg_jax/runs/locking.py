"""Makes, checks and locks the run directory before any long work. Only one process at a time holds it."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from fdg_jax import durable
from fdg_jax.errors import BadInput, Unreadable
from fdg_jax.runs import reading
from fdg_jax.runs.options import Options, Resume
from fdg_jax.runs.run_files import CHECKPOINTS, CONFIG, METRICS, SUMMARY, there

# Bytes: what file systems and Linux allow, and what the longest path of a checkpoint's file adds (some of it by Orbax).
LONGEST_PART, LONGEST_PATH, LONGEST_BELOW = 255, 4095, 200
ATTEMPTS = 100  # to make a directory that other processes keep taking away


def default_path(options: Options) -> Path:
    """runs/<time>-<method>-<model>-K<K>, with a number behind it where two runs start in the same second."""
    stem = f"{datetime.now():%Y%m%d-%H%M%S}-{options.method}-{options.model}-K{options.K}".replace(os.sep, "-")
    path, n = Path("runs") / stem, 1
    while path.exists():
        n += 1
        path = Path("runs") / f"{stem}-{n}"
    return path


def holds_run(path: Path) -> bool:
    return any(there(path / name) for name in (CONFIG, METRICS, SUMMARY, CHECKPOINTS))


def resumes(path: Path) -> bool:
    """What --resume auto means for a directory: whether there is a run to go on with. Raises BadInput where there is
    something that is neither a run nor the beginning of one."""
    if there(path / CONFIG):
        try:
            reading.config(path)
        except Unreadable:  # nothing may be begun in the place of what may be there
            raise
        except BadInput:  # cut off while it was made, by a power cut, say; with results, somebody damaged it
            return holds_results(path)
        return True
    left = [name for name in (METRICS, SUMMARY, CHECKPOINTS) if there(path / name)]
    if left:
        fact = f"--resume auto: {path} has {' and '.join(left)} and no {CONFIG}, so it cannot be gone on with"
        raise BadInput(f"{fact}. Put {CONFIG} back, delete the directory, or choose another --run-dir.")
    return False


def holds_results(path: Path) -> bool:
    """Whether there is more than the beginning of a run. Raises Unreadable where that cannot be seen."""
    try:
        names = os.listdir(path / CHECKPOINTS) if (path / CHECKPOINTS).is_dir() else []
    except OSError as error:
        raise Unreadable(f"{path / CHECKPOINTS} cannot be listed: {error.strerror}. Nothing was changed.") from None
    return (path / SUMMARY).exists() or any("step-" in name for name in names)


def check_place(path: Path) -> None:
    """Raises BadInput where a path cannot be a run directory, whatever is in it."""
    check_name(path)
    try:
        path.stat()
    except FileNotFoundError:
        pass
    except NotADirectoryError:
        file = next(folder for folder in path.parents if folder.is_file())
        raise BadInput(f"--run-dir {path} cannot be made: {file} is a file. Choose another --run-dir.") from None
    except OSError as error:
        raise BadInput(f"--run-dir {path} cannot be used: {error.strerror}. Choose another --run-dir.") from None
    if path.exists() and not path.is_dir():
        raise BadInput(f"--run-dir {path} is a file, not a directory. Choose another --run-dir.")


def check_content(path: Path, resume: bool) -> None:
    """Raises BadInput where a run is to be resumed and there is none, or one is to be begun and there is one."""
    if resume and not there(path / CONFIG):
        fact = f"--resume: {path} holds no run ({CONFIG} is not there)"
        raise BadInput(f"{fact}. Leave --resume out to start one; --resume auto goes on or starts, whichever it takes.")
    if not resume and path.is_dir() and holds_run(path):
        way_out = "Add --resume to go on with it, choose another --run-dir, or delete it"
        raise BadInput(f"{path} already holds a run. {way_out}.")


class Claimed(NamedTuple):
    """A run directory that this process holds. resume: whether there is a run to go on with; --resume auto is decided
    once, under the lock."""

    path: Path
    resume: bool


@contextlib.contextmanager
def claim(path: Path, resume: Resume) -> Iterator[Claimed]:
    """Makes the directory and holds it against other processes; raises BadInput where that is impossible.

    A directory made here that is still empty at the end (the data set could not be read, say) is removed again, so
    that the corrected command can use the same name.
    """
    check_place(path)
    if resume != "auto":
        check_content(path, resume)  # before anything is made
    with held(path):
        if resume == "auto":
            resume = resumes(path)
        else:
            check_content(path, resume)  # once more: another process may have been there in the meantime
        yield Claimed(path, resume)


@contextlib.contextmanager
def claim_new(options: Options) -> Iterator[Claimed]:
    """The same for a directory of a name that no other process has."""
    with contextlib.ExitStack() as stack:
        while True:
            path = default_path(options)
            check_place(path)
            try:
                stack.enter_context(held(path, new=True))
                break
            except FileExistsError:  # another process was faster
                continue
        yield Claimed(path, resume=False)


@contextlib.contextmanager
def held(path: Path, flag: str = "--run-dir", new: bool = False) -> Iterator[None]:
    """Makes the directory, locks it, and at the end takes away again what was made and is still empty.

    flag: what messages call it. new: it must not exist; else FileExistsError.

    Raises BadInput where it cannot be written, or another process has it.
    """
    missing = [folder for folder in path.parents if not folder.exists()]
    with contextlib.ExitStack() as stack:
        made = False
        stack.callback(lambda: forget(missing))
        try:
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    made = make(path, new)
                    stack.enter_context(lock(path))
                    break
                except (FileNotFoundError, Replaced):  # another process has just taken away its empty folders
                    if attempt == ATTEMPTS:
                        raise
            with tempfile.TemporaryFile(dir=path):
                pass
        except OSError as error:
            if new and isinstance(error, FileExistsError) and os.path.lexists(path):
                raise
            if made:
                forget([path])
            fact = f"run directory {path} cannot be written: {error.strerror}"
            raise BadInput(f"{fact}. Choose another {flag}.") from None
        if made:
            stack.callback(lambda: forget([path]))  # before the lock is given back
        yield


def make(path: Path, new: bool) -> bool:
    """Makes the directory and those above it; returns whether it was not there before."""
    durable.make_folder(path.parent)
    try:
        path.mkdir()
    except FileExistsError:
        if new or not path.is_dir():
            raise
        return False
    durable.flush_folder(path.parent)
    return True


def check_name(path: Path) -> None:
    """Raises BadInput for a name under which no file can be made, or no checkpoint written."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise BadInput(f"--run-dir {str(path)!a} is not valid UTF-8. Choose another name.") from None
    too_long = [part for part in path.parts if len(part.encode()) > LONGEST_PART]
    if too_long:
        fact = f"{too_long[0][:40]}... has {len(too_long[0].encode())} bytes, and names have at most {LONGEST_PART}"
        raise BadInput(f"--run-dir: {fact}. Choose a shorter one.")
    room, length = LONGEST_PATH - LONGEST_BELOW, len(str(path.absolute()).encode())
    if length > room:
        fact = f"the path of the run directory has {length} bytes, and its files' need at most {room}"
        raise BadInput(f"--run-dir: {fact}. Choose a shorter one.")


def forget(folders: list[Path]) -> None:
    """Removes empty folders, innermost first, until one is not empty."""
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            return


class Replaced(OSError):
    """Another folder has the path than the one that was locked."""

    strerror = "it is removed and made again by other processes all the time"


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """Held as long as the process lives, also when it is killed; nothing on systems without fcntl.

    Raises BadInput where another process holds it, and Replaced where the folder is no longer the one at that path.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInput(f"another process is writing the run in {path}. Wait for it, or stop it first.") from None
        except OSError:  # a file system without locks: go on without
            pass
        if not same(handle, path):
            raise Replaced
        yield
    finally:
        os.close(handle)


def same(handle: int, path: Path) -> bool:
    """Whether an open folder is the one at that path."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False
