"""`--profile N`: what the devices and the host did in N batches, as JAX's profiler sees it.

The trace begins when nothing compiles any more, and is written by JAX in two forms: for ui.perfetto.dev, and for XProf
(`pip install xprof`). The same programs run in the same order, so the run computes the same bits; only its speed is
that of a traced run, for so many batches.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from fdg_jax.errors import reason
from fdg_jax.runs.progress import count

FOLDER, PERFETTO = "profile", "perfetto_trace.json.gz"


class Profile:
    """The trace of one session.

    Arguments:
        batches: to be traced; 0: none.
        run: the run directory.
        paused: waits for the devices, and calls a function while no time of training is counted.
        say: prints a line.
    """

    def __init__(
        self, batches: int, run: Path, paused: Callable[[Callable[[], Any]], None], say: Callable[[str], None]
    ):
        self.left, self.folder, self.paused, self.say = batches, run / FOLDER, paused, say
        self.traced, self.on = 0, False

    def before_dispatch(self, batches: int, may_compile: bool) -> None:
        """Begins the trace before the first dispatch that does not compile, and counts its batches."""
        if self.left <= 0:
            return
        if not self.on and not may_compile:
            self.paused(self.start)
        if self.on:
            self.left -= batches
            self.traced += batches

    def after_dispatch(self) -> None:
        """Ends the trace after as many batches as were asked for."""
        if self.on and self.left <= 0:
            self.paused(self.stop)

    def start(self) -> None:
        try:
            jax.profiler.start_trace(self.folder, create_perfetto_trace=True)
            self.on = True
        except Exception as error:  # another profiler, of a debugger say, is at work
            self.give_up(error)

    def stop(self) -> None:
        """Ends the trace and says where it is."""
        self.on = False
        try:
            jax.profiler.stop_trace()
        except Exception as error:
            self.give_up(error)
            return
        found = sorted(self.folder.rglob(PERFETTO))
        where = found[-1] if found else self.folder
        batches = count(self.traced, "batch", "es")
        self.say(f"profile of {batches}: open {where} at ui.perfetto.dev, or xprof --logdir {self.folder}")

    def close(self) -> None:
        """At the end of the session."""
        if self.on:
            self.paused(self.stop)
        elif self.left > 0 and not self.traced:
            self.give_up("every batch of this session may have compiled programs, so none was traced")

    def give_up(self, why: Exception | str) -> None:
        self.left = 0
        fact = why if isinstance(why, str) else reason(why)
        print(f"warning: --profile: {fact}. The run is not affected.", file=sys.stderr, flush=True)
