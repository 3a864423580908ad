"""The page of a comparison: what came out in words, a table, the curves over batches, examples and time."""

from collections.abc import Sequence
from html import escape

from fdg_jax.report.comparison import Comparison
from fdg_jax.report.lines import COLOURS, DASHES, chart, lines
from fdg_jax.runs.options import words

PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">
<title>{title}</title><style>
:root {{ --ground: #f4f6f9; --panel: #fff; --ink: #17202b; --soft: #4c5a6b; --line: #c9d1db; --accent: #0b62a8;
  --c0: #0b62a8; --c1: #b3430e; --c2: #1d6b3a; --c3: #6a3d9a; --c4: #8a6100; --c5: #a0246b; }}
@media (prefers-color-scheme: dark) {{ :root {{ --ground: #0f141a; --panel: #182029; --ink: #e8edf3; --soft: #aab6c4;
  --line: #3a4757; --accent: #8cc4f2;
  --c0: #8cc4f2; --c1: #f5a673; --c2: #7fd6a0; --c3: #c9a7ec; --c4: #e8c766; --c5: #f29ac8; }} }}
* {{ box-sizing: border-box; }}
body {{ margin: 0; background: var(--ground); color: var(--ink); font: 16px/1.5 system-ui, "Liberation Sans", sans-serif; }}
main {{ max-width: 84rem; margin: 0 auto; padding: 1.2rem clamp(.7rem, 2.5vw, 2rem) 3rem; }}
h1 {{ font-size: clamp(1.4rem, 3vw, 2rem); line-height: 1.2; margin: .3rem 0; overflow-wrap: anywhere; }}
h2 {{ font-size: 1.15rem; margin: 1.6rem 0 .5rem; }} p.soft, .none {{ color: var(--soft); overflow-wrap: anywhere; }}
.said {{ background: var(--panel); border-left: 4px solid var(--accent); border-radius: 4px; padding: .5rem .9rem; margin: .7rem 0; }}
.said p {{ margin: .1rem 0; overflow-wrap: anywhere; }}
.wide {{ overflow-x: auto; background: var(--panel); border: 1px solid var(--line); border-radius: 10px; }}
table {{ border-collapse: collapse; width: 100%; font-size: .92rem; font-variant-numeric: tabular-nums; }}
th, td {{ text-align: left; padding: .35rem .8rem; border-top: 1px solid var(--line); vertical-align: top; }}
tr:first-child th {{ border-top: 0; color: var(--soft); font-weight: 500; }}
.wide:focus-visible, summary:focus-visible {{ outline: 3px solid var(--accent); outline-offset: 2px; }}
.charts {{ display: grid; gap: .8rem; grid-template-columns: repeat(auto-fit, minmax(min(21rem, 100%), 1fr)); }}
figure {{ margin: 0; background: var(--panel); border: 1px solid var(--line); border-radius: 10px; padding: .6rem .8rem; }}
figcaption {{ font-size: .9rem; color: var(--soft); }} svg {{ width: 100%; height: auto; display: block; }}
svg text {{ font-size: 11px; fill: var(--soft); text-anchor: middle; }} svg text.y {{ text-anchor: end; }}
.grid {{ stroke: var(--line); stroke-width: .7; }} .line {{ fill: none; stroke-width: 2; }} .band {{ opacity: .22; }}
{colours}
.key {{ display: inline-block; width: 1.9rem; height: .8rem; vertical-align: middle; margin-right: .5rem; }}
code {{ font: .9em ui-monospace, "Liberation Mono", monospace; overflow-wrap: anywhere; }}
details {{ margin-top: 1rem; }} summary {{ cursor: pointer; }}
</style></head><body><main>
<h1>{title}</h1><p class="soft">Runs that differ in their seed only are one row and one curve: the median, and the lowest and highest.</p>
<div class="said">{said}</div>
<h2>What came out</h2><div class="wide" tabindex="0" role="region" aria-label="What came out">{table}</div>
<h2>Test error (%)</h2><div class="charts">{errors}</div>
<h2>Training loss</h2><div class="charts">{losses}</div>
<p class="soft">Time is that of training alone: examples by images/s, without compiling and evaluating. A curve ends where the first of its runs ends.</p>
{differs}
<details><summary>What all of them have in common</summary><p><code>{common}</code></p></details>
</main></body></html>
"""  # noqa: E501


def page(made: Comparison) -> str:
    """The comparison as HTML."""
    styles = {group.name: number for number, group in enumerate(made.groups)}
    count = sum(len(group.runs) for group in made.groups)
    rows = [[key(styles[row[0]]) + escape(row[0]), *map(escape, row[1:])] for row in made.rows]
    names = list(made.groups[0].differs) if made.groups else []
    differs = ""
    if names:
        body = [[escape(g.name), *(escape(str(g.differs[name])) for name in names)] for g in made.groups]
        inside = table(["", *(escape(name.replace("_", " ")) for name in names)], body)
        differs = '<h2>Options that differ</h2><div class="wide" tabindex="0" role="region" '
        differs += f'aria-label="Options that differ">{inside}</div>'
    common = " ".join(word for name, value in made.common.items() if value is not None for word in words(name, value))
    figures = {
        "errors": charts(made, "errors", "Test error (%)", styles),
        "losses": charts(made, "losses", "Training loss", styles),
    }
    colours = [
        f".line.c{i} {{ stroke: var(--c{i}); }} .band.c{i}, .spot.c{i} {{ fill: var(--c{i}); }}" for i in range(COLOURS)
    ]
    return PAGE.format(
        title=f"{count} runs compared" if count > 1 else "One run",
        said="".join(f"<p>{escape(each)}</p>" for each in made.said) or "<p>There is nothing to compare it with.</p>",
        table=table(list(map(escape, made.heads)), rows),
        differs=differs,
        common=escape(common),
        colours="\n".join(colours),
        **figures,
    )


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


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of cells that are HTML."""
    head = "".join(f'<th scope="col">{cell}</th>' for cell in heads)
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>{"".join(f"<td>{cell}</td>" for cell in row[1:])}</tr>' for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"
