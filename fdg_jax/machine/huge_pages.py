"""Restarts the command once with huge pages and a glibc that keeps freed memory, which speeds up training on a CPU.

XLA's temporary arrays on a CPU are large, so glibc maps their memory again, page by page, at every step. glibc reads
its settings (tunables) before a process starts, so they can only be set by a restart. The restarted command has the
same process number, terminal and signals. FDG_JAX_HUGE_PAGES=0 turns this off.
"""

import contextlib
import os
import sys
from pathlib import Path

from fdg_jax.machine import output

SWITCH, TUNABLES, WANTED = "FDG_JAX_HUGE_PAGES", "GLIBC_TUNABLES", "glibc.malloc.hugetlb"
HUGE = f"{WANTED}=1"
# No array gets its own mapping, and no memory is returned. There is one arena, since only the main arena grows beyond
# 64 MB.
KEPT = "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=68719476736:glibc.malloc.arena_max=1"


def restart_once() -> None:
    """Restarts the command if this helps and has not been done. Call it before slow imports. It opens no file before
    `output.open_closed_files`."""
    output.open_closed_files()
    environment = wanted_environment(dict(os.environ))
    if environment is not None:
        output.flush()
        with contextlib.suppress(OSError):  # if it fails: go on with small pages
            os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def on() -> bool:
    """Whether this process was started with huge pages."""
    return HUGE in os.environ.get(TUNABLES, "")


def wanted_environment(environment: dict[str, str]) -> dict[str, str] | None:
    """The environment to restart with; None if no restart is needed or useful."""
    tunables = environment.get(TUNABLES, "")
    done = SWITCH in environment or WANTED in tunables
    if done or not sys.executable or gpu_visible(environment) or not glibc_has_huge_pages():
        return None
    joined = ":".join(part for part in (tunables, HUGE, KEPT) if part)
    return {**environment, TUNABLES: joined, SWITCH: "1"}


def gpu_visible(environment: dict[str, str]) -> bool:
    """Whether JAX would use an NVIDIA GPU. Training then runs on the GPU, and the host's pages do not matter."""
    if environment.get("JAX_PLATFORMS") == "cpu" or environment.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return False
    return Path("/dev/nvidiactl").exists() or Path("/dev/nvidia0").exists() or Path("/dev/dxg").exists()


def glibc_has_huge_pages() -> bool:
    """Whether this is glibc 2.35 or newer, on a kernel that allows transparent huge pages."""
    try:
        name, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
        major, minor = (int(part) for part in version.split(".")[:2])
        allowed = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text(encoding="utf-8")
    except (AttributeError, ValueError, OSError):
        return False
    return name == "glibc" and (major, minor) >= (2, 35) and "[never]" not in allowed
