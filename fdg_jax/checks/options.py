"""Refuses wrong options before any work. Values are checked first, since that needs no other module; checking names
needs the models."""

import math
import os
from collections.abc import Collection, Iterable
from typing import Any

from fdg_jax import corrections, data, models, split
from fdg_jax.checks.plan import Plan, of_config
from fdg_jax.config import FIELDS, OF_DATA, OF_JOINING, OF_MODELS, OF_START, Config, model_options
from fdg_jax.errors import BadInput, did_you_mean
from fdg_jax.options.common import AUTO, Joining, Start
from fdg_jax.options.fields import checked, named, said, spelled

MOST_REPLICAS = 1000
OF_ONE_PROGRAM = ("seed", "beta", "learning_rate")  # the options in which runs that train together may differ

def check(config: Config, given: Collection[str]) -> Plan:
    """Refuses values that can be judged without data and model. Raises BadInput.

    given: the names of the options that the user set. Returns: the plan of method and corrections.
    """
    o = config
    for name, option in FIELDS.items():
        checked(option, getattr(o, name))
    refuse_where(o, (
        (o.run_dir == "", "run_dir", "it is empty", "Name a directory, or leave it out for a new one under runs/"),
        (o.init_from == "", "init_from", "it is empty", "Name a run or a file of weights, or leave it out"),
        (o.warmup_steps and o.lr_schedule == "paper", "warmup_steps", "the paper's schedule has a warm-up of its own",
         "Use --warmup on, or --lr-schedule cosine, constant or wsd"),
        (o.final_rate and o.lr_schedule in ("paper", "constant"), "final_rate",
         f"the schedule {o.lr_schedule} has no final rate", "Leave it out, or use --lr-schedule cosine or wsd"),
        (o.epochs == 0 and o.steps is None, "epochs", "with 0 epochs --steps sets the length, and --steps is not given",
         "Add --steps N"),
        (o.epochs == 0 and o.lr_schedule == "paper", "epochs", "the paper's schedule counts epochs",
         "Use --lr-schedule cosine, constant or wsd"),
        (o.warmup == "on" and o.lr_schedule != "paper", "warmup",
         f"this warm-up is of the schedule paper, and the schedule is {o.lr_schedule}", "Use --warmup-steps N"),
        (o.precision == "bfloat16" != o.dtype, "precision", f"it means --dtype bfloat16, but --dtype is {o.dtype}",
         "Leave one of the two out"),
        (o.precision in ("float32", "tf32") and o.dtype != "float32", "precision",
         f"the network computes in {o.dtype}", "Leave one of the two out"),
        ("b2" in given and o.optimizer == "sgd", "b2", "sgd has no such option",
         "Leave it out, or use --optimizer adamw, say"),
        (o.batch_size > (o.train_size or o.batch_size), "batch_size",
         f"--train-size leaves only {o.train_size} training examples", "Use a smaller batch, or more examples"),
    ))  # fmt: skip
    plan = of_config(o, given)
    # An explicit --beta 1 is intended, as one arm of a comparison. A resumed run has neither flag in `given`.
    shrinks = "shrink" in corrections.split_names(o.correct) and "correct" in given and "beta" not in given
    R, M = replicas(o.replicas, o.K), plan.schedule.micro_batches
    refuse_where(o, (
        (shrinks and o.beta == 1 < o.K, "correct", "with beta 1, which is the default, shrink changes no gradient",
         f"Add {said('beta', 0.5)}, say. If you want no shrinking, add {said('beta', 1)}"),
        (o.correct != "none" and o.K > 1 and not plan.staleness, "correct",
         f"with method {plan.method.name} no gradient is late, so there is nothing to correct",
         "Leave it out, or use a method such as fdg or ddg"),
        *((several and plan.method.places, name,
           f"method {plan.method.name} spreads every stage over the K devices by itself", "Leave it out")
          for name, several in (("replicas", max(R) > 1), ("tensor", o.tensor > 1))),
        (o.fsdp and max(R) == 1, "fsdp", "it divides a stage's weights over its replicas, but each stage has only one",
         "Add --replicas 2, say"),
        (models.takes(o.model) != "tokens" and (o.fsdp or o.tensor > 1), "fsdp" if o.fsdp else "tensor",
         f"the weights of {o.model} lack axis names, which this option needs", "Leave it out, or train a transformer"),
        (o.batch_size // M % math.lcm(*R), "replicas",
         f"a batch of {o.batch_size // M} cannot be divided among so many devices",
         f"Use a batch size that is a multiple of {math.lcm(*R) * M}"),
        (o.batch_size < M, "micro_batches", f"a batch of {o.batch_size} examples cannot make so many",
         "Use fewer micro-batches or larger batches"),
    ))  # fmt: skip
    return plan


