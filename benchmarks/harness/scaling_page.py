"""The results of `benchmarks.scaling` as a page (scaling.md), a short table and a picture."""

import textwrap
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.harness import report

COLOURS = {"none": "#7b8794", "nvlink": "#009e73", "pcie": "#0072b2", "fitted link": "#d55e00"}
MARKERS = {"one block": "s", "stage": "o", "link": "v", "host": "^", "waiting": "D"}
ORDERS = ("backward-first", "forward-first")


def document(rows: Sequence[dict[str, Any]], facts: Sequence[str], host: float) -> str:
    table7 = [r for r in rows if r["row"] == "table 7"]
    names = list(table7[0]["over_bp"])
    head = ["network", "K", "method", "paper: over BP", "even stages, a barrier a tick"]
    head += [f"predicted: {name}" for name in names]
    body = [
        [r["network"], str(r["K"]), r["method"], f"{r['paper_over_bp']:.2f}", f"{r['barrier_over_bp']:.2f}"]
        + [f"{r['over_bp'][name]:.2f} ({r['limiting'][name]})" for name in names]
        for r in table7
    ]
    scaling = [r for r in rows if r["row"] == "K"]
    keys = list(dict.fromkeys((r["network"], r["order"], r["K"]) for r in scaling))
    by_key = {(r["network"], r["order"], r["K"], r["link"]): r for r in scaling}
    links = list(dict.fromkeys(r["link"] for r in scaling))
    cells = [[by_key[(*key, name)] for name in links] for key in keys]
    more = [
        [network, order, str(K), *(f"{r['over_bp']:.2f} ({r['reason']})" for r in line)]
        for (network, order, K), line in zip(keys, cells, strict=True)
    ]
    return "\n\n".join(
        [
            "# Where FDG stops scaling, as the simulator predicts it",
            "Made by `.venv/bin/python -m benchmarks.scaling`. Nothing here is measured but the paper's column.",
            *facts,
            "## The paper's Table 7 (authors' splits)",
            report.markdown(head, body),
            words(rows),
            "## Beyond it (FDG, balanced split)",
            "![Speed-up over K](scaling.png)",
            f"A dispatch costs the host {host:g} us. Speed-up over BP on one device, and what limits it.",
            report.markdown(["network", "order", "K", *links], more),
            LIMITS,
        ]
    )


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """Where scaling stops: the least K that comes within a hundredth of the fastest."""
    lines: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for r in rows:
        if r["row"] == "K" and r["order"] == ORDERS[0]:
            lines.setdefault((r["network"], r["link"]), []).append(r)
    body = []
    for (network, link), line in lines.items():
        fastest = max(r["over_bp"] for r in line)
        stop = next(r for r in line if r["over_bp"] >= 0.99 * fastest)
        most = line[-1]
        body.append([network, link, str(stop["K"]), f"{stop['over_bp']:.2f}", stop["reason"]])
        body[-1] += [str(most["K"]), f"{most['over_bp']:.2f}", most["reason"]]
    head = ["network", "link", "fastest from K", "over BP", "limited by", "largest K", "over BP", "limited by"]
    return report.markdown(head, body)


