"""Keeps compiled programs between runs, so that the second start of the same training does not compile again.

This is JAX's own persistent cache, in the user's cache directory. It does not change a run: the final hashes are the
same with and without it. The programs are native code. So the folder's name tells the processor and the version of
jaxlib, and a folder in which others may write is not used. Programs not used for UNUSED_DAYS are removed.

FDG_JAX_COMPILE_CACHE=0 turns it off. If JAX_COMPILATION_CACHE_DIR is set, JAX uses that directory instead.
"""

import hashlib
import os
import platform
import stat
import sys
import time
from importlib import metadata
from pathlib import Path

import jax

from fdg_jax.durable import make_private
from fdg_jax.machine.facts import cpuinfo

SWITCH, UNUSED_DAYS = "FDG_JAX_COMPILE_CACHE", 30


def enable() -> None:
    """Turns the cache on. Call it before anything compiles. If its folder cannot be made, nothing is cached."""
    if os.environ.get(SWITCH) == "0" or os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return
    try:
        folder = root() / f"xla-{metadata.version('jaxlib')}-{processor()}"
        make_private(folder)
        fault = who_else_may_write(folder)
    except (OSError, RuntimeError):  # RuntimeError: a user without a home
        return
    if fault:
        fact = f"compiled programs are not kept: {fault}, and programs of others could be run from there"
        way_out = f"Remove it, choose another place with XDG_CACHE_HOME, or set {SWITCH}=0."
        print(f"warning: {fact}. {way_out}", file=sys.stderr, flush=True)
        return
    if not os.access(folder, os.W_OK):
        return
    prune(root())
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def who_else_may_write(folder: Path) -> str:
    """Why a folder of programs is not safe: others own it or the one above, or may write there. "" if it is safe."""
    if not hasattr(os, "geteuid"):
        return ""
    for each in (folder, folder.parent):
        status = each.stat()
        if status.st_uid != os.geteuid():
            return f"{each} belongs to another user"
        if status.st_mode & stat.S_IWOTH:
            return f"everybody may write in {each}"
    above = folder.parent.parent
    mode = above.stat().st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:  # with the sticky bit, as in /tmp, only owners can rename
        return f"everybody may write in {above}"
    return ""


def prune(folder: Path) -> None:
    """Removes programs, of all processors and versions, that have not been read or written for UNUSED_DAYS.

    Some file systems do not record reading times. There the time of writing counts.
    """
    oldest = time.time() - UNUSED_DAYS * 24 * 3600
    for file in folder.glob("xla-*/*"):
        try:
            status = file.stat()
            if max(status.st_atime, status.st_mtime) < oldest:
                file.unlink()
        except OSError:  # another process was faster, or it is a directory
            continue


def root() -> Path:
    """The cache directory: $XDG_CACHE_HOME/fdg_jax, by default ~/.cache/fdg_jax. RuntimeError if there is no home."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fdg_jax"


def processor() -> str:
    """A hash that names this kind of processor: code compiled for another kind may not run here."""
    telling = sorted({line for line in cpuinfo() if line.startswith(("model name", "flags", "Features", "CPU part"))})
    return hashlib.sha256("\n".join([platform.machine(), *telling]).encode()).hexdigest()[:12]
