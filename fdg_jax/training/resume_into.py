"""Goes on with a run as another one: with other stages, another method, another schedule, another JAX.

A checkpoint belongs to its stages: what is in flight between them means nothing to others. So the old pipeline is built
once more and every batch in flight is used. What is left belongs to blocks and not to stages, and is split again. The
new run begins as a run directory with one checkpoint, and is then resumed like any other. The old one is only read.
"""

import dataclasses
import math
import re
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fdg_jax import corrections, methods
from fdg_jax.errors import BadInput, reason
from fdg_jax.runs import checkpoints, locking, option_checks, reading, run_files
from fdg_jax.runs.options import FIELDS, Options, spelled
from fdg_jax.runs.progress import count
from fdg_jax.runs.run_length import run_length
from fdg_jax.storage.manifest import Damaged
from fdg_jax.training.command_line import Program
from fdg_jax.training.signals import Signals

if TYPE_CHECKING:
    from fdg_jax.training.setup import Job

Flat = Mapping[str, Any]
BY_STAGES = ("split", "engine", "window")  # chosen again for other stages
LEAF = re.compile(r"(?:stage(\d+)/state/|run/\.stages\[(\d+)\])\.(params|extra|opt_state|own)(.*)", re.S)
OF_BLOCK = re.compile(r"(.*?)(?:\[0\])?(\['block\d+'\].*)", re.S)  # DGL's [0]: the network, beside its auxiliary one
ADDED = "what the method adds (auxiliary networks, feedback)"
OF_CORRECTION = re.compile(r"(?:stage\d+/state/|run/\.stages\[\d+\])\.correction.*", re.S)
REMEMBERED = "what the correction of late gradients remembers"
WORDS = {"params": "parameters", "extra": "statistics", "opt_state": "optimizer state", "own": "method's own arrays"}


def start(asked: Options, given: frozenset[str], program: Program, signals: Signals) -> int:
    """The command with --resume-into; returns its exit code."""
    if asked.run_dir is None or asked.resume:
        raise BadInput("--resume-into NEW goes on with the run in --run-dir OLD; add that, and leave --resume out.")
    old, new = Path(asked.run_dir), Path(asked.resume_into or "")
    locking.check_name(old, "--run-dir")
    locking.check_name(new, "--resume-into")
    if asked.resume_into == "" or one_in_the_other(old, new):
        fact = f"--resume-into {asked.resume_into!r}: the run goes on in another directory than {old}"
        raise BadInput(f"{fact}, neither inside it nor around it. Choose one beside it.")
    if not (old / run_files.CONFIG).is_file():
        fact = f"--resume-into: {old} holds no run ({run_files.CONFIG} is not there)"
        raise BadInput(f"{fact}. Give --run-dir the directory of the run that goes on.")
    config, given_up = stored_config(old)
    before = Options(**{name: config[name] for name in FIELDS if name != "resume"})
    before = dataclasses.replace(before, data_dir=asked.data_dir if "data_dir" in given else before.data_dir)
    options = changed(config, asked, given)
    option_checks.check(before, frozenset())
    option_checks.check(options, given)
    option_checks.check_names(options, program.datasets)
    with locking.lock(old), locking.claim(new, resume=False, flag="--resume-into"):
        from fdg_jax.machine import jax_settings
        from fdg_jax.training import launch, session, stages

        given_up += jax_settings.describe_changes(config)
        job = converted(old, before, new, options, config["note"], given_up, signals)

        begun = session.begin(job, new, resume=True)
        launch.opening(job, new, stages.facts(job), resumed=True)
        return launch.train(job, new, program, signals, begun)


def one_in_the_other(a: Path, b: Path) -> bool:
    """Whether two folders are the same, or one lies in the other, through links, too."""
    a, b = a.resolve(), b.resolve()
    return a.is_relative_to(b) or b.is_relative_to(a)


def stored_config(run: Path) -> tuple[dict[str, Any], list[str]]:
    """(config.json of the old run, what had to be assumed): another version may not have had every option."""
    absent = {name: field.default for name, field in FIELDS.items() if name != "resume"}
    missing = sorted(absent.keys() - run_files.read_json(run / run_files.CONFIG).keys())
    said = [f"options that its version did not have are at their defaults: {', '.join(map(spelled, missing))}"]
    return reading.config(run, absent), said if missing else []


def changed(config: Mapping[str, Any], asked: Options, given: frozenset[str]) -> Options:
    """The old run's options under those given now. Raises BadInput for one that would make it another training set."""
    values = {name: config[name] for name in FIELDS if name != "resume"}
    for name in reading.SAME_BATCHES:
        if name in given and getattr(asked, name) != config[name]:
            raise BadInput(
                f"--resume-into: {spelled(name)} {getattr(asked, name)}, but the run that goes on has {config[name]}. "
                f"Its network and its batches cannot change. Leave {spelled(name)} out, or start a new run."
            )
    if any(name in given and getattr(asked, name) != config[name] for name in ("K", "method", "split", "engine")):
        values |= {name: config["asked"].get(name, FIELDS[name].default) for name in BY_STAGES}
    values |= {name: getattr(asked, name) for name in given}
    has = {*methods.find(values["method"]).answers_to, *corrections.find(values["correct"]).answers_to}
    for name, field in FIELDS.items():
        of_idea = field.metadata["group"] in ("fdg", "others") or field.metadata["corrections"]
        if of_idea and name not in given and name not in has:
            values[name] = field.default  # the old method's or correction's
    return Options(**values | {"run_dir": asked.resume_into, "resume_into": None})


