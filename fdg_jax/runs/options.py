"""Every flag of the training command, in one frozen dataclass `Options`: `RecipeOptions` and what the files of
methods, corrections and models declare.

The declarations are read from the text of all files in fdg_jax/methods, fdg_jax/corrections and fdg_jax/models, so that
--help and checks need no JAX. Names and values stand in config.json as they are here, side by side.
"""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fdg_jax import corrections, methods, models
from fdg_jax.options.declared import Declared, declared
from fdg_jax.options.fields import KEYWORDS
from fdg_jax.runs import start_options
from fdg_jax.runs.common_options import GROUPS, Resume, flag
from fdg_jax.runs.recipe_options import RecipeOptions

__all__ = ["FIELDS", "GROUPS", "SWITCHES", "UNREADABLE", "Options", "Resume", "spelled"]

# Names that mean something else in config.json or in summary.json.
IN_CONFIG = (
    *("asked", "note", "versions", "backend", "processor", "cpus", "usable_cores", "platform", "cpu_devices"),
    *("xla_flags", "matmul_precision", "jax_settings", "git_commit", "started", "resumed", "resumed_from", "initial"),
    *("inputs", "test_size"),
)
IN_SUMMARY = (
    *("parameters", "auxiliary_parameters", "seconds", "images_per_second", "train_loss", "test_loss", "staleness"),
    *("test_error_percent", "updates", "final_parameters_sha256", "final_state_sha256", "stage_parameters", "drained"),
    *("sessions", "tokens_per_second", "test_bits_per_byte"),
)
# Options that were added with defaults that mean what runs did before: a config.json may lack them.
ADDED = (
    *("optimizer", "b2", "decay", "clip_norm", "lr_schedule", "warmup_steps", "text", "block_size", "hold_out"),
    "init_from",
)
TAKEN = {*KEYWORDS, *IN_CONFIG, *IN_SUMMARY, *(field.name for field in dataclasses.fields(RecipeOptions))}
TAKEN |= {*start_options.FIELDS}
# What the files declare, and what is wrong with a file that cannot be read. A command says it and ends; where this
# module is imported nothing is raised, for in Python only the method or correction of that file is affected.
OF_METHODS, wrong_method = declared(methods.files(), "fdg_jax/methods", TAKEN)
OF_CORRECTIONS, wrong_correction = declared(
    corrections.files(), "fdg_jax/corrections", TAKEN | {one.option.name for one in OF_METHODS}
)
OF_MODELS, wrong_model = declared(
    models.files(), "fdg_jax/models", TAKEN | {one.option.name for one in (*OF_METHODS, *OF_CORRECTIONS)}
)
UNREADABLE = wrong_method or wrong_correction or wrong_model

if TYPE_CHECKING:

    class Options(RecipeOptions):
        """All flags of the training command, as given or by default."""

        def __init__(self, **values: Any): ...

        def __getattr__(self, name: str) -> Any: ...

else:

    def field_of(one: Declared, group: str, of: str) -> tuple[str, Any, Any]:
        """The field of `Options` for what files declare. of: what these are: "methods", "corrections" or "models"."""
        name, kind, default, text, metavar = one.option
        return name, kind, flag(default, group, text, metavar=metavar, **{of: one.by})

    fields = [
        *(field_of(one, "fdg" if "fdg" in one.by else "others", "methods") for one in OF_METHODS),
        *(field_of(one, "correction", "corrections") for one in OF_CORRECTIONS),
        *(field_of(one, "model", "models") for one in OF_MODELS),
    ]
    Options = dataclasses.make_dataclass("Options", fields, bases=(RecipeOptions,), frozen=True)
    Options.__module__ = __name__

# By group, as --help lists them; within a group first what all runs have.
FIELDS = {
    field.name: field for group in GROUPS for field in dataclasses.fields(Options) if field.metadata["group"] == group
}

# Flags without a value, which have a --no-... as well.
SWITCHES = frozenset(name for name, field in FIELDS.items() if field.type in (bool, Resume))


def asked_of(what: str) -> dict[str, tuple[str, ...]]:
    """The options that only files of "methods", of "corrections" or of "models" declare: name -> whose files."""
    return {name: field.metadata[what] for name, field in FIELDS.items() if field.metadata[what]}


def corrected_by(config: Mapping[str, Any]) -> list[str]:
    """The names of the corrections of a run, by its config.json."""
    return corrections.split_names(config["correct"])


def defaults_of_others(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a config.json may lack, at their defaults: files of other methods, corrections or models, which
    declare them, were added since that run began; so were --correct itself and `ADDED`."""
    found = {name: FIELDS[name].default for name in ("correct", *ADDED, *asked_of("models"))}
    for what, chosen in (("methods", stored.get("method")), ("corrections", stored.get("correct"))):
        chosen = {*corrections.split_names(chosen)}
        found |= {name: FIELDS[name].default for name, by in asked_of(what).items() if not chosen & {*by}}
    return found


def spelled(name: str) -> str:
    """A field's name as a flag: train_size -> --train-size."""
    return "--" + name.replace("_", "-")


def words(name: str, value: Any) -> list[str]:
    """An option as it stands on a command line; a switch has no value: drain=False is --no-drain."""
    if isinstance(value, bool):
        return [spelled(name if value else f"no_{name}")]
    return [spelled(name), written(value)]


def written(value: Any) -> str:
    """A value as it stands on a command line, with as many digits as it needs."""
    short = f"{value:g}" if isinstance(value, float) else str(value)
    return short if not isinstance(value, float) or float(short) == value else repr(value)
