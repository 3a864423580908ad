"""Goes on with a run as another one: with other stages, another method, another schedule, another JAX.

The old run's newest checkpoint becomes the state of the new stages (fdg_jax.training.moving). The new run begins as a
run directory with this one checkpoint, and is then resumed like any other. The old run is only read.
"""

import dataclasses
import math
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fdg_jax import corrections, methods
from fdg_jax.errors import BadInput, reason
from fdg_jax.runs import checkpoints, joining_options, locking, option_checks, reading, run_files
from fdg_jax.runs.checkpoints import Saver
from fdg_jax.runs.optimizers import OF_OPTIMIZER
from fdg_jax.runs.options import FIELDS, Options, spelled
from fdg_jax.runs.run_length import run_length
from fdg_jax.runs.shared_saver import SharedSaver
from fdg_jax.storage.manifest import Damaged
from fdg_jax.training.command_line import Program, Words
from fdg_jax.training.moving import move
from fdg_jax.training.peers import Peers
from fdg_jax.training.shared_directory import check_shared
from fdg_jax.training.signals import Signals

if TYPE_CHECKING:
    from fdg_jax.training.setup import Job

BY_STAGES = ("split", "engine", "window")  # chosen again for other stages


class Plan(NamedTuple):
    """What is asked for.

    old, new: the run directories. config: config.json of the old run. before, options: the options of both runs.
    given_up: sentences on what the new run has no longer.
    """

    old: Path
    new: Path
    config: dict[str, Any]
    before: Options
    options: Options
    given_up: list[str]


class Old(NamedTuple):
    """The old run, with all of its stages in this process, and its newest checkpoint."""

    job: "Job"
    state: Mapping[str, Any]
    loop: Mapping[str, Any]


def start(words: Words, program: Program, signals: Signals) -> int:
    """The command with --resume-into; returns its exit code."""
    asked, given, joining = words.options, words.given, words.joining
    plan, peers = planned(asked, given, program), Peers()
    if joining.wanted:
        joining_options.check_engine(plan.options)
        from fdg_jax.training import joined

        peers = joined.join(joining, plan.options, given, plan.options.K)
    with ExitStack() as held:
        peers.told(lambda: claim(plan, held))
        if peers.processes > 1:
            check_shared(plan.new, peers, "--resume-into")
        job = converted(plan, signals, peers)
        from fdg_jax.training import launch, session, stages

        begun = session.begin(job, plan.new, resume=True)._replace(start=words.start)
        peers.told(lambda: launch.begin_tracking(begun, plan.new, reading.config(plan.new)))
        launch.opening(job, plan.new, stages.facts(job), resumed=True)
        with launch.shown_in_browser(plan.new, words.start, peers):
            return launch.run_tracked(job, plan.new, program, signals, begun)


def planned(asked: Options, given: frozenset[str], program: Program) -> Plan:
    """Everything that can be checked before the processes join. Raises BadInput."""
    if asked.run_dir is None or asked.resume:
        raise BadInput("--resume-into NEW goes on with the run in --run-dir OLD; add that, and leave --resume out.")
    old, new = Path(asked.run_dir), Path(asked.resume_into or "")
    locking.check_name(old, "--run-dir")
    locking.check_name(new, "--resume-into")
    if asked.resume_into == "" or one_in_the_other(old, new):
        fact = f"--resume-into {asked.resume_into!r}: the run goes on in another directory than {old}"
        raise BadInput(f"{fact}, neither inside it nor around it. Choose one beside it.")
    if not run_files.there(old / run_files.CONFIG):
        fact = f"--resume-into: {old} holds no run ({run_files.CONFIG} is not there)"
        raise BadInput(f"{fact}. Give --run-dir the directory of the run that goes on.")
    config, given_up = stored_config(old)
    before = Options(**{name: config[name] for name in FIELDS if name != "resume"})
    before = dataclasses.replace(before, data_dir=asked.data_dir if "data_dir" in given else before.data_dir)
    options = changed(config, asked, given)
    option_checks.check(before, frozenset())
    option_checks.check(options, given)
    option_checks.check_names(options, program.datasets)
    return Plan(old, new, config, before, options, given_up)


