"""What can be refused before any work: values first, which need nothing, then names, which need Flax."""

import math

from fdg_jax import corrections
from fdg_jax.checks import names, schedules
from fdg_jax.corrections.interface import Kind
from fdg_jax.errors import BadInput, did_you_mean
from fdg_jax.methods.interface import Method
from fdg_jax.runs.joining_options import Joining
from fdg_jax.runs.options import FIELDS, Options, asked_of, spelled, words
from fdg_jax.runs.start_options import Start
from fdg_jax.stage import remat

MOST_STAGES = 10_000
LARGEST = 2**53  # config.json keeps whole numbers up to there in every language
LARGEST_FLOAT = 3.4e38  # numbers that train are float32


def check(options: Options, given: frozenset[str]) -> None:
    """Refuses values that can be judged alone. Raises BadInput; imports JAX only where a file asked for does."""
    o = options
    for name in FIELDS:
        if isinstance(value := getattr(o, name), int) and not -LARGEST < value < LARGEST:
            raise BadInput(f"{spelled(name)} {value}: whole numbers lie below {LARGEST:,} here. Use a smaller one.")
    if o.K < 1:
        raise BadInput(f"--K {o.K}: a network has at least one stage. Use --K 1 (plain BP) or more.")
    if o.K > MOST_STAGES:  # else the schedule's lists would fill the memory before the model's blocks are counted
        raise BadInput(f"--K {o.K}: no model has so many blocks; each stage needs one. Use --K {MOST_STAGES} or less.")
    if not 0 < o.beta <= 1:
        raise BadInput(f"--beta {o.beta}: the shrinking factor lies in (0, 1] (Eq. 15). Use 1 for no shrinking.")
    for name in ("epochs", "batch_size", "log_every", "keep"):
        if getattr(o, name) < 1:
            raise BadInput(f"{spelled(name)} {getattr(o, name)}: use 1 or more.")
    for name in ("train_size", "steps", "window", "block_size"):
        if getattr(o, name) is not None and getattr(o, name) < 1:
            raise BadInput(f"{spelled(name)} {getattr(o, name)}: use 1 or more, or leave it out.")
    if o.hold_out < 0:
        raise BadInput(f"--hold-out {o.hold_out}: use a number of training examples, or 0 for none.")
    for name in ("checkpoint_every", "evaluate_every"):
        if getattr(o, name) is not None and getattr(o, name) < 0:
            raise BadInput(f"{spelled(name)} {getattr(o, name)}: use 1 or more, or 0 for only at the end.")
    if not 0 < o.learning_rate < LARGEST_FLOAT:
        raise BadInput(f"--learning-rate {o.learning_rate}: use a positive number; the paper's is 0.1.")
    if not 0 <= o.weight_decay < LARGEST_FLOAT:
        raise BadInput(f"--weight-decay {o.weight_decay}: use 0 or a positive number; the paper's is 0.0005.")
    if not 0 <= o.momentum < 1:
        raise BadInput(f"--momentum {o.momentum}: it lies in [0, 1); the paper's is 0.9.")
    check_recipe(o, given)
    if not (o.stall_seconds >= 0 and math.isfinite(o.stall_seconds)):
        raise BadInput(f"--stall-seconds {o.stall_seconds}: use a positive number of seconds, or 0 for never.")
    if not 0 <= o.seed < 2**31:
        raise BadInput(f"--seed {o.seed}: use a whole number from 0 to {2**31 - 1}.")
    if o.train_size is not None and o.batch_size > o.train_size:
        raise BadInput(
            f"--batch-size {o.batch_size} is more than the {o.train_size} training examples of --train-size. "
            "Use a smaller batch or more examples."
        )
    if o.run_dir == "":
        raise BadInput("--run-dir is empty. Name a directory, or leave it out for one under runs/.")
    if o.init_from == "":
        raise BadInput("--init-from is empty. Name a run or a file of weights, or leave it out.")
    corrected = check_corrections(options, given)
    check_method(options, given - {name for kind in corrected for name in kind.takes})