def converted(
    old: Path, before: Options, new: Path, options: Options, note: str, given_up: list[str], signals: Signals
) -> "Job":
    """Makes the new run directory, with a checkpoint to resume from; says what was given up."""
    from fdg_jax.data import interruptible
    from fdg_jax.machine import compile_cache
    from fdg_jax.training import setup, stages
    from fdg_jax.training.session import about_job, check_data, versions
    from fdg_jax.transport import devices

    setup.prepare_cpu()
    devices.request_cpu_devices(max(before.K, options.K))  # for both pipelines, before reading a checkpoint starts JAX
    state, loop, about = newest(old)
    step = int(loop["step"])
    check_left(old, step, options)
    signals.check()
    compile_cache.enable()
    with interruptible.by(signals.at_once):
        first = setup.prepare(before, note)
        check_data(first.dataset, about, "--resume-into")
        job = setup.prepare(options, note)
    signals.check()
    moved = move(first, job, state)
    unread = {f"unread/{each.step}": each.loss for each in moved.losses}
    loop |= {"lines": 0, "best_error": math.inf, "best_step": -1, "timed_images": 0, "timed_seconds": 0.0, **unread}
    for name, now in versions().items():
        if about.get(name) != now:
            given_up.append(
                f"its checkpoint was made with {name} {about.get(name)}, this is {now}: the last bits may differ"
            )
    said = [*moved.said, *given_up]
    try:
        saver = checkpoints.Saver(new / run_files.CHECKPOINTS, about_job(job), options.keep)
        saver.save(step, moved.state, loop)
        saver.wait()
    except (checkpoints.SaveFailed, checkpoints.NotFinite) as failed:
        raise BadInput(f"--resume-into: {failed}") from None
    job = job._replace(options=dataclasses.replace(job.options, run_dir=str(new)))
    config = run_files.config(job.options, options, job.devices, job.dataset.note)
    config |= {"stages": stages.facts(job), "resumed_from": {"run_dir": str(old), "batch": step, "said": said}}
    run_files.write_json(new / run_files.CONFIG, config)  # last: without it nobody resumes
    print("\n".join([f"goes on from {old} after batch {step:,}", *(f"  {line}" for line in said)]), flush=True)
    return job


