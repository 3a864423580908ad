"""From the words of a command line to `Options`, without JAX.

tyro converts the values and prints --help. What a person gets wrong is answered here, in one message that
states the fact and the way out, because a typo deserves an answer within a second and not a page.
"""

import contextlib
import dataclasses
import io
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from fdg_jax import data, methods
from fdg_jax.checks import names
from fdg_jax.errors import BadInput, did_you_mean
from fdg_jax.runs.options import FIELDS, GROUPS, SWITCHES, Options, spelled

PLAIN = (
    (r"^Error parsing (--\S+): ", r"\1: "),
    (r"invalid literal for int\(\) with base 10: (.*)$", r"\1 is not a whole number"),
    (r"could not convert string to float: (.*)$", r"\1 is not a number"),
    (r"^invalid choice (.*) for argument '(--\S+)'\. Expected one of \((.*)\)\.?$", r"\2: \1 is none of \3"),
)
NUMBER = re.compile(r"-\d|-\.\d|-inf|-nan", re.IGNORECASE)


class Program(NamedTuple):
    """A training command: what it is called, and where it differs from `cifar`."""

    command: str  # python -m ...
    trains: str = "a residual network on CIFAR-10"
    datasets: tuple[str, ...] = ()  # that it takes; (): all that are held in memory
    defaults: Mapping[str, Any] = {}  # option -> its default
    help: Mapping[str, str] = {}  # option -> its help text


def parse(arguments: Sequence[str], program: Program | str) -> tuple[Options, frozenset[str]]:
    """(options, names of those given on the command line). --help prints and leaves with SystemExit(0).

    program: a name stands for a command with the defaults of `Options`.
    """
    arguments, auto = without_auto(arguments)
    given = frozenset() if wants_help(arguments) else scan(arguments)
    options = convert(arguments, Program(program) if isinstance(program, str) else program)
    return (dataclasses.replace(options, resume="auto") if auto else options), given


def without_auto(arguments: Sequence[str]) -> tuple[list[str], bool]:
    """(the words with `--resume` for `--resume auto`, whether the last that was said of it is auto)."""
    words: list[str] = []
    auto = False
    for word in arguments:
        if word == "auto" and words and words[-1] == "--resume":
            auto = True
        elif word == "--resume=auto":
            words.append("--resume")
            auto = True
        else:
            auto = auto and word not in ("--resume", "--no-resume")
            words.append(word)
    return words, auto


def wants_help(arguments: Sequence[str]) -> bool:
    return any(word in ("-h", "--help") for word in arguments)


def scan(arguments: Sequence[str]) -> frozenset[str]:
    """Names of the options given. Refuses unknown flags, flags without a value, and stray words."""
    known = {spelled(name): name for name in FIELDS}
    switches = {spelled(name): name for name in SWITCHES}
    switches |= {f"--no-{switch[2:]}": name for switch, name in switches.items()}
    given, words = set(), list(arguments)
    while words:
        word = words.pop(0)
        written, equals, _ = word.partition("=")
        name = written.replace("_", "-")
        if name in switches and not equals:
            given.add(switches[name])
        elif name in known and name not in switches:
            if not equals and (not words or (words[0].startswith("-") and not NUMBER.match(words[0]))):
                raise BadInput(f"{name} needs a value, e.g. {name} {example(known[name])}.")
            if not equals:
                words.pop(0)
            given.add(known[name])
        elif name in switches:
            but = ", except auto" if name == "--resume" else ""
            raise BadInput(f"{written} takes no value{but}. Write {written} or {opposite(written)}.")
        elif word.startswith("-") and not NUMBER.match(word):
            raise BadInput(unknown_flag(written, [*known, *switches]))
        else:
            raise BadInput(f"{word!r} belongs to no flag. Write --flag value; --help lists the flags.")
    return frozenset(given)


def unknown_flag(written: str, known: Sequence[str]) -> str:
    flag = "--" + written.lstrip("-").replace("_", "-")
    hint = did_you_mean(flag, dict.fromkeys(known), cutoff=0.7) or " --help lists the flags."
    return f"{written} is no flag of this command.{hint}"


def opposite(switch: str) -> str:
    return "--" + switch[len("--no-") :] if switch.startswith("--no-") else "--no-" + switch[2:]


def example(name: str) -> Any:
    field = FIELDS[name]
    return field.metadata["metavar"] if field.default is None else field.default


def convert(arguments: Sequence[str], program: Program) -> Options:
    """tyro's part: types, choices and --help, grouped."""
    import tyro

    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            parsed = tyro.cli(
                grouped(program),
                args=list(arguments),
                prog=program.command,
                description=f"Trains {program.trains} by stages that never wait for one another "
                "(fully decoupled learning with delayed gradients), or by a method to compare it with.",
                config=(tyro.conf.OmitArgPrefixes,),
            )
    except SystemExit as leaving:
        if leaving.code in (0, None):
            raise
        raise BadInput(one_line(complaint.getvalue())) from None
    values = {}
    for group in GROUPS:
        values |= dataclasses.asdict(getattr(parsed, group))
    return Options(**values)


def grouped(program: Program) -> Any:
    """The dataclass tyro reads: `Options` cut into its groups, which become the boxes of --help."""
    from tyro.conf import arg

    groups = []
    for group, about in GROUPS.items():
        fields = []
        for name, field in FIELDS.items():
            told = field.metadata
            if told["group"] == group:
                extra = {"metavar": told["metavar"]} if told["metavar"] else {}
                if told["shown"]:
                    extra["help_behavior_hint"] = f"(default: {told['shown']})"
                text = listed(program.help.get(name, told["help"]), program)
                kind = bool if name in SWITCHES else field.type
                annotated = Annotated[kind, arg(help=text, **extra)]  # type: ignore[valid-type]
                default = program.defaults.get(name, field.default)
                fields.append((name, annotated, dataclasses.field(default=default)))
        made = dataclasses.make_dataclass(group.title(), fields, frozen=True)
        made.__doc__ = about
        groups.append((group, made, dataclasses.field(default_factory=made)))
    return dataclasses.make_dataclass("Groups", groups, frozen=True)


def listed(text: str, program: Program) -> str:
    """A help text with the names of all methods, models or data sets where it has a place for them."""
    for place, found in {
        "{methods}": methods.names,
        "{models}": names.model_names,
        "{datasets}": lambda: program.datasets or data.names(),
    }.items():
        if place in text:
            text = text.replace(place, ", ".join(found()))
    return text


def one_line(box: str) -> str:
    """tyro's complaint without its frame, hint and help text."""
    kept: list[str] = []
    for line in box.splitlines()[1:]:  # the first line is the title
        rule = "────" in line or "----" in line
        if rule and kept:
            break
        if not rule:
            kept.append(line.strip(" \t│"))
    text = " ".join(kept) or "the command line could not be read"
    for pattern, words in PLAIN:
        text = re.sub(pattern, words, text)
    return text.rstrip(".") + ". --help explains the flags."
