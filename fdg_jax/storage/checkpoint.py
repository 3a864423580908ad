"""The exact state of a run as a flat {path: array}: its hash, and how it is saved to disk and loaded with Orbax.

A path is the JAX key path of a leaf. A state has nothing private to JAX in it: a memo (what a backward pass needs) is
stored as the inputs of its forward pass, which is replayed when the state is restored (fdg_jax.engine.host_engine).
"""

import hashlib
import math
import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from fdg_jax.errors import BadInput, first_line
from fdg_jax.storage import durable, manifest, quiet
from fdg_jax.storage.plain import plain, plain_like, unplain

Flat = dict[str, np.ndarray]
ARRAYS = "arrays"  # Orbax's folder within a checkpoint
NPY = "npy"  # in its place in a part of a checkpoint
# Arrays that declare more are made up: weights are noise, which hardly gets smaller on a disk. Empty buffers do.
MOST_TIMES, ALWAYS_BYTES = 1000, 2**28  # the bytes on the disk; what may be declared whatever is there


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Flattens a tree into {prefix + key path: leaf}, each leaf as it is stored (fdg_jax.storage.plain)."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {prefix + jax.tree_util.keystr(path): plain(leaf) for path, leaf in leaves}


def unflatten(template: Any, flat: Mapping[str, Any], prefix: str = "", any_lengths: bool = False) -> Any:
    """The inverse of `flatten`.

    Arguments:
        template: a tree of arrays or jax.ShapeDtypeStructs with the structure, shapes and dtypes to expect.
        flat: {path: array}.
        prefix: with which the paths begin.
        any_lengths: whether axes may have other lengths (the last batch of an epoch is shorter, a sequence longer).

    Returns: a tree like `template` with copies of the arrays.

    Raises:
        BadInput: a path is missing, or a shape or dtype differs.
    """

    def leaf(path, like):
        name = prefix + jax.tree_util.keystr(path)
        if name not in flat:
            options = ", or guard and gradient_norms are not as they were" if ".opt_state" in name else ""
            raise BadInput(f"the checkpoint has no {name}: it is of another model, split or method{options}.")
        # A copy: on a CPU device_put may use the memory of its argument, and the caller may write there later.
        value, needed = np.array(plain(flat[name])), plain_like(like)
        fits = value.ndim == len(needed.shape) if any_lengths else value.shape == needed.shape
        if not fits or value.dtype != needed.dtype:
            raise BadInput(
                f"the checkpoint's {name} is {value.dtype}{list(value.shape)}, this run needs "
                f"{needed.dtype}{list(needed.shape)}: it is of another model, split or method."
            )
        return unplain(value, like)

    return jax.tree_util.tree_map_with_path(leaf, template)


def numbers(flat: Mapping[str, Any], prefix: str) -> list[int]:
    """The numbers n, ascending, of the entries prefix + "n/...". Raises BadInput where there is no number."""
    found = {name[len(prefix) :].split("/")[0] for name in flat if name.startswith(prefix)}
    if not all(text.isdecimal() for text in found):
        raise BadInput(f"the checkpoint's entries {prefix}... have {sorted(found)[:5]} where numbers are needed.")
    return sorted(map(int, found))


def sha256(flat: Mapping[str, Any]) -> str:
    """A hash of a state: over path, dtype, shape and bytes of every array, sorted by path."""
    digest = hashlib.sha256()
    for name in sorted(flat):
        value = np.asarray(flat[name])
        digest.update(heading(name, value.dtype, value.shape))
        digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()


def heading(name: str, dtype: np.dtype, shape: Sequence[int]) -> bytes:
    """What stands for an array in `sha256` before its bytes."""
    return f"{name} {dtype} {list(shape)}\n".encode()


