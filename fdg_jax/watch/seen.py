"""What is known of a run at one moment: all that its files say, and whether and how it has ended.

Files may be missing, half written or damaged. Whatever can be read is shown, and what cannot is said.
"""

import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fdg_jax.errors import BadInput, reason
from fdg_jax.runs import incidents, live, reading
from fdg_jax.runs.incidents import Incident
from fdg_jax.runs.live import ENDED, Live
from fdg_jax.runs.progress import clock
from fdg_jax.runs.run_files import CONFIG, METRICS, SUMMARY, event_of
from fdg_jax.runs.thinning import Thinned
from fdg_jax.storage import temporary_files
from fdg_jax.watch.following import Following

SILENT_SECONDS = 15.0  # without a word: a process writes every second
GIVE_UP_SECONDS = 600.0  # without a word from a process that cannot be asked whether it is there
MOST_READINGS = 1024  # of a file at one look
BEATS = 5.0  # seconds for which a process that has written is there for sure
MOST_PID = 2**31
REPORT = "report.html"
RESUME = "--resume goes on from its newest checkpoint."


class Ended(NamedTuple):
    """How a run has ended. code: 0 if it finished, else 1. said: a sentence."""

    code: int
    said: str


class Seen(NamedTuple):
    """A run at one moment.

    config, summary: config.json, checked; summary.json, {} if the run has not finished.
    train, test: the lines of metrics.jsonl that have a training loss, a test error (fdg_jax.runs.thinning).
    lives: what its processes say, by their numbers; {} of a run of an earlier version.
    refused, stalls: as in `fdg_jax.runs.incidents`.
    wrong: what is missing or damaged, in sentences.
    ended: how it has ended; None while it goes on.
    """

    config: dict[str, Any]
    summary: dict[str, Any]
    train: list[dict[str, Any]]
    test: list[dict[str, Any]]
    lives: dict[int, Live]
    refused: list[Incident]
    stalls: int
    wrong: list[str]
    ended: Ended | None


class Watched:
    """A run directory that is looked at again and again."""

    def __init__(self, run: Path):
        self.run = run
        self.metrics = Following(run / METRICS)
        self.number, self.damaged = 0, 0  # of lines
        self.config: dict[str, Any] | None = None
        self.config_file: Any = None  # tells whether it is still the one that was read
        self.train, self.test = Thinned("train_loss"), Thinned("test_error_percent")
        self.written: dict[int, tuple[float, float]] = {}  # by process: (what it wrote, when that was, by our clock)

    def begun(self) -> bool:
        """Whether there is a run in the directory."""
        return (self.run / CONFIG).is_file()

    def look(self) -> Seen:
        """What there is now. Raises BadInput where config.json says nothing that could be shown."""
        try:
            return self.looked()
        except OSError as error:
            raise BadInput(f"{self.run} cannot be looked at: {reason(error)}.") from None

    def looked(self) -> Seen:
        """What there is now. Raises BadInput and OSError."""
        wrong = self.read_config()
        self.read_metrics()
        if self.damaged:
            lines = f"{self.damaged:,} line{'s' * (self.damaged > 1)}"
            wrong.append(f"{lines} of metrics.jsonl cannot be read and {'are' if self.damaged > 1 else 'is'} left out.")
        summary: dict[str, Any] = {}
        if (self.run / SUMMARY).exists():
            try:
                summary = reading.summary(self.run)
            except BadInput as error:
                if (self.run / SUMMARY).exists():
                    wrong.append(str(error))
        lives = live.read_all(self.run)
        ages = {process: self.age(process, each) for process, each in lives.items()}
        ended = self.how_it_ended(summary, lives.get(0), ages.get(0, 0.0))
        if ended is None:
            wrong += silence(lives, ages)
            lives = {n: each if ages[n] <= SILENT_SECONDS else old_news(each) for n, each in lives.items()}
        elif (self.run / REPORT).is_file():
            ended = ended._replace(said=f"{ended.said} Its report: {self.run / REPORT}")
        refused, stalls = incidents.read(self.run), incidents.stalls(self.run)
        assert self.config is not None
        train, test = self.train.lines, self.test.lines
        return Seen(self.config, summary, train, test, lives, refused, stalls, wrong, ended)

    def read_config(self) -> list[str]:
        """Reads config.json if it is new. Returns what is wrong with it, if another one is known."""
        try:
            found = (self.run / CONFIG).stat()
            stamp = (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)
            if stamp != self.config_file:
                config = reading.config(self.run)
                reading.check_ranges(self.run / CONFIG, config)
                self.config, self.config_file = config, stamp
        except OSError as error:
            if self.config is None:
                raise BadInput(f"{self.run / CONFIG} cannot be read: {error.strerror or error}.") from None
            gone = "The run directory is gone" if not self.run.exists() else f"{CONFIG} cannot be read"
            return [f"{gone}: {error.strerror or error}. What is shown was read before."]
        except BadInput as error:
            if self.config is None:
                raise
            return [str(error)]
        return []

    def read_metrics(self) -> None:
        """Takes the new lines of metrics.jsonl."""
        for _ in range(MOST_READINGS):
            news = self.metrics.news()
            if news.anew:
                self.number, self.damaged = 0, 0
                self.train, self.test = Thinned("train_loss"), Thinned("test_error_percent")
            if not news.lines:
                return
            self.take(news.lines)

    def take(self, lines: list[bytes]) -> None:
        """Takes lines of metrics.jsonl."""
        for line in lines:
            self.number += 1
            try:
                event = event_of(self.run / METRICS, self.number, line)
            except BadInput:
                self.damaged += 1
                continue
            if "epoch" not in event or ("train_loss" in event and "learning_rate" not in event):
                self.damaged += 1
            elif event.get("test_error_percent") is not None:
                self.test.add(event)
            elif event.get("train_loss") is not None:
                self.train.add(event)

    def age(self, process: int, said: Live) -> float:
        """Seconds since a process has written. Other machines' clocks may differ from ours: so a change is now."""
        now = time.monotonic()
        before = self.written.get(process)
        if before is None:
            self.written[process] = said.unix_seconds, now - max(0.0, time.time() - said.unix_seconds)
        elif before[0] != said.unix_seconds:
            self.written[process] = said.unix_seconds, now
        return now - self.written[process][1]

    def how_it_ended(self, summary: Mapping[str, Any], said: Live | None, age: float) -> Ended | None:
        """How the run has ended; None while it goes on."""
        if not self.run.exists():
            return Ended(1, "The run directory is gone: it was deleted or renamed.")
        if said is not None and said.doing != ENDED and is_there(said, age):
            return None
        if summary and (said is None or said.exit_code in (None, 0)):
            return Ended(0, "It has finished.")
        if said is None:
            quiet = self.quiet_seconds()
            if quiet < GIVE_UP_SECONDS:
                return None
            fact = f"It has not finished, and nothing has been written for {clock(quiet)}"
            return Ended(1, f"{fact}: it was stopped or killed. {RESUME}")
        if said.doing == ENDED:
            return of_code(said)
        where = f"process {said.pid} on {said.host}"
        return Ended(1, f"It was killed: {where} is gone without a word since {clock(age)}. {RESUME}")

    def quiet_seconds(self) -> float:
        """Seconds since the run's files were last written, for a run of an earlier version."""
        times = []
        for name in (CONFIG, METRICS):
            try:
                times.append((self.run / name).stat().st_mtime)
            except OSError:
                continue
        return max(0.0, time.time() - max(times)) if times else 0.0


