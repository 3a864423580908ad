"""Restarts the command once with huge pages and a glibc that keeps its memory, which makes training on a CPU faster.

XLA's temporaries on a CPU are larger than what glibc keeps: they are mapped, page by page, and given back at every
step. glibc reads its tunables before the process starts, so they can only be set by starting it again: same process
number, same terminal, same signals. FDG_JAX_HUGE_PAGES=0 leaves everything as it is.
"""

import contextlib
import os
import sys
from pathlib import Path

from fdg_jax.machine import output

SWITCH, TUNABLES, WANTED = "FDG_JAX_HUGE_PAGES", "GLIBC_TUNABLES", "glibc.malloc.hugetlb"
HUGE = f"{WANTED}=1"
# Nothing is mapped by itself, nothing is given back; in one arena, as only the main one grows beyond 64 MB.
KEPT = "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=68719476736:glibc.malloc.arena_max=1"


def restart_once() -> None:
    """Call it before anything heavy is imported. Returns where nothing is to be done or it has been done."""
    environment = wanted_environment(dict(os.environ))
    if environment is not None:
        output.flush()
        with contextlib.suppress(OSError):  # where it can't be done: go on with small pages
            os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def on() -> bool:
    """Whether this process has been started with them."""
    return HUGE in os.environ.get(TUNABLES, "")


def wanted_environment(environment: dict[str, str]) -> dict[str, str] | None:
    """The environment to start again with, or None."""
    tunables = environment.get(TUNABLES, "")
    done = SWITCH in environment or WANTED in tunables
    if done or not sys.executable or gpu_visible(environment) or not glibc_has_huge_pages():
        return None
    joined = ":".join(part for part in (tunables, HUGE, KEPT) if part)
    return {**environment, TUNABLES: joined, SWITCH: "1"}


def gpu_visible(environment: dict[str, str]) -> bool:
    """An NVIDIA GPU that JAX would use: training then happens there, and the host's pages do not matter."""
    if environment.get("JAX_PLATFORMS") == "cpu" or environment.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return False
    return Path("/dev/nvidiactl").exists() or Path("/dev/nvidia0").exists() or Path("/dev/dxg").exists()


def glibc_has_huge_pages() -> bool:
    """glibc 2.35 or newer on a kernel whose transparent huge pages can be asked for."""
    try:
        name, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
        major, minor = (int(part) for part in version.split(".")[:2])
        allowed = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text(encoding="utf-8")
    except (AttributeError, ValueError, OSError):
        return False
    return name == "glibc" and (major, minor) >= (2, 35) and "[never]" not in allowed
