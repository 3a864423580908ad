"""Where a session of a run begins: at its first batch, or at its newest checkpoint."""

import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax

from fdg_jax import data
from fdg_jax.checkpoint import run_checkpoints
from fdg_jax.checkpoint.state import first_refused_updates
from fdg_jax.config import FIELDS
from fdg_jax.data import fingerprint
from fdg_jax.errors import BadInput
from fdg_jax.options.common import ONE_RUN, Start
from fdg_jax.runs import reading, run_files
from fdg_jax.runs.run_files import CHECKPOINTS
from fdg_jax.training.record import Record
from fdg_jax.training.setup import Job


class Session(NamedTuple):
    """Where a session begins.

    resumed: the run was begun before; fresh: there is no checkpoint of it. start: what is traced and tracked.
    """

    record: Record
    resumed: bool
    fresh: bool
    start: Start = ONE_RUN


def begin(job: Job, path: Path, resume: bool) -> Session:
    """Restores the newest checkpoint of a run that goes on. Changes no file of it but what is damaged or a remainder.
    BadInput when there is nothing whole to resume from, or the run could not go on with the same bits."""
    o, root = job.options, path / CHECKPOINTS
    job.peers.told(lambda: run_checkpoints.sweep(root))
    writes = job.peers.first
    examples = len(job.dataset.train_inputs)
    record = Record(examples, o.batch_size, o.log_every, job.learning_rates, writes, job.dataset)
    found = newest(job, root) if resume else None
    if resume and found is None:
        job.peers.told(lambda: refuse_lost(job, path))

    def restore() -> None:
        if found:
            begin_again(job, record, *found)
        reading.refuse_less(job.steps, record.step)

    job.peers.each(restore)
    return Session(record, resume, fresh=found is None)


def refuse_lost(job: Job, path: Path) -> None:
    """Raises BadInput where a run has come so far that it had a checkpoint, and there is none: it would begin anew."""
    o, config = job.options, path / run_files.CONFIG
    every = run_files.read_json(config).get("checkpoint_every") if config.is_file() else None
    due = max(job.steps_per_epoch if each is None else each for each in (every, o.checkpoint_every))
    step = max((event["step"] for event in reading.events(path)), default=0)
    # A second one is begun only when the first has been written. 0: none before the end.
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
    found = None

    def choose() -> int | None:
        nonlocal found
        found = run_checkpoints.load_newest(root)
        return None if found is None else int(found[1]["step"])

    step = job.peers.told(choose)
    if step is None:
        return None
    return job.peers.each(lambda: found or run_checkpoints.load(run_checkpoints.path_of(root, step)))


def versions() -> dict[str, str]:
    """The versions that a checkpoint's bits depend on; the compiler is part of jaxlib."""
    names = {"jax": jax.__version__, "jaxlib": metadata.version("jaxlib"), "fdg_jax": run_files.own_version()}
    return {**names, "backend": jax.default_backend()}


def about_job(job: Job) -> dict[str, Any]:
    """What a checkpoint's manifest says of the run: versions, the data, and the options that may not change."""
    fixed = [name for name, field in FIELDS.items() if not field.free]
    options = {name: getattr(job.options, name) for name in fixed}
    return {**versions(), "options": options, "data": job.dataset.fingerprint}


def where(begun: Session, steps: int) -> str:
    """A sentence on where a resumed run goes on."""
    step = begun.record.step
    if begun.fresh:
        return "there is no checkpoint: from the beginning"
    return f"going on after batch {step:,} of {steps:,}"


def begin_again(job: Job, record: Record, state: Any, loop: Any, about: Mapping[str, Any]) -> None:
    """Restores a checkpoint. BadInput where the run could not go on with the same bits."""
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
    """BadInput where a checkpoint was made with other data than these. A warning where it does not say with which."""
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
