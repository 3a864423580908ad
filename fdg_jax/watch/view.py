"""What is shown of a run, in words and numbers, for the terminal and for the page alike."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from fdg_jax.report import schedule_part, stages_part, verdict
from fdg_jax.report.curves import title
from fdg_jax.runs.live import LiveStage
from fdg_jax.runs.options import spelled
from fdg_jax.runs.progress import clock, count
from fdg_jax.runs.run_files import unit
from fdg_jax.runs.run_length import run_length
from fdg_jax.watch.seen import Ended, Seen

LOSS = "training loss"
NEWEST = 5  # incidents that are shown
WORDS = {
    "starting": "starting",
    "compiling": "compiling",
    "training": "training",
    "evaluating": "evaluating",
    "finishing": "finishing: the last batches, the test, the report",
}
HEADS = ("stage", "busy", "updates late", "works on", "forward", "backward", "held", "queue", "share", "device")
MEANINGS = {
    "busy": "the share of the looks, ten a second while it trains, at which the stage computed; else it waited, for "
    "data or for a stage that takes longer",
    "updates late": "the most updates of the stage between the forward pass of a batch and the update by that batch",
    "works on": "F: a forward pass, B: a backward pass with its update, and the number of the batch",
    "forward, backward": "the newest batch whose pass is finished",
    "held": "batches whose forward pass is finished and whose backward pass is not",
    "queue": "operations of the stage that were dispatched and are not finished",
}


class StageRow(NamedTuple):
    """What is shown of a stage. None or empty where it is not known. busy: in percent. late: in updates."""

    k: str
    busy: float | None
    works_on: str
    forward: str
    backward: str
    held: str
    late: int | None
    queue: str
    share: str
    device: str


class View(NamedTuple):
    """A run as it is shown.

    title: what is trained. state: what it does, in a word or a sentence. said: sentences on how it goes.
    done: the part of its batches that has entered, 0..1; None where that is not known.
    facts: (what, value). stages: one row each. busy_of: what the busy shares are of. warnings: sentences.
    train, test: as in `Seen`. ended: how it has ended; None while it goes on.
    """

    title: str
    state: str
    said: list[str]
    done: float | None
    facts: list[tuple[str, str]]
    stages: list[StageRow]
    busy_of: str
    warnings: list[str]
    train: list[dict[str, Any]]
    test: list[dict[str, Any]]
    ended: Ended | None


def view(seen: Seen) -> View:
    """What is shown of a run at one moment."""
    config, first = seen.config, seen.lives.get(0)
    step = max([event["step"] for event in (*seen.train[-1:], *seen.test[-1:])] + [first.step if first else 0])
    steps = total(config)
    doing = WORDS.get(first.doing, first.doing) if first else "training, or it has not begun"
    state = seen.ended.said if seen.ended else doing
    ended_with = seen.summary.get("steps")
    return View(
        title(config),
        state,
        sentences(seen),
        min(1.0, (ended_with or step) / steps) if steps else None,
        facts(seen, ended_with or step, steps),
        stages(seen),
        "newest session" if seen.ended else "last minute",
        warnings(seen),
        seen.train,
        seen.test,
        seen.ended,
    )


def total(config: Mapping[str, Any]) -> int:
    """The batches of a run; 0 where they are not known."""
    length = run_length(config["train_size"] or 0, config["batch_size"], config["epochs"], config["steps"])
    return length.end


def sentences(seen: Seen) -> list[str]:
    """What is trained, whether it learns, and which stage is the most stale and why."""
    going = seen.ended is None
    finished = seen.ended is not None and bool(seen.summary)
    known = bool(seen.train or seen.test)
    learned = verdict.learned(seen.config, seen.train, seen.test, going, finished) if known else []
    late = schedule_part.told(seen.config)
    return [verdict.trained(seen.config, seen.summary, going), *learned, *late]


def facts(seen: Seen, step: int, steps: int) -> list[tuple[str, str]]:
    """Where the run stands, in a few numbers."""
    config, first = seen.config, seen.lives.get(0)
    per_epoch = run_length(config["train_size"] or 0, config["batch_size"], 1).per_epoch
    whole = f" of {steps:,}" if steps else ""
    found = [("batch", f"{step:,}{whole}")]
    if per_epoch:
        found.insert(0, ("epoch", f"{min(config['epochs'], step / per_epoch):.4g} of {config['epochs']}"))
    if seen.train:
        losses = [event["train_loss"] for event in seen.train]
        found.append((LOSS, f"{losses[-1]:.4g} (at first {losses[0]:.4g}, lowest {min(losses):.4g})"))
    if seen.test:
        lowest = min(seen.test, key=lambda event: event["test_error_percent"])
        best = f"{lowest['test_error_percent']:.2f}% after epoch {lowest['epoch']:.4g}"
        found.append(("test error", f"{seen.test[-1]['test_error_percent']:.2f}% (lowest {best})"))
    counted, speed = speed_of(seen)
    if speed:
        found.append(("speed", f"{speed:,.0f} {counted}/s"))
    if seen.ended is None and first is not None and first.seconds_left is not None:
        found.append(("time left", clock(first.seconds_left)))
    if seen.summary:
        found.append(("time", f"{clock(seen.summary['seconds'])} (compiling, evaluating and saving included)"))
    return found


def speed_of(seen: Seen) -> tuple[str, float | None]:
    """("images" or "tokens", how many a second): the mean of a finished run, otherwise the newest."""
    newest = seen.summary or next(reversed(seen.train), {})
    counted, first = unit(newest), seen.lives.get(0)
    speed = newest.get(f"{counted}_per_second")
    if not seen.summary and first is not None and first.per_second:
        counted, speed = "tokens" if first.unit == "tokens" else "images", first.per_second
    return counted, speed


def stages(seen: Seen) -> list[StageRow]:
    """A row for each stage."""
    config, rows = seen.config, []
    live = {stage.k: stage for each in seen.lives.values() for stage in each.stages}
    known = config.get("stages")
    known = known if isinstance(known, list) and all(isinstance(each, dict) for each in known) else []
    schedule = schedule_part.schedule_of(config)
    for k, device in enumerate(config["devices"], 1):
        stage = live.get(k, LiveStage(k))
        share = stages_part.share(known[k - 1]) if k <= len(known) else ""
        measured = seen.summary.get("staleness", [])[k - 1 : k] or [stage.staleness]
        planned = schedule.staleness[k - 1] if k <= len(schedule.staleness) else None
        late = measured[0] if measured[0] is not None and (seen.ended or measured[0]) else planned
        rows.append(
            StageRow(
                str(k),
                stage.busy_percent if seen.ended else stage.recent_busy_percent,
                "" if seen.ended else stage.operation or "",
                number(stage.forward),
                number(stage.backward),
                held(stage),
                late,
                "" if seen.ended else number(stage.under_way),
                share,
                device,
            )
        )
    return rows


def number(value: int | None) -> str:
    """A whole number; "" where it is not known."""
    return "" if value is None else f"{value:,}"


def held(stage: LiveStage) -> str:
    """The batches between a stage's forward and its backward pass."""
    if stage.forward is None or stage.backward is None:  # a resumed run finds some of them in its checkpoint
        return ""
    return number(max(0, stage.forward - stage.backward))


def warnings(seen: Seen) -> list[str]:
    """What a person should look at."""
    found = []
    if seen.config.get("note"):
        found.append(f"Note: {seen.config['note']}")
    refused = seen.refused[-NEWEST:]
    if len(seen.refused) > NEWEST:
        found.append(f"{len(seen.refused):,} incidents, of which the newest are:")
    found += [f"After batch {each.step:,}: {each.fact}" for each in refused]
    if seen.stalls:
        seconds, named = f"{seen.config['stall_seconds']:g} s", spelled("stall_seconds")
        found.append(f"{count(seen.stalls, 'time')} nothing made progress for {seconds} ({named}; stalls.jsonl).")
    return [*found, *seen.wrong]


def spark(values: Sequence[float], width: int, marks: str) -> str:
    """A curve in one line of text: means of neighbours, from `marks` in rising order. "" of fewer than two values."""
    if len(values) < 2 or width < 2:
        return ""
    columns = min(width, len(values))
    bounds = [round(i * len(values) / columns) for i in range(columns + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(bounds)]
    low, high = min(means), max(means)
    size = (high - low) or 1.0
    return "".join(marks[min(len(marks) - 1, int((mean - low) / size * len(marks)))] for mean in means)
