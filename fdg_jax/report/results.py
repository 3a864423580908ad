"""Reads the results of runs from run directories or results files, and groups runs that differ only in their seed.

A run directory may belong to a running or a killed run. A results file (`experiments/results/*.jsonl`) has a finished
run in each line. Also the options that apply to a run, and the command that makes the run again.
"""

import re
import shlex
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fdg_jax import methods, models, own_files, strict_json
from fdg_jax.checks import options as checks
from fdg_jax.config import FIELDS, OF_CORRECTIONS, OF_DATA, OF_MODELS, Config, corrected_by
from fdg_jax.errors import BadInput, sentence
from fdg_jax.options.fields import words, written
from fdg_jax.runs import reading
from fdg_jax.runs.run_files import CONFIG, SUMMARY, impossible, there, unit

# FREE: options that may change when a run is resumed, except for those that set its length and its data. OTHER: options
# in which runs of one group may differ.
FREE = {name for name, field in FIELDS.items() if field.free} - {"steps", "text", "tokens", "validation"}
OTHER = {"seed", "log_every", "window", *FREE}
SETTLED = ("split", "warmup")  # by default, these follow from method and K
FEW = 10  # with fewer logged losses, the share of the last tenth is not computed
# Data sets with their own training command. Defaults differ between commands, so a printed command names all options.
COMMANDS = {
    "text": "language_model", "tokens": "language_model", "tiny_imagenet": "tiny_imagenet", "imagenet": "imagenet",
}  # fmt: skip
SENTENCE_END = re.compile(r"(?<!\bEq)(?<!\bFig)(?<!\be\.g)(?<!\bi\.e)\. ")


class Point(NamedTuple):
    """A measured value of a run. batches, examples: how many had been trained at that time. seconds: the training time
    until then, computed from images/s; None if no speed was measured."""

    batches: int
    examples: float
    seconds: float | None
    value: float


class Result(NamedTuple):
    """A run.

    name: the name of its directory, or its name in a results file.
    options: all of its options.
    finished: whether it is finished.
    losses, errors: training losses, and test errors in percent.
    final: the content of summary.json: "test_error_percent", "train_loss", "seconds", "images_per_second" and so on.
    memory_bytes: the predicted memory of each stage; [] if it is not known.
    path: its directory; None if it was read from a results file.
    """

    name: str
    options: dict[str, Any]
    finished: bool
    losses: list[Point]
    errors: list[Point]
    final: dict[str, Any]
    memory_bytes: list[int]
    path: Path | None = None


def read(path: Path) -> list[Result]:
    """The runs in a run directory or a results file. Raises BadInput if the path is neither."""
    if path.is_dir():
        if not there(path / CONFIG):
            raise BadInput(f"{path} has no {CONFIG}, so it is no run directory. Name run directories or *.jsonl files.")
        return [of_directory(path)]
    if path.suffix == ".jsonl":
        return of_file(path)
    raise BadInput(f"{path} is neither a directory nor a *.jsonl file. Name run directories or files of results.")


def of_directory(path: Path) -> Result:
    """The run in a directory."""
    config, events = reading.config(path), reading.events(path)
    code = config.get(own_files.CODE) or {}
    if not code:  # a user's own files, which could declare other ranges, are not executed for a comparison
        reading.check_ranges(path / CONFIG, config)
    finished = (path / SUMMARY).exists()
    final = reading.summary(path) if finished else {}
    options = {option: config[option] for option in FIELDS if option in config}
    labels = {name: label(name, about, config) for name, about in code.items()}
    options |= {option: own_files.by_path(option, options[option], labels) for option in own_files.FOLDERS}
    options[own_files.CODE] = {labels[name]: about for name, about in code.items()}
    memory = [of["memory_bytes"]["total"] for of in config.get("stages") or [] if of.get("memory_bytes")]
    return result(path.name or str(path), options, events, final, finished)._replace(memory_bytes=memory, path=path)


