"""Finds the options that apply to a run, and the command that repeats the run."""

import re
import shlex
from collections.abc import Mapping
from typing import Any

from fdg_jax import methods, models, own_files
from fdg_jax.config import FIELDS, OF_CORRECTIONS, OF_DATA, OF_MODELS, corrected_by
from fdg_jax.options.fields import words

# Data sets with their own training command. Defaults differ between commands, so a printed command names all options.
COMMANDS = {
    "text": "language_model", "tokens": "language_model", "tiny_imagenet": "tiny_imagenet", "imagenet": "imagenet",
}  # fmt: skip


SENTENCE_END = re.compile(r"(?<!\bEq)(?<!\bFig)(?<!\be\.g)(?<!\bi\.e)\. ")


def of_run(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options that apply to the run, by name. Options of other methods, corrections, models and kinds of data are
    left out."""
    return {name: config[name] for name in FIELDS if name in config and has(name, config)}


def has(name: str, config: Mapping[str, Any]) -> bool:
    """Whether an option applies to a run."""
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
        return models.is_known(config["model"]) and name in models.declared(config["model"])
    meant = {
        "b2": config["optimizer"] != "sgd",
        "warmup": config["lr_schedule"] == "paper",
        "warmup_steps": config["lr_schedule"] != "paper",
        "final_rate": config["lr_schedule"] in ("cosine", "wsd"),
        "split": config["K"] > 1,
        "resume": False,
    }
    return meant.get(name, True) and not (name in ("block_size", *OF_DATA) and config[name] == FIELDS[name].default)


def chosen(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options that apply to the run and that the user set to other values than their defaults. --method and --K are
    always included."""
    return {
        name: value
        for name, value in of_run(config).items()
        if name in ("method", "K") or config["asked"].get(name) != FIELDS[name].default
    }


def meaning(name: str) -> str:
    """An option's meaning: the first sentence of its help text, without its lists of names."""
    first = SENTENCE_END.split(FIELDS[name].help, maxsplit=1)[0].rstrip(".")
    return (first.partition(":")[0] if "{" in first else first) + "."


def command(config: Mapping[str, Any]) -> str:
    """The run's command line for a shell: the options that the user set, without `--run-dir` and `--resume`. With the
    command `cifar`, options at their defaults are left out. The line also names settings that another machine might
    choose differently: XLA's flags, the data set, the number of its examples, and a measured split."""
    asked, program = config["asked"], COMMANDS.get(config["dataset"])
    asked = asked | {name: config[name] for name in ("dataset", "train_size", "split") if asked.get(name) is not None}
    of_run = (name for name in FIELDS if name not in ("resume", "run_dir"))
    given = [name for name in of_run if asked.get(name) is not None and has(name, config)]
    if program is None:
        given = [name for name in given if asked[name] != FIELDS[name].default]
    paths = {name: own["path"] for name, own in (config.get(own_files.CODE) or {}).items()}
    flags = [word for name in given for word in words(name, own_files.by_path(name, asked[name], paths))]
    settings = f"XLA_FLAGS={shlex.quote(xla.strip())} " if (xla := config.get("xla_flags")) else ""
    return settings + shlex.join(["python", "-m", f"fdg_jax.experiments.{program or 'cifar'}", *flags])


def shrinks(config: Mapping[str, Any]) -> bool:
    """Whether gradients are multiplied by powers of β: if K > 1, and the method takes β or β is not at its default."""
    has = "beta" in methods.find(config["method"]).answers_to or config["beta"] != FIELDS["beta"].default
    return has and config["K"] > 1


def title(config: Mapping[str, Any]) -> str:
    """The title of a run: model, data set, method, K, beta if it applies, and options of method and corrections that
    are not at their defaults."""
    own = [name for name, option in OF_CORRECTIONS.items() if {*corrected_by(config)} & {*option.by}]
    names = dict.fromkeys((*methods.find(config["method"]).answers_to, "correct", *own))
    asked = [f", β={config['beta']:g}"] if shrinks(config) else []
    for name in names:
        if name != "beta" and config[name] != FIELDS[name].default:
            asked.append(f", {name.replace('_', ' ')} {config[name]}")
    return f"{config['model']} on {config['dataset']}: {config['method'].upper()} with K={config['K']}{''.join(asked)}"
