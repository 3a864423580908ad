"""From the words of a command line to `Options`, without JAX."""

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fdg_jax import corrections, data, methods
from fdg_jax.checks import names
from fdg_jax.machine.stderr import say
from fdg_jax.options import values
from fdg_jax.options.parser import Parser, continued
from fdg_jax.runs import config_file, joining_options, optimizers, retired, start_options
from fdg_jax.runs import options as declared
from fdg_jax.runs.config_file import Found
from fdg_jax.runs.joining_options import Joining
from fdg_jax.runs.options import FIELDS, GROUPS, SWITCHES, Options, spelled
from fdg_jax.runs.start_options import ONE_RUN, Start

ABOUT = (
    "Trains {} by stages that never wait for one another (fully decoupled learning with delayed gradients), or by a "
    "method to compare it with."
)


class Program(NamedTuple):
    """A training command: what it is called, and where it differs from `cifar`."""

    command: str  # python -m ...
    trains: str = "a residual network on CIFAR-10"
    datasets: tuple[str, ...] = ()  # that it takes; (): all that are held in memory
    defaults: Mapping[str, Any] = {}  # option -> its default
    help: Mapping[str, str] = {}  # option -> its help text

    def started(self, processes: int) -> str:
        """The command that starts it in so many processes on one host."""
        if processes == 1:
            return self.command
        return f"python -m fdg_jax.launch --processes {processes} -- {self.command.removeprefix('python ')}"


def parse(arguments: Sequence[str], program: Program | str) -> tuple[Options, frozenset[str]]:
    """Reads a command line. --help prints and leaves with SystemExit(0).

    Arguments:
        arguments: the words after the command's name.
        program: the command; a name stands for one with the defaults of `Options`.

    Returns: (options, names of those given on the command line).

    Raises: BadInput for whatever is wrong, a method's or correction's file whose options cannot be read included.
    """
    found = read(arguments, program)
    return found.options, found.given


class Words(NamedTuple):
    """What a command line says: the options of the run, how the process joins others, which of both are given, and the
    flags about this start. places: where in --config FILE an option stands, if it does not stand on the command line.
    line: the options on the command line, file: those of the file.
    """

    options: Options
    given: frozenset[str]
    joining: Joining
    joining_given: frozenset[str]
    start: Start = ONE_RUN
    places: Mapping[str, str] = {}
    line: Mapping[str, Any] = {}
    file: Found = config_file.NOTHING

    def explained(self, error: Exception) -> str:
        """The message of a refusal. Where it names an option of the file, the line is added."""
        named = [flag[2:].replace("-", "_") for flag in re.findall(r"--[\w-]+", str(error))]
        named = [self.places[name] for name in named if name in self.places and name not in self.start.swept]
        return f"{error} ({named[0]})" if named else str(error)


def read(arguments: Sequence[str], program: Program | str) -> Words:
    """Reads a command line as `parse` does, with the flags that are no options of the run."""
    program = Program(program) if isinstance(program, str) else program
    if declared.UNREADABLE:
        raise declared.UNREADABLE
    retired.refuse(arguments)
    wants_help = any(word in ("-h", "--help") for word in arguments)  # whatever else is wrong
    given = vars(parser(program).parse_args(["--help"] if wants_help else arguments))
    joining = {name: given.pop(name) for name in joining_options.FIELDS if name in given}
    started: dict[str, Any] = {name: given.pop(name) for name in start_options.FIELDS if name in given}
    start = Start(**{**started, "sweep": tuple(started.get("sweep", ()))})
    file = config_file.read(Path(start.config)) if start.config is not None else config_file.NOTHING
    options, named = settled(given, file, program)
    if (name := {**file.options, **given}.get("method")) in methods.ALIASES:
        say(f"method {name} is {options.method} with --weights stashed: the same delays and weights.")
    places = {name: file.places[name] for name in of_run(given, file) if name not in given}
    return Words(options, named, Joining(**joining), frozenset(joining), start, places, given, file)


def of_run(given: Mapping[str, Any], file: Found) -> dict[str, Any]:
    """The options of a file under those that are given, without what the file has because of another method or so."""
    return {**{name: value for name, value in file.options.items() if not of_another(name, given, file)}, **given}


def settled(given: Mapping[str, Any], file: Found, program: Program) -> tuple[Options, frozenset[str]]:
    """(options, names of those that are given) of a command line and a file, in the one spelling that a run keeps, as
    --resume compares them."""
    said = of_run(given, file)
    chosen = optimizers.chosen(program.defaults, said)
    if (name := chosen.get("method")) in methods.ALIASES:
        chosen["method"] = names.settled_method(name, chosen.get("weights"))
    if "correct" in chosen:  # "rate, cosine" is another text for the same
        chosen["correct"] = ",".join(corrections.split_names(chosen["correct"]))
    return Options(**chosen), frozenset(given) | (file.given & said.keys())


def of_another(name: str, given: Mapping[str, Any], file: Found) -> bool:
    """Whether a run's own config.json has an option only because the run had another method, correction, model or
    optimizer than the command line asks for."""

    def other(choice: str) -> bool:
        return file.own and choice in given and given[choice] != file.options.get(choice)

    about, own = FIELDS[name].metadata, optimizers.own_defaults(file.options.get("optimizer"))
    return (
        (other("method") and about["group"] in ("fdg", "others"))
        or (other("correct") and about["group"] == "correction" and name != "correct")
        or (other("model") and bool(about["models"]))
        or (other("optimizer") and name in {**own, **optimizers.own_defaults(given["optimizer"])})
    )