def check_recipe(options: Options, given: frozenset[str]) -> None:
    """The optimizer's own values are possible, and the flags of a schedule go with that schedule."""
    o = options
    if not 0 <= o.b2 < 1:
        raise BadInput(f"--b2 {o.b2}: it lies in [0, 1); usual are 0.95 to 0.999.")
    if not (o.clip_norm >= 0 and math.isfinite(o.clip_norm)):
        raise BadInput(f"--clip-norm {o.clip_norm}: use a positive number, or 0 for never.")
    if o.warmup_steps < 0:
        raise BadInput(f"--warmup-steps {o.warmup_steps}: use a number of batches, or 0 for none.")
    if o.warmup_steps and o.lr_schedule == "paper":
        fact = f"--warmup-steps {o.warmup_steps}: the paper's schedule has a warm-up of its own"
        raise BadInput(f"{fact}. Use --warmup on, or --lr-schedule cosine, constant or wsd.")
    if o.warmup == "on" and o.lr_schedule != "paper":
        fact = f"--warmup on: this is the paper's warm-up, and --lr-schedule is {o.lr_schedule}"
        raise BadInput(f"{fact}. Use --warmup-steps N there.")
    if "b2" in given and o.optimizer == "sgd":
        raise BadInput(f"--b2 {o.b2}: sgd has no such option. Leave it out, or use --optimizer adamw, say.")


def check_corrections(options: Options, given: frozenset[str]) -> list[Kind]:
    """The corrections, if they exist and have the options given for them."""
    found = corrections.parse(options.correct)
    for correction in found:
        check_declared(correction, "correction")
        correction.accepted({name: getattr(options, name) for name in correction.answers_to})
    answered = corrections.answers_to(options.correct)
    for name, by in asked_of("corrections").items():
        if name in given and name not in answered:
            fact = f"{spelled(name)} {getattr(options, name)}: correction {options.correct} has no such option"
            has = ", ".join(map(spelled, answered)) or "none"
            raise BadInput(f"{fact} (it has: {has}). Add --correct {by[0]}, whose it is, or leave it out.")
    corrections.check_weights(found, options.weights)
    # Who writes --beta 1 knows it: an arm of a comparison. A run that goes on gives neither flag, and is left alone.
    shrinks = any(kind.name == "shrink" for kind in found)
    if shrinks and "correct" in given and "beta" not in given and options.beta == 1 < options.K:
        fact = f"--correct {options.correct}: with beta 1, which is the default, shrink changes no gradient"
        raise BadInput(f"{fact}. Add a smaller one, such as --beta 0.5 (or --beta 1, if that is what you want).")
    return found


def check_declared(idea: Method | Kind, what: str) -> None:
    """Raises BadInput where a method or a correction has an option that the text of no file declares."""
    if unknown := [name for name in idea.answers_to if name not in FIELDS]:
        fact = f"{what} {idea.name} has the option {unknown[0]}, which stands in the text of no {what}'s file"
        raise BadInput(f"{fact}. Declare it in a class Options in fdg_jax/{what}s/{idea.name}.py.")


def check_method(options: Options, given: frozenset[str]) -> None:
    """The method exists, has the options given for it, and can run on the engine asked for."""
    method = names.find_method(options.method)
    about_methods = [name for name, field in FIELDS.items() if field.metadata["group"] in ("fdg", "others")]
    check_declared(method, "method")
    for name in about_methods:
        if name in given:
            by = FIELDS[name].metadata["methods"]
            otherwise = f"use --method {by[0]}, whose it is" if by else ""
            method.check_has(name, " ".join(words(name, getattr(options, name))), otherwise)
    schedule = schedules.asked(method, options)
    schedules.check(method, schedule)
    schedules.check_weights(schedule, options.weights)
    if options.correct != "none" and options.K > 1 and not any(schedule.mean_staleness):
        fact = f"with method {method.name} no gradient is late, so there is nothing to correct"
        raise BadInput(f"--correct {options.correct}: {fact}. Leave it out, or use a method such as fdg or ddg.")
    if options.batch_size < schedule.micro_batches:
        raise BadInput(
            f"--micro-batches {schedule.micro_batches}: a batch of {options.batch_size} has fewer examples. "
            "Use fewer micro-batches or larger batches."
        )
    remat.check(remat.parse(options.remat, options.K), method.other_weights(schedule, options.weights))
    if options.engine == "delay-line" and not method.delay_line:
        raise BadInput(f"--engine delay-line: method {options.method} is not BP with delays. Use --engine pipeline.")
    if options.engine == "delay-line" and options.weights == "current":
        raise BadInput(
            "--engine delay-line takes gradients at the weights of the forward pass, so --weights current "
            "cannot run on it. Use --engine pipeline, or --weights stashed."
        )


