"""Makes the explorer: one HTML file that contains its data, its style and its script, and needs no other file.

What `benchmarks.timeline` measured can be laid over what the simulator predicted for the same run.
"""

import json
import math
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from fdg_jax import strict_json
from fdg_jax.errors import BadInput
from fdg_jax.explorer.tables import tables
from fdg_jax.pages import render


def page(start: Mapping[str, Any] | None = None, measured: Mapping[str, Any] | None = None) -> str:
    """The page as HTML text.

    Arguments:
        start: the initial choices: "method", "K" and options of the method.
        measured: a measured run, as `measured.read` returns it.

    Raises:
        BadInput: the schedule of a method, or its file, is wrong.
    """
    folder = files("fdg_jax.explorer")
    style, *scripts = (folder.joinpath(f).read_text(encoding="utf-8") for f in ("page.css", "simulate.js", "page.js"))
    return render(
        "explorer/page.html",
        title="How late is each gradient?",
        scripts="script-src 'unsafe-inline'; ",
        style=style,
        data=embedded({**tables(start), "measured": measured}),
        script="\n".join(scripts),
    )


def embedded(data: Any) -> str:
    """JSON for the inside of a <script> element: no text in it can end the element or begin a comment."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


MOST = 20_000  # the most events on the page


def read(path: Path) -> dict[str, Any]:
    """The measured and the predicted operations in a file timeline.json.

    Returns: {"title": a description of the run, "rows": number of stages, "measured": [[what, k, batch, begin, end],
        ...] in ms, "predicted": a list in the same form}.

    Raises:
        BadInput: the file cannot be read, or is not one of `benchmarks.timeline`.
    """
    way_out = "Give the timeline.json that python -m benchmarks.timeline --out DIR writes."
    try:
        found = strict_json.read(path)
    except (OSError, ValueError) as error:
        fact = error.strerror if isinstance(error, OSError) else error
        raise BadInput(f"--measured {path} cannot be read: {fact}. {way_out}") from None
    try:
        return parsed(found)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        fact = f"is JSON, but not a timeline of benchmarks.timeline with at most {MOST:,} operations"
        raise BadInput(f"--measured {path} {fact}. {way_out}") from None


def parsed(found: Any) -> dict[str, Any]:
    """Converts the content of the file to the result of `read`. Raises KeyError, TypeError, ValueError, AttributeError
    or OverflowError if the file has another form."""
    events = found["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    made: dict[str, list[list[Any]]] = {"measured": [], "predicted": []}
    for event in events:
        if event["ph"] != "X" or event["cat"] == "send":
            continue
        k, batch, begin, took = int(event["args"]["k"]), int(event["args"]["batch"]), event["ts"], event["dur"]
        if not (1 <= k <= 64 and batch >= 0 and math.isfinite(begin) and math.isfinite(took) and took >= 0):
            raise ValueError(event)
        made[processes[event["pid"]]].append([str(event["cat"]), k, batch, begin / 1e3, (begin + took) / 1e3])
    if not made["measured"] or sum(map(len, made.values())) > MOST:
        raise ValueError("no events, or too many")
    side = found.get("otherData", {})
    title = ", ".join(f"{name} {side[name]}" for name in ("side", "model", "batch_size", "K", "cores") if name in side)
    return {"title": title.removeprefix("side "), "rows": max(e[1] for each in made.values() for e in each), **made}
