"""A checkpoint is a folder with the arrays of a state, which Orbax writes and reads, and a manifest of all files.

    step-000000020/{arrays/, manifest.json}                                         of one process
    step-000000020/{process0/{npy/, manifest.json}, process1/..., manifest.json}    of several

A checkpoint is written under another name, sealed and flushed to the disk. Renaming it is the commit.
"""

import functools
import logging
import math
import shutil
import sys
import traceback
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from fdg_jax import durable
from fdg_jax.checkpoint import manifest
from fdg_jax.checkpoint.manifest import NAME, Damaged, Unreadable
from fdg_jax.checkpoint.state import Flat
from fdg_jax.errors import BadInput, first_line

ARRAYS = "arrays"  # Orbax's folder within a checkpoint
NPY = "npy"  # the folder of arrays within a part of a checkpoint
# A declared size above both limits is forged: empty buffers compress well, but weights hardly do.
MOST_TIMES, ALWAYS_BYTES = 1000, 2**28  # times the bytes on the disk; bytes that are always allowed


def save(path: Path, state: Mapping[str, Any], about: Mapping[str, Any] | None = None) -> None:
    """Saves a state in a new folder, completely or not at all. Afterwards it survives a power cut.

    Arguments:
        path: the folder.
        state: {path: array}.
        about: further entries of the manifest, which JSON can hold.

    Raises:
        OSError: the disk is full, or the like.
    """
    path = Path(path).absolute()
    shutil.rmtree(temporary(path), ignore_errors=True)
    write_sealed(temporary(path), state, about or {}, write_by_orbax)
    durable.rename(temporary(path), path)  # before this there is no checkpoint, after it a whole one


def save_part(path: Path, process: int, state: Mapping[str, Any]) -> tuple[int, str]:
    """Saves one process's part of a state. `commit_parts` makes a checkpoint of all parts.

    Arguments:
        path: the folder of the checkpoint.
        process: the number of the process.
        state: {path: array}.

    Returns: (bytes, sha256) of the part's manifest.

    Raises:
        OSError: the disk is full, or the like.
    """
    part = temporary(Path(path).absolute()) / f"process{process}"
    part.parent.mkdir(exist_ok=True)
    shutil.rmtree(part, ignore_errors=True)
    write_sealed(part, state, {}, write_as_npy)
    return manifest.size_and_sha256(part / NAME)


def commit_parts(path: Path, sealed: Sequence[tuple[int, str]], about: Mapping[str, Any]) -> None:
    """Makes a checkpoint of the parts that processes 0, 1, ... have saved.

    Arguments:
        path: the folder of the checkpoint.
        sealed: what `save_part` returned to each process.
        about: further content of the manifest.

    Raises:
        OSError: a part is missing, or the disk is full.
    """
    path, parts = Path(path).absolute(), [f"process{process}" for process in range(len(sealed))]
    files = {f"{part}/{NAME}": list(each) for part, each in zip(parts, sealed, strict=True)}
    manifest.write(temporary(path), {"files": files, "parts": parts, "about": dict(about)})
    durable.rename(temporary(path), path)


def temporary(path: Path) -> Path:
    """The folder in which a checkpoint is written until it is complete."""
    return path.with_name(f".{path.name}.tmp")


def write_sealed(
    folder: Path, state: Mapping[str, Any], about: Mapping[str, Any], write: Callable[[Path, Flat], None]
) -> None:
    """Makes a folder of arrays, seals it and flushes it to the disk. write: writes the arrays that are not empty,
    {number: array}."""
    folder.mkdir()
    arrays = [(name, np.asarray(state[name])) for name in sorted(state)]
    write(folder, {f"{i:05d}": value for i, (_, value) in enumerate(arrays) if value.size})
    listed = [[name, str(value.dtype), list(value.shape)] for name, value in arrays]
    manifest.seal(folder, {"arrays": listed, "about": dict(about)})
    durable.flush_tree(folder)


def write_by_orbax(folder: Path, arrays: Flat) -> None:
    """Writes arrays with Orbax, which turns keys into file names and refuses empty arrays. So the keys are numbers, and
    the manifest has the names and the empty arrays.

    Some dtypes, such as bfloat16, are not NumPy's own, and Orbax knows only a part of these. So arrays of such dtypes
    are written as bytes.
    """
    arrays = {name: value if value.dtype.isbuiltin == 1 else as_bytes(value) for name, value in arrays.items()}
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / ARRAYS, arrays)
        checkpointer.wait_until_finished()


def write_as_npy(folder: Path, arrays: Flat) -> None:
    """Writes NumPy's own files. In several processes, Orbax would silently write the arrays of process 0 only."""
    (folder / NPY).mkdir()
    for name, value in arrays.items():
        np.save(folder / NPY / f"{name}.npy", as_bytes(value))  # NumPy does not know bfloat16


