"""Ctrl-C and SIGTERM end a run in good order: after the dispatch under way, with a checkpoint.

A second signal leaves at once. Whoever checks `number` decides where the run can be stopped.
"""

import os
import signal
import sys


class Stopped(Exception):
    """The run was stopped by a signal; everything needed to resume it is on disk."""

    def __init__(self, number: int):
        self.number = number
        super().__init__(signal.Signals(number).name)


class Signals:
    """As a context: takes SIGINT and SIGTERM, gives them back at the end. `number` is None until one came."""

    def __init__(self) -> None:
        self.number: int | None = None

    def __enter__(self) -> "Signals":
        self.before = {number: signal.signal(number, self.receive) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def receive(self, number: int, _frame) -> None:
        if self.number is not None:
            os.write(2, b"\nstopped at once; --resume goes on from the newest checkpoint in the run directory\n")
            if sys.stdout.isatty():
                os.write(1, b"\x1b[?25h")  # the progress display hides the cursor
            os._exit(128 + number)
        self.number = number
        name = signal.Signals(number).name
        os.write(2, f"\n{name}: stopping after what is under way (once more: at once)\n".encode())

    def check(self) -> None:
        """Raises Stopped if a signal came."""
        if self.number is not None:
            raise Stopped(self.number)