def newest(run: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """(state, loop, about) of the newest whole checkpoint. Nothing is put aside: the run is not ours. BadInput where
    all are damaged, or where one cannot be read."""
    first: BadInput | None = None
    try:
        found = checkpoints.listed(run / run_files.CHECKPOINTS)
    except OSError as error:
        raise BadInput(f"--resume-into: the checkpoints of {run} cannot be listed: {reason(error)}.") from None
    for path in reversed(found):
        try:
            return checkpoints.load(path)
        except Damaged as error:
            first = first or error
            print(f"warning: {error} Trying the one before.", flush=True)
    raise first or BadInput(f"--resume-into: {run} has no checkpoint yet. Resume it there, or start a new run.")


def check_left(run: Path, step: int, options: Options) -> None:
    """Refuses a run that has nothing left to do."""
    end = run_length(options.train_size or 0, options.batch_size, options.epochs, options.steps).end
    if step >= end:
        fact = f"{run} stands at batch {step:,}, and the new run would end at batch {end:,}"
        raise BadInput(f"--resume-into: {fact}. Give more --epochs" + (" or --steps." if options.steps else "."))


class Moved(NamedTuple):
    """The state for the new pipeline, losses that became known on the way, and what there is to say."""

    state: Flat
    losses: list[Any]
    said: list[str]


def move(old: "Job", new: "Job", state: Flat) -> Moved:
    """Stages that are the same go on as they are, batches in flight included. Else the old ones are drained."""
    template = new.pipeline.state()
    corrected = [[getattr(job.options, name) for name in ("correct", *job.correction.answers_to)] for job in (old, new)]
    if old.partition.cuts == new.partition.cuts and corrected[0] == corrected[1] and same(new.pipeline, state):
        return Moved(state, [], ["the stages are the same and go on exactly, batches in flight included"])
    pipeline = old.pipeline
    pipeline.restore(state, finite=False)  # its checkpoints are judged when they are written
    before = pipeline.updates
    pipeline.drain()
    made = [after - first for after, first in zip(pipeline.updates, before, strict=True)]
    said = [f"batches in flight were used first: stages 1 to {old.options.K} made {made} more updates"]
    said = said if any(made) else ["nothing was in flight"]
    paces = old.options.accumulate, new.options.accumulate
    cut, given_up = repartitioned(pipeline.state(), template, old.partition.cuts, new.partition.cuts, paces)
    network = "parameters, running statistics and optimizer state of every block are unchanged"
    return Moved(cut, pipeline.losses(wait=True), [*said, network, *given_up])


def same(pipeline: Any, state: Flat) -> bool:
    """Whether a state fits a pipeline without anything left over."""
    try:
        pipeline.restore(state, finite=False)
    except BadInput:
        return False
    return pipeline.state().keys() == state.keys()


def repartitioned(
    old: Flat, template: Flat, old_cuts: tuple[int, ...], cuts: tuple[int, ...], accumulate: tuple[int, int] = (1, 1)
) -> tuple[dict[str, Any], list[str]]:
    """(the state of a fresh pipeline that goes on where a drained one stands, what had to be given up).

    old: state() of the drained one; template: of the fresh one; accumulate: of both, in backward passes per update.
    Whatever belongs to a block is taken over as it is. Counters of a stage are those of the old stage that had its
    first block; a schedule that counts other updates than before goes on at the same batch. Raises BadInput where the
    network is another one.
    """
    there = {key: value for name, value in old.items() if (key := block_key(name))}
    owner = {k: 1 + sum(a <= first for a in old_cuts) for k, first in enumerate((0, *cuts), 1)}
    entered = int(old["entered"] if "entered" in old else old["run/.entered"])
    result, given_up = dict(template), []
    for name, like in template.items():
        place, key = LEAF.fullmatch(name), block_key(name)
        if key:
            value = fitted(there.pop(key, None), like, key[0])
            if value is None and key[0] == "params":
                raise BadInput(f"--resume-into: the checkpoint has no {key[2]} {like.shape}: it is of another model.")
            result[name] = like if value is None else value
            given_up += [f"new: {WORDS[key[0]]}"] if value is None else []
        elif place and np.ndim(like) == 0 and place[3] == "opt_state":
            k = int(place[1] or int(place[2] or 0) + 1)
            result[name] = counter(old, owner[k], place[4], like, entered, accumulate)
    given_up += [f"new: {ADDED}" for name, value in template.items() if added(name, value)]
    given_up += [f"dropped: {ADDED}" for name, value in old.items() if added(name, value)]
    given_up += [f"dropped: {WORDS[part]}" for part, *_ in there]
    given_up += [f"new: {REMEMBERED}" for name in template if OF_CORRECTION.fullmatch(name)]
    given_up += [f"dropped: {REMEMBERED}" for name in old if OF_CORRECTION.fullmatch(name)]
    for k, of in owner.items():
        made = old[f"stage{of}/updates"] if f"stage{of}/updates" in old else old[f"run/.updates[{of - 1}]"]
        result |= put(result, (f"stage{k}/updates", f"run/.updates[{k - 1}]"), made)
    result |= put(result, ("entered", "run/.entered"), entered)
    return result, [f"{line} ({count(len(list(of)), 'array')})" for line, of in groupby(sorted(given_up))]


def block_key(name: str) -> tuple[str, str, str] | None:
    """(part, where in it, path from the block on) of a leaf that belongs to a block, the same for every split, method
    and engine; None for any other."""
    place = LEAF.fullmatch(name)
    found = OF_BLOCK.fullmatch(place[4]) if place else None
    return (place[3], found[1], found[2]) if place and found else None


def added(name: str, value: Any) -> bool:
    """Whether it is an array of a stage that belongs to no block; numbers are counters."""
    return LEAF.fullmatch(name) is not None and block_key(name) is None and np.ndim(value) > 0


def fitted(value: Any, like: Any, part: str) -> Any:
    """The value if it is of that shape and dtype, else None. Statistics that replicas of data parallelism keep for
    themselves [K, ...] become the first replica's, which evaluation uses, and the other way round."""
    if value is None or value.dtype != like.dtype:
        return None
    if value.shape == like.shape:
        return value
    if part != "extra":
        return None
    one = value if value.ndim < like.ndim or value.ndim == 1 else value[0]
    shape = like.shape[like.ndim - one.ndim :]
    return np.broadcast_to(one, like.shape).copy() if one.shape == shape else None


def counter(old: Flat, k: int, rest: str, like: Any, entered: int, accumulate: tuple[int, int]) -> Any:
    """A counter of an optimizer: refused gradients start at 0, updates go on from those of the old stage k."""
    if rest in (".bad", ".refused"):
        return like
    before = old.get(f"stage{k}/state/.opt_state{rest}", old.get(f"run/.stages[{k - 1}].opt_state{rest}"))
    if before is None or accumulate[0] != accumulate[1]:
        before = entered // accumulate[1]
    return np.asarray(before, like.dtype)


def put(result: Flat, names: tuple[str, ...], value: Any) -> dict[str, Any]:
    """The entry of those names that there is, as a number of its own dtype."""
    return {name: np.asarray(value, np.asarray(result[name]).dtype) for name in names if name in result}
