"""Makes a `Config` from the arguments of a command line and a file of options."""

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fdg_jax import config, config_file, corrections, data, methods, models, own_files
from fdg_jax.config import FIELDS, OF_CORRECTIONS, OF_DATA, OF_JOINING, OF_MODELS, OF_START, Config
from fdg_jax.config_file import Found
from fdg_jax.errors import BadInput
from fdg_jax.machine.output import say
from fdg_jax.options.common import GROUPS, OF_OPTIMIZER, ONE_RUN, Joining, Start, chosen, own_defaults, refuse_retired
from fdg_jax.options.fields import Option, choices, from_word, parts, spelled
from fdg_jax.options.parser import Parser, continued

ABOUT = (
    "Trains {} in stages that never wait for one another (FDG: fully decoupled learning with delayed gradients), or by "
    "another method, for comparison."
)


# What --help shows.
EVERYDAY = (
    "method", "K", "beta", "correct", "model", "dataset", "epochs", "batch_size", "learning_rate", "run_dir", "resume",
    "dry_run",
)  # fmt: skip
FOR_TEXT = {"beta": ("optimizer",), "dataset": ("text", "tokens"), "epochs": ("epochs", "steps")}
EVERYDAY_TEXT = tuple(each for name in EVERYDAY for each in FOR_TEXT.get(name, (name,)))


FILES = ("text", "tokens", "validation")  # options that take several files


class Program(NamedTuple):
    """A training command. The defaults of the fields describe the command `cifar`."""

    command: str  # python -m ...
    trains: str = "a residual network on CIFAR-10"
    datasets: tuple[str, ...] = ()  # the data sets that it takes; (): all those held in memory
    defaults: Mapping[str, Any] = {}  # option -> its default
    help: Mapping[str, str] = {}  # option -> its help text

    def started(self, processes: int) -> str:
        """The command line that starts this command on one host. processes: how many processes train together."""
        if processes == 1:
            return self.command
        return f"python -m fdg_jax.launch --processes {processes} -- {self.command.removeprefix('python ')}"


class CommandLine(NamedTuple):
    """A parsed command line.

    options, joining: the options of the run, and the options for joining other processes.
    given, joining_given: the names of the options that the user gave, of both kinds.
    start: the flags that concern only this start.
    places: for each option that comes from --config FILE, where it stands in the file.
    line, file: the options on the command line, and the options in the file.
    """

    options: Config
    given: frozenset[str]
    joining: Joining
    joining_given: frozenset[str]
    start: Start = ONE_RUN
    places: Mapping[str, str] = {}
    line: Mapping[str, Any] = {}
    file: Found = config_file.NOTHING

    def explained(self, error: Exception) -> str:
        """The message of an error. If it names an option that comes from the file, the line in the file is added."""
        named = [flag[2:].replace("-", "_") for flag in re.findall(r"--[\w-]+", str(error))]
        named = [self.places[name] for name in named if name in self.places and name not in self.start.swept]
        return f"{error} ({named[0]})" if named else str(error)


def parse(arguments: Sequence[str], program: Program | str) -> tuple[Config, frozenset[str]]:
    """Reads a command line. --help and --help-all print the help and raise SystemExit(0).

    Arguments:
        arguments: the words after the command's name.
        program: the command. A name means a command with the usual defaults.

    Returns: (options, names of the given options).

    Raises: BadInput if anything is wrong, including a method's or correction's file that cannot be used.
    """
    found = read(arguments, program)
    return found.options, found.given


def read(arguments: Sequence[str], program: Program | str) -> CommandLine:
    """Reads a command line as `parse` does, and also returns the flags that are no options of the run."""
    program = Program(program) if isinstance(program, str) else program
    if config.UNREADABLE:
        raise config.UNREADABLE
    refuse_retired(arguments)
    own_files.load_named(arguments)
    if "--help-all" in arguments:  # prints help even if other arguments are wrong
        parser(program).parse_args(["--help"])
    if "-h" in arguments or "--help" in arguments:
        short_parser(program).parse_args(["--help"])
    words = vars(parser(program).parse_args(arguments))
    given = {name: own_files.by_name(name, value) for name, value in words.items()}
    joining = {name: given.pop(name) for name in OF_JOINING if name in given}
    started = {name: given.pop(name) for name in OF_START if name in given}
    start = Start(**{**started, "sweep": tuple(started.get("sweep", ()))})
    own_files.TRUSTED.set(start.trust_code)
    file = config_file.read(Path(start.config)) if start.config is not None else config_file.NOTHING
    for name in own_files.FOLDERS:
        if str(value := of_run(given, file).get(name)).endswith(own_files.SUFFIX):
            fact = f"{file.places[name]}: a file of options cannot name code that is to be executed"
            raise BadInput(f"{fact}. Add {spelled(name)} {value} to the command line.")
    options, named = settled(given, file, program)
    if (name := {**file.options, **given}.get("method")) in methods.ALIASES and name != options.method:
        say(f"method {name} is run as {options.method} with --weights stashed, which has the same delays and weights.")
    places = {name: file.places[name] for name in of_run(given, file) if name not in given}
    return CommandLine(options, named, Joining(**joining), frozenset(joining), start, places, given, file)


