"""The display of a run's progress: a bar in a terminal, plain lines in a file or a pipe."""

import sys
import time

from fdg_jax.machine import output

PLAIN_SECONDS = 10.0  # between two plain lines


class Progress:
    """Call show() after every dispatch, and say() for lines that stay. Use as a context.

    name: the run's name if it is one of several in this process. Then only the lines of say() are shown, with the name
        in front.
    """

    def __init__(self, steps: int, done: int, epochs: int, unit: str = "images", name: str = ""):
        self.steps, self.epochs, self.unit, self.name = steps, epochs, unit, name
        self.error, self.said, self.bar = "", 0.0, None
        self.first, self.start = done, None  # the first batch that did not compile, and its time

    def __enter__(self) -> "Progress":
        if sys.stdout.isatty() and not self.name:
            self.bar, self.task = rich_bar(self.steps, self.first)
            self.bar.start()
        return self

    def __exit__(self, *_) -> None:
        if self.bar is not None:
            self.bar.stop()

    def show(self, step: int, epoch: int, loss: float | None, speed: float | None, compiling: bool) -> None:
        """Shows the progress. step: batches entered. epoch: counted from 1. speed: in `unit` per second. compiling:
        whether the dispatch may have compiled."""
        seconds = self.seconds_left(step, compiling)
        left = f"{clock(seconds)} left" if seconds is not None else ""
        rate = per_second(speed, self.unit) if speed else ""
        shown = f"loss {loss:.4f}" if loss is not None else ""
        if self.bar is not None:
            self.bar.update(
                self.task, completed=step, epoch=self.epoch(epoch), loss=shown, error=self.error,
                rate=rate, left=left,
            )  # fmt: skip
        elif loss is not None and not self.name and time.monotonic() - self.said >= PLAIN_SECONDS:
            self.said = time.monotonic()
            words = [self.epoch(epoch), f"batch {step}/{self.steps}", shown, self.error, rate, left]
            self.say("  ".join(word for word in words if word))

    def epoch(self, epoch: int) -> str:
        """The epoch in words; "" if the run's length is given in batches."""
        return f"epoch {epoch}/{self.epochs}" if self.epochs else ""

    def say(self, line: str) -> None:
        if self.bar is not None:
            whole = output.wrapped(line, self.bar.console.width)
            self.bar.console.print(whole, markup=False, highlight=False, soft_wrap=True)
        else:
            shown = f"{self.name}: {line}" if self.name else line
            print(shown, file=output.loud() if line.startswith("WARNING: ") else None, flush=True)

    def seconds_left(self, step: int, compiling: bool) -> float | None:
        """Seconds from batch `step` to the end, estimated from the wall clock since the first dispatch that did not
        compile; None while unknown."""
        now = time.monotonic()
        if self.start is None:
            if not compiling:
                self.start, self.first = now, step
            return None
        return (now - self.start) / (step - self.first) * (self.steps - step) if step > self.first else None


def rich_bar(steps: int, done: int):
    """Returns a bar of `steps` batches, of which `done` are done, and the bar's task."""
    from rich import progress

    columns = ["{task.fields[epoch]}", progress.BarColumn(bar_width=24), progress.TaskProgressColumn()]
    columns += ["{task.fields[" + name + "]}" for name in ("loss", "error", "rate", "left")]
    bar = progress.Progress(*columns, refresh_per_second=4)
    task = bar.add_task("", total=steps, completed=done, epoch="compiling", loss="", error="", rate="", left="")
    return bar, task


def per_second(speed: float | None, unit: str = "images") -> str:
    """1,234 images/s, or a dash if nothing could be measured."""
    return f"{'-' if speed is None else f'{speed:,.0f}'} {unit}/s"


def count(n: float, one: str, ending: str = "s") -> str:
    """A number with its noun: 1 epoch, 2.5 epochs. With the ending "es": 3 batches."""
    return f"{n} {one}{'' if n == 1 else ending}"


def clock(seconds: float) -> str:
    """75 -> 1m15s."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{seconds:02d}s" if minutes else f"{seconds}s"
