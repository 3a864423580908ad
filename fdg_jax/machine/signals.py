"""Lets signals end a run cleanly: after the dispatch under way, with a checkpoint.

SIGINT (Ctrl-C), SIGTERM, SIGHUP (the terminal is gone) and SIGUSR1 (schedulers announce the end with it) have the same
effect. A second SIGINT or SIGTERM leaves at once. The code that checks `number` decides where the run can be stopped.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from typing import ClassVar, Self

from fdg_jax.machine import output

IMPATIENT = (signal.SIGINT, signal.SIGTERM)  # a second of these leaves at once
# When a terminal closes, SIGHUP often comes twice within milliseconds, from its shell and from the kernel. Schedulers
# repeat SIGUSR1. So these two never mean "at once". Windows has neither.
PATIENT = tuple(getattr(signal, name) for name in ("SIGHUP", "SIGUSR1") if hasattr(signal, name))


class Stopped(Exception):
    """The run was stopped by a signal; everything needed to resume it is on disk."""

    def __init__(self, number: int):
        self.number = number
        super().__init__(signal.Signals(number).name)


class Signals:
    """A context that handles the signals and restores the old handlers at the end. `number` is None until a signal
    comes."""

    current: ClassVar["Signals | None"] = None  # the innermost one

    def __init__(self) -> None:
        self.number: int | None = None
        self.impatient = False  # whether the next SIGINT or SIGTERM leaves at once
        self.raising = False  # whether a signal raises Stopped where it arrives

    def __enter__(self) -> Self:
        taken = [number for number in (*IMPATIENT, *PATIENT) if number in IMPATIENT or not ignored(number)]
        self.before = {number: signal.signal(number, self.receive) for number in taken}
        self.outer, Signals.current = Signals.current, self
        return self

    def __exit__(self, *_) -> None:
        Signals.current = self.outer
        for number, handler in self.before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: set by code in C

    def receive(self, number: int, _frame) -> None:
        impatient, self.impatient = self.impatient, self.impatient or number in IMPATIENT
        if impatient and number in IMPATIENT:
            output.write_to_stderr(
                "\nstopped at once; --resume goes on from the newest checkpoint in the run directory\n"
            )
            if output.Forgiving(sys.stdout).isatty():
                with contextlib.suppress(OSError):
                    os.write(1, b"\x1b[?25h")  # the progress display hides the cursor
            os._exit(128 + number)
        if self.number is None:
            self.number = number
            name = signal.Signals(number).name
            again = f"{name} again" if number in IMPATIENT else "SIGTERM twice"
            output.write_to_stderr(f"\n{name}: stopping after the current operation (to stop at once, send {again})\n")
        if self.raising:
            raise Stopped(self.number)

    def check(self) -> None:
        """Raises Stopped if a signal came."""
        if self.number is not None:
            raise Stopped(self.number)

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """A context in which a signal raises Stopped wherever the main thread is. It is for long waits that leave
        nothing half done."""
        before, self.raising = self.raising, True
        try:
            self.check()
            yield
        finally:
            self.raising = before


def long_wait() -> contextlib.AbstractContextManager[None]:
    """The context `at_once` of the current `Signals`; a context that does nothing if there is no current `Signals`."""
    return Signals.current.at_once() if Signals.current else contextlib.nullcontext()


def ignored(number: int) -> bool:
    """Whether the signal was set to be ignored before this process started, as nohup does with SIGHUP."""
    return signal.getsignal(number) is signal.SIG_IGN
