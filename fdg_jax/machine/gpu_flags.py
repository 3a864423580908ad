"""XLA's flags for a training on a GPU: fast kernels are chosen by measuring, and a resumed run uses the same kernels.

XLA measures several kernels for an operation when it compiles it. Another start may measure other times and choose a
kernel that rounds differently. So the choices are kept in the run directory, and --resume loads them.
`--xla_gpu_exclude_nondeterministic_ops` leaves out the kernels that sum in no fixed order.
`--xla_gpu_deterministic_ops` also leaves them out, but then nothing is measured and every kernel is the default.
"""

import os
import subprocess
import sys
from collections.abc import Collection, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from fdg_jax.machine.output import say

FILE = "autotune.textproto"  # in the run directory; XLA writes text into files with this ending
REPEATABLE, UNTUNED = "--xla_gpu_exclude_nondeterministic_ops=true", "--xla_gpu_deterministic_ops=true"
DUMP, LOAD = "--xla_gpu_dump_autotune_results_to", "--xla_gpu_load_autotune_results_from"
OURS = tuple(flag.partition("=")[0] for flag in (REPEATABLE, UNTUNED, DUMP, LOAD))


def prepare(run: Path, before: Mapping[str, Any] | None, process: int = 0) -> None:
    """Adds the flags to XLA_FLAGS if the training will be on an NVIDIA GPU. Call it before JAX starts.

    Arguments:
        run: the run directory.
        before: config.json of a resumed run.
        process: the number of this process; each process has its own file.
    """
    given = os.environ.get("XLA_FLAGS", "")
    if not on_gpu(os.environ.get("JAX_PLATFORMS", "")) or any(flag in given for flag in OURS):
        return
    file = run.resolve() / (f"{process}-{FILE}" if process else FILE)
    wanted = tuned(file, file.exists())
    if before is not None and not file.exists():  # the run began without tuning, or the user had set flags
        wanted = UNTUNED if UNTUNED in (before.get("xla_flags") or "") else ""
    elif unknown := unknown_flags(wanted):
        say(untuned_because(unknown))
        wanted = UNTUNED
    os.environ["XLA_FLAGS"] = f"{given} {wanted}".strip()


def on_gpu(platforms: str) -> bool:
    """Whether JAX will use an NVIDIA GPU. platforms: JAX_PLATFORMS. It starts nothing."""
    plugins = [each.name for each in metadata.entry_points(group="jax_plugins")]
    allowed = not platforms or "cuda" in platforms or "gpu" in platforms
    return allowed and any("cuda" in name for name in plugins) and Path("/dev/nvidiactl").exists()


def tuned(file: Path, exists: bool) -> str:
    """The flags that keep the measured choices in a file. exists: whether the file holds choices, to be loaded
    first."""
    return " ".join([REPEATABLE, f"{DUMP}={file}", *([f"{LOAD}={file}"] if exists else [])])


def untuned_because(unknown: Collection[str]) -> str:
    """The sentence for a version of XLA that cannot keep its choices."""
    return (
        f"warning: this version of XLA does not know {', '.join(unknown)}, so it cannot store its choice of kernels. "
        f"The run uses {UNTUNED} instead. It is slower, but a repeated or resumed run still has the same bits."
    )


def unknown_flags(flags: str) -> list[str]:
    """The names of the flags that XLA does not know. XLA ends a process that has unknown flags, so a child process
    tries them."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    words = [sys.executable, "-c", "import jax; jax.devices()"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, errors="replace", check=False)
    return refused(flags, done.returncode, done.stderr)


def refused(flags: str, code: int, said: str) -> list[str]:
    """The names of the flags that kept a process from starting; all flags if the process does not name them.

    Arguments:
        flags: those of the process.
        code, said: its exit code, and what it wrote to stderr.
    """
    names = [word.partition("=")[0] for word in flags.split()]
    told = said.rpartition("Unknown flags in XLA_FLAGS:")[2].split()
    return [] if code == 0 else [name for name in names if any(word.startswith(name) for word in told)] or names


def without_files(flags: str | None) -> str | None:
    """XLA_FLAGS as config.json records them: without the file of choices, which lies in the run directory."""
    if flags is None or DUMP not in flags:
        return flags
    return " ".join(word for word in flags.split() if not word.startswith((DUMP, LOAD)))
