"""What runs have come to, read from their directories or from a table's results file; runs grouped by all but the seed.

A run directory may be of a run that goes on or was killed. A results file (`experiments/results/*.jsonl`) has a
finished run in each line.
"""

import statistics
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fdg_jax import strict_json
from fdg_jax.errors import BadInput, sentence
from fdg_jax.report import options_part
from fdg_jax.runs import option_checks, reading
from fdg_jax.runs.options import FIELDS, Options, written
from fdg_jax.runs.run_files import CONFIG, SUMMARY, impossible, there, unit

# Options that decide nothing of what is trained: how it is watched, and what may change on resuming but for the length
# and the place of a text.
FREE = {name for name, field in FIELDS.items() if field.metadata["free"]} - {"steps", "text"}
OTHER = {"seed", "log_every", "window", *FREE}

LONGEST = 48  # characters of a name that sentences can repeat


class Point(NamedTuple):
    """A measured value of a run. seconds: of training until then, by images/s; None where no speed was measured."""

    batches: int
    examples: float
    seconds: float | None
    value: float


class Result(NamedTuple):
    """A run.

    name: what it is called on the command line or in its file.
    options: all of its options.
    finished: whether it has come to its end.
    losses, errors: training losses, and test errors in percent.
    final: what summary.json has: "test_error_percent", "train_loss", "seconds", "images_per_second" and so on.
    memory_bytes: the predicted memory of each stage; [] where it is not known.
    path: its directory; None of a line in a file.
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
    """The runs of a run directory, or of a results file. Raises BadInput where it is neither."""
    if path.is_dir():
        if not there(path / CONFIG):
            raise BadInput(f"{path} has no {CONFIG}: it is no run directory. Name run directories or *.jsonl files.")
        return [of_directory(path)]
    if path.suffix == ".jsonl":
        return of_file(path)
    raise BadInput(f"{path} is no directory and no *.jsonl file. Name run directories or experiments/results/*.jsonl.")


def of_directory(path: Path) -> Result:
    """The run in a directory."""
    config, events = reading.config(path), reading.events(path)
    reading.check_ranges(path / CONFIG, config)
    finished = (path / SUMMARY).exists()
    final = reading.summary(path) if finished else {}
    train = [event for event in events if event.get("train_loss") is not None]
    test = [event for event in events if event.get("test_error_percent") is not None]
    if not finished:  # what is known so far
        final = {name: train[-1][name] for name in ("train_loss",) if train}
        final |= {"test_error_percent": test[-1]["test_error_percent"]} if test else {}
    name = f"{unit(final if finished else train[-1] if train else {})}_per_second"
    speeds = {event["step"]: event.get(name) for event in train}
    per_example = config.get("block_size") or 1 if name.startswith("tokens") else 1
    clock = seconds_at(speeds, config["batch_size"] * per_example, final.get(name))
    memory = memory_of(path, config)
    size = config["train_size"] or 0
    return Result(
        path.name or str(path),
        {option: config[option] for option in FIELDS if option in config},
        finished,
        points(train, "train_loss", size, config["batch_size"], clock),
        points(test, "test_error_percent", size, config["batch_size"], clock),
        final,
        memory,
        path,
    )


def memory_of(run: Path, config: Mapping[str, Any]) -> list[int]:
    """The predicted bytes of each stage, where they are predicted. Raises BadInput where config.json has something
    else there."""
    stages = config.get("stages") or []
    found: list[int] = []
    for number, stage in enumerate(stages if isinstance(stages, list) else [stages], 1):
        memory = stage.get("memory_bytes") if isinstance(stage, dict) else stage
        total = memory.get("total") if isinstance(memory, dict) else memory
        if total is None and isinstance(stage, dict):
            continue
        if type(total) is not int or not isinstance(memory, dict) or total < 0:
            fact = f"{run / CONFIG}: the memory of stage {number} is {reading.shown(total)}, no number of bytes"
            raise BadInput(f"{fact}: the file is damaged. Leave the run out, or take the key stages out of the file.")
        found.append(total)
    return found


def seconds_at(speeds: Mapping[int, float | None], units: int, mean: float | None) -> dict[int, float]:
    """{batch: seconds of training until it}, by the speeds of the lines before it; {} if there are none.

    Arguments:
        speeds: {batch: images/s or tokens/s since the line before}; None while programs may have been compiled.
        units: images or tokens of a batch.
        mean: what stands for a missing speed; None: the speed of the next line that has one.
    """
    known = [speed for speed in speeds.values() if speed]
    usual = mean or (statistics.median(known) if known else 0.0)
    found, before, seconds = {0: 0.0}, 0, 0.0
    for step, speed in sorted(speeds.items()) if usual else ():
        seconds += (step - before) * units / (speed or usual)
        found[step], before = seconds, step
    return found if usual else {}


def points(
    events: Sequence[Mapping[str, Any]], name: str, size: int, batch_size: int, clock: Mapping[int, float]
) -> list[Point]:
    """A run's values of one name. size: examples of the training set; 0 where that is unknown. clock: {batch: seconds
    until it}."""
    found, times = [], sorted(clock.items())
    for event in events:
        if event[name] is not None:
            step = event["step"]
            examples = event["epoch"] * size if size else float(step * batch_size)
            found.append(Point(step, examples, between(times, step), event[name]))
    return found


def between(times: Sequence[tuple[int, float]], step: int) -> float | None:
    """The time at a batch, which need have no line of its own; None outside. times: (batch, seconds), ascending."""
    i = bisect_left(times, (step,))
    if i < len(times) and times[i][0] == step:
        return times[i][1]
    if not 0 < i < len(times):
        return None
    (a, before), (b, after) = times[i - 1 : i + 1]
    return before + (after - before) * (step - a) / (b - a)


def of_file(path: Path) -> list[Result]:
    """The runs of a results file."""
    found: list[Result] = []
    try:
        for line in strict_json.lines(path):
            found.append(of_line(strict_json.parse(line)))
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror or error}.") from None
    except ValueError as error:
        fact = f"{path}, line {len(found) + 1} is no result of a training run: {sentence(error)}"
        raise BadInput(f"{fact} Files that python -m experiments collects have one in each line.") from None
    if not found:
        raise BadInput(f"{path} is empty. Name a file with a result in each line.")
    return found


def of_line(line: Any) -> Result:
    """The run in a line of a results file. Raises ValueError, which says what is wrong with it."""
    line = line if isinstance(line, dict) else {}
    reading.check("it", line, {"name": str, "options": dict}, "")
    reading.check_summary("it", line, "")
    options = {name: line["options"][name] for name in FIELDS if name in line["options"] and name != "resume"}
    reading.check("it", options, {name: FIELDS[name].type for name in ("train_size", "batch_size", *options)}, "")
    option_checks.check(Options(**options), frozenset())
    steps, epochs, size, batch_size = line["steps"], line["epochs"], options["train_size"] or 0, options["batch_size"]
    losses, errors = curve_of(line, steps / epochs if epochs else 1.0), line.get("evaluations")
    errors = errors or [{"step": steps, "epoch": epochs, **line}]
    for value, events in (("train_loss", losses), ("test_error_percent", errors)):
        for event in events:
            reading.check("it", event, {"step": int, "epoch": float, value: float | None}, "")
            if wrong := impossible(event):
                raise BadInput(f"{wrong}.")
    name = f"{unit(line)}_per_second"
    units = batch_size * (options.get("block_size") or 1 if name.startswith("tokens") else 1)
    speed = line.get(name)
    clock = {e["step"]: e["step"] * units / speed for e in (*losses, *errors)} if speed else {}
    return Result(
        line["name"],
        options,
        True,
        points(losses, "train_loss", size, batch_size, clock),
        points(errors, "test_error_percent", size, batch_size, clock),
        {**line, "test_error_percent": float(line["test_error_percent"])},
        [],
    )


def curve_of(line: Mapping[str, Any], per_epoch: float) -> list[dict[str, Any]]:
    """The training losses of a line, like those in metrics.jsonl. per_epoch: batches. Raises ValueError."""
    reading.check("it", line, {"training_curve": dict | None, "evaluations": list | None}, "", absent=None)
    curve = line.get("training_curve") or {"epoch": [], "train_loss": []}
    reading.check("its curve", curve, {"epoch": list, "train_loss": list}, "")
    epochs = [float(epoch) for epoch in curve["epoch"]]
    if wrong := impossible({"epoch": max([per_epoch, *epochs])}):
        raise BadInput(f"{wrong}.")
    columns = zip(epochs, curve["train_loss"], strict=True)
    return [{"step": round(e * per_epoch), "epoch": e, "train_loss": loss} for e, loss in columns]


class Group(NamedTuple):
    """Runs that differ in their seed only.

    name: what tells it from the others. short: what a sentence calls it.
    differs: {option: value} of those options that are not equal in all groups.
    """

    name: str
    short: str
    differs: dict[str, Any]
    runs: list[Result]


def key(run: Result) -> tuple[tuple[str, str], ...]:
    """What two runs must have in common to be of one group. An option that an old file lacks is at its default."""
    return tuple((name, repr(value_of(run, name))) for name in FIELDS if name not in OTHER and has(run, name))


def value_of(run: Result, name: str) -> Any:
    """The value of an option."""
    return run.options.get(name, FIELDS[name].default)


def has(run: Result, name: str) -> bool:
    """Whether an option means anything in a run: not the beta of BP, nor how one stage is split."""
    if name in ("beta", "split") and value_of(run, "K") == 1:
        return False
    return options_part.has(name, {each: value_of(run, each) for each in FIELDS})


def groups(runs: Sequence[Result]) -> tuple[list[Group], dict[str, Any]]:
    """Runs by all options but the seed and those that decide nothing.

    Returns: (the groups in the order of their first runs, the options that all have in common).
    """
    found: dict[Any, list[Result]] = {}
    for run in runs:
        found.setdefault(key(run), []).append(run)
    names = [name for name in FIELDS if name not in OTHER]
    firsts = [same[0] for same in found.values()]
    differs = [name for name in names if len({repr(value_of(run, name)) for run in firsts}) > 1]
    shared = [name for name in names if name not in differs and any(has(run, name) for run in firsts)]
    common = {name: value_of(firsts[0], name) for name in shared}
    made = []
    for first, same in zip(firsts, found.values(), strict=True):
        own = {name: value_of(first, name) for name in differs}
        name = called(first, own)
        made.append(Group(name, name, own, same))
    if any(len(group.name) > LONGEST for group in made):  # then sentences call them by a letter
        named = enumerate(made)
        made = [g._replace(name=f"{letter(i)}: {g.name}", short=f"{letter(i)} ({method_of(g)})") for i, g in named]
    return made, common


def letter(i: int) -> str:
    """A, B, ..., Z, A1, B1, ..."""
    return chr(ord("A") + i % 26) + (str(i // 26) if i >= 26 else "")


def method_of(group: Group) -> str:
    """A group's method and K."""
    return f"{value_of(group.runs[0], 'method')}, K={value_of(group.runs[0], 'K')}"


def called(run: Result, differs: Mapping[str, Any]) -> str:
    """A short name for a run's group: method, K, and what tells it from the others and is not at its default."""
    shown = [value_of(run, "method"), f"K={value_of(run, 'K')}"]
    for name, value in differs.items():
        if name not in ("method", "K") and value != FIELDS[name].default and has(run, name):
            shown.append(f"{name}={written(value)}")
    return ", ".join(shown)


class Spread(NamedTuple):
    """The median and the range of some runs' numbers. n: how many have one."""

    median: float
    least: float
    most: float
    n: int


def spread(numbers: Sequence[float | None]) -> Spread | None:
    """The median and range of those that are there; None of none."""
    there = [number for number in numbers if number is not None]
    return Spread(statistics.median(there), min(there), max(there), len(there)) if there else None