def label(name: str, about: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """A label for a user's own file that a run uses: its name, the first digits of its sha256, and its options."""
    own = [f" {each}={written(config[each])}" for each in about["has"] if each not in FIELDS and each in config]
    return f"{name}[{about['sha256'][:7]}{''.join(own)}]"


def result(
    name: str, options: dict[str, Any], events: Sequence[Mapping[str, Any]], final: dict[str, Any], finished: bool
) -> Result:
    """A run from its options, the lines of its metrics.jsonl and its summary.json ({} for an unfinished run)."""
    train, test = having(events, "train_loss"), having(events, "test_error_percent")
    if not finished:  # the newest known values
        final = {key: each[-1][key] for key, each in (("train_loss", train), ("test_error_percent", test)) if each}
    size, batch_size = options["train_size"] or 0, options["batch_size"]
    speed = f"{unit(final if finished else train[-1] if train else {})}_per_second"
    per_example = options.get("block_size") or 1 if speed == "tokens_per_second" else 1

    def examples(event: Mapping[str, Any]) -> float:
        return event["epoch"] * size if size else float(event["step"] * batch_size)

    measured = [(examples(event), event.get(speed)) for event in train]
    clock = clock_of(measured, per_example, final.get(speed))
    losses, errors = (
        [Point(event["step"], examples(event), clock(examples(event)), event[key]) for event in each]
        for key, each in (("train_loss", train), ("test_error_percent", test))
    )
    return Result(name, options, finished, losses, errors, final, [])


def having(events: Sequence[Mapping[str, Any]], key: str) -> list[Mapping[str, Any]]:
    """The events that have a value for this key."""
    return [event for event in events if event.get(key) is not None]


def clock_of(
    measured: Sequence[tuple[float, float | None]], per_example: int, mean: float | None
) -> Callable[[float], float | None]:
    """Returns a function: number of examples -> seconds of training until then. The seconds are computed from the
    speeds in the lines of metrics.jsonl. For a finished run they are scaled to match the run's mean speed. The function
    returns None if no speed was measured.

    Arguments:
        measured: for each line, (examples until then, images/s or tokens/s since the line before). The speed is None if
            programs may have compiled.
        per_example: tokens of an example; 1 for an image.
        mean: the mean speed of the whole run; None if the run is not finished. Missing speeds are replaced by `mean`,
            or else by the median of the known speeds.
    """
    known = [speed for _, speed in measured if speed]
    usual = mean or (statistics.median(known) if known else 0.0)
    if not usual:
        return lambda examples: None
    places = np.array([0.0, *(examples for examples, _ in measured)])
    seconds = np.cumsum([0.0, *np.diff(places) * per_example / [speed or usual for _, speed in measured]])
    if mean and seconds[-1]:
        seconds *= places[-1] * per_example / mean / seconds[-1]

    def clock(examples: float) -> float:
        after = max(0.0, examples - places[-1]) * per_example / usual
        return float(np.interp(examples, places, seconds)) + after

    return clock


def of_file(path: Path) -> list[Result]:
    """The runs of a results file."""
    found: list[Result] = []
    try:
        for line in strict_json.lines(path):
            found.append(of_line(strict_json.parse(line)))
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror or error}.") from None
    except ValueError as error:
        fact = f"{path}, line {len(found) + 1} is not the result of a training run: {sentence(error)}"
        raise BadInput(f"{fact} Files written by python -m experiments have one result in each line.") from None
    if not found:
        raise BadInput(f"{path} is empty. Name a file with one result in each line.")
    return found


def of_line(line: Any) -> Result:
    """The run in a line of a results file. Raises ValueError if the line is not valid."""
    line = line if isinstance(line, dict) else {}
    lists = {"training_curve": dict | None, "evaluations": list | None}
    reading.check("it", line, {"name": str, "options": dict}, "")
    reading.check("it", line, lists, "", absent=None)
    reading.check_summary("it", line, "")
    options = {name: line["options"][name] for name in FIELDS if name in line["options"] and name != "resume"}
    reading.check("it", options, {name: FIELDS[name].kind for name in ("train_size", "batch_size", *options)}, "")
    checks.check(Config(**options), frozenset())
    steps, epochs = line["steps"], line["epochs"]
    curve = line.get("training_curve") or {"epoch": [], "train_loss": []}
    reading.check("its curve", curve, {"epoch": list, "train_loss": list}, "")
    if wrong := impossible({"epoch": max([steps / epochs if epochs else 1.0, *curve["epoch"]])}):
        raise BadInput(f"{wrong}.")
    pairs = zip(curve["epoch"], curve["train_loss"], strict=True)
    losses = [{"step": round(e * steps / epochs) if epochs else 0, "epoch": e, "train_loss": x} for e, x in pairs]
    errors = line.get("evaluations") or [{"step": steps, "epoch": epochs, **line}]
    for value, events in (("train_loss", losses), ("test_error_percent", errors)):
        for event in events:
            reading.check("it", event, {"step": int, "epoch": float, value: float | None}, "")
            if wrong := impossible(event):
                raise BadInput(f"{wrong}.")
    # Keeps only the values that the curve of test errors needs.
    errors = [{name: event[name] for name in ("step", "epoch", "test_error_percent")} for event in errors]
    final = {**line, "test_error_percent": float(line["test_error_percent"])}
    return result(line["name"], options, [*losses, *errors], final, True)


