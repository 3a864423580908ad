"""The launcher in a process of its own, with small programs in the place of a training."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The command with shorter times; its parent ignores the ends of its children, which the command must not inherit.
QUICK = """
import os, signal, sys
from fdg_jax import launch
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
launch.KILL_SECONDS = launch.LAST_LINES_SECONDS = launch.PATIENCE_SECONDS = 0.3
launch.FIRST_WAIT_SECONDS = 0.1
os._exit(launch.main(sys.argv[1:]))
"""
# What every process begins with: its number `me`, and `ready`, which prints the numbers of its processes.
CHILD = """
import os, signal, subprocess, sys, time
me = int(sys.argv[sys.argv.index("--process-id") + 1])
def ready(*pids):
    print("pids", os.getpid(), *pids, flush=True)
def on_sigterm(does):
    signal.signal(signal.SIGTERM, lambda *_: does())
def saved(seconds=0, code=143):
    time.sleep(seconds)
    os.write(1, b"saved\\n")  # a print is refused while the signal has interrupted another print
    os._exit(code)
"""
GRANDCHILD = "ready(subprocess.Popen(['sleep', '60']).pid)\n"
WAIT = "ready()\nwhile True: time.sleep(0.1)"  # a signal that arrives just before a long sleep does not end it
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAIT


class Launched:
    """The launcher with children that run some code. As a context: it and what it printed as `pids` are gone then."""

    def __init__(self, code: str, *flags: str, count: int = 3, words: tuple[str, ...] = (), by=("-c", QUICK)):
        given = [sys.executable, *by, "--processes", str(count), *flags, "--", "-c", CHILD + code, *words]
        self.process = subprocess.Popen(
            given, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        self.count, self.out, self.pids = count, "", {}

    def __enter__(self) -> "Launched":
        return self

    def __exit__(self, *_) -> None:
        self.process.kill()
        for pid in [pid for pids in self.pids.values() for pid in pids]:
            if not gone(pid):
                os.kill(pid, signal.SIGKILL)
        self.process.communicate()

    def started(self) -> dict[int, list[int]]:
        """Process -> its pid and those of its own children, once all processes have printed them."""
        while len(self.pids) < self.count:
            line = self.process.stdout.readline()
            assert line, self.process.stderr.read()
            self.out += line
            if found := re.match(r"\[(\d+)\] pids (.*)", line):
                self.pids[int(found[1])] = [int(pid) for pid in found[2].split()]
        return self.pids

    def finish(self) -> tuple[int, str, str]:
        """Exit code, stdout and stderr; nothing may be left, nor may there be a traceback of the launcher."""
        out, err = self.process.communicate(timeout=20)
        assert not re.search("^Traceback", err, re.M)
        assert all(gone(pid) for pids in self.pids.values() for pid in pids)
        return self.process.returncode, self.out + out, err


def gone(pid: int, seconds: float = 3.0) -> bool:
    """Whether a process ends within some time. One that nobody has reaped has ended, too."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
        if not shown or shown.startswith("Z"):
            return True
        time.sleep(0.02)
    return False
