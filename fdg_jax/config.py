"""The configuration of a training: all options, including those that files of methods, corrections and models declare.

The command line (fdg_jax.cli), option files, `fdg_jax.Pipeline` and readers of config.json all use these definitions.
"""

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from fdg_jax import corrections, methods, models
from fdg_jax.errors import BadInput
from fdg_jax.options import fields
from fdg_jax.options.common import GROUPS, Common, Joining, Start
from fdg_jax.options.fields import KEYWORDS, Option
from fdg_jax.options.folder import Folder

OF_JOINING, OF_START = fields.of_class(Joining, "Joining", ()), fields.of_class(Start, "Start", ())
# Other entries of config.json and summary.json. No option may have one of these names.
IN_CONFIG = (
    *("asked", "note", "versions", "backend", "processor", "cpus", "usable_cores", "platform", "cpu_devices"),
    *("xla_flags", "matmul_precision", "jax_settings", "git_commit", "started", "resumed", "resumed_from", "initial"),
    *("inputs", "test_size", "code", "tokenizer"),
)
IN_SUMMARY = (
    *("parameters", "auxiliary_parameters", "seconds", "images_per_second", "train_loss", "test_loss", "staleness"),
    *("test_error_percent", "updates", "final_parameters_sha256", "final_state_sha256", "stage_parameters", "drained"),
    *("sessions", "tokens_per_second", "test_bits_per_byte", "flops_per_token", "mfu_percent", "mfu_of"),
)
# Options that were added later. An older config.json lacks them; their defaults describe what older runs did.
ADDED = (
    *("correct", "optimizer", "b2", "decay", "clip_norm", "lr_schedule", "warmup_steps", "text", "block_size"),
    *("hold_out", "init_from", "replicas", "tensor", "fsdp", "tokens", "validation", "vocabulary", "token_dtype"),
    *("blocks", "final_rate", "sample", "temperature", "top_k", "precision"),
)


def declared(
    folder: Folder, options_of: Callable[[str], dict[str, Option]], taken: Collection[str] = ()
) -> tuple[dict[str, Option], BadInput | None]:
    """The options that the files of a folder declare.

    Arguments:
        folder: the folder of methods, corrections or models.
        options_of: the name of a file -> its options by name.
        taken: names that these options must not have.

    Returns: (options by name, first error in a file or None). Each option records the files that declare it. A file
    with an error is left out.
    """
    found: dict[str, Option] = {}
    wrong = None
    for file in folder.names():
        try:
            found |= of_file(folder, file, options_of(file), found, taken)
        except BadInput as error:
            wrong = wrong or error
    return found, wrong


def of_file(
    folder: Folder, file: str, own: Mapping[str, Option], others: Mapping[str, Option], taken: Collection[str]
) -> dict[str, Option]:
    """The options of a file; each records all files that declare it. others: the options of other files in the folder.

    Raises BadInput if a name is in `taken`, or if another file declares an option of that name differently.
    """
    found = {}
    for name, new in own.items():
        before = others.get(name, new)
        if name in taken:
            fact = f"{folder.shown(file)} declares the option {name}, a name that is already in use"
            raise BadInput(f"{fact}. Choose another one.")
        if (new.kind, new.default) != (before.kind, before.default):
            both = f"{folder.shown(file)} and {folder.shown(before.by[0])}"
            fact = f"{both} declare the option {name} differently"
            raise BadInput(f"{fact}. Give both the same type and default, or rename one of them.")
        found[name] = before._replace(by=(*before.by, file))
    return found


COMMON = fields.of_class(Common, "Common", ())
TAKEN = {*KEYWORDS, *IN_CONFIG, *IN_SUMMARY, *COMMON, *OF_START, *OF_JOINING}
OF_METHODS, wrong_method = declared(methods.FOLDER, lambda name: methods.find(name).declared, TAKEN)
OF_CORRECTIONS, wrong_correction = declared(
    corrections.FOLDER, lambda name: corrections.find(name).declared, TAKEN | OF_METHODS.keys()
)
OF_MODELS, wrong_model = declared(models.FOLDER, models.of_file, TAKEN | OF_METHODS.keys() | OF_CORRECTIONS.keys())
# Options that only some data sets have -> these data sets, or kinds of data sets.
OF_DATA = {
    "data_dir": ("images",), "text": ("text",), "tokens": ("tokens",), "validation": ("tokens",),
    "vocabulary": ("tokens",), "token_dtype": ("tokens",), "block_size": ("text", "tokens"),
    **dict.fromkeys(("blocks", "sample", "temperature", "top_k"), ("text", "tokens")), "precision": ("images",),
}  # fmt: skip
# The first error in a file of a method, correction or model. A command reports it and ends. In Python, the other files
# still work.
UNREADABLE = wrong_method or wrong_correction or wrong_model


