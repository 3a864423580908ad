"""A run from its checked options to its end: `prepare` builds the job, `train` trains it, and ENDINGS has the exit code
and the message for each way in which a training can end."""

import dataclasses
import math
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jax.errors import JaxRuntimeError

from fdg_jax import durable, own_files
from fdg_jax.checkpoint.run_checkpoints import SaveFailed
from fdg_jax.checks import options as checks
from fdg_jax.cli import Program
from fdg_jax.config import Config
from fdg_jax.data.loading import LoaderFailed
from fdg_jax.errors import BadInput, Damaged, first_line, reason
from fdg_jax.machine import compile_cache, jax_settings, output
from fdg_jax.machine.facts import python_command
from fdg_jax.machine.signals import Signals, Stopped
from fdg_jax.options.common import ONE_RUN, Start
from fdg_jax.report import report_page
from fdg_jax.runs import incidents, run_files, trackers
from fdg_jax.runs.progress import count, per_second
from fdg_jax.training import job, opening, session, trained
from fdg_jax.training.job import Job
from fdg_jax.training.processes import Peers, Silent
from fdg_jax.training.record import Diverged, Run
from fdg_jax.training.session import Broken

ABSURD = 1e6  # a training loss above this counts as diverged; cross-entropy of 1000 classes starts at 7
# If one of these changes between two sessions, the last bits of results may change.
ENVIRONMENT = ("processor", "usable_cores", "cpu_devices", "devices", "xla_flags", "matmul_precision", "git_commit")


def prepare_and_run(
    options: Config,
    before: dict[str, Any] | None,
    path: Path,
    program: Program,
    signals: Signals,
    peers: Peers,
    start: Start = ONE_RUN,
) -> int:
    """Returns the exit code. Raises BadInput and Stopped before the first batch.

    before: config.json of a resumed run. start: what is traced and tracked.
    """
    made, weights = prepare(options, before, program, signals, peers)
    made = made._replace(options=dataclasses.replace(made.options, run_dir=str(path)))
    known = opening.stage_facts(made)
    run = session.begin(made, path, before is not None)  # it refuses before any file is changed
    run = run._replace(start=start, again=again(path, program.started(peers.processes), made.options))
    config = configuration(run, options, before, known, weights)
    peers.from_zero(lambda: track(run, config))
    try:
        if peers.first:
            own_files.keep(path, vars(run.job.options))
            run_files.write_json(path / run_files.CONFIG, config)
        if weights:
            print(weights.line(), flush=True)
        opening.tell(run, known)
        return tracked(run, signals)
    except OSError as error:
        return end(error, run)


def dry_run(options: Config, program: Program, signals: Signals) -> int:
    """`--dry-run`: prints what a run would cost; returns the exit code. Raises BadInput and Stopped."""
    made, _ = prepare(options, None, program, signals, Peers())
    opening.tell_costs(made, signals)
    return 0


def prepare(
    options: Config, before: dict[str, Any] | None, program: Program, signals: Signals, peers: Peers
) -> tuple[Job, trained.InitialWeights | None]:
    """Returns the job and the weights of --init-from. Raises BadInput and Stopped."""

    def check() -> None:
        checks.check_names(options, program.datasets)
        signals.check()

    peers.on_all(check)
    named = options.init_from if before is None else None  # a resumed run has its own weights
    weights = peers.on_all(lambda: trained.InitialWeights(named) if named else None)
    peers.from_zero(lambda: jax_settings.check_new() if before is None else jax_settings.check_resumed(before))
    compile_cache.enable()
    job.prepare_cpu(before, peers.on_one_core())
    initial = weights.read if weights else None
    return job.prepare(options, before["note"] if before else "", peers, initial), weights


def configuration(
    run: Run,
    asked: Config,
    before: dict[str, Any] | None,
    known: list[dict[str, Any]],
    weights: trained.InitialWeights | None,
) -> dict[str, Any]:
    """The content of config.json. known: `opening.stage_facts`."""
    made = run.job
    config = run_files.config(made.options, asked, made.devices, made.dataset.note)
    config |= {"stages": known, "inputs": trained.inputs_of(made.dataset)._asdict()}
    config |= {"test_size": len(made.dataset.test_inputs), **({"initial": weights.about} if weights else {})}
    if before is None or not made.peers.first:
        return config
    warn_of_changes(before, config)
    return run_files.continued(before, config, run.record.step)


def warn_of_changes(before: dict[str, Any], now: dict[str, Any]) -> None:
    """Warns where a resumed run is on another machine, or has other code, than its first session."""
    known = [name for name in ENVIRONMENT if name in before and name in now]
    if any(" of process " in name for name in (*before["devices"], *now["devices"])):
        known.remove("devices")  # their names depend on the number of processes
    changed = [f"{name} {now[name]}, was {before[name]}" for name in known if before[name] != now[name]]
    if changed:
        fact = f"the run began in another environment: {'; '.join(changed)}"
        print(f"warning: {fact}. The last bits may differ.", file=sys.stderr, flush=True)