def check_names(options: Options, datasets: tuple[str, ...] = ()) -> None:
    """The data set and the model exist, and the model can be cut as asked for. Imports Flax, computes nothing.

    datasets: those that the command takes; (): all of images that are held in memory.
    """
    from fdg_jax import data

    known = list(datasets) or data.names()
    if options.dataset in {*data.names(), *data.stream_names(), *data.text_names()} - set(known):
        raise BadInput(
            f"--dataset {options.dataset}: this command trains on {', '.join(known)}. Others have commands of their "
            f"own: fdg_jax.experiments.cifar, .tiny_imagenet, .imagenet and .language_model."
        )
    names.refuse_other_spelling("data set", options.dataset, known)
    if options.dataset not in known:
        asked = f"{did_you_mean(options.dataset, known)} There are {', '.join(known)}."
        raise BadInput(f"data set {options.dataset!r} is not known.{asked}")
    from fdg_jax import models

    names.refuse_other_spelling("model", options.model, models.names())
    check_model_and_data(options)
    n = len(models.blocks(options.model, classes=10, **own_options(options)))
    if n < options.K:
        raise BadInput(
            f"--K {options.K}: {options.model} has {n} blocks, so there are at most {n} stages. "
            f"Use --K 1 to {n}, or a deeper model."
        )
    for name in asked_of("models"):
        if name not in models.answers_to(options.model) and getattr(options, name) != FIELDS[name].default:
            has = ", ".join(map(spelled, models.answers_to(options.model))) or "none"
            fact = f"{spelled(name)} {getattr(options, name)}: model {options.model} has no such option (it has: {has})"
            raise BadInput(f"{fact}. Leave it out, or take another model.")
    if options.split not in (None, "balanced", "measured"):  # these fit always, and are found by computing
        from fdg_jax import split

        split.parse(options.split, options.model, options.K, n)


def own_options(options: Options) -> dict[str, object]:
    """The options that the model's file declares, by name. Raises BadInput if there is no such model."""
    from fdg_jax import models

    return {name: getattr(options, name) for name in models.answers_to(options.model)}


def check_model_and_data(options: Options) -> None:
    """The model takes what the data set gives, and the data set has the options given for it."""
    from fdg_jax import data, models

    has, wants = data.unit(options.dataset), models.takes(options.model)
    if has != wants:
        fact = f"--model {options.model} takes {wants}, and --dataset {options.dataset} has {has}"
        raise BadInput(f"{fact}. Models for {has} are {', '.join(models.names(has)) or 'not there yet'}.")
    for name in ("text", "block_size") if has == "images" else ("data_dir",):
        if getattr(options, name) is not None:
            fact = f"{spelled(name)} {getattr(options, name)!r}: --dataset {options.dataset} has no such option"
            for_text = "it is for text, which fdg_jax.experiments.language_model trains on"
            raise BadInput(f"{fact}; {for_text if has == 'images' else '--text names files'}. Leave it out.")


def check_start(start: Start, options: Options, joining: Joining) -> None:
    """Refuses flags about a start that cannot be, or that contradict one another."""
    if start.profile < 0:
        raise BadInput(f"--profile {start.profile}: use a number of batches, or 0 for no trace.")
    if start.jobs < 1:
        raise BadInput(f"--jobs {start.jobs}: use 1 or more.")
    if start.jobs > 1 and not start.several:
        raise BadInput(f"--jobs {start.jobs}: there is one run. Give several with --seeds or --sweep, or leave it out.")
    asked = "--seeds" if start.seeds is not None else "--sweep" if start.sweep else "--dry-run" if start.dry_run else ""
    if not asked:
        return
    if joining.wanted:
        raise BadInput(f"{asked} is for a training in one process. Leave it or --coordinator out.")
    if options.resume is True or (options.resume and start.several):
        why = "goes on by itself" if start.several else "is about a run that has not begun"
        raise BadInput(f"{asked} {why}. Leave --resume out.")
    if start.several and options.run_dir is None:
        raise BadInput(f"{asked} needs a directory for its runs: add --run-dir DIR. The same command goes on there.")