class Movement(NamedTuple):
    """The change of a training loss over a run. first: the first logged loss. last: the mean over the last tenth of the
    logged losses, because single ones are noisy. percent: how much of the whole fall happened in the last tenth; None
    for too few losses, or if the loss did not fall."""

    first: float
    last: float
    percent: float | None


def movement(losses: Sequence[float]) -> Movement | None:
    """The movement of logged losses; None for fewer than two."""
    if len(losses) < 2:
        return None
    tenth = max(1, len(losses) // 10)
    first, before, last = losses[0], statistics.fmean(losses[-2 * tenth : -tenth]), statistics.fmean(losses[-tenth:])
    fell = len(losses) >= FEW and first > last
    return Movement(first, last, 100 * (before - last) / (first - last) if fell else None)


class Group(NamedTuple):
    """Runs that differ only in their seed.

    name: names the options that distinguish the group. differs: {option: value} for the options that are not equal in
        all groups.
    """

    name: str
    differs: dict[str, Any]
    runs: list[Result]


def key(run: Result) -> tuple[tuple[str, str], ...]:
    """The key by which runs are grouped. An option that is missing in an old file has its default."""
    return tuple((name, repr(value_of(run, name))) for name in FIELDS if name not in OTHER and has(run, name))


def value_of(run: Result, name: str) -> Any:
    """The value of a run's option."""
    return run.options.get(name, FIELDS[name].default)


def has(run: Result, name: str) -> bool:
    """Whether an option applies to a run: beta and split do not apply if K=1."""
    if name in ("beta", "split") and value_of(run, "K") == 1:
        return False
    options = {each: value_of(run, each) for each in FIELDS}
    return applies(name, {**options, own_files.CODE: run.options.get(own_files.CODE)})


def groups(runs: Sequence[Result]) -> tuple[list[Group], dict[str, Any]]:
    """Groups runs by all options but the seed and those in OTHER.

    Returns: (the groups in the order of their first runs, the options that all runs share).
    """
    found: dict[Any, list[Result]] = {}
    for run in runs:
        found.setdefault(key(run), []).append(run)
    names = [name for name in FIELDS if name not in OTHER]
    firsts = [same[0] for same in found.values()]
    differs = [name for name in names if len({repr(value_of(run, name)) for run in firsts}) > 1]
    shared = [name for name in names if name not in differs and any(has(run, name) for run in firsts)]
    common = {name: value_of(firsts[0], name) for name in shared}
    owns = [{name: value_of(run, name) for name in differs} for run in firsts]
    for told in ([name for name in differs if name not in SETTLED], differs):  # short names if they suffice
        titles = [called(run, {name: own[name] for name in told}) for run, own in zip(firsts, owns, strict=True)]
        if len({*titles}) == len(titles):
            break
    return [*map(Group, titles, owns, found.values())], common


def called(run: Result, differs: Mapping[str, Any]) -> str:
    """A short name for a run's group: method, K, and the differing options that are not at their defaults."""
    shown = [value_of(run, "method"), f"K={value_of(run, 'K')}"]
    for name, value in differs.items():
        if name not in ("method", "K") and value != FIELDS[name].default and has(run, name):
            shown.append(f"{name}={written(value)}")
    return ", ".join(shown)


def of_run(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options that apply to the run, by name. Options of other methods, corrections, models and kinds of data are
    left out."""
    return {name: config[name] for name in FIELDS if name in config and applies(name, config)}


def applies(name: str, config: Mapping[str, Any]) -> bool:
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
    given = [name for name in of_run if asked.get(name) is not None and applies(name, config)]
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
