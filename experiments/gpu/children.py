"""Processes of their own for everything that starts JAX: a part can be interrupted, and has its own XLA flags.

A child that trains is stopped by SIGUSR1, after a checkpoint, and any number of these means the same. The kernel sends
one when this process is gone, so that nothing is left behind by a kill -9.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.gpu.settings import DETERMINISTIC
from experiments.harness.run_table import ROOT

STOP = signal.SIGUSR1
LEASH = Path(__file__).with_name("leash.py")
POLL_SECONDS = 0.1
PRECISION = {"float32": {"JAX_DEFAULT_MATMUL_PRECISION": "highest"}, "tf32": {}, "bfloat16": {}}


class ChildFailed(Exception):
    """A child ended with an error; the message ends with what it said last."""


def environment(precision: str, *flags: str, compile_anew: bool = False) -> dict[str, str]:
    """What a child starts with: how float32 is multiplied, XLA flags, and no more of the GPU's memory than it needs.

    Arguments:
        precision: float32 (products in full precision), tf32 or bfloat16 (JAX's default).
        flags: XLA flags; a later one of the same name wins.
        compile_anew: use no programs that were compiled before.
    """
    found = {name: value for name, value in os.environ.items() if name != "JAX_DEFAULT_MATMUL_PRECISION"}
    found |= {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **PRECISION[precision]}
    found["XLA_FLAGS"] = joined(found.get("XLA_FLAGS", ""), DETERMINISTIC, *flags)
    return found | ({"FDG_JAX_COMPILE_CACHE": "0"} if compile_anew else {})


def joined(*flags: str) -> str:
    """XLA flags as one text, each name once: the last one counts."""
    words = [word for text in flags for word in text.split()]
    return " ".join({word.partition("=")[0]: word for word in words}.values())


def start(words: Sequence[str], log: Path, env: Mapping[str, str], answers: bool = False) -> subprocess.Popen:
    """Starts a child whose output is added to a log. answers: what it prints can be read here instead."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        return subprocess.Popen(
            [sys.executable, str(LEASH), str(os.getpid()), str(int(STOP)), *words],
            cwd=ROOT, env=dict(env), text=True, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE if answers else file, stderr=file,
        )  # fmt: skip


def wait(children: Sequence[subprocess.Popen]) -> None:
    """Waits until all have ended. What interrupts it leaves them running: see `end`."""
    while any(child.poll() is None for child in children):
        time.sleep(POLL_SECONDS)


def end(children: Sequence[subprocess.Popen], seconds: float) -> None:
    """Stops those that still run: by a signal that lets them write a checkpoint, after so many seconds by force."""
    running = [child for child in children if child.poll() is None]
    for child in running:
        child.send_signal(STOP)
    until = time.monotonic() + seconds
    while any(child.poll() is None for child in running) and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
    for child in running:
        if child.poll() is None:
            child.kill()
        child.wait()


def run(words: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
    """Runs a child to its end. Raises ChildFailed."""
    run_all([(words, log, env)])


def run_all(wanted: Sequence[tuple[Sequence[str], Path, Mapping[str, str]]]) -> None:
    """Runs children side by side to their ends. Raises ChildFailed for the first that failed."""
    going: list[subprocess.Popen] = []
    try:
        for words, log, env in wanted:
            going.append(start(words, log, env))
        wait(going)
    finally:
        end(going, 0.0)
    for child, (_, log, _) in zip(going, wanted, strict=True):
        if child.returncode:
            raise ChildFailed(told(child.returncode, log))


def ask(name: str, given: Mapping[str, Any], log: Path, env: Mapping[str, str]) -> Any:
    """What `experiments.gpu.child NAME` answers. Raises ChildFailed."""
    child = start(["-m", "experiments.gpu.child", name, json.dumps(given)], log, env, answers=True)
    try:
        said, _ = child.communicate()
    finally:
        end([child], 0.0)
    if child.returncode:
        raise ChildFailed(told(child.returncode, log))
    return json.loads(said.splitlines()[-1])


def told(code: int, log: Path) -> str:
    """An exit code and the last line of a log."""
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return f"exit code {code}; it said last: {lines[-1] if lines else 'nothing'}"