def as_bytes(value: np.ndarray) -> np.ndarray:
    """The bytes of an array."""
    return value.reshape(-1).view(np.uint8)


def load(path: Path) -> tuple[Flat, dict[str, Any]]:
    """Loads a checkpoint of `save`, or of `save_part` and `commit_parts`.

    Arguments:
        path: the folder.

    Returns: (state, about), as they were given to `save`.

    Raises:
        BadInput: there is no checkpoint.
        Damaged, OtherFormat, Unreadable: see fdg_jax.checkpoint.manifest. All are kinds of BadInput.
    """
    path = Path(path).absolute()
    quiet_orbax()
    try:
        if not path.is_dir():
            raise BadInput(f"there is no checkpoint at {path}.")
        content = manifest.check(path)
        folders = {path / part: body for part, body in content["parts"].items()} or {path: content}
        trees = {folder: read_arrays(folder) for folder in folders}
    except BadInput:
        raise
    # Orbax raises many kinds of errors. None of them means damage, as every byte has just been checked.
    except Exception as error:
        raise Unreadable(path, error) from None
    try:
        if not isinstance(content["about"], dict):
            raise TypeError("about is not a JSON object")
        flat: Flat = {}
        for folder, body in folders.items():
            flat |= arrays_by_name(trees[folder], body["arrays"])
        return flat, content["about"]
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise Damaged(path, f"{NAME} does not describe its arrays ({first_line(error)})") from error
    except MemoryError as error:
        raise Unreadable(path, error) from error


def read_arrays(folder: Path) -> Mapping[str, Any]:
    """The arrays of a sealed folder by number; arrays from NumPy's own files come as bytes."""
    if (folder / NPY).is_dir():
        # Mapped: a file cannot declare more than it holds.
        return {file.stem: np.array(np.lib.format.open_memmap(file, mode="r")) for file in (folder / NPY).iterdir()}
    options = ocp.options.MultiprocessingOptions()
    if jax.process_count() > 1:  # else Orbax would wait for the other processes
        process = jax.process_index()
        options = ocp.options.MultiprocessingOptions(
            primary_host=process, active_processes={process}, barrier_sync_key_prefix=f"process{process}"
        )
    handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=options)
    with ocp.Checkpointer(handler, multiprocessing_options=options) as checkpointer:
        check_sizes(folder, checkpointer.metadata(folder / ARRAYS).item_metadata.tree.values())
        return checkpointer.restore(folder / ARRAYS)


def check_sizes(folder: Path, declared: Collection[Any]) -> None:
    """Raises Damaged if arrays declare far more memory than the files on the disk can fill. Reading them would end the
    process, since C++ code would try to allocate this memory. declared: Orbax's metadata of each array."""
    stored = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    needed = sum(math.prod(each.shape) * each.dtype.itemsize for each in declared)
    parts = [zip(each.storage.chunk_shape, each.shape, strict=True) for each in declared]
    if needed > max(MOST_TIMES * stored, ALWAYS_BYTES) or any(part > max(1, n) for each in parts for part, n in each):
        fact = f"its arrays declare {needed:,} bytes, or chunks larger than the arrays; its files have {stored:,} bytes"
        raise Damaged(folder, fact)


def arrays_by_name(tree: Mapping[str, Any], listed: Sequence[Any]) -> Flat:
    """{name: array}. listed: (name, dtype, shape) of each array, in order; the tree leaves out empty arrays."""
    flat = {}
    for i, (name, dtype, shape) in enumerate(listed):
        value = np.asarray(tree[f"{i:05d}"] if 0 not in shape else np.zeros(shape, dtype))
        if value.dtype == np.uint8:  # the bytes of an array
            value = value.view(np.dtype(dtype)).reshape(shape)
        if not isinstance(name, str) or str(value.dtype) != dtype or list(value.shape) != shape:
            raise ValueError(f"{name} is {value.dtype}{list(value.shape)}, but was written as {dtype}{shape}")
        flat[name] = value
    return flat


@functools.cache
def quiet_orbax() -> None:
    """From now on a failed save, or a damaged checkpoint, is reported only once, by the exception that Orbax raises.

    Otherwise Orbax logs further errors of the same failure with tracebacks, and asyncio logs errors of failed tasks.
    Python warns about coroutines that nobody awaited. tensorstore prints that the event loop is closed if it ends late.
    """

    def wanted(record: logging.LogRecord) -> bool:
        frames = traceback.extract_tb(record.exc_info[2]) if record.exc_info else []
        return not any("orbax" in file for file in (record.pathname, *(frame.filename for frame in frames)))

    def print_unless_closed(unraisable) -> None:
        if not (isinstance(unraisable.exc_value, RuntimeError) and "loop is closed" in str(unraisable.exc_value)):
            hook(unraisable)

    for name in ("absl", "asyncio"):
        logging.getLogger(name).addFilter(wanted)
    hook, sys.unraisablehook = sys.unraisablehook, print_unless_closed
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
