"""What a session prints and writes at its end: the results, or how the run can be resumed."""

import math
import shlex
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdg_jax.checkpoint import run_checkpoints
from fdg_jax.errors import BadInput, first_line, reason
from fdg_jax.machine import output, terminal
from fdg_jax.machine.interpreter import python_command
from fdg_jax.report import report_page
from fdg_jax.runs import run_files
from fdg_jax.runs.progress import count, per_second
from fdg_jax.training.signals import Stopped

if TYPE_CHECKING:
    from fdg_jax.training.record import Record
    from fdg_jax.training.rescue import Broken
    from fdg_jax.training.setup import Job

ABSURD = 1e6  # a training loss above this counts as diverged; cross-entropy of 1000 classes starts at 7


def summarise(job: "Job", record: "Record", parameters_sha256: str, state_sha256: str) -> dict[str, Any]:
    """The content of summary.json.

    staleness and updates are what the stages counted. images_per_second (tokens_per_second of text) is None if every
    batch may have compiled.
    """
    o, pipeline, epochs = job.options, job.pipeline, record.step / job.steps_per_epoch
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


def tell_diverged(path: Path, fact: str) -> int:
    """Prints that the training has diverged. Returns the exit code."""
    way_out = "Lower --learning-rate (or the --beta of fdg), or add --warmup on."
    print(f"error: {fact}. The run in {path} has diverged; its report shows where. {way_out}", file=sys.stderr)
    return 1


def is_untrained(summary: Mapping[str, Any]) -> bool:
    """Whether a run ended without an update, so that it has no training loss."""
    return math.isnan(summary["train_loss"]) and not any(summary["updates"])


def has_diverged(summary: Mapping[str, Any]) -> bool:
    """Whether a run that came to its end has diverged: the mean training loss of its last epoch is no usual number."""
    return not is_untrained(summary) and not summary["train_loss"] <= ABSURD


def tell_done(path: Path, summary: dict[str, Any]) -> int:
    """Prints the results, or that the training has diverged; returns the exit code."""
    loss, K, untrained = summary["train_loss"], summary["K"], is_untrained(summary)
    if has_diverged(summary):
        return tell_diverged(path, f"the training loss of the last epoch is {loss:.4g}")
    unit = run_files.unit(summary)
    speed = per_second(summary[f"{unit}_per_second"], unit)
    epochs, stages = count(round(summary["epochs"], 2), "epoch"), "stage 1" if K == 1 else f"stages 1 to {K}"
    width = terminal.columns()
    print()
    done = (
        f"done: test error {summary['test_error_percent']:.2f}% after {epochs} on {summary['dataset']}, "
        f"training loss {'not known' if untrained else f'{loss:.4f}'}, {speed}"
    )
    print(terminal.wrapped(done, width), file=output.loud())
    staleness = (
        f"measured staleness of {stages}, in updates: {summary['staleness']}; "
        f"updates made: {summary['updates']} for {count(summary['steps'], 'batch', 'es')}"
    )
    files = f"{path / 'report.html'} shows the curves, {path / run_files.SUMMARY} has the numbers"
    print("\n".join(terminal.wrapped(line, width) for line in (staleness, files)))
    if untrained:
        few = count(summary["steps"], "batch", "es")
        fact = f"no update was made: {few} did not get through {K} stages, and --no-drain drops what is in flight"
        print(f"warning: {fact}. Leave --no-drain out, or train on more batches.", file=sys.stderr)
    return 0


def write_report(path: Path, config: Mapping[str, Any] | None = None, quietly: bool = False) -> None:
    """Writes report.html and curves.png. If that fails it only warns, since the run itself is complete.

    Arguments:
        path: the run directory.
        config: the run's configuration; None for that in config.json.
        quietly: no warning: what keeps the report from being written ended the run, too, and is told then.
    """
    try:
        report_page.write(path, config)
    except Exception as error:
        if quietly and isinstance(error, OSError):
            return
        fact = f"the report of {path} could not be made ({reason(error)})"
        way_out = f"{python_command()} -m fdg_jax.experiments.report {shlex.quote(str(path))}"
        print(f"warning: {fact}. The run's results are not affected. To try again: {way_out}", file=sys.stderr)


def tell_broken(path: Path, broken: "Broken", program: str) -> int:
    """Says what ended the training, where the newest checkpoint is and how to go on; returns the exit code."""
    from fdg_jax.training.loading import LoaderFailed

    cause = broken.__cause__ or broken
    if isinstance(cause, LoaderFailed | BadInput):
        fact = str(cause)
    elif lost := lost_process(cause):
        fact = lost
    else:  # a defect, of this package or of what it uses: the traceback says where
        traceback.print_exception(cause)
        fact = f"training was ended by {reason(cause).rstrip('.')}."
    kept = run_checkpoints.stored(path / run_files.CHECKPOINTS)
    where = f"The newest checkpoint is {kept[-1]}. To go on from there" if kept else "To start from the beginning"
    print(f"error: {fact} {broken} {where}:\n  {again(path, program)}", file=sys.stderr)
    return 1


def lost_process(error: BaseException) -> str:
    """A sentence, if this is how JAX tells of another process that has ended; else ""."""
    from jax.errors import JaxRuntimeError

    from fdg_jax.training.peers import Silent

    if isinstance(error, Silent):
        return str(error)
    signs = ("Connection closed", "Connection reset", "errno: 107", "Socket", "coordination service")
    if isinstance(error, JaxRuntimeError) and any(sign in str(error) for sign in signs):
        return f"another process of this training has ended, or the way to it is cut ({first_line(error)})"
    return ""


def tell_stopped(path: Path, stopped: Stopped, program: str) -> int:
    """Says how to go on; returns the exit code."""
    if run_checkpoints.stored(path / run_files.CHECKPOINTS):
        fact = f"stopped by {stopped} after a checkpoint. To go on exactly there"
    else:
        fact = f"stopped by {stopped} before the first batch, so there is no checkpoint. To start from the beginning"
    print(f"{fact}:\n  {again(path, program)}", file=output.loud(), flush=True)
    return 128 + stopped.number


def tell_not_saved(path: Path, fact: str) -> int:
    """Prints that a needed checkpoint could not be written. There is no summary, so that the run can be resumed."""
    kept = run_checkpoints.stored(path / run_files.CHECKPOINTS)
    where = f"from {kept[-1].name}" if kept else "from the beginning"
    way_out = f"Make room on the disk, or make it writable; then {path} goes on {where}, with --resume."
    way_out = way_out if path.is_dir() else "Nothing of the run is left there."
    print(f"error: {fact} {way_out}", file=sys.stderr)
    return 1


def tell_damaged(path: Path, fact: str, program: str) -> int:
    """Prints that an image could not be decoded, or a text not be read. The checkpoint is from before its batch."""
    print(
        f"error: {fact} The run stopped before that batch. Once it is repaired, go on with\n  {again(path, program)}",
        file=sys.stderr,
    )
    return 1


def again(path: Path, program: str) -> str:
    """The command that goes on with a run."""
    return shlex.join([python_command(), *program.split()[1:], "--run-dir", str(path), "--resume"])
