"""From checked options to a finished run: the opening lines, the training, and the results."""

import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdg_jax import durable
from fdg_jax.checks import options as checks
from fdg_jax.cli import Program
from fdg_jax.config import Config, run_length
from fdg_jax.machine import output, terminal
from fdg_jax.options.common import ONE_RUN, Start
from fdg_jax.runs import incidents, reading, run_files, trackers
from fdg_jax.runs.progress import count
from fdg_jax.training.peers import Peers
from fdg_jax.training.signals import Signals, Stopped

if TYPE_CHECKING:
    from fdg_jax.training.session import Session
    from fdg_jax.training.setup import Job


def finished(path: Path, options: Config) -> bool:
    """Whether the run that is to be resumed has nothing left to do; says so."""
    if (steps := finished_steps(path, options)) is None:
        return False
    longer = f"With --init-from {path} another run begins with its weights"
    more = "With more --steps it goes on" if options.steps else longer
    print(f"{path} is finished: {count(steps, 'batch', 'es')}. Nothing to do. {more}.", file=output.loud())
    return True


def finished_steps(path: Path, options: Config) -> int | None:
    """The batches of a run that has nothing left to do; None if it has."""
    if not os.path.lexists(path / run_files.SUMMARY):
        return None
    steps = run_length(options.train_size or 0, options.batch_size, options.epochs, options.steps).end
    done = reading.summary(path)["steps"]
    if done < steps:
        return None
    reading.refuse_less(steps, done)
    return steps


def prepare_and_run(
    options: Config,
    before: dict[str, Any] | None,
    path: Path,
    program: Program,
    signals: Signals,
    peers: Peers,
    start: Start = ONE_RUN,
) -> int:
    """before: config.json of the run that goes on. start: what is traced and tracked."""

    def check() -> None:
        checks.check_names(options, program.datasets)
        signals.check()

    peers.each(check)
    from fdg_jax.data import interruptible
    from fdg_jax.machine import compile_cache, jax_settings
    from fdg_jax.training import initial, session, setup, stages, trained

    named = options.init_from if before is None else None  # a run that goes on has its own weights
    weights = peers.each(lambda: initial.InitialWeights(named) if named else None)

    def check_settings() -> None:
        jax_settings.check_new() if before is None else jax_settings.check_resumed(before)

    peers.told(check_settings)
    compile_cache.enable()
    setup.prepare_cpu(before, peers.on_one_core())
    with interruptible.by(signals.at_once):
        job = setup.prepare(options, before["note"] if before else "", peers, weights)
    job = job._replace(options=dataclasses.replace(job.options, run_dir=str(path)))
    config = run_files.config(job.options, options, job.devices, job.dataset.note)
    config["stages"] = known = stages.facts(job)
    config |= {"initial": weights.about} if weights else {}
    config["inputs"], config["test_size"] = trained.inputs_of(job.dataset)._asdict(), len(job.dataset.test_inputs)
    begun = session.begin(job, path, resume=before is not None)  # what is refused leaves the files as they were
    begun = begun._replace(start=start)
    if before is not None and peers.first:
        tell_changes(before, config)
        config = run_files.continued(before, config, begun.record.step)
    peers.told(lambda: begin_tracking(begun, path, config))
    try:
        if peers.first:
            run_files.write_json(path / run_files.CONFIG, config)
        if weights:
            print(weights.line(), flush=True)
        opening(job, path, known, resumed=before is not None)
        return run_tracked(job, path, program, signals, begun)
    except OSError as error:
        return tell_full(path, error)


def begin_tracking(begun: "Session", path: Path, config: dict[str, Any]) -> None:
    """Gives the record its trackers. Raises BadInput, before the training and before config.json is written."""
    begun.record.trackers = trackers.opened(begun.start.track, path, config, begun.resumed)


def run_tracked(job: "Job", path: Path, program: Program, signals: Signals, begun: "Session") -> int:
    """The run itself, in this process, to its end in the trackers; returns the exit code."""
    code = 1
    try:
        code = (train if job.peers.first else follow)(job, path, program, signals, begun)
        return code
    finally:
        begun.record.trackers.finish(path, code)


