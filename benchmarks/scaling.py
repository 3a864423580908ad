"""Where FDG stops scaling and why: the simulator predicts the paper's Table 7, and larger K, for three links.

    .venv/bin/python -m benchmarks.scaling --out benchmarks/results

No GPU is measured. A block's forward pass takes time in proportion to its FLOPs (XLA's count). Its backward pass takes
twice this time (in the first block once, since images need no gradient). Updates and auxiliary networks take no time.
One constant per network, FLOP/s, is fitted to the paper's BP images/s. Only for the column "fitted link", a second
constant is fitted to the paper's images/s of FDG for ResNet-101 and K = 2. All other numbers of this column are
predictions. ResNet-110 is not in Table 7. It is given WRN-28-10's FLOP/s, which flatters its narrow layers.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks.harness import machines, paper_speeds, report
from benchmarks.harness.machines import LINKS, BlockTimes
from fdg_jax import methods, models, split
from fdg_jax.errors import BadInput
from fdg_jax.pages.charts import canvas, plain
from fdg_jax.schedule.ideal import COMPARED, tick_time
from fdg_jax.schedule.simulator import Link, Prediction, predict
from fdg_jax.stages.shapes import with_examples

COLOURS = {"none": "#7b8794", "nvlink": "#009e73", "pcie": "#0072b2", "fitted link": "#d55e00"}
MARKERS = {"one block": "s", "stage": "o", "link": "v", "host": "^", "waiting": "D"}
ORDERS = {"backward-first": "-", "forward-first": ":"}
PAPER = {(s.network, s.method, s.K): float(s.images_per_second) for s in paper_speeds.SPEEDS}
HOST_MICROSECONDS = 100.0  # assumed time of a dispatch; benchmarks.host_cost measures it


class Network(NamedTuple):
    """A network of the paper's Table 7.

    batch_size: the paper gives none. 128 is from the paper's code for CIFAR, 64 is assumed for ImageNet. The batch size
        only matters if latency or the host's time counts.
    fitted_to: the network whose BP in Table 7 gives the speed of the device.
    """

    label: str
    model: str
    batch_size: int
    Ks: Sequence[int]
    fitted_to: str


_WRN_Ks, _CIFAR_Ks = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14), (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 48, 56)
_IMAGENET_Ks = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 26, 35)
NETWORKS = (
    Network("WRN-28-10", "wrn28_10", 128, _WRN_Ks, "WRN-28-10"),
    Network("ResNet-110", "resnet110", 128, _CIFAR_Ks, "WRN-28-10"),
    Network("ResNet-101", "resnet101_imagenet", 64, _IMAGENET_Ks, "ResNet-101"),
)


class Measures(NamedTuple):
    """For each block of a network and one batch: FLOPs of the forward pass, and bytes of the output."""

    flops: list[float]
    sends: list[int]


def network_of(model: str) -> tuple[list[Any], Any, Any]:
    """The blocks of a model, and the shapes of an example and of its label: 1,024 tokens of GPT-2's vocabulary, an
    image of ImageNet or of CIFAR-10."""
    tokens = jax.ShapeDtypeStruct((1, 1024), np.int32)
    if models.takes(model) == "tokens":
        return models.blocks(model, 50257), tokens, tokens
    classes, size = (1000, 224) if model.endswith("_imagenet") else (10, 32)
    image = jax.ShapeDtypeStruct((1, size, size, 3), np.float32)
    return models.blocks(model, classes), image, jax.ShapeDtypeStruct((1,), np.int32)


def measures(network: Network) -> Measures:
    blocks, x, _ = network_of(network.model)
    flops, x, sends = split.costs(blocks, x), with_examples(x, network.batch_size), []
    for block in blocks:
        x = jax.eval_shape(lambda x, block=block: block.init_with_output(jax.random.key(0), x, False)[0], x)
        sends.append(int(np.prod(x.shape)) * 4)
    return Measures([network.batch_size * n for n in flops], sends)


def flops_per_second(network: Network, of: Measures) -> float:
    """The device's FLOP/s with which BP reaches the paper's images per second."""
    return (sum(of.flops) + sum(backward(of.flops))) * PAPER[network.label, "BP", 1] / network.batch_size


def backward(flops: Sequence[float]) -> list[float]:
    """FLOPs of each block's backward pass, from those of its forward pass."""
    return [flops[0], *(2 * n for n in flops[1:])]


