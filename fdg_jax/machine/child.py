"""A child process that ends with this process, optionally pinned to cores and with a log. Also the ports that its
servers will listen at, and which process computes which stage. Without JAX, so that the launcher can use it.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Self

from fdg_jax.machine import leash
from fdg_jax.machine.facts import pinned

POLL_SECONDS = 0.1


class Child:
    """A child process. Used as a context, it is killed at the end.

    Arguments:
        words: arguments of Python, e.g. ("-m", "a.module").
        name: its name in messages.
        env: its environment; None: that of this process.
        cores: cores to which all its threads are pinned; none: no pinning.
        before: words in front of its command, e.g. to start it on another host.
        interpreter: the Python that runs it; "": that of this process.
        log: the file to which its output is added. None: its stdout is a pipe, and its stderr is that of this process.
        answers: whether its stdout is a pipe even with a log.
        stop: the signal that the child gets when this process ends.
        folder: its working directory; None: that of this process.
    """

    def __init__(
        self, words: Sequence[str], name: str = "", *, env: Mapping[str, str] | None = None,
        cores: Collection[int] = (), before: Sequence[str] = (), interpreter: str = "", log: Path | None = None,
        answers: bool = False, stop: int = signal.SIGKILL, folder: Path | None = None,
    ):  # fmt: skip
        self.name, self.log, self.stop, self.cores = name or " ".join(words[:2]), log, stop, cores
        if log:
            log.parent.mkdir(parents=True, exist_ok=True)
        with open(log or os.devnull, "a", encoding="utf-8") as file, pinned(cores):
            # In a new session, so that Ctrl-C in the terminal reaches this process only, which passes the signal on
            # once (a second signal would make a training leave without a checkpoint).
            self.process = subprocess.Popen(
                [*before, *leash.command(stop, interpreter), *words], cwd=folder, text=True, start_new_session=True,
                env=None if env is None else dict(env), stdin=subprocess.DEVNULL if log else subprocess.PIPE,
                stdout=file if log and not answers else subprocess.PIPE, stderr=file if log else None,
            )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        end([self])

    @property
    def running(self) -> bool:
        return self.process.poll() is None


def end(children: Sequence[Child], seconds: float = 0.0) -> None:
    """Stops the running children: by each child's `stop` signal, and after this many seconds by SIGKILL."""
    running = [child for child in children if child.running]
    for child in running:
        child.process.send_signal(child.stop)
    until = time.monotonic() + seconds
    while any(child.running for child in running) and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
    for child in children:
        child.process.kill()
        child.process.wait()
        for pipe in (child.process.stdin, child.process.stdout):
            if pipe:
                with contextlib.suppress(BrokenPipeError):  # a question that nobody has read
                    pipe.close()


def last_line(log: Path, beginnings: tuple[str, ...] = ("",)) -> str:
    """The newest line of a log that begins with one of `beginnings`; if no line does, the newest line."""
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return ([line for line in lines if line.startswith(beginnings)] or lines or ["nothing yet"])[-1]


def hold_port(address: str) -> tuple[str, socket.socket]:
    """A free port at an IPv4 address, and a socket that holds it until it is closed or its process ends.

    On Linux, other programs then cannot get the port. Only a server that sets SO_REUSEADDR can listen there, such as
    JAX's servers and `fdg_jax.transport.joining`. Other systems would refuse these servers. There the returned socket
    is closed already, so another program may take the port.

    Returns: (address and port, e.g. "127.0.0.1:40001", the socket).

    Raises OSError if the address is not one of this machine's.
    """
    holder = socket.socket()
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((address, 0))
    except OSError:
        holder.close()
        raise
    place = f"{address}:{holder.getsockname()[1]}"
    if sys.platform != "linux":
        holder.close()
    return place, holder


def processes_of_stages(K: int, processes: int) -> list[int]:
    """The process, from 0, of each stage k = 1..K. Stages are shared out as evenly as K allows."""
    return [k * processes // K for k in range(K)]