def track(run: Run, config: dict[str, Any]) -> None:
    """Opens the trackers and gives them to the record. Raises BadInput before config.json is written."""
    run.record.trackers = trackers.opened(run.start.track, run.path, config, run.resumed)


def tracked(run: Run, signals: Signals) -> int:
    """Trains to the end, then closes the trackers; returns the exit code."""
    code = 1
    try:
        code = train(run, signals)
        return code
    finally:
        run.record.trackers.finish(run.path, code)


def train(run: Run, signals: Signals) -> int:
    """Trains, then writes summary.json and the report; returns the exit code. The report is written first, so that the
    sentence on the run's end is the last line. Process 0 writes and prints; the others print only what process 0 cannot
    know."""
    first, began_in = run.job.peers.first, os.stat(run.path)
    if first:
        (run.path / run_files.SUMMARY).unlink(missing_ok=True)
    try:
        summary = summarise(run, *session.train(run, signals))  # involves all processes
        if first:
            run_files.write_json(run.path / run_files.SUMMARY, summary)
    except tuple(ENDINGS) as error:
        if first and isinstance(error, Diverged):
            incidents.add(run.path, error.step, f"{error}. The run ended there.")
        if first and not isinstance(error, OSError) and durable.is_same_folder(run.path, began_in):
            write_report(run.path, quietly=isinstance(error, SaveFailed))
        return end(error, run)
    if not first:
        return 0
    if durable.is_same_folder(run.path, began_in):
        write_report(run.path)
    code = tell_done(run.path, summary)
    opening.loudly(run.job.dataset.note)
    return code


# Ends: exception -> (exit code, message). A signal's exit code is 128 plus its number.


def stopped(error: Stopped, run: Run) -> str:
    if run.newest:
        return f"stopped by {error} after a checkpoint. To go on exactly there:\n  {run.again}"
    fact = f"stopped by {error} before the first batch, so there is no checkpoint"
    return f"{fact}. To start from the beginning:\n  {run.again}"


def diverged(error: Diverged, run: Run) -> str:
    return diverged_words(run.path, str(error))


def damaged(error: Damaged, run: Run) -> str:
    return f"error: {error} The run stopped before that batch. Once it is repaired, go on with\n  {run.again}"


def not_saved(error: SaveFailed, run: Run) -> str:
    """The message when a needed checkpoint could not be written. No summary is written, so that the run can be
    resumed."""
    where = f"from {run.newest.name}" if run.newest else "from the beginning"
    way_out = f"Make room on the disk, or make it writable; then {run.path} goes on {where}, with --resume."
    return f"error: {error} {way_out if run.path.is_dir() else 'Nothing of the run is left there.'}"


def broken(error: Broken, run: Run) -> str:
    cause = error.__cause__ or error
    if isinstance(cause, LoaderFailed | BadInput | Silent):
        fact = str(cause)
    elif is_lost_process(cause):
        fact = f"another process of this training has ended, or the way to it is cut ({first_line(cause)})"
    else:  # a defect of this package or of a library: the traceback shows where
        traceback.print_exception(cause)
        fact = f"training was ended by {reason(cause).rstrip('.')}."
    newest = run.newest
    where = f"The newest checkpoint is {newest}. To go on from there" if newest else "To start from the beginning"
    return f"error: {fact} {error} {where}:\n  {run.again}"


ENDINGS: Mapping[type[BaseException], tuple[int, Callable[..., str]]] = {
    Stopped: (128, stopped),
    Diverged: (1, diverged),
    Damaged: (1, damaged),
    SaveFailed: (1, not_saved),
    Broken: (1, broken),
    OSError: (1, lambda error, run: run_files.not_written(run.path, error)),
}
OF_ONE_PROCESS = (Damaged, Broken, OSError)  # only the process where it happens knows of it


def end(error: BaseException, run: Run) -> int:
    """Prints what has ended a training. Returns the exit code."""
    code, sentence = next(ending for kind, ending in ENDINGS.items() if isinstance(error, kind))
    if run.job.peers.first or isinstance(error, OF_ONE_PROCESS):
        where = output.loud() if isinstance(error, Stopped) else sys.stderr
        print(sentence(error, run), file=where, flush=True)
    return code + (error.number if isinstance(error, Stopped) else 0)


def is_lost_process(error: BaseException) -> bool:
    """Whether this error of JAX means that another process has ended."""
    signs = ("Connection closed", "Connection reset", "errno: 107", "Socket", "coordination service")
    return isinstance(error, JaxRuntimeError) and any(sign in str(error) for sign in signs)


