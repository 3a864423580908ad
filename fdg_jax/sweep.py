"""`--seeds 0,1,2` and `--sweep beta=0.2,0.5,1`: one run for each combination of values, and their comparison.

Each run is a training command in its own process, with --resume auto. Runs follow one another, or with --jobs several
run at a time, each on its own core. After any stop, the same command continues the runs. All combinations are checked
before the first run starts.

The output of a run goes to a log file beside its directory. On Ctrl-C or SIGTERM, every current run gets one signal, so
that it ends with a checkpoint and can be continued. If this process is killed, its runs get a signal to stop (on
Linux).
"""

import dataclasses
import itertools
import math
import os
import re
import shlex
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fdg_jax import durable, own_files
from fdg_jax.checks import options as checks
from fdg_jax.cli import CommandLine, Program, settled
from fdg_jax.config import FIELDS, OF_MODELS, Config
from fdg_jax.config_file import Setting, converted
from fdg_jax.errors import BadInput, did_you_mean, reason
from fdg_jax.machine import child, output
from fdg_jax.machine.child import Child
from fdg_jax.machine.facts import CAN_PIN, python_command, usable
from fdg_jax.machine.signals import Signals
from fdg_jax.options.common import Start, chosen
from fdg_jax.options.fields import spelled, words, written
from fdg_jax.report import comparison, results
from fdg_jax.runs import locking, reading, run_files

PAGE, SEED, MOST = "compared.html", "seed", 1000
TELL_SECONDS, POLL_SECONDS, BAD_INPUT = 60.0, 0.2, 2
ONCE = ("run_dir", "resume", "data_dir")  # options that cannot differ between runs


class Combination(NamedTuple):
    """One run of a sweep.

    name: the name of its directory.
    chosen: option -> value, for the swept options.
    options: all options of the run.
    given: the names of the options that the user gave.
    """

    name: str
    chosen: Mapping[str, Any]
    options: Config
    given: frozenset[str]


# Trains runs in this process, in their directories below a folder, and returns the exit code.
Together = Callable[[Sequence["Combination"], Path], int]


def run(asked: CommandLine, program: Program, signals: Signals, together: Together) -> int:
    """Executes all runs, or lists them with --dry-run; returns the exit code. Raises BadInput only before the first run
    starts.

    together: trains the runs as one program, for --together.
    """
    folder, found = Path(asked.options.run_dir or ""), list(combinations(asked, program))
    cores_for(asked.start.jobs)
    locking.check_place(folder)
    if locking.holds_run(folder):
        raise BadInput(f"{folder} is itself the directory of a run. Choose another --run-dir for the runs of a sweep.")
    for one in found:
        old = folder / "-".join(f"{option}{plain(value)}" for option, value in one.chosen.items())
        if old.exists():
            fact = f"{old} is a run of an earlier version; this version calls the directory {one.name}"
            raise BadInput(f"{fact}. Rename such directories to go on, or choose another --run-dir.")
        checks.check(one.options, one.given)
        left_to_do(folder / one.name, one)  # raises BadInput for a run with other options
    names = ("model", "K", "dataset", "split", *OF_MODELS)  # the options that check_names checks
    for options in {tuple(getattr(one.options, name) for name in names): one.options for one in found}.values():
        checks.check_names(options, program.datasets)
    if asked.start.dry_run:
        for one in found:
            print(shlex.join([python_command(), *command(one, folder, program, asked.start)]), file=output.loud())
        print(f"dry run: {len(found)} runs, none started. To see the cost of one, use its command with --dry-run.")
        return 0
    try:
        durable.make_folder(folder)
    except OSError as error:
        raise BadInput(f"--run-dir {folder} cannot be made: {reason(error)}. Choose another directory.") from None
    try:
        if asked.start.together:
            code = together(found, folder)
        else:
            code = make_all([planned(one, folder, program, asked.start) for one in found], asked.start.jobs, signals)
        tell(found, folder)
        return code
    except OSError as error:
        print(run_files.not_written(folder, error), file=sys.stderr)
        return 1


