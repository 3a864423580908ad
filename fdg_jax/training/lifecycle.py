"""A run from its checked options to its end. `prepare` builds the job, `begin` restores the newest checkpoint, and
`train` trains. ENDINGS has an exit code and a message for each way in which a training can end."""

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
from fdg_jax.checkpoint import run_checkpoints
from fdg_jax.checkpoint.run_checkpoints import SaveFailed
from fdg_jax.checkpoint.state import first_refused_updates
from fdg_jax.checks import options as checks
from fdg_jax.cli import Program
from fdg_jax.config import Config
from fdg_jax.data.stream import LoaderFailed
from fdg_jax.errors import BadInput, Damaged, first_line, reason
from fdg_jax.machine import compile_cache, gpu_flags, jax_settings, output
from fdg_jax.machine.facts import python_command
from fdg_jax.machine.signals import Signals, Stopped
from fdg_jax.options.common import ONE_RUN, Start
from fdg_jax.report import report_page
from fdg_jax.runs import reading, run_files, trackers
from fdg_jax.runs.progress import Progress, count, per_second
from fdg_jax.runs.run_files import CHECKPOINTS
from fdg_jax.training import job as jobs
from fdg_jax.training import opening, trained
from fdg_jax.training.job import Job, check_data
from fdg_jax.training.loop import Loop, Steps, to_end
from fdg_jax.training.policies import about_job, versions
from fdg_jax.training.processes import Peers, Silent
from fdg_jax.training.record import Diverged, Record, Run, utilization, utilization_words

ABSURD = 1e6  # a training loss above this counts as diverged; cross-entropy of 1000 classes starts at 7
# If one of these changes between two sessions, the last bits of results may change.
ENVIRONMENT = ("processor", "usable_cores", "cpu_devices", "devices", "xla_flags", "matmul_precision", "git_commit")


class Broken(Exception):
    """An unexpected exception (`__cause__`) has ended the training. The text says whether a checkpoint was written."""


def resumed(path: Path, asked: Config, given: frozenset[str]) -> tuple[Config, dict[str, Any]]:
    """Returns the options of the resumed run and its config.json. Raises BadInput."""
    options, config = reading.resumed_options(path, asked, given)
    checks.check(options, frozenset())
    for _ in run_files.metrics(path / run_files.METRICS):  # a damaged line is refused before the work
        pass
    return options, config


def finished(path: Path, options: Config) -> bool:
    """Whether the run to be resumed is already finished. If it is, prints so."""
    if (steps := reading.finished_steps(path, options)) is None:
        return False
    longer = f"To begin another run with its weights, use --init-from {path}"
    more = "To go on, give more --steps" if options.steps else longer
    print(f"{path} is finished: {count(steps, 'batch', 'es')}. Nothing to do. {more}.", file=output.loud())
    return True


def prepare_and_run(
    options: Config,
    before: dict[str, Any] | None,
    path: Path,
    program: Program,
    signals: Signals,
    peers: Peers,
    start: Start,
) -> int:
    """Returns the exit code. Raises BadInput and Stopped before the first batch.

    before: config.json of a resumed run. start: the flags of this start, such as --profile and --track.
    """
    gpu_flags.prepare(path, before, peers.process)
    made, weights = prepare(options, before, program, signals, peers)
    return to_end(life(made, weights, options, before, path, program, signals, start))