def again(path: Path, program: str, options: Config) -> str:
    """The command that resumes a run."""
    trusted = ["--trust-code"] if own_files.used(vars(options)) else []
    return shlex.join([python_command(), *program.split()[1:], "--run-dir", str(path), "--resume", *trusted])


# Results.


def summarise(run: Run, parameters_sha256: str, state_sha256: str) -> dict[str, Any]:
    """The content of summary.json.

    staleness and updates are the stages' own counts. images_per_second (tokens_per_second for text) is None if every
    batch may have compiled.
    """
    job, record, o, pipeline = run.job, run.record, run.job.options, run.job.pipeline
    epochs = record.step / job.steps_per_epoch
    names = ("method", "model", "dataset", "K", "beta", "engine", "weights", "order")
    rate, dataset = record.per_second(), job.dataset
    return {
        **{name: getattr(o, name) for name in dict.fromkeys((*names, *job.asked_for, *job.of_recipe))},
        "split": list(job.partition.cuts),
        "parameters": pipeline.parameter_count,
        "auxiliary_parameters": pipeline.auxiliary_parameter_count,
        "steps": record.step,
        "epochs": int(epochs) if epochs == int(epochs) else round(epochs, 4),
        "seconds": round(record.elapsed(), 2),
        f"{dataset.unit}_per_second": rate if rate is None else round(rate, 2),
        "train_loss": record.train_loss(),
        "test_error_percent": record.error,
        "staleness": pipeline.staleness,
        "final_parameters_sha256": parameters_sha256,
        "final_state_sha256": state_sha256,
        "test_loss": record.test_loss,
        **dataset.measures(record.test_loss),
        "updates": pipeline.updates,
        "stage_parameters": pipeline.parameter_counts,
        "drained": o.drain,
        "seed": o.seed,
        "batch_size": o.batch_size,
        "sessions": record.sessions,
        "note": dataset.note,
    }


def is_untrained(summary: Mapping[str, Any]) -> bool:
    """Whether a run ended without an update, so that it has no training loss."""
    return math.isnan(summary["train_loss"]) and not any(summary["updates"])


def has_diverged(summary: Mapping[str, Any]) -> bool:
    """Whether a finished run has diverged: the mean training loss of its last epoch is not finite, or above ABSURD."""
    return not is_untrained(summary) and not summary["train_loss"] <= ABSURD


def diverged_words(path: Path, fact: str) -> str:
    way_out = "Lower --learning-rate (or the --beta of fdg), or add --warmup on."
    return f"error: {fact}. The run in {path} has diverged; its report shows where. {way_out}"


def tell_done(path: Path, summary: dict[str, Any]) -> int:
    """Prints the results, or that the training has diverged; returns the exit code."""
    loss, K, untrained = summary["train_loss"], summary["K"], is_untrained(summary)
    if has_diverged(summary):
        print(diverged_words(path, f"the training loss of the last epoch is {loss:.4g}"), file=sys.stderr)
        return 1
    unit = run_files.unit(summary)
    speed = per_second(summary[f"{unit}_per_second"], unit)
    epochs, stages = count(round(summary["epochs"], 2), "epoch"), "stage 1" if K == 1 else f"stages 1 to {K}"
    width = output.columns()
    print()
    done = (
        f"done: test error {summary['test_error_percent']:.2f}% after {epochs} on {summary['dataset']}, "
        f"training loss {'not known' if untrained else f'{loss:.4f}'}, {speed}"
    )
    print(output.wrapped(done, width), file=output.loud())
    staleness = (
        f"measured staleness of {stages}, in updates: {summary['staleness']}; "
        f"updates made: {summary['updates']} for {count(summary['steps'], 'batch', 'es')}"
    )
    files = f"{path / 'report.html'} shows the curves, {path / run_files.SUMMARY} has the numbers"
    print("\n".join(output.wrapped(line, width) for line in (staleness, files)))
    if untrained:
        few = count(summary["steps"], "batch", "es")
        fact = f"no update was made: {few} did not get through {K} stages, and --no-drain drops what is in flight"
        print(f"warning: {fact}. Leave --no-drain out, or train on more batches.", file=sys.stderr)
    return 0


def write_report(path: Path, config: Mapping[str, Any] | None = None, quietly: bool = False) -> None:
    """Writes report.html and curves.png. A failure is only a warning, since the run itself is complete.

    Arguments:
        path: the run directory.
        config: the run's configuration; None: read from config.json.
        quietly: no warning, because the fault that prevents the report has ended the run too and is printed then.
    """
    try:
        report_page.write(path, config)
    except Exception as error:
        if quietly and isinstance(error, OSError):
            return
        fact = f"the report of {path} could not be made ({reason(error)})"
        way_out = f"{python_command()} -m fdg_jax.experiments.report {shlex.quote(str(path))}"
        print(f"warning: {fact}. The run's results are not affected. To try again: {way_out}", file=sys.stderr)