def times_of(flops: Sequence[float], speed: float) -> BlockTimes:
    """Seconds of the blocks on a device with so many FLOP/s."""
    return BlockTimes([n / speed for n in flops], [n / speed for n in backward(flops)], [0.0] * len(flops))


def run(
    times: BlockTimes, of: Measures, cuts: Sequence[int], method: str, link: Link, host: float = 0.0, **options: Any
) -> Prediction:
    """Simulates a method.

    host: microseconds of a dispatch.
    options: the schedule's.
    """
    sizes = {key: of.sends[cut - 1] for k, cut in enumerate(cuts, 1) for key in (("x", k + 1), ("dy", k))}
    schedule = methods.find(method).schedule(len(cuts) + 1, **options)
    machine = machines.of_blocks(times, cuts, schedule, link=link, size=machines.sizes(sizes))
    return predict(schedule, machine._replace(host_seconds=lambda kind, k: host * 1e-6))


def fitted_link(network: Network, times: BlockTimes, of: Measures, overlaps: bool) -> Link:
    """The bandwidth with which FDG, K = 2, is as fast as in the paper.

    It is found by bisection, since a slower link never gives a higher speed.
    """
    cuts, slow, fast = models.paper_split(network.model, 2) or (), 1e8, 1e11
    for _ in range(24):
        middle = (slow * fast) ** 0.5
        speed = network.batch_size / run(times, of, cuts, "fdg", Link(0, 1 / middle, overlaps)).seconds
        slow, fast = (middle, fast) if speed < PAPER[network.label, "FDG", 2] else (slow, middle)
    return Link(0, 1 / fast, overlaps)


def reason(found: Prediction, cuts: Sequence[int], times: BlockTimes) -> str:
    """What limits the speed, such as "one block" if the slowest stage is a single block, so that no cut helps."""
    if found.limiting != "stage":
        return found.limiting
    ends = (0, *cuts, len(times.F))
    stages = [(sum(times.F[a:b]) + sum(times.B[a:b]), b - a) for a, b in pairwise(ends)]
    return "one block" if max(stages)[1] == 1 else "stage"


def paper_rows(network: Network, times: BlockTimes, of: Measures, links: Mapping[str, Link]) -> list[dict[str, Any]]:
    bp, rows = network.batch_size / (sum(times.F) + sum(times.B)), []
    for (name, method, K), speed in PAPER.items():
        if name != network.label or method == "BP":
            continue
        cuts = models.paper_split(network.model, K) or ()
        found = {name: run(times, of, cuts, method.lower(), link) for name, link in links.items()}
        about = {"row": "table 7", "network": network.label, "K": K, "method": method, "paper_images_per_second": speed}
        over = {name: network.batch_size / each.seconds / bp for name, each in found.items()}
        barrier = {"paper_over_bp": speed / bp, "barrier_over_bp": with_barrier(method.lower(), K)}
        limiting = {name: each.limiting for name, each in found.items()}
        rows.append({**about, **barrier, "over_bp": over, "limiting": limiting})
    return rows


def with_barrier(method: str, K: int) -> float:
    """Speed-up over BP with even stages, no link, and a barrier at the end of each tick: the paper's Table 2."""
    found = methods.find(method)
    time = tick_time(found.schedule(K), found.costs(K), COMPARED).at(COMPARED)
    return float((COMPARED.Tf + COMPARED.Tb) / time)