def life(
    made: Job,
    weights: trained.InitialWeights | None,
    options: Config,
    before: dict[str, Any] | None,
    path: Path,
    program: Program,
    signals: Signals,
    start: Start,
    name: str = "",
) -> Steps[int]:
    """A run from its job to its exit code. The generator pauses after the run's state is restored, and then as
    `Loop.train` does.

    made, weights: the results of `prepare`. name: the run's name if this process has several runs, which print less;
        else "".
    """
    peers = made.peers
    made = made._replace(options=dataclasses.replace(made.options, run_dir=str(path)))
    known = opening.stage_facts(made)
    resuming = again(path, program.started(peers.processes), made.options)
    run = begin(made, path, before is not None, start, resuming)._replace(name=name)  # refuses before it changes files
    yield
    config, code = configuration(run, options, before, known, weights), 1

    def track() -> None:
        run.record.trackers = trackers.opened(start.track, path, config, run.resumed)

    peers.from_zero(track)
    try:
        if peers.first:
            own_files.keep(path, vars(made.options))
            run_files.write_json(path / run_files.CONFIG, config)
        if weights:
            print(weights.line(), flush=True)
        if not name:
            opening.tell(run, known)
        code = yield from train(run, signals)
    except OSError as error:
        code = end(error, run)
    finally:
        run.record.trackers.finish(path, code)
    return code


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
    peers.from_zero(lambda: jax_settings.check_new() if before is None else None)
    jax_settings.compute_in(options.precision)
    peers.from_zero(lambda: None if before is None else jax_settings.check_resumed(before))
    compile_cache.enable()
    jobs.prepare_cpu(before, peers.on_one_core())
    initial = weights.read if weights else None
    return jobs.prepare(options, before["note"] if before else "", peers, initial), weights


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
    if tokenizer := (made.dataset.fingerprint or {}).get("tokenizer"):
        config["tokenizer"] = tokenizer
    config |= {"test_size": len(made.dataset.test_inputs), **({"initial": weights.about} if weights else {})}
    if before is None or not made.peers.first:
        return config
    warn_of_changes(before, config)
    return run_files.continued(before, config, run.record.step)


def warn_of_changes(before: dict[str, Any], now: dict[str, Any]) -> None:
    """Warns if a resumed run has another machine or other code than its first session had."""
    known = [name for name in ENVIRONMENT if name in before and name in now]
    if any(" of process " in name for name in (*before["devices"], *now["devices"])):
        known.remove("devices")  # their names depend on the number of processes
    changed = [f"{name} is {now[name]} and was {before[name]}" for name in known if before[name] != now[name]]
    if changed:
        fact = f"the run began in another environment: {'; '.join(changed)}"
        print(f"warning: {fact}. Results may differ in the last bits.", file=sys.stderr, flush=True)


def begin(job: Job, path: Path, resume: bool, start: Start = ONE_RUN, again: str = "") -> Run:
    """Begins a run, or restores the newest checkpoint of a resumed one. In the run directory it only removes temporary
    files and sets damaged checkpoints aside.

    start: the flags of this start. again: the command that resumes the run. Raises BadInput if every checkpoint is
        damaged, or the run could not go on with the same bits.
    """
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
    return Run(job, path, record, resume, found is None, start, again)


def refuse_lost(job: Job, path: Path) -> None:
    """Raises BadInput if a run has trained on so many batches that it must have had a checkpoint, but has none now.
    Otherwise it would start from the beginning."""
    o, config = job.options, path / run_files.CONFIG
    every = run_files.read_json(config).get("checkpoint_every") if config.is_file() else None
    due = max(job.steps_per_epoch if each is None else each for each in (every, o.checkpoint_every))
    step = max((event["step"] for event in reading.events(path)), default=0)
    # Twice `due`, because a second checkpoint is begun only after the first is written. 0 means none before the end.
    if (path / run_files.SUMMARY).exists() or (step >= 2 * due and 0 not in (every, o.checkpoint_every)):
        fact = f"{path} has results up to batch {step:,}, but no checkpoint"
        raise BadInput(
            f"{fact}: {path / CHECKPOINTS} is empty or missing. Restore the checkpoints, or start a new run in "
            "another --run-dir. Nothing was changed."
        )