def parser(program: Program) -> Parser:
    """Reads every flag into the option of its name; flags that were not given leave nothing behind."""
    made = Parser(
        prog=program.command,
        usage="%(prog)s [-h] [OPTIONS]",
        description=ABOUT.format(program.trains),
        argument_default=argparse.SUPPRESS,
        epilog=examples(program),
    )
    for group, about in GROUPS.items():
        title = "options of other methods" if group == "others" else f"{group} options"
        box = made.add_argument_group(title, about)
        for name, field in FIELDS.items():
            if field.metadata["group"] == group:
                add(box, name, program)
    box = made.add_argument_group("several processes", joining_options.ABOUT)
    for name, field in joining_options.FIELDS.items():
        default = joining_options.SHOWN.get(name) or field.default or "none"
        text = f"{joining_options.HELP[name]} (default: {default})"
        made_of = {"coordinator": str, "address": str, "peer_timeout": float}.get(name, int)
        box.add_argument(spelled(name), type=made_of, metavar=joining_options.METAVARS[name], help=text)
    box = made.add_argument_group("this start", start_options.ABOUT)
    for name, field in start_options.FIELDS.items():
        add_start(box, name, field.default)
    return made


def add_start(box: Any, name: str, default: Any) -> None:
    """Adds a flag about this start."""
    shown = {"help": f"{start_options.HELP[name]} (default: {start_options.SHOWN.get(name) or default or 'off'})"}
    if isinstance(default, bool):
        box.add_argument(spelled(name), action="store_true", **shown)
        return
    several = {"nargs": "+", "action": "extend"} if name == "sweep" else {}
    kind = int if isinstance(default, int) else str
    box.add_argument(spelled(name), type=kind, metavar=start_options.METAVARS[name], **several, **shown)


def examples(program: Program) -> str:
    """The end of --help: a few commands as a person types them."""
    text = bool(program.datasets) and data.unit(program.datasets[0]) == "tokens"
    if not program.datasets:
        first = {"--dataset digits --model resnet8 --epochs 2": "a first run, in a minute, without a download"}
    else:
        first = {f"{'' if text else '--data-dir data '}--steps 50": "the first 50 batches"}
    # The optimizers for text divide a gradient by its own size, so a constant beta would change nothing there.
    option, values = ("dropout", "0,0.1,0.2") if text else ("beta", "0.2,0.5,1")
    found = first | {
        "--K 3 --dry-run": "what would this run cost?",
        f"--config runs/a/config.json --{option} {values.split(',')[1]}": "run a again, with one thing changed",
        f"--run-dir runs/b --sweep {option}={values} --jobs 2": "three runs and their table",
    }
    shown = [f"  # {does}\n{continued(f'{program.command} {flags}')}" for flags, does in found.items()]
    return "\n".join(["Examples:", *shown])


def add(box: Any, name: str, program: Program) -> None:
    """Adds the flag of an option to its group."""
    field = FIELDS[name]
    optimizer = program.defaults.get("optimizer", FIELDS["optimizer"].default)
    default = {**optimizers.own_defaults(optimizer), **program.defaults}.get(name, field.default)
    text = listed(program.help.get(name, field.metadata["help"]), program)
    shown = {"dest": name, "help": f"{text} (default: {field.metadata['shown'] or default})".replace("%", "%%")}
    if name == "resume":
        box.add_argument("--resume", nargs="?", const=True, type=auto, metavar="auto", **shown)
        box.add_argument(
            "--no-resume",
            dest=name,
            action="store_false",
            default=argparse.SUPPRESS,
            help="Begin a new run, as by default.",
        )
        return
    if name == "text":
        box.add_argument("--text", nargs="+", action=Joined, metavar="FILE", **shown)
        return
    if name in SWITCHES:
        box.add_argument(spelled(name), action=argparse.BooleanOptionalAction, **shown)
        return
    made = box.add_argument(
        spelled(name), type=lambda word: values.from_word(word, field.type), metavar=metavar(name), **shown
    )
    made.example = field.metadata["metavar"] if default is None else default


class Joined(argparse.Action):
    """Several files as one value, as PATH has several folders: an option is one text in config.json."""

    def __call__(self, parser, namespace, values, option_string=None):
        for name in values or ():
            if os.pathsep in name and os.path.exists(name):
                fact = f"the file {name!r} has a {os.pathsep!r} in its name, which stands between two files here"
                raise argparse.ArgumentError(self, f"{fact}. Give it another name")
        setattr(namespace, self.dest, os.pathsep.join(values or ()))


def auto(word: str) -> str:
    """The only value that --resume takes."""
    if word != "auto":
        fact = f"{word!r} belongs to no flag, for --resume takes no value except auto"
        raise argparse.ArgumentTypeError(f"{fact}. Write --resume or --no-resume")
    return word


def metavar(name: str) -> str:
    """What stands for a flag's value in --help."""
    field = FIELDS[name]
    if several := values.choices(field.type):
        return f"{{{','.join(several)}}}"
    return field.metadata["metavar"] or getattr(field.type, "__name__", "value").upper()


def listed(text: str, program: Program) -> str:
    """A help text with the names of all methods, corrections, models or data sets where it has a place for them."""
    for place, found in {
        "{methods}": methods.names,
        "{corrections}": corrections.names,
        "{models}": names.model_names,
        "{datasets}": lambda: program.datasets or data.names(),
        "{optimizers}": lambda: [optimizers.described()],
    }.items():
        if place in text:
            text = text.replace(place, ", ".join(found()))
    return text
