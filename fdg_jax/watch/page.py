"""The page of a run that goes on: whole when it is loaded, and parts of it again whenever they have changed.

All HTML is made here, with every name escaped. The script of the page asks for the parts and puts them in their places.
"""

import base64
import hashlib
import json
from html import escape
from importlib.resources import files

from fdg_jax.report import schedule_part
from fdg_jax.report.curves import charts
from fdg_jax.report.page_style import document, said, wide
from fdg_jax.watch.seen import Seen
from fdg_jax.watch.view import HEADS, MEANINGS, StageRow, View, number, view

BODY = """<h1 id="name">{name}</h1>
<div id="state" role="status">{state}</div><p id="silent" hidden></p>
<div id="warnings">{warnings}</div>
<div id="facts">{facts}</div>
<h2>How it goes</h2><div id="said">{said}</div>
<h2>Stages</h2>{stages}
<details><summary>What the columns mean</summary>{meanings}</details>
<h2>Curves</h2><div id="curves">{curves}</div>
<h2>Which weights a gradient belongs to</h2>{schedule}"""


class Page:
    """The page and its parts, as they were made last.

    script, style: what it has of both: the server allows these and no others, by their hashes.
    """

    def __init__(self) -> None:
        folder = files("fdg_jax.watch")
        self.script = folder.joinpath("page.js").read_text(encoding="utf-8")
        self.css = f"{folder.joinpath('page.css').read_text(encoding='utf-8')}\n{schedule_part.STYLE}"
        self.drawn: tuple[object, str] = (None, "")  # (the options of a run, its schedule's picture)
        self.curves: tuple[object, str] = (None, "")  # (how many lines there were, the curves of these)
        self.html, self.state, self.policy = b"", b"", ""

    def update(self, seen: Seen) -> None:
        """Makes the page anew."""
        shown = view(seen)
        parts = self.parts(seen, shown)
        percent = "" if shown.done is None or shown.ended else f"{100 * shown.done:.0f}% "
        title = f"{percent}{shown.title}"
        changing = {name: part for name, part in parts.items() if name != "schedule"}
        state = {"ended": shown.ended is not None, "title": title, "parts": changing}
        body = BODY.format(
            **{name: parts[name] for name in ("name", "state", "warnings", "facts", "said", "curves")},
            # These places stay, so that they keep the focus when what is in them is new.
            stages=wide("Stages", parts["stages"], name="stages"),
            schedule=wide("Schedule", parts["schedule"], "wide schedule", "schedule"),
            meanings=meanings(),
        )
        page = document(title, body, self.css, "{policy}", f"<script>{self.script}</script>")
        style = page.partition("<style>")[2].partition("</style>")[0]
        self.policy = (
            f"default-src 'none'; script-src {digest(self.script)}; style-src {digest(style)}; connect-src 'self'; "
            "img-src data:; base-uri 'none'; form-action 'none'"
        )
        self.html = page.replace("{policy}", escape(self.policy), 1).encode()
        self.state = json.dumps(state).encode()

    def parts(self, seen: Seen, shown: View) -> dict[str, str]:
        """The HTML of each part."""
        lines = len(shown.train), len(shown.test)
        if self.curves[0] != lines:
            self.curves = lines, charts(seen.config, shown.train, shown.test)
        options = {name: value for name, value in seen.config.items() if name != "resumed"}
        if self.drawn[0] != options:
            self.drawn = options, schedule_part.scheduled(seen.config).svg
        return {
            "name": escape(shown.title),
            "state": state_of(shown),
            "warnings": said(shown.warnings, warn=True) if shown.warnings else "",
            "facts": facts(shown),
            "stages": stages(shown),
            "said": said(shown.said),
            "curves": self.curves[1],
            "schedule": self.drawn[1] or "<p>It has too many operations to be drawn, or no stages.</p>",
        }


def digest(text: str) -> str:
    """A text's hash, as a policy has it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def state_of(shown: View) -> str:
    """What the run does, and how far it is."""
    failed = " failed" if shown.ended and shown.ended.code else ""
    words = shown.state if not shown.ended else f"This page shows the end of the run and changes no more. {shown.state}"
    made = f'<p class="state{failed}">{escape(words[:1].upper() + words[1:])}</p>'
    return made if shown.done is None else made + bar(100 * shown.done, "bar", "done")


def bar(percent: float, kind: str, what: str) -> str:
    """A share as a bar."""
    share = max(0.0, min(100.0, percent))
    return (
        f'<svg class="{kind}" viewBox="0 0 100 10" preserveAspectRatio="none" role="img" '
        f'aria-label="{share:.0f}% {what}"><rect class="all" width="100" height="10"/>'
        f'<rect class="part" width="{share:.1f}" height="10"/></svg>'
    )


def facts(shown: View) -> str:
    """The numbers that one looks for first."""
    found = []
    for name, value in shown.facts:
        first, _, rest = value.partition(" (")
        more = f" ({escape(rest)}" if rest else ""
        found.append(f'<div class="fact"><b>{escape(first)}</b><span>{escape(name)}{more}</span></div>')
    return f'<div class="facts">{"".join(found)}</div>'


def stages(shown: View) -> str:
    """The table of the stages. Columns of which nothing is known are left out; the stalest stage is marked."""
    most = max((row.late or 0 for row in shown.stages), default=0)
    rows = [cells(row, most > 0 and row.late == most) for row in shown.stages]
    kept = [c for c in range(len(HEADS)) if any(row[c] for row in rows)]
    heads = [f"busy, {shown.busy_of}" if name == "busy" else name for name in HEADS]
    made = ["".join(f'<th scope="col">{heads[c]}</th>' for c in kept)]
    for row in rows:
        first, *others = (row[c] or "–" for c in kept)
        made.append(f'<th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in others)}')
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in made)}</table>"


def cells(row: StageRow, most_stale: bool) -> list[str]:
    """A stage's cells as HTML, as HEADS has them."""
    busy = "" if row.busy is None else f"{bar(row.busy, 'busy', 'busy')}{row.busy:.0f}%"
    late = f"<b>{number(row.late)}, the most stale</b>" if most_stale else number(row.late)
    texts = (row.works_on, row.forward, row.backward, row.held, row.queue, row.share, row.device)
    return [escape(row.k), busy, late, *map(escape, texts)]


def meanings() -> str:
    """What the columns mean."""
    return f"<dl>{''.join(f'<dt>{escape(name)}</dt><dd>{escape(what)}</dd>' for name, what in MEANINGS.items())}</dl>"
