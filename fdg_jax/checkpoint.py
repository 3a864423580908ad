"""The exact state of a run as a flat {path: array}, its hash, and its way to disk and back through Orbax.

A path is the JAX key path of a leaf. Nothing private to JAX is in it: a memo is stored as what it was made of and
made again by replaying the forward pass (see fdg_jax.engine).
"""

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from fdg_jax.errors import BadInput

Flat = dict[str, np.ndarray]


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """{prefix + key path: leaf}."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {prefix + jax.tree_util.keystr(path): leaf for path, leaf in leaves}


def unflatten(template: Any, flat: Mapping[str, Any], prefix: str = "", any_batch_size: bool = False) -> Any:
    """A tree shaped like `template` with the leaves of `flat`. BadInput where path, shape or dtype differ.

    any_batch_size: the first axis of an array may be of another length (the last batch of an epoch is shorter).
    """

    def leaf(path, like):
        name = prefix + jax.tree_util.keystr(path)
        if name not in flat:
            raise BadInput(f"the checkpoint has no {name}: it is of another model, split or method.")
        value, skip = np.asarray(flat[name]), int(any_batch_size)
        if value.shape[skip:] != like.shape[skip:] or value.dtype != like.dtype:
            raise BadInput(
                f"the checkpoint's {name} is {value.dtype}{list(value.shape)}, this run needs "
                f"{like.dtype}{list(like.shape)}: it is of another model, split or method."
            )
        return value

    return jax.tree_util.tree_map_with_path(leaf, template)


def sha256(flat: Mapping[str, Any]) -> str:
    """Over path, dtype, shape and bytes of every leaf, sorted by path."""
    digest = hashlib.sha256()
    for name in sorted(flat):
        value = np.asarray(flat[name])
        digest.update(f"{name} {value.dtype} {list(value.shape)}\n".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()


def save(path: Path, state: Mapping[str, Any]) -> None:
    """Writes the state under `path`, whole or not at all: a temporary folder beside it is renamed at the end."""
    path = Path(path).absolute()
    names = sorted(state)
    # Orbax makes file names of keys; ours are numbered, and the names travel as one array of bytes.
    tree = {f"{i:05d}": np.asarray(state[name]) for i, name in enumerate(names)}
    tree["names"] = np.frombuffer("\n".join(names).encode(), np.uint8)
    temporary = path.with_name(f".{path.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(temporary, tree)
        checkpointer.wait_until_finished()
    shutil.rmtree(path, ignore_errors=True)
    temporary.rename(path)


def load(path: Path) -> Flat:
    """What `save` wrote. BadInput where there is none or it cannot be read."""
    path = Path(path).absolute()
    if not path.is_dir():
        raise BadInput(f"there is no checkpoint at {path}.")
    try:
        with ocp.PyTreeCheckpointer() as checkpointer:
            tree = checkpointer.restore(path)
    except Exception as error:  # Orbax raises many kinds for a damaged folder
        raise BadInput(f"the checkpoint at {path} cannot be read: {str(error).splitlines()[0]}") from error
    names = bytes(np.asarray(tree["names"])).decode().split("\n")
    return {name: np.asarray(tree[f"{i:05d}"]) for i, name in enumerate(names)}
