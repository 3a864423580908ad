"""The options of a run: those that its method, model and data have, and the command that makes the run again."""

import re
import shlex
from collections.abc import Mapping
from typing import Any

from fdg_jax import methods, own_files
from fdg_jax.config import FIELDS, OF_CORRECTIONS, OF_MODELS, corrected_by
from fdg_jax.options.fields import words

# Data sets that have a command of their own. Its defaults differ, so all options are named there.
COMMANDS = {"text": "language_model", "tiny_imagenet": "tiny_imagenet", "imagenet": "imagenet"}


SENTENCE_END = re.compile(r"(?<!\bEq)(?<!\bFig)(?<!\be\.g)(?<!\bi\.e)\. ")


def of_run(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options that the run has, by name; not those of other methods, corrections, models and kinds of data."""
    return {name: config[name] for name in FIELDS if name in config and has(name, config)}


def has(name: str, config: Mapping[str, Any]) -> bool:
    """Whether an option means anything in a run."""
    field, correct, code = FIELDS[name], corrected_by(config), config.get(own_files.CODE) or {}
    if any(name in own["has"] for own in code.values()):
        return True
    if name == "beta" and "shrink" in correct:
        return True
    if field.group in ("fdg", "others"):
        return config["method"] not in code and name in methods.find(config["method"]).answers_to
    if name in OF_CORRECTIONS:
        return bool({*correct} & {*field.by})
    if name in OF_MODELS:
        return config["model"].startswith(field.by)
    meant = {
        "b2": config["optimizer"] != "sgd",
        "warmup": config["lr_schedule"] == "paper",
        "warmup_steps": config["lr_schedule"] != "paper",
        "split": config["K"] > 1,
        "resume": False,
    }
    return meant.get(name, True) and not (name in ("text", "block_size", "data_dir") and config[name] is None)


def chosen(config: Mapping[str, Any]) -> dict[str, Any]:
    """Those that the run has and that were asked for otherwise than by default, as the run then had them; --method and
    --K always."""
    return {
        name: value
        for name, value in of_run(config).items()
        if name in ("method", "K") or config["asked"].get(name) != FIELDS[name].default
    }


def meaning(name: str) -> str:
    """What an option is, in a sentence: the first of its help text, without its lists of names."""
    first = SENTENCE_END.split(FIELDS[name].help, maxsplit=1)[0].rstrip(".")
    return (first.partition(":")[0] if "{" in first else first) + "."


def command(config: Mapping[str, Any]) -> str:
    """The command line of the run, for a shell: what was asked for, before defaults were settled."""
    asked, program = config["asked"], COMMANDS.get(config["dataset"])
    given = [name for name in FIELDS if name != "resume" and asked.get(name) is not None and has(name, config)]
    if program is None:
        given = [name for name in given if asked[name] != FIELDS[name].default]
    paths = {name: own["path"] for name, own in (config.get(own_files.CODE) or {}).items()}
    flags = [word for name in given for word in words(name, own_files.by_path(name, asked[name], paths))]
    return shlex.join(["python", "-m", f"fdg_jax.experiments.{program or 'cifar'}", *flags])


def shrinks(config: Mapping[str, Any]) -> bool:
    """Whether the method, or a correction that takes it, has the factor β, and a stage that it is for."""
    has = "beta" in methods.find(config["method"]).answers_to or config["beta"] != FIELDS["beta"].default
    return has and config["K"] > 1


def title(config: Mapping[str, Any]) -> str:
    """Model, data set, method, K, beta if the method has it, and options that are no defaults."""
    own = [name for name, option in OF_CORRECTIONS.items() if {*corrected_by(config)} & {*option.by}]
    names = dict.fromkeys((*methods.find(config["method"]).answers_to, "correct", *own))
    asked = [f", β={config['beta']:g}"] if shrinks(config) else []
    for name in names:
        if name != "beta" and config[name] != FIELDS[name].default:
            asked.append(f", {name.replace('_', ' ')} {config[name]}")
    return f"{config['model']} on {config['dataset']}: {config['method'].upper()} with K={config['K']}{''.join(asked)}"
