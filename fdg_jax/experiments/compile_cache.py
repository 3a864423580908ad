"""Keeps compiled programs between runs, so that the second start of the same training takes half the time.

It is JAX's own persistent cache, in the user's cache directory. The programs are the same ones, so nothing
about a run changes (it ends with the same hashes with and without). They are native code: the folder's name
says for which processor and which jaxlib. FDG_JAX_COMPILE_CACHE=0 leaves it off; a directory named by
JAX_COMPILATION_CACHE_DIR is used instead.
"""

import hashlib
import os
import platform
from importlib import metadata
from pathlib import Path

import jax

SWITCH = "FDG_JAX_COMPILE_CACHE"


def enable() -> None:
    """Call it before anything compiles. A cache directory that cannot be made is no reason not to train."""
    if os.environ.get(SWITCH) == "0" or os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return
    try:
        folder = root() / f"xla-{metadata.version('jaxlib')}-{processor()}"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: a user without a home
        return
    if not os.access(folder, os.W_OK):
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def root() -> Path:
    """$XDG_CACHE_HOME/fdg_jax, by default ~/.cache/fdg_jax."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fdg_jax"


def processor() -> str:
    """A short name for this kind of processor: code compiled for another one may not run here."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    telling = sorted({line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))})
    return hashlib.sha256("\n".join([platform.machine(), *telling]).encode()).hexdigest()[:12]
