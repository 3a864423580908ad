"""What the pages of this room share: one file without requests, colours for light and dark, tables and curves."""

from collections.abc import Sequence
from html import escape

from fdg_jax.report.lines import COLOURS

PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">
<title>{title}</title><style>
:root {{ --ground: #f4f6f9; --panel: #fff; --ink: #17202b; --soft: #4c5a6b; --line: #c9d1db; --accent: #0b62a8; --warn: #b3430e;
  --c0: #0b62a8; --c1: #b3430e; --c2: #1d6b3a; --c3: #6a3d9a; --c4: #8a6100; --c5: #a0246b; }}
@media (prefers-color-scheme: dark) {{ :root {{ --ground: #0f141a; --panel: #182029; --ink: #e8edf3; --soft: #aab6c4;
  --line: #3a4757; --accent: #8cc4f2; --warn: #f5a673;
  --c0: #8cc4f2; --c1: #f5a673; --c2: #7fd6a0; --c3: #c9a7ec; --c4: #e8c766; --c5: #f29ac8; }} }}
* {{ box-sizing: border-box; }}
body {{ margin: 0; background: var(--ground); color: var(--ink); font: 16px/1.5 system-ui, "Liberation Sans", sans-serif; }}
main {{ max-width: 84rem; margin: 0 auto; padding: 1.2rem clamp(.7rem, 2.5vw, 2rem) 3rem; }}
h1 {{ font-size: clamp(1.4rem, 3vw, 2rem); line-height: 1.2; margin: .3rem 0; overflow-wrap: anywhere; }}
h2 {{ font-size: 1.15rem; margin: 1.6rem 0 .5rem; }} p.soft, .none {{ color: var(--soft); overflow-wrap: anywhere; }}
.said {{ background: var(--panel); border-left: 4px solid var(--accent); border-radius: 4px; padding: .5rem .9rem; margin: .7rem 0; }}
.said.warn {{ border-color: var(--warn); }} .said p {{ margin: .1rem 0; overflow-wrap: anywhere; }}
.wide {{ overflow-x: auto; background:
  linear-gradient(to right, var(--panel) 40%, transparent) 0 0 / 2.5rem 100% no-repeat local,
  linear-gradient(to left, var(--panel) 40%, transparent) 100% 0 / 2.5rem 100% no-repeat local,
  linear-gradient(to right, var(--soft), transparent) 0 0 / .7rem 100% no-repeat scroll,
  linear-gradient(to left, var(--soft), transparent) 100% 0 / .7rem 100% no-repeat scroll, var(--panel); border: 1px solid var(--line); border-radius: 10px; }}
table {{ border-collapse: collapse; width: 100%; font-size: .92rem; font-variant-numeric: tabular-nums; }}
th, td {{ text-align: left; padding: .35rem .8rem; border-top: 1px solid var(--line); vertical-align: top; }}
tr:first-child th {{ border-top: 0; color: var(--soft); font-weight: 500; }}
.wide:focus-visible, summary:focus-visible {{ outline: 3px solid var(--accent); outline-offset: 2px; }}
.charts {{ display: grid; gap: .8rem; grid-template-columns: repeat(auto-fit, minmax(min(21rem, 100%), 1fr)); }}
figure {{ margin: 0; background: var(--panel); border: 1px solid var(--line); border-radius: 10px; padding: .6rem .8rem; }}
figcaption {{ font-size: .9rem; color: var(--soft); overflow-wrap: anywhere; }}
.chart {{ width: 100%; height: auto; display: block; }}
.chart text {{ font-size: 11px; fill: var(--soft); text-anchor: middle; }} .chart text.y {{ text-anchor: end; }}
.grid {{ stroke: var(--line); stroke-width: .7; }} .mark {{ stroke: var(--soft); stroke-width: 1; stroke-dasharray: 3 3; }}
.line {{ fill: none; stroke-width: 2; }} .band {{ opacity: .22; }}
{colours}
.key {{ display: inline-block; width: 1.9rem; height: .8rem; vertical-align: middle; margin-right: .5rem; }}
code {{ font: .9em ui-monospace, "Liberation Mono", monospace; overflow-wrap: anywhere; }}
a {{ color: var(--accent); }} details {{ margin-top: 1rem; }} summary {{ cursor: pointer; }}
{style}</style></head><body><main>
{body}
</main>{script}</body></html>
"""  # noqa: E501


# `.wide` has a shadow at a side to which it can be scrolled: that lies still, and its cover scrolls with the content.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def document(title: str, body: str, style: str = "", policy: str = POLICY, script: str = "") -> str:
    """A page.

    Arguments:
        title: text.
        body: HTML.
        style: CSS beside what all pages have.
        policy: what the page may load and run.
        script: an element that ends it.
    """
    colours = [
        f".line.c{i} {{ stroke: var(--c{i}); }} .band.c{i}, .spot.c{i} {{ fill: var(--c{i}); }}" for i in range(COLOURS)
    ]
    parts = {"policy": policy, "script": script, "colours": "\n".join(colours)}
    return PAGE.format(title=escape(title), body=body, style=style, **parts)


def said(sentences: Sequence[str], warn: bool = False) -> str:
    """Sentences, which are text, in a panel."""
    return f'<div class="said{" warn" * warn}">{"".join(f"<p>{escape(each)}</p>" for each in sentences)}</div>'


def wide(label: str, inside: str, kind: str = "wide", name: str = "") -> str:
    """What may be wider than a telephone and then scrolls, also by keyboard. inside: HTML. kind: its classes. name: by
    which a script finds it, if any."""
    found_by = f' id="{name}"' if name else ""
    return f'<div class="{kind}"{found_by} tabindex="0" role="region" aria-label="{escape(label)}">{inside}</div>'


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of cells that are HTML."""
    head = "".join(f'<th scope="col">{cell}</th>' for cell in heads)
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>{"".join(f"<td>{cell}</td>" for cell in row[1:])}</tr>' for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"