def scaling_rows(
    network: Network, times: BlockTimes, of: Measures, links: Mapping[str, Link], host: float
) -> list[dict[str, Any]]:
    alone, rows = sum(times.F) + sum(times.B), []
    for order, K in product(ORDERS, network.Ks):
        cuts = split.balanced([f + b for f, b in zip(times.F, times.B, strict=True)], K) if K > 1 else ()
        about = {"row": "K", "network": network.label, "order": order, "K": K}
        for name, link in links.items():
            found = run(times, of, cuts, "fdg", link, host, order=order)
            told = {"over_bp": alone / found.seconds, "reason": reason(found, cuts, times), "host_microseconds": host}
            rows.append({**about, "cuts": list(cuts), "link": name, **told})
    return rows


def parser() -> report.Parser:
    made = report.parser("scaling", __doc__)
    made.add_argument("--out", default="benchmarks/results", help="folder for scaling.md and scaling.png")
    made.add_argument("--host-microseconds", type=float, default=HOST_MICROSECONDS, help="a dispatch (default 100)")
    return made


def results(given: report.Given) -> list[dict[str, Any]]:
    if not given.host_microseconds >= 0:
        raise BadInput(f"--host-microseconds {given.host_microseconds}: give 0 or more.")
    out = report.folder(given.out)
    known = {network.label: measures(network) for network in NETWORKS}
    speeds = {n.label: flops_per_second(n, known[n.label]) for n in NETWORKS if n.fitted_to == n.label}
    of = {n.label: times_of(known[n.label].flops, speeds[n.fitted_to]) for n in NETWORKS}
    last = NETWORKS[-1]
    slow, blocking = (fitted_link(last, of[last.label], known[last.label], how) for how in (True, False))
    links = {**{name: LINKS[name] for name in ("none", "nvlink", "pcie")}, "fitted link": slow}
    rows: list[dict[str, Any]] = []
    for network in NETWORKS:
        times, measured = of[network.label], known[network.label]
        rows += paper_rows(network, times, measured, {**links, "fitted link, blocking": blocking})
        rows += scaling_rows(network, times, measured, links, given.host_microseconds)
    facts = [f"{n.label}: batch {n.batch_size}. The speed of computation is fitted to BP with {n.fitted_to}: "
             f"{speeds[n.fitted_to] / 1e12:.2f} TFLOP/s." for n in NETWORKS]  # fmt: skip
    facts.append("A batch of 64 is assumed, as the paper names none. It matters only for latency and the host's time.")
    about = "Links: pcie 10 us and 12 GB/s, nvlink 5 us and 45 GB/s, overlapping copies. Fitted link: "
    about += f"{1e-9 / slow[1]:.2f} GB/s, fitted to FDG's images/s for {last.label} and K = 2; "
    facts.append(f"{about}{1e-9 / blocking[1]:.2f} GB/s where a copy occupies the stage that sends (blocking).")
    into(out / "scaling.md", {"facts": "\n\n".join(facts), **tables(rows, given.host_microseconds)})
    picture(rows, out / "scaling.png", given.host_microseconds)
    return rows


def into(page: Path, blocks: Mapping[str, str]) -> None:
    """Writes each block between `<!-- NAME -->` and `<!-- end -->` of a page, which is made if it is missing."""
    empty = "\n\n".join(f"<!-- {name} -->\n\n<!-- end -->" for name in blocks)
    text = page.read_text(encoding="utf-8") if page.is_file() else f"{empty}\n"
    for name, block in blocks.items():
        before, _, rest = text.partition(f"<!-- {name} -->\n")
        text = f"{before}<!-- {name} -->\n\n{block}\n\n<!-- end -->{rest.partition('<!-- end -->')[2]}"
    page.write_text(text, encoding="utf-8")