def combinations(asked: CommandLine, program: Program) -> Iterator[Combination]:
    """Yields the runs; the seed changes fastest. Raises BadInput if an option or a value cannot be swept."""
    swept: dict[str, list[Any]] = {}
    texts = [(f"--sweep {text}", text) for text in asked.start.sweep]
    if (seeds := asked.start.seeds) is not None:
        texts.append((f"--seeds {seeds}", f"{SEED}={','.join(map(ranged, seeds.split(',')))}"))
    for said, text in texts:
        name, several = parsed(said, text)
        if name in swept:
            raise BadInput(f"{said}: {name} is swept twice. Leave one of the two out.")
        if name in asked.given and name not in asked.places:  # given on the command line, not in a file
            raise BadInput(f"{said}: {spelled(name)} sets the same option. Leave one of the two out.")
        swept[name] = several
    if (runs := math.prod(map(len, swept.values()))) > MOST:
        raise BadInput(f"--sweep makes {runs:,} runs. Use at most {MOST:,}, or split them over several directories.")
    names: dict[str, Any] = {}
    for swept_here in (dict(zip(swept, each, strict=True)) for each in itertools.product(*swept.values())):
        name = "_".join(f"{option.replace('_', '-')}-{plain(value)}" for option, value in swept_here.items())
        if len(name) > 150 or name in names:
            why = "as another run" if name in names else "which is too long"
            fact = f"--sweep: the run with {swept_here} would have the directory {name[:60]!r}, {why}"
            raise BadInput(f"{fact}. Sweep fewer options.")
        names[name] = swept_here
        options, given = settled({**asked.line, **swept_here}, asked.file, program)
        yield Combination(name, swept_here, dataclasses.replace(options, resume=False), given)


def parsed(said: str, text: str) -> tuple[str, list[Any]]:
    """(option, values) of NAME=VALUES. Raises BadInput if there is no such option, or a value is not of its type.

    said: the flag with its value, for messages.
    """
    name, sign, rest = text.partition("=")
    name = name.lstrip("-").replace("-", "_")
    if not sign or not rest:
        raise BadInput(f"{said}: write NAME=VALUES, e.g. beta=0.2,0.5,1.")
    if name not in FIELDS:
        raise BadInput(f"{said}: there is no option {name!r}.{did_you_mean(name, FIELDS)}")
    if name in ONCE:
        raise BadInput(f"{said}: {name} is the same for all runs. Give it as {spelled(name)}.")
    texts = [word.strip() for word in rest.split(";" if ";" in rest else ",")]
    several = [converted(Setting(name, word, None, word=True), FIELDS[name], said) for word in texts]
    several = [own_files.by_name(name, value) for value in several]
    if len(set(several)) < len(several):
        raise BadInput(f"{said}: a value is listed twice. List each value once.")
    return name, several


def ranged(word: str) -> str:
    """Expands 3-5 to 3,4,5; returns any other word unchanged. Raises BadInput for more than `MOST` numbers."""
    if not (found := re.fullmatch(r"\s*(\d+)-(\d+)\s*", word)):
        return word
    first, last = map(int, found.groups())
    if not 0 <= last - first < MOST:
        raise BadInput(f"--seeds {word}: not a range of 1 to {MOST:,} seeds. Write the smaller number first.")
    return ",".join(map(str, range(first, last + 1)))


def plain(value: Any) -> str:
    """A value as a part of a directory's name."""
    return re.sub(r"[^\w.,+-]", "_", written(value))


def left_to_do(path: Path, one: Combination) -> str:
    """Whether a run is to be "started" or "continued"; "" if it is finished. Raises BadInput if its directory contains
    another run."""
    if not locking.resumes(path):
        return "started"
    options, _ = reading.resumed_options(path, one.options, one.given)
    return "continued" if reading.finished_steps(path, options) is None else ""


def command(one: Combination, folder: Path, program: Program, start: Start) -> list[str]:
    """The training command of a run, as Python's arguments."""
    now = {name: getattr(one.options, name) for name in FIELDS}
    alone = Config(**chosen(program.defaults, {name: now[name] for name in one.given}))
    said = {name: value for name, value in now.items() if name in one.given or value != getattr(alone, name)}
    said = {name: own_files.by_path(name, value) for name, value in said.items() if name not in ("run_dir", "resume")}
    said |= {name: value for name in ("trust_code", "track", "profile") if (value := getattr(start, name))}
    flags = [word for name, value in said.items() for word in words(name, value)]
    return [*program.command.split()[1:], *flags, "--run-dir", str(folder / one.name), "--resume", "auto"]


def planned(one: Combination, folder: Path, program: Program, start: Start) -> "Planned":
    """Converts a run into the form that `make_all` takes."""

    def start_words() -> tuple[list[str], str] | None:
        if how := left_to_do(folder / one.name, one):
            return command(one, folder, program, start), how
        print(f"{one.name}: is finished", flush=True)
        return None

    return Planned(one.name, folder / f"{one.name}.log", start_words)


