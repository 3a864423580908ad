"""The explorer: one HTML file that needs no other, with its data, its style and its script inside."""

import json
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import Any

from fdg_jax.explorer.tables import tables

# Nothing is loaded from anywhere, and the page says so to the browser as well.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def page(start: Mapping[str, Any] | None = None, measured: Mapping[str, Any] | None = None) -> str:
    """The page as HTML text.

    Arguments:
        start: what is chosen when it opens: "method", "K" and options of the method.
        measured: a measured run, as `measured.read` returns it.

    Raises:
        BadInput: the schedule of a method is wrong, or its file is.
    """
    folder = files("fdg_jax.explorer")
    made = folder.joinpath("page.html").read_text(encoding="utf-8")
    data = {**tables(start), "measured": measured}
    for mark, content in (
        ("{{policy}}", escape(POLICY)),
        ("{{style}}", folder.joinpath("page.css").read_text(encoding="utf-8")),
        ("{{script}}", folder.joinpath("page.js").read_text(encoding="utf-8")),
        ("{{data}}", embedded(data)),
    ):
        made = made.replace(mark, content)
    return made


def embedded(data: Any) -> str:
    """JSON that can stand inside a <script> element: no text in it can end the element or begin a comment."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
