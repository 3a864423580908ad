"""The page of a run: report.html, which needs no other file, and curves.png.

Everything comes from the files of the run directory. So a report can be written again, also for a run that was killed:
`python -m fdg_jax.experiments.report RUN-DIRECTORY`.
"""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from fdg_jax.errors import BadInput
from fdg_jax.machine import output
from fdg_jax.report import options_part, schedule_part, verdict
from fdg_jax.report.curves import charts, draw, title
from fdg_jax.report.page_style import document, said, table, wide
from fdg_jax.report.schedule_part import scheduled
from fdg_jax.report.stages_part import stage_table
from fdg_jax.runs import incidents, reading
from fdg_jax.runs.incidents import Incident
from fdg_jax.runs.options import spelled
from fdg_jax.runs.progress import clock, count
from fdg_jax.runs.run_files import CONFIG, SUMMARY, unit

NO_SUMMARY = "<p>summary.json is written when the run is finished.</p>"
ALL_ELSE = '<p class="soft">All other options are at their defaults: see below.</p>'
BODY = """<h1>{title}</h1><p class="soft">{state}</p>{note}
{said}
<div class="cards">{cards}</div>
<h2>Curves</h2>{curves}
<h2>Which weights a gradient belongs to</h2>{schedule}
<h2>Stages</h2>{stages}
{incidents}
<h2>The command</h2>{command}
<h2>What was chosen</h2>{chosen}
<details><summary>All options that this run has</summary>{options}</details>
<details><summary>All numbers of the result, with hashes</summary>{summary}</details>
<details><summary>Where it ran</summary>{origin}</details>
<p class="soft">Numbers of algorithms, equations and figures are those of the paper of FDG: Zhuang, Wang, Liu, Zhang, Lin, Fully Decoupled Neural Network Learning Using Delayed Gradients.</p>"""  # noqa: E501
STYLE = f""".cards {{ display: grid; gap: .8rem; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); }}
.card {{ background: var(--panel); border: 1px solid var(--line); border-radius: 10px; padding: .6rem .9rem; }}
.card b {{ display: block; font-size: 1.4rem; }} .card span {{ color: var(--soft); }}
.charts {{ grid-template-columns: repeat(auto-fit, minmax(min(29rem, 100%), 1fr)); }}
pre {{ margin: 0; padding: .6rem .9rem; white-space: pre-wrap; }}
td {{ overflow-wrap: anywhere; min-width: 6rem; }} td:nth-child(3) {{ min-width: 9rem; }}
th {{ font-weight: 500; }} th code {{ overflow-wrap: normal; white-space: nowrap; }}
.wide.schedule {{ padding: .4rem; }} details .wide {{ margin-top: .5rem; }}
{schedule_part.STYLE}"""


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
    reading.check_ranges(run / CONFIG, config)
    summary = reading.summary(run) if os.path.lexists(run / SUMMARY) else {}
    draw(config, events, run / "curves.png")
    beside = run / "report.html.part"
    shown = page(config, events, summary, incidents.read(run), incidents.stalls(run))
    beside.write_text(shown, encoding="utf-8")
    beside.replace(run / "report.html")


def page(
    config: dict[str, Any],
    events: list[dict[str, Any]],
    summary: dict[str, Any],
    refused: Sequence[Incident] = (),
    stalls: int = 0,
) -> str:
    """The HTML of the page.

    Arguments:
        config, events, summary: of the run's files.
        refused: what was refused or rolled back.
        stalls: how often nothing moved.
    """
    test = [event for event in events if event.get("test_error_percent") is not None]
    train = [event for event in events if event.get("train_loss") is not None]
    heading, step, epoch = title(config), *((events[-1]["step"], events[-1]["epoch"]) if events else (0, 0))
    state = f"{'finished' if summary else 'not finished'}: {step:,} batches, {epoch:.4g} epochs; seed {config['seed']}"
    note = said([f"Note: {config['note']}"], warn=True) if config.get("note") else ""
    origin = ("backend", "processor", "cpus", "usable_cores", "platform", "git_commit", "started")
    rows = [(name, config.get(name)) for name in origin] + list(config.get("versions", {}).items())
    shown = scheduled(config)
    picture = f'<div class="wide schedule" tabindex="0" role="region" aria-label="Schedule">{shown.svg}</div>'
    body = BODY.format(
        title=escape(heading),
        state=escape(state),
        note=note,
        said=said(verdict.sentences(config, train, test, summary)),
        cards=cards(test, train, summary),
        curves=charts(config, train, test),
        schedule=said(shown.said) + (picture if shown.svg else ""),
        stages=wide("Stages", stage_table(config, summary)),
        incidents=incident_part(config, refused, stalls),
        command=wide("The command", f"<pre><code>{escape(options_part.command(config))}</code></pre>"),
        chosen=meanings(options_part.chosen(config)),
        options=pairs("All options", ((spelled(name), v) for name, v in options_part.of_run(config).items())),
        summary=pairs("Result", ((n, v) for n, v in summary.items() if v != "")) if summary else NO_SUMMARY,
        origin=pairs("Where it ran", rows),
    )
    return document(heading, body, STYLE)


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
        shown.append(("whole time, with compiling and evaluating", clock(summary["seconds"])))
    return "".join(f'<div class="card"><b>{escape(value)}</b><span>{name}</span></div>' for name, value in shown)


def incident_part(config: Mapping[str, Any], refused: Sequence[Incident], stalls: int) -> str:
    """What did not go as planned, as far as it was recorded; "" of nothing."""
    told = [f"After batch {each.step:,}: {each.fact}" for each in refused]
    if stalls:
        seconds = f"{config['stall_seconds']:g} s"
        told.append(f"{count(stalls, 'time')} something made no progress for {seconds} (stalls.jsonl).")
    if config.get("resumed"):
        anew = sum(session.get("batch") == 0 for session in config["resumed"])  # killed before its first checkpoint
        if times := len(config["resumed"]) - anew:
            told.append(f"It was resumed {count(times, 'time')} from a checkpoint, and went on exactly there.")
        if anew:
            told.append(f"It was begun anew {count(anew, 'time')}, as there was no checkpoint yet.")
    head = "What was refused, and where it went back" if refused or stalls else "Where it was resumed"
    return f"<h2>{head}</h2>{said(told, warn=bool(refused or stalls))}" if told else ""


def meanings(options: Mapping[str, Any]) -> str:
    """Options with their help texts, shortened."""
    named = [(spelled(name), text_of(value), options_part.meaning(name)) for name, value in options.items()]
    rows = [[f"<code>{escape(a)}</code>", f"<code>{escape(b)}</code>", escape(c)] for a, b, c in named]
    return wide("What was chosen", table(("option", "value", "meaning"), rows)) + ALL_ELSE



def pairs(label: str, rows: Iterable[tuple[str, Any]]) -> str:
    """Rows of (name, value) as HTML."""
    cells = [[escape(name), f"<code>{escape(text_of(value))}</code>"] for name, value in rows]
    return wide(label, table(("name", "value"), cells))


def text_of(value: Any) -> str:
    """A value for a person."""
    return f"{value:.6g}" if isinstance(value, float) else "–" if value is None else str(value)


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