def is_there(said: Live, age: float) -> bool:
    """Whether a process still exists, as far as that can be told from here."""
    if age < BEATS:
        return True
    if said.host == socket.gethostname():
        if not (0 < said.pid < MOST_PID and temporary_files.alive(said.pid)):
            return False
        started = temporary_files.start_of(said.pid)
        return started == said.started or None in (started, said.started)  # else its number is another process's now
    return age < GIVE_UP_SECONDS


def old_news(said: Live) -> Live:
    """What a process said long ago, without what it did at that moment."""
    stages = tuple(each._replace(operation=None, under_way=None, recent_busy_percent=None) for each in said.stages)
    return said._replace(per_second=None, seconds_left=None, stages=stages)


def of_code(said: Live) -> Ended:
    """The end of a process that has told its exit code."""
    code = said.exit_code
    if code == 0:
        return Ended(0, "It has finished.")
    why = f": {said.ended_by.rstrip('.')}" if said.ended_by else ""
    if code is not None and code > 128:
        try:
            name = said.ended_by or signal.Signals(code - 128).name
        except ValueError:
            name = f"signal {code - 128}"
        return Ended(1, f"It was stopped by {name}. {RESUME}")
    return Ended(1, f"It failed with exit code {code}{why}. {RESUME}")


def silence(lives: Mapping[int, Live], ages: Mapping[int, float]) -> list[str]:
    """Which processes have not said anything for long."""
    found = []
    processes = lives[0].processes if lives else 0
    for process, age in sorted(ages.items()):
        name = f"Process {process}" if processes > 1 else "The run"
        if lives[process].doing == ENDED:
            found.append(f"{name} has ended, and the others go on or wait for it.")
        elif age > SILENT_SECONDS:
            why = "it is suspended, its machine is overloaded, or its disk is full"
            found.append(f"{name} has not written for {clock(age)}: {why}.")
    missing = [process for process in range(min(processes, live.MOST_PROCESSES)) if process not in lives]
    if missing:
        shown = ", ".join(map(str, missing[:8]))
        found.append(f"Nothing is known of process {shown}{', ...' * (len(missing) > 8)} of {processes}.")
    return found
