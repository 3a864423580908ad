"""Starts a command that is stopped when the process that asked for it dies: `python leash.py PARENT SIGNAL WORDS...`.

The kernel sends the signal (Linux; elsewhere the command is just started). It is a program of its own because the
setting belongs to the process that asks for it, and outlives the start of another program in its place.
"""

import ctypes
import os
import sys

PARENT_DEATH = 1  # PR_SET_PDEATHSIG of Linux


def command(number: int, interpreter: str = "") -> list[str]:
    """What comes in front of the words for Python: the signal is sent when this process, or the thread that starts the
    command, has ended. interpreter: the Python that runs it; "" is this one."""
    return [interpreter or sys.executable, os.path.abspath(__file__), str(os.getpid()), str(int(number))]


if __name__ == "__main__":
    parent, signal_number, *words = sys.argv[1:]
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PARENT_DEATH, int(signal_number), 0, 0, 0)
        if os.getppid() != int(parent):
            sys.exit(1)
    os.execv(sys.executable, [sys.executable, *words])
