"""The exact state of a run as a flat {path: array}, its hash, and its way to disk and back through Orbax.

A path is the JAX key path of a leaf. Nothing private to JAX is in it: a memo is stored as what it was made of and
made again by replaying the forward pass (see fdg_jax.engine.host_engine).
"""

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from fdg_jax.errors import BadInput, first_line
from fdg_jax.storage import durable, manifest
from fdg_jax.storage.plain import plain, plain_like, unplain

Flat = dict[str, np.ndarray]
ARRAYS = "arrays"  # Orbax's folder within a checkpoint


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """{prefix + key path: leaf}, each leaf as numbers (fdg_jax.storage.plain)."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {prefix + jax.tree_util.keystr(path): plain(leaf) for path, leaf in leaves}


def unflatten(template: Any, flat: Mapping[str, Any], prefix: str = "", any_batch_size: bool = False) -> Any:
    """A tree shaped like `template` with copies of the leaves of `flat`. BadInput where path, shape or dtype differ.

    any_batch_size: the first axis of an array may be of another length (the last batch of an epoch is shorter).
    """

    def leaf(path, like):
        name = prefix + jax.tree_util.keystr(path)
        if name not in flat:
            raise BadInput(f"the checkpoint has no {name}: it is of another model, split or method.")
        # A copy: device_put may use the memory that it is given, on a CPU, and the caller may write there later.
        value, skip, needed = np.array(flat[name]), int(any_batch_size), plain_like(like)
        if value.ndim != len(needed.shape) or value.shape[skip:] != needed.shape[skip:] or value.dtype != needed.dtype:
            raise BadInput(
                f"the checkpoint's {name} is {value.dtype}{list(value.shape)}, this run needs "
                f"{needed.dtype}{list(needed.shape)}: it is of another model, split or method."
            )
        return unplain(value, like)

    return jax.tree_util.tree_map_with_path(leaf, template)


def numbers(flat: Mapping[str, Any], prefix: str) -> list[int]:
    """The numbers n, ascending, of the entries prefix + "n/..."."""
    found = {name[len(prefix) :].split("/")[0] for name in flat if name.startswith(prefix)}
    if not all(text.isdecimal() for text in found):
        raise BadInput(f"the checkpoint's entries {prefix}... have {sorted(found)[:5]} where numbers are needed.")
    return sorted(map(int, found))


def sha256(flat: Mapping[str, Any]) -> str:
    """Over path, dtype, shape and bytes of every leaf, sorted by path."""
    digest = hashlib.sha256()
    for name in sorted(flat):
        value = np.asarray(flat[name])
        digest.update(f"{name} {value.dtype} {list(value.shape)}\n".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()


def save(path: Path, state: Mapping[str, Any], about: Mapping[str, Any] | None = None) -> None:
    """Writes the state under `path`, whole or not at all: a temporary folder beside it is renamed at the end. When this
    returns, the checkpoint survives a power cut.

    about: what the manifest says of it besides, as JSON. Raises OSError where there is no room, and the like.
    """
    path = Path(path).absolute()
    arrays = [(name, np.asarray(state[name])) for name in sorted(state)]
    temporary, before = path.with_name(f".{path.name}.tmp"), path.with_name(f".{path.name}{manifest.REPLACED}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    # Orbax makes file names of keys, so ours are numbers, and refuses empty arrays; the manifest has the rest.
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(temporary / ARRAYS, {f"{i:05d}": value for i, (_, value) in enumerate(arrays) if value.size})
        checkpointer.wait_until_finished()
    listed = [[name, str(value.dtype), list(value.shape)] for name, value in arrays]
    manifest.write(temporary, {"arrays": listed, "about": dict(about or {})})
    durable.flush_tree(temporary)
    if path.exists():
        shutil.rmtree(before, ignore_errors=True)
        path.rename(before)
    try:
        durable.rename(temporary, path)
    except OSError:
        durable.put_back(before, path)
        raise
    shutil.rmtree(before, ignore_errors=True)


def load(path: Path) -> tuple[Flat, dict[str, Any]]:
    """(state, about) as `save` was given them. BadInput where there is none; Damaged where a byte of it has changed,
    OtherFormat, and Unreadable, all of fdg_jax.storage.manifest and kinds of BadInput."""
    path = Path(path).absolute()
    try:
        if not path.is_dir():
            raise BadInput(f"there is no checkpoint at {path}.")
        content = manifest.check(path)
        with ocp.PyTreeCheckpointer() as checkpointer:
            tree = checkpointer.restore(path / ARRAYS)
    except BadInput:
        raise
    # Whatever Orbax raises, of its many kinds, is no damage: every byte has just been compared.
    except Exception as error:
        raise manifest.Unreadable(path, error) from error
    try:
        return arrays_by_name(tree, content["arrays"]), content["about"]
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        fact = f"the checkpoint at {path} is damaged: {manifest.NAME} does not describe its arrays"
        raise manifest.Damaged(f"{fact} ({first_line(error)}).") from error
    except MemoryError as error:
        raise manifest.Unreadable(path, error) from error


def arrays_by_name(tree: Mapping[str, Any], listed: Sequence[Any]) -> Flat:
    """The arrays by their names. listed: (name, dtype, shape) of each; an empty one is not in the tree."""
    flat = {}
    for i, (name, dtype, shape) in enumerate(listed):
        value = np.asarray(tree[f"{i:05d}"] if 0 not in shape else np.zeros(shape, dtype))
        if str(value.dtype) != dtype or list(value.shape) != shape:
            raise ValueError(f"{name} is {value.dtype}{list(value.shape)}, written as {dtype}{shape}")
        flat[name] = value
    return flat