def parameters_sha256(stages: Sequence[Any]) -> str:
    """The sha256 over the bytes of all parameters, sorted by (key path, k).

    Where stages have distinct names, as those of one cut network have, the order is that of the whole network and does
    not depend on K.

    Arguments:
        stages: for each stage k = 1..K its Flax collection "params"; of an uncut network there is one.
    """
    leaves = [(path, k, leaf) for k, params in enumerate(stages, 1) for path, leaf in flatten(params).items()]
    digest = hashlib.sha256()
    for _, _, leaf in sorted(leaves, key=lambda item: item[:2]):
        digest.update(np.ascontiguousarray(jax.device_get(leaf)).tobytes())
    return digest.hexdigest()


def save(path: Path, state: Mapping[str, Any], about: Mapping[str, Any] | None = None) -> None:
    """Saves a state in a folder, completely or not at all: a temporary folder beside it is renamed at the end.

    When this returns, the checkpoint survives a power cut. A checkpoint that was there is replaced: it is moved aside
    before the rename, and `fdg_jax.runs.checkpoints.sweep` puts it back where the process was killed in between.

    Arguments:
        path: the folder.
        state: {path: array}.
        about: further content of the manifest, as JSON has it.

    Raises:
        OSError: the disk is full, or the like.
    """
    path = Path(path).absolute()
    temporary = path.with_name(f".{path.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    write_sealed(temporary, state, about or {}, write_by_orbax)
    commit(temporary, path)


def write_sealed(
    folder: Path, state: Mapping[str, Any], about: Mapping[str, Any], write: Callable[[Path, Flat], None]
) -> None:
    """Writes arrays into a folder, seals it and flushes it to the disk. write: writes non-empty arrays by number."""
    arrays = [(name, np.asarray(state[name])) for name in sorted(state)]
    write(folder, {f"{i:05d}": value for i, (_, value) in enumerate(arrays) if value.size})
    listed = [[name, str(value.dtype), list(value.shape)] for name, value in arrays]
    manifest.write(folder, {"arrays": listed, "about": dict(about)})
    durable.flush_tree(folder)


def write_by_orbax(folder: Path, arrays: Flat) -> None:
    """Orbax makes file names of keys, so ours are numbers, and refuses empty arrays; the manifest has the rest.

    Of dtypes that are not NumPy's own it knows some only, so these are written as bytes.
    """
    arrays = {name: value if value.dtype.isbuiltin == 1 else as_bytes(value) for name, value in arrays.items()}
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / ARRAYS, arrays)
        checkpointer.wait_until_finished()


def write_as_npy(folder: Path, arrays: Flat) -> None:
    """NumPy's own files. Of several processes Orbax would write the arrays of process 0 only, and report no error."""
    (folder / NPY).mkdir()
    for name, value in arrays.items():
        np.save(folder / NPY / f"{name}.npy", as_bytes(value))  # NumPy does not know bfloat16


def as_bytes(value: np.ndarray) -> np.ndarray:
    """The bytes of an array."""
    return value.reshape(-1).view(np.uint8)


def commit(temporary: Path, path: Path) -> None:
    """Gives a whole checkpoint its name, in the place of one that has it. Raises OSError."""
    before = path.with_name(f".{path.name}{manifest.REPLACED}")
    if path.exists():
        shutil.rmtree(before, ignore_errors=True)
        path.rename(before)
    try:
        durable.rename(temporary, path)  # the commit: before it there is no checkpoint, after it a whole one
    except OSError:
        durable.put_back(before, path)
        raise
    shutil.rmtree(before, ignore_errors=True)


def parts_folder(path: Path) -> Path:
    """Where several processes write the parts of the checkpoint that will be at this path."""
    return path.with_name(f".{path.name}.parts")


def save_part(path: Path, process: int, state: Mapping[str, Any]) -> tuple[int, str]:
    """Saves what one of several processes has of a state. It becomes a checkpoint by `commit_parts`.

    Arguments:
        path: the folder of the checkpoint.
        process: the number of the process.
        state: {path: array}.

    Returns: (bytes, sha256) of the part's manifest.

    Raises:
        OSError: the disk is full, or the like.
    """
    folder = parts_folder(Path(path).absolute())
    part = folder / part_name(process)
    folder.mkdir(exist_ok=True)
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    write_sealed(part, state, {}, write_as_npy)
    return manifest.size_and_sha256(part / manifest.NAME)