def grouped() -> dict[str, Option]:
    """The options that files declare, with their groups."""
    return {
        **{name: each._replace(group="fdg" if "fdg" in each.by else "others") for name, each in OF_METHODS.items()},
        **{name: each._replace(group="correction") for name, each in OF_CORRECTIONS.items()},
        **{name: each._replace(group="model") for name, each in OF_MODELS.items()},
    }


JOINED = grouped()
# In the order of --help: by group. Within a group, options that all runs have come first.
FIELDS = {name: each for group in GROUPS for name, each in {**COMMON, **JOINED}.items() if each.group == group}
SWITCHES = frozenset(name for name, each in FIELDS.items() if each.switch)


def config_class() -> type:
    """Makes the class `Config` from all options in `Common` and `JOINED`."""
    declared = [(name, each.kind, each.default) for name, each in JOINED.items()]
    return dataclasses.make_dataclass("Config", declared, bases=(Common,), frozen=True)


if TYPE_CHECKING:

    class Config(Common):
        """All options of a run, given or default."""

        def __init__(self, **values: Any): ...

        def __getattr__(self, name: str) -> Any: ...

else:
    Config = config_class()
    Config.__module__ = __name__


def join(folder: Folder, file: str, own: Mapping[str, Option], known: dict[str, Option]) -> None:
    """Adds the options of a file that was added to a folder after this module was imported.

    own: what the file declares. known: OF_METHODS, OF_CORRECTIONS or OF_MODELS. Raises BadInput as `of_file` does.
    """
    taken = TAKEN | (JOINED.keys() - known.keys())
    known.update(of_file(folder, file, own, known, taken))
    JOINED.update(grouped())
    FIELDS.update(JOINED)
    new = config_class()  # `Config` stays the class that other modules have imported
    for name in (*own, "__init__", "__repr__", "__eq__", "__hash__", "__dataclass_fields__"):
        setattr(Config, name, getattr(new, name))


def values(config: Config, names: Collection[str]) -> dict[str, Any]:
    """The values of the options with these names, such as those that a file declares."""
    return {name: getattr(config, name) for name in names}


def model_options(config: Config) -> dict[str, Any]:
    """The values of the options that the model's file declares. Raises BadInput if there is no such model."""
    return values(config, models.declared(config.model))


def corrected_by(config: Mapping[str, Any]) -> list[str]:
    """The names of a run's corrections, from its config.json."""
    return corrections.split_names(config["correct"])


def defaults_of_others(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults of options that an older config.json may lack: the options in `ADDED`, the options of models, and
    the options of methods and corrections that the run does not use."""
    found = {name: FIELDS[name].default for name in (*ADDED, *OF_MODELS)}
    for options, chosen in ((OF_METHODS, stored.get("method")), (OF_CORRECTIONS, stored.get("correct"))):
        names = {*corrections.split_names(chosen)}
        found |= {name: each.default for name, each in options.items() if not names & {*each.by}}
    return found


class RunLength(NamedTuple):
    """The length of a run in batches. The last batch of an epoch counts even if it is smaller."""

    per_epoch: int
    all_epochs: int  # the length of the learning-rate schedule; with --epochs 0 it is --steps
    end: int  # where the run ends: --steps may end it before all_epochs


def run_length(examples: int, batch_size: int, epochs: int, steps: int | None = None) -> RunLength:
    """The length of a run in batches. examples: the size of the training set. epochs: if 0, `steps` decides. steps: the
    largest number of batches; None for no limit."""
    per_epoch = math.ceil(examples / batch_size)
    all_epochs = epochs * per_epoch or steps or 0
    return RunLength(per_epoch, all_epochs, min(all_epochs, steps or all_epochs))
