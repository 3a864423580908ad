"""The tables of benchmarks.several_processes: speed, messages, and the time of each stage."""

import argparse
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.harness import report
from benchmarks.harness.waiting import WAITING
from benchmarks.images_per_second import versions

GOAL = 0.97  # of the images/s of independent BP processes


def number(value: float) -> str:
    """A count or a number of bytes: whole ones without a point."""
    return f"{value:,.0f}" if value == round(value) else f"{value:,.2f}"


def speed_table(found: Sequence[dict[str, Any]], given: argparse.Namespace) -> str:
    """The speed of the sides. The first is that of several processes; it is held against the first of `over`."""
    bases = list(found[0]["over"])
    head = ["side", "K", "cores", "later stages begin at", "images/s", *(f"over {name}" for name in bases)]
    body = [
        [
            f"`{row['side']}`",
            str(row["K"]),
            str(row["cores"]),
            ",".join(map(str, row["cuts"])) + (f" of {row['blocks']}" if row["cuts"] else "none"),
            report.spread(row["images_per_second_windows"], 1),
            *(report.spread(row["over"][name], 3) for name in bases),
            ", ".join(f"{share:.0f}%" for share in row["core_percent"]),
        ]
        for row in found
    ]
    joined, n = found[0], given.rounds * given.starts
    ratio = statistics.median(joined["over"][bases[0]])
    reached = "reached" if ratio >= GOAL else "not reached"
    about = (
        f"{joined['model']}, batch {joined['batch_size']}, windows of {given.steps} batches in turns, n = {n} a side "
        f"({given.rounds} rounds, {given.starts} start{'s' * (given.starts > 1)}): median (least to most). "
        f"`{joined['side']}` makes {ratio:.3f} of the images/s of {given.K} independent BP processes (goal {GOAL}: "
        f"{reached}). "
        f"{joined['cpu']}, {joined['machine_cores']} cores, {versions(found)}, huge pages "
        f"{'on' if joined['huge_pages'] else 'off'}, commit {joined['commit']}. " + report.disturbed(found)
    )
    return f"{report.markdown([*head, 'each core busy'], body)}\n\n{about}"


def message_table(row: Mapping[str, Any]) -> str:
    """The messages of a tick."""
    head = ["message", "from stage k", "to process", "a tick: predicted", "sent", "arrived"]
    body = [
        [
            f"`{each['what']}`",
            str(each["k"]),
            str(each["to"]),
            *(
                f"{number(each[what])} of {number(each[size])} B"
                for what, size in (
                    ("predicted", "predicted_bytes"), ("sent", "sent_bytes"), ("arrived", "arrived_bytes"),
                )
            ),
        ]
        for each in row["messages"]
    ]  # fmt: skip
    content = sum(each["sent_bytes"] for each in row["messages"])
    carried = row["loopback_bytes_per_tick"]
    network = "" if carried is None else f" The loopback interface carried {carried:,.0f} B a tick, headers included."
    text = f"{row['model']}: bytes of one tick, in all messages of a kind; {number(content)} B together.{network}"
    return f"{report.markdown(head, body)}\n\n{text}"


def stage_table(row: Mapping[str, Any], given: argparse.Namespace) -> str:
    """What each stage did in a tick, and for what it waited."""
    stages = row["stage_ms_per_tick"]
    kinds = [kind for kind in dict.fromkeys(kind for stage in stages for kind in sorted(stage)) if kind not in WAITING]
    head = ["stage k", *(f"{kind} ms" for kind in kinds), *(f"{words} ms" for words in WAITING.values())]
    body = [
        [
            str(k),
            *(f"{stage[kind]:.2f}" if kind in stage else "" for kind in kinds),
            *(f"{stage.get(kind, 0.0):.2f}" for kind in WAITING),
            f"{user:.1f} and {system:.1f}",
        ]
        for k, (stage, user, system) in enumerate(
            zip(stages, row["user_ms_per_tick"], row["system_ms_per_tick"], strict=True), 1
        )
    ]
    travel = ", ".join(f"from stage {link} {ms:.2f} ms" for link, ms in row["on_the_way_ms"].items())
    parts = " and ".join(f"{share:.1f}%" for share in row["share_percent"])
    hidden = "" if row["hidden_percent"] is None else f" Computation hid {row['hidden_percent']:.0f}% of that."
    text = (
        f"{row['model']}: a tick took {row['tick_ms']:.1f} ms (mean of {given.steps}). A message was on its way "
        f"(median): {travel}. Stages waited for messages on their way {row['waited_for_ms']:.2f} ms a tick.{hidden} "
        f"Processor time is that of the whole process. This window made {row['over_plain_windows']:.3f} of the "
        f"images/s of the others (median); an end was seen {row['late_microseconds']:.0f} us late (median; most "
        f"{row['late_microseconds_most']:.0f}). Alone on one core the stages' blocks take {parts} of a batch's time: "
        f"separate stages can be at most {row['bound_over_bp']:.2f} times as fast as BP."
    )
    return f"{report.markdown([*head, 'processor ms: user and system'], body)}\n\n{text}"


def table(found: Sequence[dict[str, Any]], given: argparse.Namespace) -> str:
    """The tables of all models. found: the rows of benchmarks.several_processes, each model's sides before the rest."""
    parts = []
    for exchange in (row for row in found if "messages" in row):
        sides = [row for row in found if "over" in row and row["model"] == exchange["model"]
                 and row["batch_size"] == exchange["batch_size"]]  # fmt: skip
        parts += [speed_table(sides, given), message_table(exchange), stage_table(exchange, given)]
    exchanges = [row for row in found if "messages" in row]
    parts += dict.fromkeys(sentence for row in exchanges for sentence in row["missing"])
    if drawn := [row["picture"] for row in exchanges if row["picture"]]:
        parts.append(f"In {given.out}: {', '.join(drawn)}.")
    return "\n\n".join(parts)
