"""What a run trained and whether it went well, in sentences for somebody who has not seen it before."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fdg_jax import methods
from fdg_jax.report.curves import shrinks
from fdg_jax.runs.progress import clock, count
from fdg_jax.runs.run_files import unit
from fdg_jax.runs.run_length import run_length

Events = Sequence[Mapping[str, Any]]
RESTS = 0.02  # of the whole fall of the loss: what may still come in the last tenth of a run that is at rest
ROSE = 0.05  # of the loss at first: above that it has risen
FEW = 10  # lines: fewer say nothing about rest
RISE = 0.5  # points of test error above the lowest that are worth a sentence
SURE = 2.0  # standard errors of a difference that are no chance


def sentences(config: Mapping[str, Any], train: Events, test: Events, summary: Mapping[str, Any]) -> list[str]:
    """What was trained, how far, and how it went.

    Arguments:
        config: config.json.
        train, test: the lines of metrics.jsonl that have a training loss, a test error.
        summary: summary.json; {} of a run that has not ended.
    """
    told = learned(config, train, test, finished=bool(summary))
    return [trained(config, summary), *reached(config, train, test, summary), *told]


def trained(config: Mapping[str, Any], summary: Mapping[str, Any], going: bool = False) -> str:
    """The network, the data and the method. going: whether it is being trained."""
    K, size, parameters = config["K"], config["train_size"], summary.get("parameters")
    weights = f" ({parameters:,} parameters)" if isinstance(parameters, int) else ""
    parts = f", cut into {K} stages," if K > 1 else ""
    examples = f"{size:,} examples of " if size else ""
    about = methods.find(config["method"]).summary
    verb = "is being" if going else "was"
    said = f"The network {config['model']}{weights}{parts} {verb} trained on {examples}{config['dataset']}"
    shrunk = f" β={config['beta']:g}: gradients of stage k are multiplied by β^(K-k)." if shrinks(config) else ""
    return f"{said} by {config['method'].upper()}: {about}.{shrunk}"


def reached(config: Mapping[str, Any], train: Events, test: Events, summary: Mapping[str, Any]) -> list[str]:
    """How far it came."""
    last = max((event["step"] for event in (*train, *test)), default=0)
    if summary:
        epochs = count(round(summary["epochs"], 2), "epoch")
        speed = summary.get(f"{unit(summary)}_per_second")
        fast = f", at {speed:,.0f} {unit(summary)}/s" if speed else ""
        took = f"{clock(summary['seconds'])}, compiling, evaluating and saving included"
        return [f"It has finished: {epochs}, {summary['steps']:,} batches{fast}. The whole run took {took}."]
    if not last:
        return ["There is nothing to see yet: no batch has been logged."]
    epoch = max(event["epoch"] for event in (*train, *test))
    return [f"It has not finished: it goes on, or it was stopped, {epoch:g} of {config['epochs']} epochs in."]


def learned(
    config: Mapping[str, Any], train: Events, test: Events, going: bool = False, finished: bool = False
) -> list[str]:
    """Whether the loss fell, and at a run's own end whether it came to rest, and what that is worth on data that it has
    not seen. going: whether the run goes on. finished: whether it has come to its end."""
    at_end = finished and whole(config, max((event["step"] for event in train), default=0))
    losses = [event["train_loss"] for event in train]
    if len(losses) < 2:
        return of_test(config, test, going, at_end)
    went = movement(losses)
    newest = "the mean of the last tenth of the logged lines" if len(losses) >= 20 else "the last logged line"
    moved = f"from {went.first:.4g} (the first logged line) to {went.last:.4g} ({newest})"
    if went.wrong:
        wrong = "It goes wrong: the training loss has risen" if going else "It went wrong: the training loss rose"
        return [f"{wrong} {moved}.", *of_test(config, test, going, at_end)]
    said = [f"The training loss {'has gone' if going else 'went'} {moved}."]
    if went.percent is not None:
        said.append(rest(went.percent, going, at_end, config["epochs"]))
    return [*said, *of_test(config, test, going, at_end)]


class Movement(NamedTuple):
    """How a loss moved. first: its first line, which stays what it is while a run goes on. last: the mean of its last
    tenth, as single lines are noisy. wrong: whether it rose. percent: of the whole fall, what the last tenth brought;
    None of too few lines."""

    first: float
    last: float
    wrong: bool
    percent: float | None


def movement(losses: Sequence[float]) -> Movement:
    """Of at least two logged lines."""
    tenth = max(1, len(losses) // 10)
    first, before, last = losses[0], statistics.fmean(losses[-2 * tenth : -tenth]), statistics.fmean(losses[-tenth:])
    highest, fall = max(first, statistics.fmean(losses[:tenth])), first - last
    told = len(losses) >= FEW and fall > 0
    return Movement(first, last, last > highest + ROSE * abs(highest), 100 * (before - last) / fall if told else None)


def outcome(config: Mapping[str, Any], step: int, losses: Sequence[float], finished: bool) -> str:
    """What the training loss of a run came to, to follow "the training loss of it". step: the last batch."""
    if not finished or not whole(config, step):
        return "is not at its end yet"
    went = movement(losses) if len(losses) > 1 else None
    if went is not None and went.wrong:
        return "rose"
    if went is None or went.percent is None:
        return "has too few logged lines to tell whether it had come to rest"
    if abs(went.percent) <= 100 * RESTS:
        return "had come to rest"
    return "was still falling at the end" if went.percent > 0 else "rose a little at the end"


def whole(config: Mapping[str, Any], step: int) -> bool:
    """Whether so many batches are all of a run's epochs, so that its learning rate has dropped for the last time.
    --steps may end a run before that."""
    length = run_length(config.get("train_size") or 0, config["batch_size"], config["epochs"])
    return config.get("lr_schedule") == "constant" or step >= length.all_epochs


def rest(percent: float, going: bool, at_end: bool, epochs: int) -> str:
    """Whether a loss has come to rest; before the end, only how it moved.

    Arguments:
        percent: of its whole fall, what the last tenth of the batches brought.
        going: whether the run goes on.
        at_end: whether it has trained all its epochs.
        epochs: how many these are.
    """
    if abs(percent) <= 100 * RESTS:
        if at_end:
            return "It had come to rest: the last tenth of the batches did not change it any more."
        hardly = "It has hardly changed in the last tenth so far" if going else "It hardly changed in the last tenth"
        until = f"Whether it comes to rest is known only after all {epochs} epochs"
        return f"{hardly}. {until}: a drop of the learning rate may move it."
    if percent < 0:
        return f"It rose a little {'lately' if going else 'at the end' if at_end else 'in the last tenth'}."
    part = f"{percent:.0f}% of the fall is in the last tenth of the batches"
    if going:
        return f"It is still falling: {part} so far."
    return f"It was still falling{' at the end' * at_end}: {part}."


def of_test(config: Mapping[str, Any], test: Events, going: bool = False, at_end: bool = False) -> list[str]:
    """The test error at the end, the lowest, and what guessing would give. at_end: whether all epochs are trained."""
    if not test:
        return ["It has not been evaluated on test data yet." if going else "It was not evaluated on test data."]
    last, lowest = test[-1], min(test, key=lambda event: event["test_error_percent"])
    error, chance = last["test_error_percent"], guessing(config)
    said = f"Of the test data it gets {error:.2f}% wrong"
    if chance is not None:
        said += f", where guessing gets {chance:.1f}% wrong"
        said += ": it has learned next to nothing" if error > 0.95 * chance else ""
    more = error - lowest["test_error_percent"]
    if more > RISE:
        at = f"{lowest['test_error_percent']:.2f}% after epoch {lowest['epoch']:g}"
        had = "It has" if going else "It had"
        return [f"{said}. {had} been better: {at}{worth(config, more, error) if at_end else '.'}"]
    return [f"{said}."]


def worth(config: Mapping[str, Any], more: float, error: float) -> str:
    """What a rise of the test error means, to follow it. more: the rise, in points. error: after it, in percent."""
    tested = config.get("test_size")
    if type(tested) is not int or tested < 1:  # a run from before this was written down
        return "."
    n = tested * (config.get("block_size") or 1)
    # Of two independent test sets: of one and the same it is less. Two things make chance larger than this says: the
    # lowest of many tests is low by chance, too, and neighbouring bytes of a text are not independent.
    deviation = 100 * math.sqrt(2 * error / 100 * (1 - error / 100) / n)
    if more > SURE * deviation:
        return ", so training longer did not help."
    return f"; the difference may be chance with {n:,} {'bytes' if n > tested else 'test images'}."


def guessing(config: Mapping[str, Any]) -> float | None:
    """The test error in percent of guessing one of equally frequent classes; None where they are not known."""
    inputs = config.get("inputs")
    classes = inputs.get("classes") if isinstance(inputs, dict) else None
    text = config.get("block_size") is not None  # whose bytes are not equally frequent
    return 100 * (1 - 1 / classes) if type(classes) is int and classes > 1 and not text else None