def of_run(given: Mapping[str, Any], file: Found) -> dict[str, Any]:
    """The options of the command line (`given`) and of the file; the command line takes precedence. Options of the file
    for which `of_another` is True are left out."""
    return {**{name: value for name, value in file.options.items() if not of_another(name, given, file)}, **given}


def settled(given: Mapping[str, Any], file: Found, program: Program) -> tuple[Config, frozenset[str]]:
    """(options, names of the given options) from a command line and a file. Alternative spellings of a method or
    correction are replaced by the standard one, because --resume compares options."""
    said = of_run(given, file)
    found = chosen(program.defaults, said)
    if found.get("weights") != "current":  # with "current", an alias is refused later
        found |= {"method": methods.ALIASES[name]} if (name := found.get("method")) in methods.ALIASES else {}
    if "correct" in found:  # "rate, cosine" is another spelling of "rate,cosine"
        found["correct"] = ",".join(corrections.split_names(found["correct"]))
    own = models.defaults(found.get("model"))
    return Config(**{**own, **found}), frozenset(given) | (file.given & said.keys())


def of_another(name: str, given: Mapping[str, Any], file: Found) -> bool:
    """Whether an option in a run's own config.json belongs to a method, correction, model or optimizer that the command
    line replaces by another one."""
    if not file.own:
        return False
    other = {choice for choice in given if given[choice] != file.options.get(choice)}
    of_optimizers = {**own_defaults(file.options.get("optimizer")), **own_defaults(given.get("optimizer"))}
    of_models = {*OF_MODELS, *models.defaults(file.options.get("model")), *models.defaults(given.get("model"))}
    return (
        ("method" in other and FIELDS[name].group in ("fdg", "others"))
        or ("correct" in other and name in OF_CORRECTIONS)
        or ("model" in other and name in of_models)
        or ("optimizer" in other and name in of_optimizers)
    )


def parser(program: Program) -> Parser:
    """A parser that stores each flag under the name of its option. The result has only the given flags."""
    made, shown = empty_parser(program), effective(program)
    for group, about in GROUPS.items():
        box = made.add_argument_group(title(group), about)
        for option in of_group(group):
            add(box, option, program, hidden=option.name not in shown)
    return made


def short_parser(program: Program) -> Parser:
    """A parser for --help, with only the flags that most people need."""
    made, flags, number = empty_parser(program), all_flags(), len(effective(program))
    box = made.add_argument_group("the flags that most people need", f"--help-all lists all {number} by group.")
    for name in EVERYDAY_TEXT if unit(program) == "tokens" else EVERYDAY:
        add(box, flags[name], program)
    return made


def empty_parser(program: Program) -> Parser:
    """A parser without flags, with the texts that --help prints before and after them."""
    return Parser(
        prog=program.command,
        usage="%(prog)s [-h] [--help-all] [OPTIONS]",
        description=ABOUT.format(program.trains),
        argument_default=argparse.SUPPRESS,
        epilog=examples(program),
    )


def title(group: str) -> str:
    """The title of a group of flags in --help."""
    own = {"fdg": "FDG options", "others": "options of other methods", "processes": "several processes"}
    return own.get(group, f"{group} options")


def all_flags() -> dict[str, Option]:
    """All options of the command line."""
    return {**FIELDS, **OF_JOINING, **OF_START}


def of_group(group: str) -> list[Option]:
    """The options of a group."""
    return [option for option in all_flags().values() if option.group == group]


def unit(program: Program) -> str:
    """The unit of a command's data: "images" or "tokens"."""
    return data.unit(program.datasets[0]) if program.datasets else "images"


def effective(program: Program) -> set[str]:
    """The names of the options that can have an effect in a command, given its data sets and models. --help-all lists
    these."""
    own = {option for model in models.names(unit(program)) for option in models.declared(model)}
    kinds = {*program.datasets} if unit(program) == "tokens" else {"images"}
    fit = {name for name in all_flags() if not kinds.isdisjoint(OF_DATA.get(name, kinds))}
    return fit - (OF_MODELS.keys() - own)