def commit_parts(path: Path, sealed: Sequence[tuple[int, str]], about: Mapping[str, Any]) -> None:
    """Makes a checkpoint of the parts that processes 0, 1, ... have saved.

    Arguments:
        path: the folder of the checkpoint.
        sealed: what `save_part` returned to each process.
        about: further content of the manifest.

    Raises:
        OSError: a part is not there, or the disk is full.
    """
    path = Path(path).absolute()
    folder, parts = parts_folder(path), {part_name(process): each for process, each in enumerate(sealed)}
    for left in set(os.listdir(folder)) - parts.keys():  # of processes that were killed
        shutil.rmtree(folder / left, ignore_errors=True)
    manifest.write_above(folder, parts, {"about": dict(about)})
    durable.flush_file(folder / manifest.NAME)
    durable.flush_folder(folder)
    commit(folder, path)


def part_name(process: int) -> str:
    """The folder of a process's part within a checkpoint."""
    return f"process{process}"


def load(path: Path) -> tuple[Flat, dict[str, Any]]:
    """Loads what `save` has saved, or `save_part` and `commit_parts`.

    Arguments:
        path: the folder.

    Returns: (state, about), as `save` was given them.

    Raises:
        BadInput: there is no checkpoint.
        Damaged, OtherFormat, Unreadable: see fdg_jax.storage.manifest; all are kinds of BadInput.
    """
    path = Path(path).absolute()
    try:
        if not path.is_dir():
            raise BadInput(f"there is no checkpoint at {path}.")
        content = manifest.check(path)
        folders = {path / part: body for part, body in content["parts"].items()} or {path: content}
        with quiet.orbax():
            try:
                trees = {folder: read_arrays(folder) for folder in folders}
            except Exception:
                quiet.forget_tasks()
                raise
    except BadInput:
        raise
    # Orbax raises many kinds. None of them means damage, as every byte has just been checked.
    except Exception as error:
        raise manifest.Unreadable(path, error) from None
    try:
        if not isinstance(content["about"], dict):
            raise TypeError("about is no object")
        flat: Flat = {}
        for folder, body in folders.items():
            flat |= arrays_by_name(trees[folder], body["arrays"])
        return flat, content["about"]
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        fact = f"the checkpoint at {path} is damaged: {manifest.NAME} does not describe its arrays"
        raise manifest.Damaged(f"{fact} ({first_line(error)}).") from error
    except MemoryError as error:
        raise manifest.Unreadable(path, error) from error


def read_arrays(folder: Path) -> Mapping[str, Any]:
    """The arrays of a sealed folder by number; those in NumPy's files as bytes."""
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
    """Raises Damaged where arrays would need memory that what is on the disk cannot fill: the C++ code that reads them
    would end the process. declared: Orbax's metadata of each array."""
    stored = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    needed = sum(math.prod(each.shape) * each.dtype.itemsize for each in declared)
    parts = [zip(each.storage.chunk_shape, each.shape, strict=True) for each in declared]
    if needed > max(MOST_TIMES * stored, ALWAYS_BYTES) or any(part > max(1, n) for each in parts for part, n in each):
        fact = f"its arrays declare {needed:,} bytes, or parts larger than themselves, in {stored:,} bytes of files"
        raise manifest.Damaged(f"the checkpoint at {folder} is damaged: {fact}.")


def arrays_by_name(tree: Mapping[str, Any], listed: Sequence[Any]) -> Flat:
    """{name: array}. listed: (name, dtype, shape) of each array, in order; the tree leaves out empty arrays."""
    flat = {}
    for i, (name, dtype, shape) in enumerate(listed):
        value = np.asarray(tree[f"{i:05d}"] if 0 not in shape else np.zeros(shape, dtype))
        if value.dtype == np.uint8:  # the bytes of an array
            value = value.view(np.dtype(dtype)).reshape(shape)
        if not isinstance(name, str) or str(value.dtype) != dtype or list(value.shape) != shape:
            raise ValueError(f"{name} is {value.dtype}{list(value.shape)}, written as {dtype}{shape}")
        flat[name] = value
    return flat
