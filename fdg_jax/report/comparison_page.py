"""The page of a comparison: what came out in words, a table, the curves over batches, examples and time."""

import os
from html import escape
from pathlib import Path
from urllib.parse import quote

from fdg_jax.report.comparison import Comparison
from fdg_jax.report.lines import COLOURS, DASHES, chart, lines
from fdg_jax.report.page_style import document, said, table, wide
from fdg_jax.report.results import Group, has
from fdg_jax.runs.options import words

BODY = """<h1>{title}</h1><p class="soft">Runs that differ in their seed only are one row and one curve: the median, and the lowest and highest.</p>
{said}
<h2>What came out</h2>{table}{reports}
<h2>Test error (%)</h2><div class="charts">{errors}</div>
<h2>Training loss</h2><div class="charts">{losses}</div>
<p class="soft">Time is that of training alone: examples by images/s, without compiling and evaluating. A curve ends where the first of its runs ends.</p>
{differs}
<details><summary>What all of them have in common</summary><p><code>{common}</code></p></details>"""  # noqa: E501


def page(made: Comparison, folder: Path | None = None) -> str:
    """The comparison as HTML. folder: where it is written, for links to the runs' reports; None: without these."""
    styles = {group.name: number for number, group in enumerate(made.groups)}
    count = sum(len(group.runs) for group in made.groups)
    rows = [[key(styles[row[0]]) + escape(row[0]), *map(escape, row[1:])] for row in made.rows]
    names = [n for n in (made.groups[0].differs if made.groups else ()) if any(has(g.runs[0], n) for g in made.groups)]
    differs = ""
    if names:
        body = [[escape(g.name), *(escape(shown(g, name)) for name in names)] for g in made.groups]
        inside = table(["", *(escape(name.replace("_", " ")) for name in names)], body)
        differs = f"<h2>Options that differ</h2>{wide('Options that differ', inside)}"
    common = " ".join(word for name, value in made.common.items() if value is not None for word in words(name, value))
    title = f"{count} runs compared" if count > 1 else "One run"
    body = BODY.format(
        title=title,
        said=said(made.said or ["There is nothing to compare it with."]),
        table=wide("What came out", table(list(map(escape, made.heads)), rows)),
        reports=reports(made, folder) if folder is not None else "",
        differs=differs,
        common=escape(common),
        errors=charts(made, "errors", "Test error (%)", styles),
        losses=charts(made, "losses", "Training loss", styles),
    )
    return document(title, body)


def shown(group: Group, name: str) -> str:
    """A group's value of an option, where the option means anything in it."""
    return str(group.differs[name]) if has(group.runs[0], name) else "–"


def reports(made: Comparison, folder: Path) -> str:
    """Links from a page in a folder to those reports of the runs that are there."""
    found = []
    for run in (run for group in made.groups for run in group.runs):
        if run.path is not None and (run.path / "report.html").is_file():
            to = quote(Path(os.path.relpath(run.path / "report.html", folder)).as_posix())
            found.append(f'<a href="{escape(to)}">{escape(run.name)}</a>')
    return f'<p class="soft">The report of each run: {", ".join(found)}.</p>' if found else ""


def key(style: int) -> str:
    """A short piece of a group's line."""
    colour, dash = f"c{style % COLOURS}", DASHES[style % len(DASHES)]
    line = f'<line class="line {colour}" stroke-dasharray="{dash}" x1="0" x2="30" y1="6" y2="6"/>'
    return f'<svg class="key" viewBox="0 0 30 12" aria-hidden="true">{line}</svg>'


def charts(made: Comparison, which: str, title: str, styles: dict[str, int]) -> str:
    """Three pictures of the same values."""
    found = []
    for x, across in (("batches", "batches"), ("examples", "examples"), ("seconds", "seconds of training")):
        drawn = lines(made.groups, lambda run: getattr(run, which), x)
        caption = f"<figcaption>over {across}</figcaption>"
        found.append(f"<figure>{caption}{chart(drawn, title, across, styles)}</figure>")
    return "".join(found)