def replicas(asked: int | str, K: int) -> list[int]:
    """The number of devices of each stage k = 1..K, from --replicas: 2 for every stage, "4,2", or "8/K" for 8 in all.
    Raises BadInput."""
    text = str(asked)
    n, of_all, none = text.partition("/K")
    words = [str(int(n) // K)] if of_all and n.isdecimal() and not none else text.split(",")
    found = [int(word) for word in words if word.isdecimal() and 0 < int(word) <= MOST_REPLICAS]
    if len(found) < len(words) or len(words) not in (1, K):
        fact = f"{said('replicas', text)} does not give each of the K={K} stages 1 to {MOST_REPLICAS} devices"
        raise BadInput(f"{fact}. Use one number (4), a number for each stage (4,2 for K=2), or a total (8/K).")
    return found * (K // len(found))


def refuse_where(options: Any, rules: Iterable[tuple[Any, str, str, str]]) -> None:
    """Raises BadInput for the first rule that holds.

    options: the object with the values. rules: (whether the rule holds, the option's name, the fact, the way out).
    """
    for holds, name, fact, way_out in rules:
        if holds:
            raise BadInput(f"{said(name, getattr(options, name))}: {fact}. {way_out}.")


def check_names(config: Config, datasets: tuple[str, ...] = ()) -> None:
    """Checks that the data set and the model exist, and that the model can be cut as asked. Computes nothing. Raises
    BadInput.

    datasets: the names that the command takes; (): all image data sets that are held in memory.
    """
    o, known = config, list(datasets) or data.names()
    elsewhere = o.dataset in {*data.names(), *data.stream_names(), *data.text_names()} - set(known)
    refuse_where(o, (
        (elsewhere, "dataset", f"this command trains on {', '.join(known)}", "Other data have their own commands: "
         "fdg_jax.experiments.cifar, .tiny_imagenet, .imagenet and .language_model"),
    ))  # fmt: skip
    if data.is_path(o.dataset):
        if not os.path.exists(path := o.data_dir or o.dataset):
            fact = f"{said('dataset', o.dataset)}: {path} does not exist"
            raise BadInput(f"{fact}. Name a folder or a file of images; if it has moved, add --data-dir NEW-PATH.")
    elif o.dataset not in {*known, *data.SETS.own()}:
        hint = f"{did_you_mean(o.dataset, known)} There are {', '.join(known)}."
        raise BadInput(f"data set {o.dataset!r} is not known.{hint}")
    has, wants = data.unit(o.dataset), models.takes(o.model)
    kind, other = "images", "this option is for text (fdg_jax.experiments.language_model)"
    if has != "images":
        kind, other = o.dataset, "--text names files of text, --tokens files of tokens"
    refuse_where(o, (
        (has != wants, "model", f"this model takes {wants}, but --dataset {o.dataset} has {has}",
         f"Models for {has} are {', '.join(models.names(has)) or 'not there yet'}"),
        *((getattr(o, name) != FIELDS[name].default, name, f"--dataset {o.dataset} has no such option; {other}",
           "Leave it out") for name, kinds in OF_DATA.items() if kind not in kinds),
    ))  # fmt: skip
    n, own = len(models.blocks(o.model, classes=10, **model_options(o))), models.declared(o.model)
    refuse_where(o, (
        (n < o.K, "K", f"{o.model} has {n} blocks, so there are at most {n} stages",
         f"Use {said('K', 1)} to {n}, or a deeper model"),
        *((getattr(o, name) != FIELDS[name].default, name,
           f"model {o.model} has no such option (it has: {named(own)})", "Leave it out, or take another model")
          for name in OF_MODELS.keys() - own.keys()),
    ))  # fmt: skip
    if o.split not in (None, "balanced", "measured"):  # these two always fit, and are computed later
        split.parse(o.split, o.model, o.K, n)


def check_start(start: Start, config: Config, joining: Joining) -> None:
    """Refuses impossible values of the flags in `Start`, and flags that contradict one another. Raises BadInput."""
    for name, option in OF_START.items():
        checked(option, getattr(start, name))
    refuse_where(start, (
        (start.jobs > 1 and not start.several, "jobs", "there is only one run",
         "Ask for several runs with --seeds or --sweep, or leave it out"),
        (start.together and not (start.several and start.swept <= set(OF_ONE_PROGRAM)), "together",
         f"its runs may differ only in {', '.join(OF_ONE_PROGRAM)}", "Give --seeds 0-7 or --sweep beta=0.2,1, say"),
        (start.together and start.jobs > 1, "jobs", "with --together all runs are one program", "Leave it out"),
    ))  # fmt: skip
    if start.together:
        c = config
        refuse_where(c, (
            (c.engine not in ("auto", "scan"), "engine", "--together uses the engine scan", "Leave it out"),
            (max(replicas(c.replicas, c.K)) * c.tensor > 1, "replicas", "with --together all stages are on one device",
             "Leave it out"),
            (c.on_nan == "rollback", "on_nan", "no run of --together can go back to a checkpoint", "Use stop or skip"),
        ))  # fmt: skip
    flag = "--seeds" if start.seeds is not None else "--sweep" if start.sweep else "--dry-run" if start.dry_run else ""
    if not flag:
        return
    if joining.wanted:
        raise BadInput(f"{flag} is for a training in one process. Leave {flag} or --coordinator out.")
    if config.resume is True or (config.resume and start.several):
        why = "resumes its runs by itself" if start.several else "is about a run that has not begun"
        raise BadInput(f"{flag} {why}. Leave --resume out.")
    if start.several and config.run_dir is None:
        raise BadInput(f"{flag} needs a directory for its runs: add --run-dir DIR. Repeat the command to resume.")


def check_joining(joining: Joining, given: Collection[str], config: Config) -> None:
    """Raises BadInput for flags that contradict one another, or options that need a single process.

    given: the names of the fields of `joining` that are on the command line.
    """
    if not joining.wanted:
        if given:
            fact = f"{spelled(min(given))} is for a training in several processes"
            raise BadInput(f"{fact}, but --coordinator is not given. Add it, or use python -m fdg_jax.launch.")
        return
    numbers, scheduled = {"processes", "process_id"}, joining.coordinator == AUTO
    if scheduled and (both := numbers.intersection(given)):
        fact = f"--coordinator auto: {spelled(min(both))} comes from the scheduler"
        raise BadInput(f"{fact}. Leave it out, or use --coordinator HOST:PORT.")
    if not scheduled and (missing := numbers.difference(given)):
        fact = f"--coordinator {joining.coordinator} needs {spelled(min(missing))}, too"
        raise BadInput(f"{fact}. python -m fdg_jax.launch adds them all.")
    if not scheduled and not config.resume:  # else K is in config.json
        check_numbers(joining.process_id or 0, joining.processes or 0, config.K)
    checked(OF_JOINING["peer_timeout"], joining.peer_timeout)
    if config.engine in ("delay-line", "scan"):
        fact = f"--engine {config.engine} trains in one process"
        raise BadInput(f"{fact}. Use --engine pipeline, or leave --coordinator out.")


def check_numbers(process: int, processes: int, K: int) -> None:
    """Raises BadInput unless each process has a stage."""
    if not 1 <= processes <= K:
        raise BadInput(f"--processes {processes}: each process needs a stage, but there are only K={K}. Use 1 to {K}.")
    if not 0 <= process < processes:
        raise BadInput(f"--process-id {process}: {processes} processes are counted from 0 to {processes - 1}.")
