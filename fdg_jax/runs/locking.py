"""Makes, checks and locks the run directory before any long work. Only one process at a time holds it."""

import contextlib
import errno
import itertools
import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal

from fdg_jax import durable
from fdg_jax.config import Config
from fdg_jax.errors import BadInput, Unreadable, reason
from fdg_jax.runs import reading
from fdg_jax.runs.run_files import CHECKPOINTS, CONFIG, METRICS, SUMMARY, there

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None

ATTEMPTS = 100  # at making a directory that other processes keep removing


def holds_run(path: Path) -> bool:
    return any(there(path / name) for name in (CONFIG, METRICS, SUMMARY, CHECKPOINTS))


def resumes(path: Path) -> bool:
    """Whether --resume auto resumes here: whether the directory holds a run. Raises BadInput if it holds files of a run
    but no config.json."""
    if there(path / CONFIG):
        try:
            reading.config(path)
        except Unreadable:  # there may be a run, which a new one must not replace
            raise
        except BadInput:  # without results, a power cut left an incomplete file; with results, the run is damaged
            return holds_results(path)
        return True
    left = [name for name in (METRICS, SUMMARY, CHECKPOINTS) if there(path / name)]
    if left:
        fact = f"--resume auto: {path} has {' and '.join(left)} but no {CONFIG}, so no run can be resumed"
        raise BadInput(f"{fact}. Restore {CONFIG}, delete the directory, or choose another --run-dir.")
    return False


def holds_results(path: Path) -> bool:
    """Whether a run has a summary or a checkpoint. Raises Unreadable if the folder cannot be listed."""
    try:
        names = os.listdir(path / CHECKPOINTS) if (path / CHECKPOINTS).is_dir() else []
    except OSError as error:
        raise Unreadable(f"{path / CHECKPOINTS} cannot be listed: {error.strerror}. Nothing was changed.") from None
    return (path / SUMMARY).exists() or any("step-" in name for name in names)


def check_place(path: Path) -> None:
    """Raises BadInput if a path cannot be a run directory, regardless of its content."""
    try:
        str(path).encode()  # config.json stores the path as text
        if not stat.S_ISDIR(path.stat().st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "this is a file, not a directory")
    except FileNotFoundError:
        pass
    except (OSError, UnicodeEncodeError) as error:
        raise BadInput(f"--run-dir {str(path)!r} cannot be used: {reason(error)}. Choose another --run-dir.") from None


def check_content(path: Path, resume: bool) -> None:
    """Raises BadInput if there is no run to resume, or if a new run would replace another run."""
    if resume and not there(path / CONFIG):
        fact = f"--resume: {path} holds no run ({CONFIG} is missing)"
        raise BadInput(f"{fact}. Leave --resume out to start a run. --resume auto resumes or starts a run.")
    if not resume and path.is_dir() and holds_run(path):
        way_out = "Add --resume to go on with this run, choose another --run-dir, or delete the directory"
        raise BadInput(f"{path} already holds a run. {way_out}.")


@contextlib.contextmanager
def claim(path: Path, resume: bool | Literal["auto"]) -> Iterator[tuple[Path, bool]]:
    """Makes the directory and locks it against other processes. Raises BadInput if that is impossible.

    Yields (the directory, whether it holds a run to resume). --resume auto is decided once, under the lock.

    A new directory that is still empty at the end (for example if the data set could not be read) is removed again, so
    that the corrected command can use the same name.
    """
    check_place(path)
    if resume != "auto":
        check_content(path, resume)  # before anything is made
    with held(path):
        if resume == "auto":
            resume = resumes(path)
        else:
            check_content(path, resume)  # again: another process may have begun a run meanwhile
        yield path, resume


@contextlib.contextmanager
def claim_new(options: Config) -> Iterator[tuple[Path, bool]]:
    """As `claim`, for runs/<time>-<method>-<model>-K<K>, with a number after it if runs start in the same second."""
    name = f"{datetime.now():%Y%m%d-%H%M%S}-{options.method}-{options.model}-K{options.K}".replace(os.sep, "-")
    path = Path("runs") / name
    check_place(path)
    with contextlib.ExitStack() as stack:
        for number in itertools.count(2):
            with contextlib.suppress(FileExistsError):  # another process was faster
                stack.enter_context(held(path, new=True))
                break
            path = path.with_name(f"{name}-{number}")
        yield path, False


@contextlib.contextmanager
def held(path: Path, flag: str = "--run-dir", new: bool = False) -> Iterator[None]:
    """Makes and locks the directory, and at the end removes the new folders that are still empty.

    flag: the name of the directory's flag in messages. new: raise FileExistsError if the directory exists.

    Raises BadInput if the directory cannot be written, or another process holds it.
    """
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    with contextlib.ExitStack() as stack:
        try:
            handle = made_and_locked(path, new)
            stack.callback(os.close, handle)
            stack.callback(remove_empty, missing)  # before the lock is released
            with tempfile.TemporaryFile(dir=path):
                pass
        except OSError as error:
            if new and isinstance(error, FileExistsError) and os.path.lexists(path):
                raise
            remove_empty(missing)
            fact = f"run directory {path} cannot be written: {error.strerror}"
            raise BadInput(f"{fact}. Choose another {flag}.") from None
        yield


def remove_empty(folders: Sequence[Path]) -> None:
    """Removes empty folders, innermost first, until one is not empty."""
    with contextlib.suppress(OSError):
        for folder in folders:
            folder.rmdir()


def made_and_locked(path: Path, new: bool) -> int:
    """Makes the directory and locks it. Returns its handle: closing it, or the end of the process, unlocks it.

    There is no lock on systems without fcntl and on file systems without locks. Raises OSError, and BadInput if another
    process holds the lock.
    """
    for _ in range(ATTEMPTS):
        with contextlib.suppress(FileNotFoundError):  # another process has just removed its empty folders
            durable.make_folder(path.parent)
            path.mkdir(exist_ok=not new)
            durable.flush_folder(path.parent)
            handle = os.open(path, os.O_RDONLY)
            try:
                if fcntl:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(handle)
                fact = f"another process is writing the run in {path}"
                raise BadInput(f"{fact}. Wait until that process ends, or stop it.") from None
            except OSError:  # a file system without locks
                pass
            if durable.is_same_folder(path, os.fstat(handle)):
                return handle
            os.close(handle)  # another process has replaced the folder in the meantime
    raise OSError(errno.EAGAIN, "other processes keep removing and creating this directory")
