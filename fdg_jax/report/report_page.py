"""The page of a run: report.html, which needs no other file, and curves.png.

Everything comes from the files of the run directory. So a report can be written again, also for a run that was killed:
`python -m fdg_jax.experiments.report RUN-DIRECTORY`.
"""

import html
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fdg_jax.errors import BadInput
from fdg_jax.machine import output
from fdg_jax.report.curves import draw, title
from fdg_jax.runs import reading
from fdg_jax.runs.options import FIELDS, spelled
from fdg_jax.runs.progress import clock
from fdg_jax.runs.run_files import SUMMARY, unit

PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>
body {{ font: 16px/1.5 system-ui, sans-serif; color: #1f2933; background: #f6f7f9; margin: 0; }}
main {{ max-width: 60rem; margin: 0 auto; padding: 2rem 1rem 4rem; }}
h1 {{ font-size: 1.6rem; margin: 0; }} h2 {{ font-size: 1.1rem; margin: 2.2rem 0 .6rem; }}
p.sub {{ color: #52606d; margin: .2rem 0 1.2rem; }}
p.note {{ background: #fff3e0; border-left: 4px solid #c05621; padding: .7rem 1rem; }}
.cards {{ display: grid; gap: .8rem;
  grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); }}
.card, figure, .scroll {{ background: #fff; border: 1px solid #e1e5ea; border-radius: 8px; }}
.card {{ padding: .8rem 1rem; }}
.card b {{ display: block; font-size: 1.5rem; }} .card span {{ color: #52606d; }}
figure {{ margin: 0; padding: .5rem; }} figure svg {{ width: 100%; height: auto; display: block; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; width: 100%; font-size: .92rem; }}
td, th {{ text-align: left; padding: .3rem .9rem; border-top: 1px solid #eef1f4; vertical-align: top; }}
tr:first-child td, tr:first-child th {{ border-top: 0; }}
th {{ font-weight: 500; color: #52606d; white-space: nowrap; }} td {{ overflow-wrap: anywhere; }}
code {{ font: .88em ui-monospace, monospace; overflow-wrap: anywhere; }}
</style></head><body><main>
<h1>{title}</h1><p class="sub">{subtitle}</p>{note}
<div class="cards">{cards}</div>
<h2>Curves</h2><figure>{curves}</figure>
<h2>Stages</h2><div class="scroll"><table>{stages}</table></div>
<h2>Result</h2><div class="scroll"><table>{summary}</table></div>
<h2>Options</h2><div class="scroll"><table>{options}</table></div>
<h2>Where it ran</h2><div class="scroll"><table>{origin}</table></div>
</main></body></html>
"""


def write(run: Path, config: Mapping[str, Any] | None = None) -> None:
    """Writes report.html and curves.png of a run directory, finished or not.

    Arguments:
        run: the directory.
        config: the run's configuration; None for that in config.json.

    Raises:
        BadInput: a file of the run contains what no run writes.
        OSError: a file cannot be written.
    """
    config = reading.config(run) if config is None else dict(config)
    events = reading.events(run)
    reading.check_ranges(run, config)
    summary = reading.summary(run) if os.path.lexists(run / SUMMARY) else {}
    svg = draw(config, events, run / "curves.png")
    beside = run / "report.html.part"
    beside.write_text(page(config, events, summary, svg), encoding="utf-8")
    beside.replace(run / "report.html")


def page(config: dict[str, Any], events: list[dict[str, Any]], summary: dict[str, Any], svg: str) -> str:
    """The HTML of the page. svg: the curves."""
    test = [event for event in events if event.get("test_error_percent") is not None]
    train = [event for event in events if event.get("train_loss") is not None]
    state = "finished" if summary else "not finished"
    step, epoch = (events[-1]["step"], events[-1]["epoch"]) if events else (0, 0)
    done = f"{step:,} batches, {epoch:g} epochs"
    note = f'<p class="note"><b>Note.</b> {html.escape(config["note"])}</p>' if config.get("note") else ""
    stages = stage_rows(config, summary)
    origin = ("backend", "processor", "cpus", "usable_cores", "platform", "git_commit", "started")
    rows = [(name, config.get(name)) for name in origin] + list(config.get("versions", {}).items())
    skip = ("staleness", "updates", "stage_parameters", "devices")
    return PAGE.format(
        title=html.escape(title(config)),
        subtitle=html.escape(f"{state}: {done}; engine {config['engine']}, seed {config['seed']}"),
        note=note,
        cards=cards(test, train, summary),
        curves=svg,
        stages=stages,
        summary=table((name, value) for name, value in summary.items() if name not in skip and value != "")
        or "<tr><td>summary.json is written when the run is finished.</td></tr>",
        options=table((spelled(name), config.get(name)) for name in FIELDS if name != "resume"),
        origin=table(rows),
    )


def cards(test: list[dict[str, Any]], train: list[dict[str, Any]], summary: dict[str, Any]) -> str:
    """The numbers that one looks for first."""
    newest = summary or (train[-1] if train else {})
    counted = unit(newest)
    speed = newest.get(f"{counted}_per_second")
    shown = [
        ("test error, last", f"{test[-1]['test_error_percent']:.2f}%" if test else "–"),
        ("test error, best", f"{min(e['test_error_percent'] for e in test):.2f}%" if test else "–"),
        ("training loss", f"{summary.get('train_loss') or train[-1]['train_loss']:.4f}" if train else "–"),
        (f"{counted} a second", f"{speed:,.0f}" if speed else "–"),
    ]
    if test and test[-1].get("test_bits_per_byte") is not None:
        shown.insert(2, ("bits per byte, last", f"{test[-1]['test_bits_per_byte']:.3f}"))
    if summary:
        shown.append(("time", clock(summary["seconds"])))
    return "".join(f'<div class="card"><b>{html.escape(value)}</b><span>{name}</span></div>' for name, value in shown)


def stage_rows(config: dict[str, Any], summary: dict[str, Any]) -> str:
    """A table row for each stage."""
    heads = ("k", "staleness, measured (updates)", "updates made", "parameters", "device")
    head = "<tr>" + "".join(f"<th>{name}</th>" for name in heads) + "</tr>"
    rows = []
    for k, device in enumerate(config["devices"], 1):
        cells = [summary.get(name, [])[k - 1 : k] for name in ("staleness", "updates", "stage_parameters")]
        shown = [str(k), *(f"{cell[0]:,}" if cell else "–" for cell in cells), device]
        rows.append("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in shown) + "</tr>")
    return head + "".join(rows)


def table(rows: Iterable[tuple[str, Any]]) -> str:
    """Rows of (name, value) as HTML."""

    def shown(value: Any) -> str:
        if isinstance(value, float):
            return f"{value:.6g}"
        return "–" if value is None else str(value)

    return "".join(
        f"<tr><th>{html.escape(name)}</th><td><code>{html.escape(shown(value))}</code></td></tr>"
        for name, value in rows
    )


USAGE = """usage: python -m fdg_jax.experiments.report RUN-DIRECTORY

Writes report.html and curves.png of a run again, from the other files of its
directory."""


def main(arguments: list[str]) -> int:
    """The command. Returns its exit status."""
    with output.forgiving():
        return answer(arguments)


def answer(arguments: list[str]) -> int:
    """The command, with its output looked after by `main`."""
    if "-h" in arguments or "--help" in arguments:
        print(USAGE)
        return 0
    if len(arguments) != 1:
        print(USAGE, file=sys.stderr)
        return 2
    try:
        write(Path(arguments[0]))
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: the report in {arguments[0]} cannot be written: {error.strerror or error}.", file=sys.stderr)
        return 2
    print(Path(arguments[0]) / "report.html")
    return 0
