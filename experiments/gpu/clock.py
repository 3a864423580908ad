"""The time that this call of the command has. Its end, and a signal, interrupt whatever part is at work."""

import contextlib
import signal
import time
from collections.abc import Iterator
from typing import Any

from fdg_jax.training.signals import Signals

RESERVE_SECONDS, RESERVE_SHARE = 30.0, 0.1  # for stopping: what is under way gets so long to write a checkpoint


class TimeIsUp(Exception):
    """The time of this call is over. Parts go on with the next one."""


class Clock:
    """As a context. Within `interruptible` the end of the time raises TimeIsUp, and a signal raises Stopped, wherever
    the main thread is; elsewhere they are remembered.

    Arguments:
        seconds: how long the whole call may take, from now on.
    """

    def __init__(self, seconds: float):
        self.seconds, self.began = seconds, time.monotonic()
        self.reserve = min(RESERVE_SECONDS, RESERVE_SHARE * seconds)
        self.over = False
        self.signals = Signals()

    def __enter__(self) -> "Clock":
        self.signals.__enter__()
        self.before = signal.signal(signal.SIGALRM, self.ring)
        signal.setitimer(signal.ITIMER_REAL, max(0.001, self.left()))
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self.before)
        self.signals.__exit__()

    def ring(self, _number: int, _frame: Any) -> None:
        self.over = True
        if self.signals.raising:
            raise TimeIsUp

    def left(self) -> float:
        """Seconds until parts are interrupted."""
        return self.began + self.seconds - self.reserve - time.monotonic()

    def left_to_stop(self) -> float:
        """Seconds until nothing may be at work any more, 1 or more."""
        return max(1.0, self.began + self.seconds - time.monotonic())

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        with self.signals.at_once():
            if self.over:
                raise TimeIsUp
            yield