def tell(found: Sequence[Combination], folder: Path) -> None:
    """Compares the runs that have begun, as `fdg_jax.compare` does: prints the table and writes the page."""
    begun = [folder / one.name for one in found if os.path.lexists(folder / one.name / run_files.CONFIG)]
    if not begun:
        return
    made = comparison.compare([results.of_directory(path) for path in begun])
    durable.write(folder / PAGE, comparison.page(made, folder).encode())
    print(f"\n{folder / PAGE} has the curves.\n\n{comparison.text(made)}", file=output.loud(), flush=True)


# The runs as processes.


class Planned(NamedTuple):
    """A run to be executed.

    command(): returns (Python's arguments, "started" or "continued"). If nothing is left to do, it prints this and
        returns None. It is called just before the start, because another process may work on the same runs.
    """

    name: str
    log: Path
    command: Callable[[], tuple[list[str], str] | None]


def make_all(planned: Sequence[Planned], jobs: int, signals: Signals, folder: Path | None = None) -> int:
    """Executes the runs, `jobs` at a time, each on its own core if `jobs` is more than 1.

    Arguments:
        folder: the working directory of the commands; None for the current one.

    Returns: 0 if all runs succeeded, 128 + the signal's number after a signal, else the exit code of the first run that
    failed.
    """
    cores, queue, going, codes = cores_for(jobs), deque(planned), list[Child](), list[int]()
    last_look = time.monotonic()
    try:
        while going or queue:
            if signals.number is not None:
                return stop(going, signals.number)
            if queue and len(going) < jobs:
                one = queue.popleft()
                if (words := one.command()) is not None:
                    taken = {core for each in going for core in each.cores}
                    core = next(core for core in cores if core is None or core not in taken)
                    going.append(start(one, *words, core, folder, jobs == 1))
                continue
            time.sleep(POLL_SECONDS)
            if time.monotonic() - last_look > TELL_SECONDS:
                last_look = time.monotonic()
                for one in going:
                    print(f"{one.name}: {last_line(one.log)}", flush=True)
            for ended in [one for one in going if not one.running]:
                going.remove(ended)
                codes.append(finish(ended))
                if codes[-1] == BAD_INPUT and queue:
                    print(f"not starting the other {len(queue)} runs, which would likely fail in the same way")
                    queue.clear()
    except BaseException:  # for example, a run's options are refused only now: stop the others
        stop(going, signal.SIGTERM)
        raise
    return next((code for code in codes if code), 0)


def cores_for(jobs: int) -> list[int | None]:
    """A core for each of several jobs. None instead of a core means that a job is not pinned. Raises BadInput."""
    if jobs < 1:
        raise BadInput(f"--jobs {jobs}: use 1 or more.")
    if jobs == 1 or not CAN_PIN:
        return [None] * jobs
    cores = usable()
    if jobs > len(cores):
        raise BadInput(f"--jobs {jobs}: each run needs a core, but there are {len(cores)}. Use 1 to {len(cores)}.")
    return list(cores[:jobs])


def start(
    one: Planned, words: Sequence[str], how: str, core: int | None, folder: Path | None, alone: bool
) -> Child:
    """Starts a run. words: Python's arguments. how: "started" or "continued". alone: whether runs follow one
    another."""
    where = "" if core is None else f" on core {core}"
    print(f"{one.name}: {how}{where}, log in {one.log}", flush=True)
    # By default JAX takes most of a GPU's memory at once, which leaves too little for the other runs.
    env = None if alone else {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ}
    cores = [] if core is None else [core]
    return Child(words, one.name, env=env, cores=cores, log=one.log, stop=signal.SIGTERM, folder=folder)


def stop(going: Sequence[Child], number: int) -> int:
    """Sends the signal to the runs and waits until they have ended, with checkpoints. Returns the exit code."""
    for one in going:
        one.process.send_signal(number)
    for one in going:
        one.process.wait()
        finish(one)
    print("stopped; the same command continues these runs", flush=True)
    return 128 + number


def finish(one: Child) -> int:
    """Prints how a run has ended; returns its exit code."""
    code = one.process.returncode
    how = "finished" if code == 0 else f"ended with exit code {code}"
    print(f"{one.name}: {how}: {last_line(one.log)}", flush=True)
    return code


def last_line(log: Path | None) -> str:
    """The newest line of a log about the progress of training, or about how it ended."""
    return child.last_line(log, ("epoch ", "done:", "error:", "stopped by")) if log else ""
