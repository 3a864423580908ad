"""Whose run directory it is: made, checked and held before any long work, and only by one process at a
time."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from fdg_jax import durable
from fdg_jax.errors import BadInput
from fdg_jax.experiments.options import Options
from fdg_jax.experiments.run_directory import CHECKPOINTS, CONFIG, METRICS, SUMMARY

# Bytes: what file systems and Linux allow, and what the longest path of a checkpoint's file adds (some of it by Orbax).
LONGEST_PART, LONGEST_PATH, LONGEST_BELOW = 255, 4095, 200


def default_path(options: Options) -> Path:
    """runs/<time>-<method>-<model>-K<K>, with a number behind it where two runs start in the same second."""
    stem = f"{datetime.now():%Y%m%d-%H%M%S}-{options.method}-{options.model}-K{options.K}".replace(os.sep, "-")
    path, n = Path("runs") / stem, 1
    while path.exists():
        n += 1
        path = Path("runs") / f"{stem}-{n}"
    return path


def holds_run(path: Path) -> bool:
    return any((path / name).exists() for name in (CONFIG, METRICS, SUMMARY, CHECKPOINTS))


@contextlib.contextmanager
def claim(path: Path, resume: bool, flag: str = "--run-dir") -> Iterator[Path]:
    """Makes the directory and holds it against other processes; raises BadInput where that can't be.

    A directory made here that is still empty at the end (the data set could not be read, say) is taken away
    again, so that the corrected command can use the same name.
    """
    check_name(path, flag)
    if path.exists() and not path.is_dir():
        raise BadInput(f"{flag} {path} is a file, not a directory. Choose another {flag}.")
    if resume and not (path / CONFIG).is_file():
        raise BadInput(f"--resume: {path} holds no run ({CONFIG} is not there). Leave --resume out to start one.")
    if not resume and path.is_dir() and holds_run(path):
        if not any((path / name).exists() for name in (CONFIG, METRICS, SUMMARY)):
            fact = f"{path} has checkpoints and no {CONFIG}: a --resume-into that was cut off left it"
            raise BadInput(f"{fact}. Delete it, or choose another directory.")
        going_on = "Add --resume to go on with it, choose" if flag == "--run-dir" else "Choose"
        raise BadInput(f"{path} already holds a run. {going_on} another {flag}, or delete it.")
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        durable.make_folder(path)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        forget(missing)
        raise BadInput(f"run directory {path} cannot be written: {error.strerror}. Choose another {flag}.") from None
    try:
        with lock(path):
            yield path
    finally:
        forget(missing)


def check_name(path: Path, flag: str) -> None:
    """Raises BadInput for a name under which no file can be made, or no checkpoint written."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise BadInput(f"{flag} {str(path)!a} is not valid UTF-8. Choose another name.") from None
    too_long = [part for part in path.parts if len(part.encode()) > LONGEST_PART]
    if too_long:
        fact = f"{too_long[0][:40]}... has {len(too_long[0].encode())} bytes, and names have at most {LONGEST_PART}"
        raise BadInput(f"{flag}: {fact}. Choose a shorter one.")
    room, length = LONGEST_PATH - LONGEST_BELOW, len(str(path.absolute()).encode())
    if length > room:
        fact = f"the path of the run directory has {length} bytes, and its files' need at most {room}"
        raise BadInput(f"{flag}: {fact}. Choose a shorter one.")


def forget(folders: list[Path]) -> None:
    """Removes those that are empty, innermost first."""
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            return


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """Held as long as the process lives, also when it is killed; nothing on systems without fcntl."""
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
        yield
    finally:
        os.close(handle)