def newest(job: Job, root: Path) -> tuple[Any, Any, Any] | None:
    """(state, loop, about) of the newest undamaged checkpoint, which process 0 chooses; None if there is no checkpoint.

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
                f"the newest checkpoint was made with {name} {about.get(name)}, but this is {now}. Results would "
                f"differ in the last bits. Go on with that version, or begin another run with its weights: "
                f"--init-from RUN."
            )
    was, now = about.get("options", {}), about_job(job)["options"]
    if not isinstance(was, dict):
        raise BadInput(f"the newest checkpoint is damaged: its options are {reading.shown(was)}. Start a new run.")
    changed = [f"{name} is {now[name]} and was {was[name]}" for name in now if was.get(name, now[name]) != now[name]]
    if changed:
        fact = f"config.json has changed since the newest checkpoint: {', '.join(changed)}"
        raise BadInput(f"{fact}. Restore it, or begin another run with its weights: --init-from RUN.")
    check_data(job.dataset, about, "--resume")
    job.pipeline.restore(state)
    record.restore(loop)
    record.bad = first_refused_updates(state)


def session(run: Run, signals: Signals) -> Steps[tuple[str, str]]:
    """Trains from where the run stands to its end.

    Returns: (sha256 of the parameters, sha256 of the last checkpoint's state).
    Raises:
        Stopped: a signal came; a checkpoint was written.
        Damaged: the next batch, or a test example, cannot be read or decoded; a checkpoint was written, except with
            several processes or in the evaluation after the last batch.
        Diverged: a loss, a gradient or the state is not finite.
        SaveFailed: a checkpoint that is needed cannot be written.
        OSError: the disk is full; an attempt to write a checkpoint was made.
        Broken: anything else went wrong; an attempt to write a checkpoint was made.
    """
    job, record = run.job, run.record
    record.open(run.path, job.options.tensorboard)
    try:
        with Progress(job.steps, record.step, job.options.epochs, record.unit, run.name) as progress:
            if run.resumed:
                batch = f"going on after batch {record.step:,} of {job.steps:,}"
                progress.say("there is no checkpoint: the run starts anew" if run.fresh else batch)
            with Loop(run, signals, progress) as loop:
                try:
                    return (yield from train_with_rollback(loop))
                except (Diverged, SaveFailed):  # the state is wrong or cannot be saved
                    raise
                except Stopped:
                    leave_checkpoint(loop)
                    raise
                except Damaged:
                    job.peers.lost = True
                    loop.saving.allow_repaired_data()
                    if job.peers.processes == 1 and not loop.saving.drained:
                        leave_checkpoint(loop)  # a checkpoint needs all processes, and a state before draining
                    raise
                except BaseException as error:
                    job.peers.lost = True
                    checkpoint = try_checkpoint(loop)
                    if durable.is_disk_full(error):
                        raise
                    raise Broken(checkpoint) from error
    finally:
        record.close()


def train_with_rollback(loop: Loop) -> Steps[tuple[str, str]]:
    """Trains and finishes. With --on-nan rollback it goes back to a checkpoint, but never twice for the same batch.

    Returns: what Loop.finish returns. Raises: Diverged.
    """
    furthest = 0
    while True:
        try:
            yield from loop.train()
            return (yield from loop.finish())
        except Diverged as found:
            if loop.options.on_nan != "rollback":
                raise
            if found.step <= furthest:
                raise Diverged(f"{found}, again, after going back to a checkpoint", found.step) from None
            furthest = found.step
            loop.warn(f"WARNING: {found}.")
            roll_back(loop, found)


def roll_back(loop: Loop, why: Diverged) -> None:
    """Restores the newest checkpoint. Raises Diverged if there is no checkpoint, and BadInput if all are damaged."""
    record, saving = loop.record, loop.saving
    saving.abandon()
    loop.in_dispatch = True  # until pipeline and record agree again
    found = newest(loop.job, saving.root)
    if found is None:
        raise Diverged(f"{why}, and there is no checkpoint to go back to", why.step) from None
    begin_again(loop.job, record, *found)
    record.sessions -= 1  # a rollback begins no new session
    record.close()
    if record.trackers.clients:
        record.trackers.write(loop.run.path)
    record.open(loop.run.path, loop.options.tensorboard)
    saving.begin()
    loop.in_dispatch = False
    loop.warn(f"WARNING: the run goes back to the checkpoint after batch {record.step:,}.")


def leave_checkpoint(loop: Loop) -> None:
    """Writes a checkpoint after the newest batch and waits for it. Raises SaveFailed or Diverged if this is
    impossible."""
    try:
        loop.saving.save()
        loop.saving.check(needed=True)
    except (SaveFailed, Diverged):
        raise
    except Exception as error:  # for example one of JAX's, if the device is lost
        raise SaveFailed(f"The state cannot be read ({reason(error)}).") from error
    if not loop.saving.is_current():
        raise SaveFailed(f"There is no checkpoint after batch {loop.record.step:,}.") from None


def try_checkpoint(loop: Loop) -> str:
    """Tries `leave_checkpoint` after a fault. Never raises; returns a sentence on the outcome."""
    step = f"batch {loop.record.step:,}"
    if loop.job.peers.processes > 1:
        return "No checkpoint was written, because this needs all processes."
    if loop.in_dispatch:
        return f"The work after {step} was interrupted halfway, so the state was not saved."
    if loop.saving.drained and not loop.saving.is_current():
        return f"The state after {step} was not saved, because its batches in flight are already used."
    try:
        leave_checkpoint(loop)
    except Exception as failed:
        return f"The checkpoint after {step} could not be written ({reason(failed)})."
    return f"A checkpoint after {step} was written."


def train(run: Run, signals: Signals) -> Steps[int]:
    """Trains, then writes summary.json and the report; returns the exit code. The last line that is printed says how
    the run ended. Process 0 writes and prints; the others print only what process 0 cannot know."""
    first, began_in = run.job.peers.first, os.stat(run.path)
    if first:
        (run.path / run_files.SUMMARY).unlink(missing_ok=True)
    try:
        hashes = yield from session(run, signals)
        summary = summarise(run, *hashes)  # involves all processes
        if first:
            run_files.write_json(run.path / run_files.SUMMARY, summary)
    except tuple(ENDINGS) as error:
        if first and isinstance(error, Diverged):
            run_files.add_incident(run.path, error.step, f"{error}. The run ended there.")
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
    return f"error: {error} The run stopped before this batch. Repair the data, then go on with\n  {run.again}"


def not_saved(error: SaveFailed, run: Run) -> str:
    """The message when a needed checkpoint could not be written. No summary is written, so that the run can be
    resumed."""
    where = f"from {run.newest.name}" if run.newest else "from the beginning"
    way_out = f"Make room on the disk, or make it writable. Then --resume continues {run.path} {where}."
    return f"error: {error} {way_out if run.path.is_dir() else 'The run directory does not exist any more.'}"


def broken(error: Broken, run: Run) -> str:
    cause = error.__cause__ or error
    if isinstance(cause, LoaderFailed | BadInput | Silent):
        fact = str(cause)
    elif is_lost_process(cause):
        fact = f"another process of this training has ended, or its connection is cut ({first_line(cause)})."
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
OF_ONE_PROCESS = (Damaged, Broken, OSError)  # only the process where such an error happens knows of it


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
    rate, dataset = record.speed.mean(), job.dataset
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
        **utilization(job, rate),
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
    loss_words = f", test loss {summary['test_loss']:.4f}" if unit == "tokens" else ""
    speed = per_second(summary[f"{unit}_per_second"], unit)
    epochs, stages = count(round(summary["epochs"], 2), "epoch"), "stage 1" if K == 1 else f"stages 1 to {K}"
    width = output.columns()
    print()
    done = (
        f"done: test error {summary['test_error_percent']:.2f}%{loss_words} after {epochs} on {summary['dataset']}, "
        f"training loss {'not known' if untrained else f'{loss:.4f}'}, {speed}{utilization_words(summary)}"
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
        fact = f"no update was made: {few} did not pass through all {K} stages before --no-drain dropped them"
        print(f"warning: {fact}. Leave --no-drain out, or train on more batches.", file=sys.stderr)
    return 0


def write_report(path: Path, config: Mapping[str, Any] | None = None, quietly: bool = False) -> None:
    """Writes report.html and curves.png. A failure is only a warning, since the run itself is complete.

    Arguments:
        path: the run directory.
        config: the run's configuration; None: read from config.json.
        quietly: whether to print no warning, because the fault that prevents the report has ended the run and is
            printed.
    """
    try:
        report_page.write(path, config)
    except Exception as error:
        if quietly and isinstance(error, OSError):
            return
        fact = f"the report of {path} could not be made ({reason(error)})"
        way_out = f"{python_command()} -m fdg_jax.experiments.report {shlex.quote(str(path))}"
        print(f"warning: {fact}. The run's results are not affected. To try again: {way_out}", file=sys.stderr)
