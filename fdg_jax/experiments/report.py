"""What a person looks at: report.html, one page that needs nothing beside it, and curves.png.

Everything comes from the run directory's own files, so that a report can be made again, or for a run that was
killed: `python -m fdg_jax.experiments.report RUN-DIRECTORY`.
"""

import html
import io
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fdg_jax.errors import BadInput
from fdg_jax.experiments.options import FIELDS, spelled
from fdg_jax.experiments.progress import clock
from fdg_jax.experiments.run_directory import CONFIG, METRICS, SUMMARY, read_json, read_metrics

INK, TRAIN, TEST, FAINT = "#1f2933", "#2b6cb0", "#c05621", "#d5dbe1"
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
  grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); }}
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


def write(run: Path) -> None:
    """Makes report.html and curves.png of a run directory, finished or not."""
    config, events = read_json(run / CONFIG), read_metrics(run / METRICS)
    summary = read_json(run / SUMMARY) if (run / SUMMARY).is_file() else {}
    svg = draw(config, events, run / "curves.png")
    beside = run / "report.html.part"
    beside.write_text(page(config, events, summary, svg))
    beside.replace(run / "report.html")


def draw(config: dict[str, Any], events: list[dict[str, Any]], png: Path) -> str:
    """Training loss and test error over epochs, learning rates marked: a PNG file, and SVG text."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": "fdg_jax",
        "font.family": "sans-serif",
        "font.size": 10,
    }
    with rc_context(style):
        figure = Figure(figsize=(9, 6), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True)
        train = [event for event in events if event.get("train_loss") is not None]
        test = [event for event in events if event.get("test_error_percent") is not None]
        line(above, train, "train_loss", TRAIN, "training loss")
        line(below, test, "test_error_percent", TEST, "test error (%)", marker="o" if len(test) <= 60 else "")
        if test:
            last = test[-1]
            below.annotate(
                f"{last['test_error_percent']:.2f}%", (last["epoch"], last["test_error_percent"]),
                xytext=(-4, 8), textcoords="offset points", ha="right", color=TEST, weight="bold",
            )  # fmt: skip
        mark_learning_rates((above, below), train)
        below.set_xlabel("epoch")
        below.set_xlim(left=0)
        above.set_title(title(config), loc="left", color=INK, pad=32)
        figure.savefig(png, dpi=130, metadata={"Software": None})
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def line(axes, events: list[dict[str, Any]], name: str, colour: str, label: str, marker: str = "") -> None:
    """One curve. Many points are drawn faintly, their mean over a fiftieth of the run on top."""
    x, y = [event["epoch"] for event in events], [event[name] for event in events]
    width = len(y) // 50
    axes.plot(x, y, color=colour, marker=marker, markersize=3.5, lw=1.6, alpha=0.3 if width > 1 else 1)
    if width > 1:
        means = [sum(y[max(0, i - width + 1) : i + 1]) / min(width, i + 1) for i in range(len(y))]
        axes.plot(x, means, color=colour, lw=1.8)
    axes.set_ylabel(label, color=colour)
    axes.grid(color=FAINT, lw=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if y:
        axes.set_ylim(bottom=0)
    else:
        axes.text(0.5, 0.5, "nothing yet", transform=axes.transAxes, ha="center", color="#7b8794")


def mark_learning_rates(both, train: list[dict[str, Any]]) -> None:
    """A dashed line and the new value where the learning rate changes; crowded labels go one higher."""
    before, last, level = None, 0.0, 0
    span = train[-1]["epoch"] if train else 1.0
    for event in train:
        rate, x = event["learning_rate"], 0.0 if before is None else event["epoch"]
        if rate == before:
            continue
        for axes in both:
            if x:
                axes.axvline(x, color="#9aa5b1", lw=0.9, ls="--", zorder=0)
        level = 1 - level if before is not None and x - last < 0.15 * span else 0
        both[0].annotate(
            ("learning rate " if before is None else "") + f"{rate:g}", (x, 1), xytext=(0, 4 + 11 * level),
            xycoords=("data", "axes fraction"), textcoords="offset points", fontsize=8, color="#52606d",
        )  # fmt: skip
        before, last = rate, x


def title(config: dict[str, Any]) -> str:
    beta = f", β={config['beta']:g}" if config["method"] != "bp" and config["K"] > 1 else ""
    return f"{config['model']} on {config['dataset']}: {config['method'].upper()} with K={config['K']}{beta}"


def page(config: dict[str, Any], events: list[dict[str, Any]], summary: dict[str, Any], svg: str) -> str:
    test = [event for event in events if event.get("test_error_percent") is not None]
    train = [event for event in events if event.get("train_loss") is not None]
    state = "finished" if summary else "not finished"
    step, epoch = (events[-1]["step"], events[-1]["epoch"]) if events else (0, 0)
    done = f"{step:,} batches, {epoch:g} epochs"
    note = f'<p class="note"><b>Note.</b> {html.escape(config["note"])}</p>' if config.get("note") else ""
    stages, origin = stage_rows(config, summary), ("backend", "cpus", "platform", "git_commit", "started")
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
    """The four numbers one looks for first."""
    speed = summary.get("images_per_second") or (train[-1].get("images_per_second") if train else None)
    shown = [
        ("test error, last", f"{test[-1]['test_error_percent']:.2f}%" if test else "–"),
        ("test error, best", f"{min(e['test_error_percent'] for e in test):.2f}%" if test else "–"),
        ("training loss", f"{summary.get('train_loss') or train[-1]['train_loss']:.4f}" if train else "–"),
        ("images a second", f"{speed:,.0f}" if speed else "–"),
        ("time", clock(summary["seconds"]) if summary else "–"),
    ]
    return "".join(f'<div class="card"><b>{html.escape(value)}</b><span>{name}</span></div>' for name, value in shown)


def stage_rows(config: dict[str, Any], summary: dict[str, Any]) -> str:
    heads = ("k", "staleness, measured (updates)", "updates made", "parameters", "device")
    head = "<tr>" + "".join(f"<th>{name}</th>" for name in heads) + "</tr>"
    rows = []
    for k, device in enumerate(config["devices"], 1):
        cells = [summary.get(name, [])[k - 1 : k] for name in ("staleness", "updates", "stage_parameters")]
        shown = [f"{cell[0]:,}" if cell else "–" for cell in cells]
        rows.append("<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in (k, *shown, device)) + "</tr>")
    return head + "".join(rows)


def table(rows: Iterable[tuple[str, Any]]) -> str:
    def shown(value: Any) -> str:
        if isinstance(value, float):
            return f"{value:.6g}"
        return "–" if value is None else str(value)

    return "".join(
        f"<tr><th>{html.escape(name)}</th><td><code>{html.escape(shown(value))}</code></td></tr>"
        for name, value in rows
    )


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m fdg_jax.experiments.report RUN-DIRECTORY", file=sys.stderr)
        return 2
    try:
        write(Path(arguments[0]))
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(Path(arguments[0]) / "report.html")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
