"""Starts a command that is stopped when the process that started it dies: `python leash.py PARENT SIGNAL WORDS...`.

The kernel sends the signal (Linux; on other systems the command is only started). The leash is a separate program
because a process can ask for this signal only for itself. The setting remains when exec replaces the leash by the
command.
"""

import ctypes
import os
import sys

PARENT_DEATH = 1  # PR_SET_PDEATHSIG of Linux


def command(number: int, interpreter: str = "") -> list[str]:
    """The words in front of Python's arguments. The signal is sent when this process, or the thread that starts the
    command, ends. interpreter: the Python that runs the command; "": that of this process."""
    return [interpreter or sys.executable, os.path.abspath(__file__), str(os.getpid()), str(int(number))]


if __name__ == "__main__":
    parent, signal_number, *words = sys.argv[1:]
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PARENT_DEATH, int(signal_number), 0, 0, 0)
        if os.getppid() != int(parent):
            sys.exit(1)
    os.execv(sys.executable, [sys.executable, *words])