def words(rows: Sequence[dict[str, Any]]) -> str:
    """The conclusions from the first table, with its figures."""
    by_key = {(r["network"], r["method"], r["K"]): r for r in rows if r["row"] == "table 7"}

    def predicted(network: str, method: str, K: int, link: str = "fitted link") -> float:
        return by_key[network, method, K]["over_bp"][link]

    def paper(network: str, method: str, K: int) -> float:
        return by_key[network, method, K]["paper_over_bp"]

    def ahead(of: Callable[[str, str, int], float]) -> str:
        first, second, third = (of("ResNet-101", "DGL", K) - of("ResNet-101", "FDG", K) for K in (2, 3, 4))
        return f"{first:.2f}, {second:.2f} and {third:.2f}"

    def each(of: Callable[[str, str, int], float], network: str, *Ks: int) -> str:
        return " and ".join(f"{of(network, 'FDG', K):.2f}" for K in Ks)

    blocking = predicted("ResNet-101", "FDG", 4, "fitted link, blocking")
    text = f"""
What limits: `stage` the slowest stage alone explains the time (copies that occupy it included), `link` and `host`
  likewise; `waiting`: none of them does, stages wait for each other's messages.

DDG and FR have no barrier at the end of a tick here, as in this package's host loop, and the paper's are slower than
  any predicted column says. With the barrier that its Table 2 assumes they come near to what it measured.

A PCIe link at its own speed would have cost next to nothing. For ResNet-101 FDG was as slow in the paper as over a
  link of the fitted speed, many times slower: by this model it was how messages were copied, not the wire.

Overlapping copies do not hide a slow link. Backward first, stage K sends its cotangent at the very end of a tick and
  stage K-1 wants it at the beginning of the next; its activations come just as late to stage K. So the loop through the
  two is longer than two ticks by two transfers: one transfer a batch is not hidden. DGL sends nothing down and hides
  all of it. So it is ahead of FDG by {ahead(predicted)} for ResNet-101 (K = 2, 3, 4), in the paper by {ahead(paper)}.

What the model does not explain: ResNet-101 is slower in the paper than over the fitted link with K = 3
  ({each(predicted, "ResNet-101", 3)} predicted, {each(paper, "ResNet-101", 3)}) and, where copies block as well, with
  K = 4 ({each(predicted, "ResNet-101", 4)} and {blocking:.2f}; {each(paper, "ResNet-101", 4)}): copies that share a
  bus would be. WRN-28-10 is faster in the paper with K = 2 and 3 ({each(predicted, "WRN-28-10", 2, 3)} predicted;
  {each(paper, "WRN-28-10", 2, 3)}) and slower with 4 ({each(predicted, "WRN-28-10", 4)};
  {each(paper, "WRN-28-10", 4)}), and faster throughout than where copies block, and so is DGL."""
    # Wrapped here, as figures have lengths of their own.
    points = (" ".join(point.split()) for point in text.strip().split("\n\n"))
    return "\n".join(textwrap.fill(f"- {point}", 120, subsequent_indent="  ") for point in points)


LIMITS = """\
- Fast links, WRN-28-10: stages of whole blocks are uneven (there are 14) until the slowest is one block and only
  finer blocks would help. ResNet-101 likewise, with more blocks and so later.
- ResNet-110: of many stages each takes so little that the host's thread, which dispatches all of them, is what limits
  (not with `--host-microseconds 0`).
- The fitted link: what is not hidden of it, and for ResNet-101 with many stages the link itself, as the balanced split
  then cuts early, where maps are large. Cuts that look at messages would do better; this split only looks at FLOPs.
- `forward-first` does stage K-1's forward pass while the cotangent travels: the loop through it and stage K spans three
  ticks instead of two, which hides transfers of up to half a tick where stages are even."""


def picture(rows: Sequence[dict[str, Any]], path: Path, host: float) -> None:
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    scaling = [r for r in rows if r["row"] == "K"]
    networks = list(dict.fromkeys(r["network"] for r in scaling))
    with rc_context({"font.family": "sans-serif", "font.size": 10}):
        figure = Figure(figsize=(12, 5.6), layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(
            f"FDG, predicted (no GPU measured): speed-up over BP on one device; {host:g} us of the host a dispatch. "
            "none, nvlink and pcie all but coincide.",
            x=0.01, ha="left",
        )  # fmt: skip
        for axes, network in zip(figure.subplots(1, len(networks)), networks, strict=True):
            of = [r for r in scaling if r["network"] == network]
            Ks = sorted({r["K"] for r in of})
            axes.plot(Ks, Ks, color="#dfe4ea", lw=1)
            for (link, colour), order in product(COLOURS.items(), ORDERS):
                line = [r for r in of if (r["link"], r["order"]) == (link, order)]
                first = order == ORDERS[0]
                places = [r["K"] for r in line], [r["over_bp"] for r in line]
                axes.plot(*places, color=colour, ls="-" if first else ":")
                for r in line if first else ():
                    axes.plot(r["K"], r["over_bp"], MARKERS[r["reason"]], color=colour, ms=6)
            axes.set(title=network, xlabel="K (devices)", ylabel="speed-up over BP", xlim=(0.5, max(Ks) + 0.5))
            axes.set_ylim(0, 1.15 * max(r["over_bp"] for r in of))
            axes.grid(color="#dfe4ea", lw=0.6)
        handles = [Line2D([], [], color=colour, label=f"link: {name}") for name, colour in COLOURS.items()]
        handles += [Line2D([], [], color="#52606d", marker=m, ls="", label=f"limit: {r}") for r, m in MARKERS.items()]
        handles += [Line2D([], [], color="#52606d", ls=ls, label=o) for o, ls in zip(ORDERS, "-:", strict=True)]
        figure.legend(handles=handles, loc="outside lower center", ncols=6, frameon=False)
        figure.savefig(path, dpi=120, metadata={"Software": None})
