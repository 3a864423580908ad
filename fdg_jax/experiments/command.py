"""What the training commands share, which is everything but their name, their data sets and their defaults.

Exit codes: 0 done; 2 bad input (one message, before any long work); 130, 143, 129 and 138 stopped by SIGINT, SIGTERM,
SIGHUP and SIGUSR1, from the first batch on after a checkpoint; 1 anything else, a run that diverged or met a damaged
image included. Flags and files: `--help`, and the README.

Training goes on when nobody can read its output any more (fdg_jax.experiments.output), and when the report at its end
cannot be made. The exit code is that of the training.
"""

import dataclasses
import errno
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdg_jax.errors import BadInput
from fdg_jax.experiments import checks, claim, command_line, output, run_directory, stored
from fdg_jax.experiments.command_line import Program
from fdg_jax.experiments.options import Options
from fdg_jax.experiments.progress import count
from fdg_jax.experiments.signals import Signals, Stopped

if TYPE_CHECKING:
    from fdg_jax.experiments.session import Session
    from fdg_jax.experiments.setup import Job


def main(arguments: Sequence[str], program: Program) -> int:
    """Runs the command; returns its exit code."""
    with output.forgiving(), Signals() as signals:
        try:
            options, given = command_line.parse(arguments, program)
            return start(options, given, program, signals)
        except BadInput as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        except Stopped as stopped:
            print(f"stopped by {stopped} before the first batch", flush=True)
            return 128 + stopped.number


def start(asked: Options, given: frozenset[str], program: Program, signals: Signals) -> int:
    """Everything cheap is checked, then the run directory is claimed, then the run is prepared."""
    if asked.resume_into is not None:
        from fdg_jax.experiments import resume_into

        return resume_into.start(asked, given, program, signals)
    if asked.resume and asked.run_dir is None:
        raise BadInput("--resume needs the run directory of the run to go on with: add --run-dir DIR.")
    checks.check(asked, given if not asked.resume else frozenset())
    claimed = claim.claim(Path(asked.run_dir), asked.resume) if asked.run_dir else claim.claim_new(asked)
    with claimed as path:
        if asked.resume == "auto":
            asked = dataclasses.replace(asked, resume=claim.resumes(path))
            checks.check(asked, given if not asked.resume else frozenset())
        options, config = asked, None
        if asked.resume:
            options, config = stored.resumed_options(path, asked, given)
            checks.check(options, frozenset())
            run_directory.read_metrics(path / run_directory.METRICS)  # what is damaged is refused before the work
            if finished(path, options):
                from fdg_jax.experiments import ending

                ending.write_report(path, config)  # a process that was killed at its very end may lack it
                return 0
        return prepare_and_run(options, config, path, program, signals)


def finished(path: Path, options: Options) -> bool:
    """Whether the run that is to be resumed has nothing left to do; says so."""
    if not os.path.lexists(path / run_directory.SUMMARY):
        return False
    total = options.epochs * math.ceil((options.train_size or 0) / options.batch_size)
    steps = min(total, options.steps or total)
    done = stored.summary(path)["steps"]
    if done < steps:
        return False
    stored.refuse_less(steps, done)
    print(f"{path} is finished: {count(steps, 'batch', 'es')}. Nothing to do. If --steps was given, raise it to go on.")
    return True


def prepare_and_run(
    options: Options, before: dict[str, Any] | None, path: Path, program: Program, signals: Signals
) -> int:
    """before: config.json of the run that goes on."""
    checks.check_names(options, program.datasets)
    signals.check()
    from fdg_jax.data import interruptible
    from fdg_jax.experiments import compile_cache, jax_settings, session, setup, stages

    jax_settings.check_new() if before is None else jax_settings.check_resumed(before)
    compile_cache.enable()
    setup.prepare_cpu(before)
    with interruptible.by(signals.at_once):
        job = setup.prepare(options, before["note"] if before else "")
    job = job._replace(options=dataclasses.replace(job.options, run_dir=str(path)))
    config = run_directory.config(job.options, options, job.devices, job.dataset.note)
    config["stages"] = known = stages.facts(job)
    begun = session.begin(job, path, resume=before is not None)  # what is refused leaves the files as they were
    if before is not None:
        tell_changes(before, config)
        config = run_directory.continued(before, config)
    try:
        run_directory.write_json(path / run_directory.CONFIG, config)
        opening(job, path, known, resumed=before is not None)
        return train(job, path, program, signals, begun)
    except OSError as error:
        return tell_full(path, error)


