"""Checkpoints of a training loop: the pipeline's exact state and the loop's own few numbers, in one folder a
step.

The two newest are kept. One that is damaged (its hash is part of it) is passed over, aloud, for the older
one.
"""

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fdg_jax.errors import BadInput

KEPT = 2
LOOP, HASH = "loop/", "loop_sha256"


def folder(root: Path, step: int) -> Path:
    return root / f"step-{step:09d}"


def save(root: Path, step: int, state: Mapping[str, Any], loop: Mapping[str, Any]) -> None:
    """state: Pipeline.state(). loop: numbers and lists of numbers. Keeps the newest KEPT checkpoints."""
    from fdg_jax import checkpoint

    root.mkdir(exist_ok=True)
    content = {**state, **{LOOP + name: np.asarray(value) for name, value in loop.items()}}
    content[HASH] = np.frombuffer(bytes.fromhex(checkpoint.sha256(content)), np.uint8)
    checkpoint.save(folder(root, step), content)
    for old in stored(root)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)


def sweep(root: Path) -> None:
    """Removes what a process that was killed while saving left behind. Only for who holds the run directory."""
    for path in [*root.glob(".step-*"), *root.glob("step-*.orbax-checkpoint-tmp*")]:
        shutil.rmtree(path, ignore_errors=True)


def stored(root: Path) -> list[Path]:
    """Whole checkpoints, oldest first."""
    return sorted(path for path in root.glob("step-" + 9 * "[0-9]") if path.is_dir())


def load_newest(root: Path) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """(state, loop) of the newest checkpoint that is whole; None without any. BadInput if all are damaged."""
    paths = stored(root)
    for path in reversed(paths):
        try:
            return load(path)
        except BadInput as error:
            print(f"warning: {error} Trying the one before.", file=sys.stderr, flush=True)
    if paths:
        raise BadInput(f"all {len(paths)} checkpoints in {root} are damaged. Start a new run in another --run-dir.")
    return None


def load(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    from fdg_jax import checkpoint

    content: dict[str, Any] = dict(checkpoint.load(path))
    found = content.pop(HASH, None)
    if found is None or bytes(np.asarray(found)).hex() != checkpoint.sha256(content):
        raise BadInput(f"the checkpoint at {path} is damaged: its bytes do not match their hash.")
    loop = {name[len(LOOP) :]: content.pop(name) for name in list(content) if name.startswith(LOOP)}
    return content, loop
