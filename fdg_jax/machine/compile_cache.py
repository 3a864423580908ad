"""Keeps compiled programs between runs, so that the second start of the same training does not compile again.

This is JAX's own persistent cache, in the user's cache directory. It does not change a run: the final hashes are the
same with and without it. The programs are native code. So the folder's name contains the processor and the version of
jaxlib, and a folder in which others may write is not used. Programs not used for UNUSED_DAYS are removed.

FDG_JAX_COMPILE_CACHE=0 turns the cache off. If JAX_COMPILATION_CACHE_DIR is set, JAX uses that directory instead.

Measured times are kept there, too, with the conditions that they depend on, and used only under exactly these.
An error with the files never ends a command: the times are then measured again.
"""

import contextlib
import hashlib
import json
import math
import os
import platform
import stat
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from fdg_jax import strict_json
from fdg_jax.durable import make_private, replacing
from fdg_jax.machine.facts import cache_dir, cpuinfo
from fdg_jax.machine.gpu_flags import DUMP
from fdg_jax.machine.output import say

SWITCH, UNUSED_DAYS = "FDG_JAX_COMPILE_CACHE", 30


def enable() -> None:
    """Turns the cache on. Call it before anything compiles. If its folder cannot be made, nothing is cached."""
    if os.environ.get(SWITCH) == "0" or os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return
    if DUMP in os.environ.get("XLA_FLAGS", ""):  # a program from the cache writes no choices of kernels into that file
        return
    try:
        folder = cache_dir() / f"xla-{metadata.version('jaxlib')}-{processor()}"
        make_private(folder)
        unsafe = not_ours(folder)
    except (OSError, RuntimeError):  # RuntimeError: a user without a home
        return
    if unsafe:
        fact = f"compiled programs are not kept: other users can write in {unsafe}, so their programs could be run"
        say(f"warning: {fact}. Remove that folder, choose another place with XDG_CACHE_HOME, or set {SWITCH}=0.")
    if unsafe or not os.access(folder, os.W_OK):
        return
    prune(cache_dir())
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def not_ours(folder: Path) -> Path | None:
    """Returns the folder of programs, or its parent, if other users may write there; None if both are safe."""
    if hasattr(os, "geteuid"):
        for each in (folder, folder.parent):
            status = each.stat()
            if status.st_uid != os.geteuid() or status.st_mode & stat.S_IWOTH:
                return each
    return None


def prune(folder: Path) -> None:
    """Removes programs that have not been read or written for UNUSED_DAYS, for all processors and versions.

    On file systems that do not record reading times, the time of writing counts.
    """
    oldest = time.time() - UNUSED_DAYS * 24 * 3600
    for file in folder.glob("xla-*/*"):
        try:
            status = file.stat()
            if max(status.st_atime, status.st_mtime) < oldest:
                file.unlink()
        except OSError:  # another process removed it first, or it is a directory
            continue


def processor() -> str:
    """A hash of the kind of processor, since code compiled for another kind may not run here."""
    telling = sorted({line for line in cpuinfo() if line.startswith(("model name", "flags", "Features", "CPU part"))})
    return hashlib.sha256("\n".join([platform.machine(), *telling]).encode()).hexdigest()[:12]


def path_of(what: str, of: dict[str, Any]) -> Path:
    """The file in which these times are kept."""
    digest = hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()
    return cache_dir() / f"{what.replace(' ', '-')}-{digest[:16]}.json"


def load_times(what: str, of: dict[str, Any], n: int) -> list[float] | None:
    """Loads times.

    Arguments:
        what: what was measured, in the plural, such as "block times"; the file is named after it.
        of: all conditions, as JSON has them.
        n: how many times there should be.

    Returns: the n times in seconds; None if there are none, or if the file is damaged.
    """
    with contextlib.suppress(OSError, RuntimeError, ValueError, KeyError, TypeError):
        found = strict_json.read(path_of(what, of))
        seconds = found["seconds"]
        if found["of"] == of and len(seconds) == n and all(0 < s < math.inf for s in seconds):
            return seconds
    return None


def save_times(what: str, of: dict[str, Any], seconds: list[float]) -> None:
    """Saves times in seconds; arguments as in `load_times`. The file is renamed when complete, so readers never see a
    part of it."""
    try:
        path = path_of(what, of)
        make_private(path.parent)
        with replacing(path) as temporary:
            temporary.write_text(json.dumps({"of": of, "seconds": seconds}, indent=1), encoding="utf-8")
    except (OSError, RuntimeError) as error:
        say(f"the {what} can't be kept ({error}): the next start will measure them again.")
