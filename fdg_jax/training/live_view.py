"""`--live`: the view of `python -m fdg_jax.watch` while this process trains, in its terminal or as a page.

A thread reads the files of the run, as another process would, once a second. Training does not wait for it.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

from fdg_jax.errors import reason
from fdg_jax.machine import output, terminal
from fdg_jax.runs.progress import Progress
from fdg_jax.watch import server
from fdg_jax.watch.seen import Watched
from fdg_jax.watch.terminal import Drawn

LOOK_SECONDS = 1.0
LEAST_REST = 50  # times as long as a look takes is the pause after it, so that training keeps Python to itself


class LiveProgress(Progress):
    """A frame in place of the bar. Lines that stay are printed above it."""

    def __init__(self, run: Path, *of_progress: Any, **named: Any):
        super().__init__(*of_progress, **named)
        self.watched, self.drawn = Watched(run), Drawn()

    def __enter__(self) -> "LiveProgress":
        self.drawn.__enter__()
        self.looking = Looking(lambda: self.drawn.show(self.watched.look()))
        self.looking.start()
        return self

    def __exit__(self, *_: Any) -> None:
        try:
            self.looking.stop()
        finally:
            self.drawn.__exit__()

    def show(self, step: int, epoch: int, loss: float | None, speed: float | None, compiling: bool) -> None:
        """Nothing but the time left: the frame is drawn by a thread."""
        self.left = self.pace.seconds_left(step, self.steps, compiling)

    def say(self, line: str) -> None:
        self.drawn.say(terminal.wrapped(line, self.drawn.console.width))


class Looking(Thread):
    """Does something once a second until it is stopped, and a last time then. What takes long is done less often."""

    def __init__(self, look: Callable[[], None]):
        super().__init__(name="live-view", daemon=True)
        self.look, self.stopped = look, Event()

    def run(self) -> None:
        pause = LOOK_SECONDS
        while not self.stopped.wait(pause):
            began = time.thread_time()
            self.once()
            pause = max(LOOK_SECONDS, LEAST_REST * (time.thread_time() - began))

    def once(self) -> None:
        with contextlib.suppress(Exception):  # no fault of the view, nor of the files, may end the training
            self.look()

    def stop(self) -> None:
        """Ends it."""
        self.stopped.set()
        self.join(5)  # a daemon: should it hang, the run ends all the same
        if not self.is_alive():  # else this thread would hang there, too
            self.once()


@contextlib.contextmanager
def page(run: Path) -> Iterator[None]:
    """A context in which a page shows the run, its end included. Without one, the run is trained all the same."""
    watched = Watched(run)
    with contextlib.ExitStack() as held:
        try:
            made = held.enter_context(server.serving(watched.look(), 0))
        except Exception as error:
            made = None
            fact = f"the run is trained without its page: {reason(error).removeprefix('BadInput: ').rstrip('.')}"
            print(f"warning: {fact}. python -m fdg_jax.watch shows it, too.", file=sys.stderr, flush=True)
        if made is None:
            yield
            return
        print(f"page       {made.url} (for browsers of this machine)", file=output.loud(), flush=True)
        looking = Looking(lambda: made.page.update(watched.look()))
        looking.start()
        try:
            yield
        finally:
            looking.stop()
            server.linger(made)