def tell_full(path: Path, error: OSError) -> int:
    """Says that the disk is full, or that the run directory is gone; returns the exit code. Raises any other error."""
    if not path.is_dir():
        fact, way_out = f"the run directory {path} is gone", "It was deleted or renamed while the run went on"
    elif durable.is_disk_full(error):
        fact = f"{path} cannot be written: {error.strerror}. What was saved there stays"
        way_out = "Make room on the disk, then go on with --resume"
    else:
        raise error
    print(f"error: {fact}. {way_out}.", file=sys.stderr)
    return 1


def tell_changes(before: dict[str, Any], now: dict[str, Any]) -> None:
    """Warns where a resumed run meets another machine or other code than its first session, which may compute other
    last bits."""
    names = ("processor", "usable_cores", "cpu_devices", "devices", "xla_flags", "matmul_precision", "git_commit")
    known = [name for name in names if name in before and name in now]
    if any(" of process " in name for name in (*before["devices"], *now["devices"])):
        known.remove("devices")  # in another number of processes they have other names
    changed = [f"{name} {now[name]}, was {before[name]}" for name in known if before[name] != now[name]]
    if changed:
        fact = f"the run began in another environment: {'; '.join(changed)}"
        print(f"warning: {fact}. The last bits may differ.", file=sys.stderr, flush=True)


def opening(job: "Job", path: Path, known: list[dict[str, Any]], resumed: bool) -> None:
    """What a person sees first. known: what is known of the stages."""
    from fdg_jax.training.opening import tell

    width = terminal.columns()
    lines = [terminal.wrapped(line, width) for line in tell(job, known)]
    print("\n".join([*lines, f"run        {path}{' (resumed)' if resumed else ''}"]), flush=True)
    if resumed:  # a new run's has been said while the data were loaded
        loudly(job.dataset.note)
    print("compiling...", flush=True)


def loudly(note: str) -> None:
    if note:
        print(f"\n{terminal.wrapped(f'!!! {note}', terminal.columns())}\n", file=output.loud(), flush=True)


def train(job: "Job", path: Path, program: Program, signals: Signals, begun: "Session") -> int:
    """The run itself, then summary.json and the report."""
    from fdg_jax.checkpoint.run_checkpoints import SaveFailed
    from fdg_jax.data.damaged import Damaged
    from fdg_jax.training import closing, session_run
    from fdg_jax.training.nonfinite_policy import Diverged
    from fdg_jax.training.rescue import Broken

    (path / run_files.SUMMARY).unlink(missing_ok=True)
    command, began_in = program.started(job.peers.processes), os.stat(path)

    def ended(tell: Callable[..., int], *what: Any, full: bool = False) -> int:
        """The report comes first, so that what ended the training is the last line. full: nothing could be written."""
        if durable.is_same_folder(path, began_in):
            closing.write_report(path, quietly=full)
        return tell(path, *what)

    try:
        record, parameters, state = session_run.run(job, path, signals, begun)
        summary = closing.summarise(job, record, parameters, state)
        run_files.write_json(path / run_files.SUMMARY, summary)
    except SaveFailed as failed:
        return ended(closing.tell_not_saved, str(failed), full=True)
    except Diverged as diverged:
        incidents.add(path, diverged.step, f"{diverged}. The run ended there.")
        return ended(closing.tell_diverged, str(diverged))
    except Damaged as damaged:
        return ended(closing.tell_damaged, str(damaged), command)
    except Stopped as stopped:
        return ended(closing.tell_stopped, stopped, command)
    except Broken as broken:
        return ended(closing.tell_broken, broken, command)
    except OSError as error:
        return tell_full(path, error)
    code = ended(closing.tell_done, summary)
    loudly(job.dataset.note)
    return code


def follow(job: "Job", path: Path, program: Program, signals: Signals, begun: "Session") -> int:
    """The run in the other processes of several. What all of them learn is told by process 0, which writes files."""
    from fdg_jax.checkpoint.run_checkpoints import SaveFailed
    from fdg_jax.data.damaged import Damaged
    from fdg_jax.training import closing, session_run
    from fdg_jax.training.nonfinite_policy import Diverged
    from fdg_jax.training.rescue import Broken

    command = program.started(job.peers.processes)
    try:
        record, parameters, state = session_run.run(job, path, signals, begun)
    except Stopped as stopped:
        return 128 + stopped.number
    except (SaveFailed, Diverged):
        return 1
    except Damaged as damaged:
        return closing.tell_damaged(path, str(damaged), command)
    except Broken as broken:
        return closing.tell_broken(path, broken, command)
    closing.summarise(job, record, parameters, state)  # it asks all processes
    return 0
