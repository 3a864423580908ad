"""One session of a run: it begins at the first batch or at the newest checkpoint, trains, and leaves a checkpoint if
possible."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fdg_jax import data, durable
from fdg_jax.checkpoint import run_checkpoints
from fdg_jax.checkpoint.state import first_refused_updates
from fdg_jax.data import fingerprint
from fdg_jax.errors import BadInput, Damaged, reason
from fdg_jax.machine.signals import Signals, Stopped
from fdg_jax.runs import reading, run_files
from fdg_jax.runs.progress import Progress
from fdg_jax.runs.run_files import CHECKPOINTS
from fdg_jax.training.job import Job
from fdg_jax.training.loop import Loop
from fdg_jax.training.policies import about_job, versions
from fdg_jax.training.record import Diverged, Record, Run


class Broken(Exception):
    """An unexpected exception (`__cause__`) has ended the training. The text says whether a checkpoint was written."""


def begin(job: Job, path: Path, resume: bool) -> Run:
    """Begins a run, or restores the newest checkpoint of a resumed one. In the run directory, only removes temporary
    files and sets damaged checkpoints aside. Raises BadInput if no checkpoint is whole, or the run could not go on with
    the same bits."""
    o, root, examples = job.options, path / CHECKPOINTS, len(job.dataset.train_inputs)
    job.peers.from_zero(lambda: run_checkpoints.sweep(root))
    record = Record(examples, o.batch_size, o.log_every, job.learning_rates, job.peers.first, job.dataset)
    found = newest(job, root) if resume else None
    if resume and found is None:
        job.peers.from_zero(lambda: refuse_lost(job, path))

    def restore() -> None:
        if found:
            begin_again(job, record, *found)
        reading.refuse_less(job.steps, record.step)

    job.peers.on_all(restore)
    return Run(job, path, record, resume, fresh=found is None)


def refuse_lost(job: Job, path: Path) -> None:
    """Raises BadInput if a run must have had a checkpoint by its number of batches, and has none now: it would start
    from the beginning."""
    o, config = job.options, path / run_files.CONFIG
    every = run_files.read_json(config).get("checkpoint_every") if config.is_file() else None
    due = max(job.steps_per_epoch if each is None else each for each in (every, o.checkpoint_every))
    step = max((event["step"] for event in reading.events(path)), default=0)
    # Twice `due`, because a second checkpoint is begun only after the first is written. 0: none before the end.
    if (path / run_files.SUMMARY).exists() or (step >= 2 * due and 0 not in (every, o.checkpoint_every)):
        fact = f"{path} has results up to batch {step:,} and no checkpoint to go on from"
        raise BadInput(
            f"{fact}: {path / CHECKPOINTS} is empty or away. Put the checkpoints back, or start a new run in another "
            "--run-dir. Nothing was changed."
        )


def newest(job: Job, root: Path) -> tuple[Any, Any, Any] | None:
    """(state, loop, about) of the newest whole checkpoint, which process 0 chooses; None if there is no checkpoint.

    Raises BadInput as `run_checkpoints.load_newest`.
    """
    found = job.peers.on_all(lambda: run_checkpoints.load_newest(root) if job.peers.first else None)
    step = job.peers.all_gather(found and int(found[1]["step"]))[0]
    if step is None:
        return None
    return job.peers.on_all(lambda: found or run_checkpoints.load(run_checkpoints.path_of(root, step)))


def begin_again(job: Job, record: Record, state: Any, loop: Any, about: Mapping[str, Any]) -> None:
    """Restores a checkpoint. Raises BadInput if the run could not go on with the same bits."""
    for name, now in versions().items():
        if about.get(name) != now:
            raise BadInput(
                f"the newest checkpoint was made with {name} {about.get(name)}, this is {now}: the run would not be "
                f"the same to the last bit. Go on with that version, or begin another run with its weights: "
                f"--init-from RUN."
            )
    was, now = about.get("options", {}), about_job(job)["options"]
    if not isinstance(was, dict):
        raise BadInput(f"the newest checkpoint is damaged: its options are {reading.shown(was)}. Start a new run.")
    changed = [f"{name} is {now[name]}, was {was[name]}" for name in now if was.get(name, now[name]) != now[name]]
    if changed:
        fact = f"config.json is not what the newest checkpoint was made with: {', '.join(changed)}"
        raise BadInput(f"{fact}. Put it back, or begin another run with its weights: --init-from RUN.")
    check_data(job.dataset, about, "--resume")
    job.pipeline.restore(state)
    record.restore(loop)
    record.bad = first_refused_updates(state)


def check_data(dataset: data.Source, about: Mapping[str, Any], flag: str) -> None:
    """Raises BadInput if a checkpoint was made with other data. Warns if the checkpoint does not say with which."""
    was, now = about.get("data"), dataset.fingerprint
    if now is None or not fingerprint.comparable(was):
        fact = f"the newest checkpoint does not say which {dataset.unit} it was made with: another version wrote it"
        print(f"warning: {fact}. So it is not known whether the data are the same.", file=sys.stderr, flush=True)
        return
    if differs := fingerprint.difference(was, now):
        fact = f"{flag}: {dataset.name} is not the data set that the newest checkpoint was made with: {differs}"
        where = "Give the directory that holds those images as --data-dir"
        where = where if dataset.unit == "images" else "Give the same files as --text"
        raise BadInput(f"{fact}. {where}{'' if flag == 'evaluating' else ', or start a new run'}.")


def train(run: Run, signals: Signals) -> tuple[str, str]:
    """Trains to the end.

    Returns:
        sha256 of the parameters, and of the last checkpoint's state.
    Raises:
        Stopped: a signal came; a checkpoint was written.
        Damaged: the next batch, or a test example, cannot be read or decoded; a checkpoint was written, except with
            several processes or in the evaluation after the last batch.
        Diverged: a loss, a gradient or the state is not finite.
        SaveFailed: a checkpoint that is needed cannot be written.
        OSError: the disk is full; a checkpoint was tried.
        Broken: anything else went wrong; a checkpoint was tried.
    """
    job, record = run.job, run.record
    record.open(run.path, job.options.tensorboard)
    try:
        with Progress(job.steps, record.step, job.options.epochs, unit=record.unit) as progress:
            if run.resumed:
                batch = f"going on after batch {record.step:,} of {job.steps:,}"
                progress.say("there is no checkpoint: from the beginning" if run.fresh else batch)
            with Loop(run, signals, progress) as loop:
                try:
                    return train_with_rollback(loop)
                except (Stopped, Damaged) as ended:
                    if isinstance(ended, Damaged):
                        job.peers.lost = True
                        loop.saving.allow_repaired_data()
                        if job.peers.processes > 1 or loop.saving.drained:
                            raise  # a checkpoint needs all processes, and a state before draining
                    leave_checkpoint(loop)
                    raise
                except (Diverged, run_checkpoints.SaveFailed):  # the state is wrong or cannot be saved
                    raise
                except BaseException as error:
                    job.peers.lost = True
                    checkpoint = try_checkpoint(loop)
                    if durable.is_disk_full(error):
                        raise
                    raise Broken(checkpoint) from error
    finally:
        record.close()


def train_with_rollback(loop: Loop) -> tuple[str, str]:
    """Trains and finishes. With --on-nan rollback it goes back to a checkpoint, but never twice for the same batch.

    Returns: what Loop.finish returns. Raises: Diverged.
    """
    furthest = 0
    while True:
        try:
            loop.train()
            return loop.finish()
        except Diverged as found:
            if loop.options.on_nan != "rollback":
                raise
            if found.step <= furthest:
                raise Diverged(f"{found}, again after going back to a checkpoint", found.step) from None
            furthest = found.step
            loop.warn(f"WARNING: {found}.")
            roll_back(loop, found)


def roll_back(loop: Loop, why: Diverged) -> None:
    """Restores the newest checkpoint. Raises Diverged if there is none, and BadInput if none is whole."""
    record, saving = loop.record, loop.saving
    saving.abandon()
    loop.in_dispatch = True  # until pipeline and record agree again
    found = newest(loop.job, saving.root)
    if found is None:
        raise Diverged(f"{why}, and there is no checkpoint to go back to", why.step) from None
    loop.clock.forget()
    begin_again(loop.job, record, *found)
    record.sessions -= 1  # a rollback begins no new session
    record.close()
    if record.trackers.clients:
        record.trackers.write(loop.run.path)
    record.open(loop.run.path, loop.options.tensorboard)
    saving.begin()
    loop.in_dispatch = False
    loop.warn(f"WARNING: gone back to the checkpoint after batch {record.step:,}.")


def leave_checkpoint(loop: Loop) -> None:
    """Writes a checkpoint after the newest batch and waits for it. Raises SaveFailed or Diverged if none can be
    written."""
    try:
        loop.saving.save()
        loop.saving.check(needed=True)
    except (run_checkpoints.SaveFailed, Diverged):
        raise
    except Exception as error:  # for example one of JAX's, if the device is lost
        raise run_checkpoints.SaveFailed(f"The state cannot be read ({reason(error)}).") from error
    if not loop.saving.is_current():
        raise run_checkpoints.SaveFailed(f"There is no checkpoint after batch {loop.record.step:,}.") from None


def try_checkpoint(loop: Loop) -> str:
    """Tries `leave_checkpoint` after a fault. Never raises; returns a sentence on the outcome."""
    step = f"batch {loop.record.step:,}"
    if loop.job.peers.processes > 1:
        return "No checkpoint was tried: it needs all processes."
    if loop.in_dispatch:
        return f"The dispatch after {step} was interrupted, so its half-done state was not saved."
    if loop.saving.drained and not loop.saving.is_current():
        return f"The batches in flight after {step} have been used up, so that state was not saved."
    try:
        leave_checkpoint(loop)
    except Exception as failed:
        return f"A checkpoint after {step} was tried and failed ({reason(failed)})."
    return f"A checkpoint after {step} was written."