def add(box: Any, option: Option, program: Program, hidden: bool = False) -> None:
    """Adds the flag of an option to its group. hidden: --help does not list it."""
    name, kind, default = option.name, parts(option.kind)[0], default_of(option, program)
    text = argparse.SUPPRESS if hidden else explained(option, program).replace("%", "%%")
    flag, about = spelled(name), {"dest": name, "help": text}
    about |= {} if kind is bool else {"metavar": metavar(option)}
    if name == "resume":
        box.add_argument(flag, nargs="?", const=True, type=auto, **about, metavar="auto")
        box.add_argument("--no-resume", dest=name, action="store_false", help="Begin a new run (the default).")
    elif kind is bool:
        box.add_argument(flag, action=argparse.BooleanOptionalAction if name in FIELDS else "store_true", **about)
    elif name in ("sweep", *FILES):
        box.add_argument(flag, nargs="+", action=Joined if name in FILES else "extend", **about)
    else:
        made = box.add_argument(flag, type=lambda word: from_word(word, option.kind), **about)
        made.example = option.metavar if default is None else default


def default_of(option: Option, program: Program) -> Any:
    """The default of an option in a command."""
    optimizer = program.defaults.get("optimizer", FIELDS["optimizer"].default)
    return {**own_defaults(optimizer), **program.defaults}.get(option.name, option.default)


def explained(option: Option, program: Program) -> str:
    """The help text of an option, with its default."""
    default, text = default_of(option, program), listed(program.help.get(option.name, option.help), program)
    shown = "none" if default is None else "off" if default is False and option.name in OF_START else default
    return f"{text} (default: {option.shown or shown})"


class Joined(argparse.Action):
    """Joins several files into one string, as PATH joins folders, because config.json stores an option as one value."""

    def __call__(self, parser, namespace, values, option_string=None):
        for name in values or ():
            if os.pathsep in name and os.path.exists(name):
                fact = f"the file {name!r} has a {os.pathsep!r} in its name, which separates files here"
                raise argparse.ArgumentError(self, f"{fact}. Give it another name")
        setattr(namespace, self.dest, os.pathsep.join(values or ()))


def auto(word: str) -> str:
    """Checks the value of --resume, which can only be "auto"."""
    if word != "auto":
        fact = f"{word!r} follows --resume, whose only value is auto"
        raise argparse.ArgumentTypeError(f"{fact}. Write --resume or --no-resume")
    return word


def metavar(option: Option) -> str:
    """The placeholder of a flag's value in --help."""
    if several := choices(option.kind):
        return f"{{{','.join(several)}}}"
    return option.metavar or parts(option.kind)[0].__name__.upper()


def listed(text: str, program: Program) -> str:
    """A help text whose {methods}, {corrections}, {models}, {datasets} and {optimizers} are replaced by their names."""
    changed = (
        f"{name} ({', '.join(f'{spelled(option)} {value}' for option, value in own.items())})"
        for name, own in OF_OPTIMIZER.items() if own
    )  # fmt: skip
    for place, found in {
        "{methods}": methods.names,
        "{corrections}": corrections.names,
        "{models}": lambda: models.names_and_patterns(unit(program)),
        "{datasets}": lambda: program.datasets or data.names(),
        "{optimizers}": lambda: changed,
    }.items():
        if place in text:
            text = text.replace(place, ", ".join(found()))
    return text


def examples(program: Program) -> str:
    """The end of --help: a few commands as a person types them."""
    text = unit(program) == "tokens"
    if not program.datasets:
        first = {"--dataset digits --model resnet8 --epochs 2": "a first run, in a minute, without a download"}
    else:
        first = {f"{'' if text else '--data-dir data '}--steps 50": "the first 50 batches"}
    # The optimizers for text divide a gradient by its size, so a constant beta would change nothing there.
    option, values = ("dropout", "0,0.1,0.2") if text else ("beta", "0.2,0.5,1")
    found = first | {
        "--K 3 --dry-run": "what would this run cost?",
        f"--config runs/a/config.json --{option} {values.split(',')[1]}": "run a again, with one option changed",
        f"--run-dir runs/b --sweep {option}={values} --jobs 2": "three runs and their table",
    }
    shown = [f"  # {does}\n{continued(f'{program.command} {flags}')}" for flags, does in found.items()]
    return "\n".join(["Examples:", *shown])