def tables(rows: report.Rows, host: float) -> dict[str, str]:
    """The blocks of the page scaling.md: the paper's Table 7, and every K beyond it."""
    table7, scaling = ([r for r in rows if r["row"] == kind] for kind in ("table 7", "K"))
    paper: dict[str, report.Cell] = {
        "network": "{network}", "K": "{K}", "method": "{method}", "paper: over BP": "{paper_over_bp:.2f}",
        "even stages, a barrier a tick": "{barrier_over_bp:.2f}",
    }  # fmt: skip
    for name in table7[0]["over_bp"]:
        paper[f"predicted: {name}"] = f"{{over_bp[{name}]:.2f}} ({{limiting[{name}]}})"
    lines: dict[Any, dict[str, Any]] = {}
    for r in scaling:
        about = {name: r[name] for name in ("network", "order", "K")}
        line = lines.setdefault(tuple(about.values()), about)
        line[r["link"]] = f"{r['over_bp']:.2f} ({r['reason']})"
    every = {name: f"{{{name}}}" for name in ("network", "order", "K", *dict.fromkeys(r["link"] for r in scaling))}
    note = f"A dispatch costs the host {host:g} us. Cells: speed-up over BP on one device (its limit)."
    all_K = f"{note}\n\n{report.table(every, list(lines.values()))}"
    return {"table 7": report.table(paper, table7), "every K": all_K}


def table(rows: report.Rows, given: report.Given) -> str:
    """A table of where scaling stops: the least K whose speed is within 1% of the fastest K's."""
    scaling, body = [r for r in rows if r["row"] == "K"], []
    for network, link in dict.fromkeys((r["network"], r["link"]) for r in scaling):
        of = [r for r in scaling if (r["network"], r["link"], r["order"]) == (network, link, "backward-first")]
        first = next(r for r in of if r["over_bp"] >= 0.99 * max(each["over_bp"] for each in of))
        body.append([network, link, *(each for r in (first, of[-1])
                                      for each in (str(r["K"]), f"{r['over_bp']:.2f}", r["reason"]))])  # fmt: skip
    head = ["network", "link", "fastest from K", "over BP", "limited by", "largest K", "over BP", "limited by"]
    note = f"Predicted; {given.host_microseconds:g} us of the host per dispatch. In {given.out}: scaling.md (every K, "
    return f"{report.markdown(head, body)}\n\n{note}Table 7), scaling.png."


def picture(rows: report.Rows, path: Path, host: float) -> None:
    from matplotlib.lines import Line2D

    scaling = [r for r in rows if r["row"] == "K"]
    networks = list(dict.fromkeys(r["network"] for r in scaling))
    title = f"FDG, predicted (no GPU measured): speed-up over BP on one device; {host:g} us of the host per dispatch."
    with canvas(path, f"{title} The lines of none, nvlink and pcie nearly coincide.", (12, 5.6)) as figure:
        for axes, network in zip(figure.subplots(1, len(networks)), networks, strict=True):
            of = [r for r in scaling if r["network"] == network]
            Ks = sorted({r["K"] for r in of})
            axes.plot(Ks, Ks, color="#dfe4ea", lw=1)
            for (link, colour), (order, style) in product(COLOURS.items(), ORDERS.items()):
                line = [r for r in of if (r["link"], r["order"]) == (link, order)]
                axes.plot([r["K"] for r in line], [r["over_bp"] for r in line], color=colour, ls=style)
                for r in line if order == "backward-first" else ():
                    axes.plot(r["K"], r["over_bp"], MARKERS[r["reason"]], color=colour, ms=6)
            axes.set(title=network, xlabel="K (devices)", ylabel="speed-up over BP", xlim=(0.5, max(Ks) + 0.5))
            axes.set_ylim(0, 1.15 * max(r["over_bp"] for r in of))
            plain(axes)
        handles = [Line2D([], [], color=colour, label=f"link: {name}") for name, colour in COLOURS.items()]
        handles += [Line2D([], [], color="#52606d", marker=m, ls="", label=f"limit: {r}") for r, m in MARKERS.items()]
        handles += [Line2D([], [], color="#52606d", ls=ls, label=order) for order, ls in ORDERS.items()]
        figure.legend(handles=handles, loc="outside lower center", ncols=6, frameon=False)


main = report.run(__name__, parser, results, table)
