"""Makes the explorer: one HTML file that contains its data, its style and its script, and needs no other file."""

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from fdg_jax.explorer.tables import tables
from fdg_jax.pages.templates import render


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
