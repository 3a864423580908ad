"""The schedule of a run as a picture, and in two sentences what it costs and what it gains."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from fdg_jax import methods
from fdg_jax.explorer import figure, timeline
from fdg_jax.methods.interface import Method
from fdg_jax.runs.progress import count
from fdg_jax.schedule import Schedule
from fdg_jax.schedule.drawing import columns

MOST_STAGES, MOST_PARTS = 8, 8  # of which a picture can be read
WHY = "a batch goes up through all later stages and its gradient comes back down while the stage goes on updating"
BEYOND = 3  # forward passes that are drawn after the latest gradient
WITHIN = ".schedule"
STYLE = f"""{WITHIN} svg {{ display: block; max-width: none; }}
{figure.style(WITHIN)}
.wide{WITHIN} .back {{ fill: none; }}"""  # so that the shadow is seen which says that it can be scrolled


class Scheduled(NamedTuple):
    """What is shown. svg: "" where it has too many operations to be read."""

    svg: str
    said: list[str]


def scheduled(config: Mapping[str, Any]) -> Scheduled:
    """The picture and the sentences of a run. config: config.json, checked."""
    method, schedule = methods.find(config["method"]), schedule_of(config)
    small = schedule.K <= MOST_STAGES and max(schedule.micro_batches, schedule.accumulate) <= MOST_PARTS
    return Scheduled(picture(method, schedule) if small and method.places is None else "", told(config))


def told(config: Mapping[str, Any]) -> list[str]:
    """The sentences alone: drawing takes ten times as long."""
    schedule = schedule_of(config)
    if methods.find(config["method"]).places is not None:
        return [f"Each of the {schedule.K} devices has the whole network and works on a part of every batch; they add "
                "up their gradients before each update, so none is late."]  # fmt: skip
    return [each for each in (lateness(schedule), waiting(schedule)) if each]


def schedule_of(config: Mapping[str, Any]) -> Schedule:
    """The schedule of a run. config: config.json, checked."""
    method = methods.find(config["method"])
    asked = {name: config[name] for name in method.answers_to}
    return method.schedule(config["K"], **method.accepted(asked)[0])


def picture(method: Method, schedule: Schedule) -> str:
    """An SVG element: until the latest gradient has come; where none is late, two ticks more than fill the pipeline."""
    shown = timeline.timeline(schedule, method)
    if late := timeline.stalest(shown):
        shown = [op for op in shown if op.begin < late.end + BEYOND]
    else:
        shown = timeline.timeline(schedule, method, ticks=schedule.K + 2)
    title = f"{method.name}, {count(schedule.K, 'stage')}"
    return figure.figure(shown, title, schedule.K, method.words, WITHIN, method.places is not None)


def lateness(schedule: Schedule) -> str:
    """Which stage's gradients are how late, and why."""
    K, most = schedule.K, max(schedule.staleness)
    if K == 1:
        return "There is one stage: nothing is late, and nothing waits for anything."
    if not most:
        return "No gradient is late: each one belongs to the very weights that it updates."
    stage = schedule.staleness.index(most) + 1
    updates = count(most, "update")
    last = "" if schedule.behind[-1] else f"; stage {K} has the loss at hand, so its gradients are not late"
    return f"Stage {stage} is the most stale, its gradients are {updates} late, because {WHY}{last}."


def decoupled(schedule: Schedule) -> bool:
    """Whether no stage waits for another one's pass of the same tick, once the pipeline is full."""
    return len(columns(schedule, schedule.tick(4 * schedule.K + 2, None))[0]) <= 1


def waiting(schedule: Schedule) -> str:
    """Whether stages wait for one another."""
    K, late = schedule.K, any(schedule.behind)
    if K == 1:
        return ""
    gained = "In return" if late else "Besides,"
    if decoupled(schedule):
        return (
            f"{gained} no stage waits for another one's pass of the same tick: all {K} can work at the same time, "
            "where in back-propagation (BP), whose gradients are never late, one works and the others wait for it. "
            "That is so of equal stages, as they are drawn: of unequal ones, the smaller wait for the largest."
        )
    if late:
        return "Within a step stages still wait for one another, though less than in back-propagation (BP)."
    return "For that, stages wait for one another: what is grey in the picture is a stage without work."