def claim(plan: Plan, held: ExitStack) -> None:
    """Holds both run directories against other processes, as long as `held` is open. Raises BadInput."""
    held.enter_context(locking.lock(plan.old))
    held.enter_context(locking.claim(plan.new, resume=False, flag="--resume-into"))


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
    if "lr_schedule" in given and asked.lr_schedule != config["lr_schedule"]:  # the warm-up is the paper's schedule's
        values["warmup"] = config["asked"].get("warmup", FIELDS["warmup"].default)
    if "optimizer" in given and asked.optimizer != config["optimizer"]:  # with defaults of its own
        values |= {name: getattr(asked, name) for own in OF_OPTIMIZER.values() for name in own}
    values |= {name: getattr(asked, name) for name in given}
    has = {*methods.find(values["method"]).answers_to, *corrections.answers_to(values["correct"])}
    for name, field in FIELDS.items():
        of_idea = field.metadata["group"] in ("fdg", "others") or field.metadata["corrections"]
        if of_idea and name not in given and name not in has:
            values[name] = field.default  # the old method's or correction's
    return Options(**values | {"run_dir": asked.resume_into, "resume_into": None})


def converted(plan: Plan, signals: Signals, peers: Peers) -> "Job":
    """Makes the new run directory, with a checkpoint to resume from; says what was given up.

    Returns: the new run, with its stages in all processes. Process 0 alone makes the checkpoint, with the stages of
    both runs, so that it is the same for any number of processes.
    """
    import jax

    from fdg_jax.data import interruptible
    from fdg_jax.machine import compile_cache
    from fdg_jax.training import setup, stages
    from fdg_jax.transport import devices

    setup.prepare_cpu(one_core=peers.on_one_core())
    several = peers.processes > 1
    devices.request_cpu_devices(max(plan.before.K, plan.options.K), exactly=several)  # before a checkpoint starts JAX
    if several:
        jax.devices()  # every process has to be there when JAX starts
    compile_cache.enable()
    old: list[Old] = []
    with interruptible.by(signals.at_once):
        peers.told(lambda: old.append(read(plan, signals)))
        job = setup.prepare(plan.options, plan.config["note"], peers)
    job = job._replace(options=dataclasses.replace(job.options, run_dir=str(plan.new)))
    known = stages.facts(job)

    def write_new() -> None:
        signals.check()
        write(plan, old[0], job, known)

    peers.told(write_new)
    return job


def read(plan: Plan, signals: Signals) -> Old:
    """The old run at its newest checkpoint. Raises BadInput."""
    from fdg_jax.machine import jax_settings
    from fdg_jax.training import setup
    from fdg_jax.training.session import check_data, versions

    plan.given_up.extend(jax_settings.describe_changes(plan.config))
    state, loop, about = newest(plan.old)
    check_left(plan.old, int(loop["step"]), plan.options)
    signals.check()
    job = setup.prepare(plan.before, plan.config["note"])
    check_data(job.dataset, about, "--resume-into")
    for name, now in versions().items():
        if about.get(name) != now:
            fact = f"its checkpoint was made with {name} {about.get(name)}, this is {now}"
            plan.given_up.append(f"{fact}: the last bits may differ")
    return Old(job, state, loop)


def write(plan: Plan, old: Old, job: "Job", known: list[dict[str, Any]]) -> None:
    """Writes the new run's first checkpoint and its config.json. Raises BadInput.

    job: the new run. known: the facts about its stages.
    """
    from fdg_jax.training import setup, trained
    from fdg_jax.training.session import about_job

    alone = job.peers.processes == 1
    moved = move(old.job, job if alone else setup.built(job.options, job.dataset, Peers()), old.state)
    step, said = int(old.loop["step"]), [*moved.said, *plan.given_up]
    unread = {f"unread/{each.step}": each.loss for each in moved.losses}
    fresh = {"lines": 0, "best_error": math.inf, "best_step": -1, "timed_images": 0, "timed_seconds": 0.0}
    root, about = plan.new / run_files.CHECKPOINTS, about_job(job)
    try:
        # Orbax, in one of several processes, would wait for the others.
        saver = Saver(root, about, plan.options.keep) if alone else SharedSaver(root, about, plan.options.keep, Peers())
        saver.save(step, moved.state, {**old.loop, **fresh, **unread})
        saver.wait()
    except (checkpoints.SaveFailed, checkpoints.NotFinite) as failed:
        raise BadInput(f"--resume-into: {failed}") from None
    config = run_files.config(job.options, plan.options, job.devices, job.dataset.note)
    config |= {"inputs": trained.inputs_of(job.dataset)._asdict(), "test_size": len(job.dataset.test_inputs)}
    config |= {"stages": known, "resumed_from": {"run_dir": str(plan.old), "batch": step, "said": said}}
    run_files.write_json(plan.new / run_files.CONFIG, config)  # last: without it nobody resumes
    print("\n".join([f"goes on from {plan.old} after batch {step:,}", *(f"  {line}" for line in said)]), flush=True)


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
