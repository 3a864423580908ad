"""The words and files that end a session: what came out, or where the run can be taken up again."""

import math
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdg_jax import methods
from fdg_jax.experiments import report, run_directory, saving
from fdg_jax.experiments.progress import count, per_second
from fdg_jax.experiments.signals import Stopped

if TYPE_CHECKING:
    from fdg_jax.experiments.record import Record
    from fdg_jax.experiments.setup import Job

NOT_REPRODUCED = (
    "No checkpoint was written since; find out which it was before going on with --resume. (On a GPU programs need "
    "XLA_FLAGS=--xla_gpu_deterministic_ops=true to compute the same twice.)"
)
ABSURD = 1e6  # a training loss above it is no training; cross-entropy of 1000 classes starts at 7


def summarise(job: "Job", record: "Record", parameters_sha256: str, state_sha256: str) -> dict[str, Any]:
    """The content of summary.json. staleness and updates are what the stages counted; images_per_second is None
    where every batch may have compiled."""
    from fdg_jax.experiments.setup import stage_parameters

    o, pipeline, epochs = job.options, job.pipeline, record.step / job.steps_per_epoch
    last = run_directory.read_metrics(Path(o.run_dir or "") / run_directory.METRICS)[-1]
    names = ("method", "model", "dataset", "K", "beta", "engine", "weights", "order")
    rate = record.images_per_second()
    return {
        **{name: getattr(o, name) for name in dict.fromkeys((*names, *methods.find(o.method).answers_to))},
        "split": list(job.cuts),
        "parameters": pipeline.parameter_count,
        "auxiliary_parameters": pipeline.auxiliary_parameter_count,
        "steps": record.step,
        "epochs": int(epochs) if epochs == int(epochs) else round(epochs, 4),
        "seconds": round(record.elapsed(), 2),
        "images_per_second": rate if rate is None else round(rate, 2),
        "train_loss": record.train_loss(),
        "test_error_percent": last["test_error_percent"],
        "staleness": pipeline.staleness,
        "final_parameters_sha256": parameters_sha256,
        "final_state_sha256": state_sha256,
        "test_loss": last["test_loss"],
        "updates": pipeline.updates,
        "stage_parameters": stage_parameters(pipeline),
        "drained": o.drain,
        "seed": o.seed,
        "batch_size": o.batch_size,
        "sessions": record.sessions,
        "note": job.dataset.note,
    }


def tell_diverged(path: Path, fact: str) -> int:
    way_out = "Lower --learning-rate (or the --beta of fdg), or add --warmup on."
    print(f"error: {fact}. The run in {path} has diverged; its report shows where. {way_out}", file=sys.stderr)
    return 1


def tell_done(path: Path, summary: dict[str, Any]) -> int:
    """Says what came out, in all or not at all well; returns the exit code."""
    loss, K = summary["train_loss"], summary["K"]
    if not (math.isfinite(loss) and loss <= ABSURD):
        return tell_diverged(path, f"the training loss of the last epoch is {loss:.4g}")
    epochs, stages = count(round(summary["epochs"], 2), "epoch"), "stage 1" if K == 1 else f"stages 1 to {K}"
    print(
        f"\ndone: test error {summary['test_error_percent']:.2f}% after {epochs} on {summary['dataset']}, "
        f"training loss {loss:.4f}, {per_second(summary['images_per_second'])}\n"
        f"measured staleness of {stages}, in updates: {summary['staleness']}; "
        f"updates made: {summary['updates']} for {count(summary['steps'], 'batch', 'es')}\n"
        f"{path / 'report.html'} shows the curves, {path / run_directory.SUMMARY} has the numbers"
    )
    return 0


def tell_stopped(path: Path, stopped: Stopped, program: str) -> int:
    """Says how to go on; returns the exit code."""
    report.write(path)
    if saving.stored(path / run_directory.CHECKPOINTS):
        fact = f"stopped by {stopped} after a checkpoint. To go on exactly there"
    else:
        fact = f"stopped by {stopped} before the first batch, so there is no checkpoint. To start from the beginning"
    print(f"{fact}:\n  {again(path, program)}", flush=True)
    return 128 + stopped.number


def tell_not_saved(path: Path, fact: str) -> int:
    """A checkpoint that is needed could not be written: there is no summary, so that the run can go on."""
    report.write(path)
    kept = saving.stored(path / run_directory.CHECKPOINTS)
    where = f"from {kept[-1].name}" if kept else "from the beginning"
    print(f"error: {fact} Make room; then {path} goes on {where}, with --resume.", file=sys.stderr)
    return 1


def tell_damaged(path: Path, fact: str, program: str) -> int:
    """An image could not be decoded in the middle of a run: the checkpoint is from before its batch."""
    report.write(path)
    print(f"error: {fact} The run stopped in front of it; then go on with\n  {again(path, program)}", file=sys.stderr)
    return 1


def again(path: Path, program: str) -> str:
    """The command that goes on with a run."""
    return shlex.join([interpreter(), *program.split()[1:], "--run-dir", str(path), "--resume"])


def interpreter() -> str:
    """The one that runs this, told from here where it lies below: the package may be in its environment only."""
    python, here = Path(sys.executable), Path.cwd()
    return str(python.relative_to(here) if python.is_relative_to(here) else python)
