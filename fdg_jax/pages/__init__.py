"""The look of pages and pictures, and pages made from templates. A page is one file that needs no other. Text in it is
always escaped."""

from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from fdg_jax.pages import charts


@cache
def environment() -> Any:
    """The jinja2 environment with all templates, which are named by their paths below fdg_jax. jinja2 is imported here,
    because most commands make no page."""
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).resolve().parents[1]), autoescape=True,
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    made.globals |= {"colours": charts.variables, "svg": svg}
    made.filters["short"] = short
    return made


def render(name: str, **values: Any) -> str:
    """Renders a template, such as "report/run.html", with these values."""
    return environment().get_template(name).render(values)


def svg(chart: charts.Chart) -> str:
    """A chart as HTML; a sentence instead if the chart has no curve."""
    if not chart.lines:
        return f'<p class="none">{escape(chart.title)} over {escape(chart.across)}: nothing measured.</p>'
    return charts.svg(chart)


def short(value: Any) -> str:
    """A value as text for a page."""
    return f"{value:.6g}" if isinstance(value, float) else "–" if value is None else str(value)