def tell_full(path: Path, error: OSError) -> int:
    """Says that the disk is full; returns the exit code. Raises any other error."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        raise error
    fact = f"{path} cannot be written: {error.strerror}. What was saved there stays"
    print(f"error: {fact}; make room, then go on with --resume.", file=sys.stderr)
    return 1


def tell_changes(before: dict[str, Any], now: dict[str, Any]) -> None:
    """Warns where a resumed run meets another machine or other code than its first session, which may compute other
    last bits."""
    names = ("processor", "usable_cores", "cpu_devices", "devices", "xla_flags", "matmul_precision", "git_commit")
    known = [name for name in names if name in before and name in now]
    changed = [f"{name} {now[name]}, was {before[name]}" for name in known if before[name] != now[name]]
    if changed:
        fact = f"this is not where the run began: {'; '.join(changed)}"
        print(f"warning: {fact}. It may not be the same to the last bit.", file=sys.stderr, flush=True)


def opening(job: "Job", path: Path, known: list[dict[str, Any]], resumed: bool) -> None:
    """What a person sees first. known: what is known of the stages."""
    from fdg_jax.experiments import terminal
    from fdg_jax.experiments.story import tell

    width = terminal.columns()
    lines = [terminal.wrapped(line, width) for line in tell(job, known)]
    print("\n".join([*lines, f"run        {path}{' (resumed)' if resumed else ''}"]), flush=True)
    if resumed:  # a new run's has been said while the data were loaded
        loudly(job.dataset.note)
    print("compiling...", flush=True)


def loudly(note: str) -> None:
    if note:
        print(f"\n!!! {note}\n", flush=True)


def train(job: "Job", path: Path, program: Program, signals: Signals, begun: "Session") -> int:
    """The run itself, then summary.json and the report."""
    from fdg_jax.data.jpeg import Damaged
    from fdg_jax.experiments import ending
    from fdg_jax.experiments import train as training
    from fdg_jax.experiments.home import Gone, Home
    from fdg_jax.experiments.record import Diverged
    from fdg_jax.experiments.replay import NotReproduced
    from fdg_jax.experiments.rescue import Broken
    from fdg_jax.experiments.saving import SaveFailed

    (path / run_directory.SUMMARY).unlink(missing_ok=True)
    config = run_directory.read_json(path / run_directory.CONFIG)  # kept, should somebody delete the file
    home = Home(path, job.options.tensorboard)

    def ended(tell: Callable[..., int], *what: Any) -> int:
        """The report comes first, so that what ended the training is the last line."""
        if not home.lost():
            ending.complete(home)
            ending.write_report(path, config)
        return tell(path, *what)

    try:
        record, parameters, state = training.run(job, path, signals, begun, home)
    except Gone as gone:
        print(f"error: {gone} To lose no weights by that, use --on-failed-save go-on.", file=sys.stderr)
        return 1
    except SaveFailed as failed:
        return ended(ending.tell_not_saved, str(failed))
    except NotReproduced as fact:
        print(f"error: {fact}. {ending.NOT_REPRODUCED}", file=sys.stderr)
        return 1
    except Diverged as diverged:
        return ended(ending.tell_diverged, str(diverged))
    except Damaged as damaged:
        return ended(ending.tell_damaged, str(damaged), program.command)
    except Stopped as stopped:
        return ended(ending.tell_stopped, stopped, program.command)
    except Broken as broken:
        return ended(ending.tell_broken, broken, program.command)
    except OSError as error:
        return tell_full(path, error)
    summary = ending.summarise(job, record, parameters, state)
    run_directory.write_json(path / run_directory.SUMMARY, summary)
    code = ended(ending.tell_done, summary)
    loudly(job.dataset.note)
    return code


def leave(code: int) -> None:
    """Ends the process of a command."""
    output.flush()
    if "fdg_jax.experiments.loading" in sys.modules:
        from fdg_jax.experiments import loading

        loading.leave(code)
    sys.exit(code)
