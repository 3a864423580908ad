"""Where FDG stops scaling and why: the paper's Table 7 as the simulator predicts it, and K beyond it, for three links.

    .venv/bin/python -m benchmarks.scaling --out benchmarks/results

No GPU is measured. A block's forward pass takes time in proportion to its FLOPs (XLA's count), its backward pass twice
that (the first block's once, as images need no gradient), updates and auxiliary networks none. One constant per
network, FLOP/s, is fitted: to the paper's BP images/s. A second one, only for the column "fitted link", is fitted to
one number of the paper, FDG's images/s for ResNet-101 and K = 2; every other number of that column is a prediction.
ResNet-110 is not in Table 7 and takes WRN-28-10's FLOP/s, which flatters its narrow layers.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from benchmarks.harness import machines, report, scaling_page
from benchmarks.harness.machines import LINKS, BlockTimes
from benchmarks.harness.paper_speeds import SPEEDS
from fdg_jax import methods, models, split
from fdg_jax.errors import BadInput
from fdg_jax.schedule.ideal import COMPARED, tick_time
from fdg_jax.schedule.simulator import Link, Prediction, predict

HOST_MICROSECONDS = 100.0  # assumed for a dispatch; benchmarks.host_cost measures it


class Network(NamedTuple):
    """A network of the paper's Table 7.

    batch_size: the paper gives none. 128 is that of its code for CIFAR, 64 is assumed for ImageNet. It does not matter
        where latency and the host do not count.
    fitted_to: the network whose BP in Table 7 says how fast the device is.
    """

    label: str
    model: str
    batch_size: int
    classes: int
    image: tuple[int, int, int]
    Ks: Sequence[int]
    fitted_to: str


_WRN_Ks, _CIFAR_Ks = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14), (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 48, 56)
_IMAGENET_Ks = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 26, 35)
NETWORKS = (
    Network("WRN-28-10", "wrn28_10", 128, 10, (32, 32, 3), _WRN_Ks, "WRN-28-10"),
    Network("ResNet-110", "resnet110", 128, 10, (32, 32, 3), _CIFAR_Ks, "WRN-28-10"),
    Network("ResNet-101", "resnet101_imagenet", 64, 1000, (224, 224, 3), _IMAGENET_Ks, "ResNet-101"),
)


class Measures(NamedTuple):
    """For each block of a network and one batch: FLOPs of the forward pass, and bytes of the output."""

    flops: list[float]
    sends: list[int]


def measures(network: Network) -> Measures:
    import jax
    import numpy as np

    x: Any = jax.ShapeDtypeStruct((network.batch_size, *network.image), np.float32)
    flops = split.block_costs(network.model, network.classes, (1, *network.image))
    sends = []
    for block in models.blocks(network.model, network.classes):
        made = jax.eval_shape(lambda x, block=block: block.init_with_output(jax.random.key(0), x, False)[0], x)
        sends.append(int(np.prod(made.shape)) * 4)
        x = jax.ShapeDtypeStruct(made.shape, made.dtype)
    return Measures([network.batch_size * n for n in flops], sends)


def flops_per_second(network: Network, of: Measures) -> float:
    """The device's FLOP/s with which BP reaches the paper's images per second."""
    (bp,) = [float(s.images_per_second) for s in SPEEDS if (s.network, s.method) == (network.label, "BP")]
    return (sum(of.flops) + sum(backward(of))) * bp / network.batch_size


def backward(of: Measures) -> list[float]:
    """FLOPs of each block's backward pass."""
    return [of.flops[0], *(2 * n for n in of.flops[1:])]


def times_of(of: Measures, speed: float) -> BlockTimes:
    """Seconds of the blocks on a device with so many FLOP/s."""
    return BlockTimes([n / speed for n in of.flops], [n / speed for n in backward(of)], [0.0] * len(of.flops))


def run(
    times: BlockTimes, of: Measures, cuts: Sequence[int], method: str, link: Link, host: float = 0.0, **options: Any
) -> Prediction:
    """Simulates a method.

    host: microseconds of a dispatch.
    options: the schedule's.
    """
    sizes = {("x", k + 1): of.sends[cut - 1] for k, cut in enumerate(cuts, 1)}
    sizes |= {("dy", k): of.sends[cut - 1] for k, cut in enumerate(cuts, 1)}
    schedule = methods.find(method).schedule(len(cuts) + 1, **options)
    machine = machines.of_blocks(times, cuts, schedule, link=link, size=machines.sizes(sizes))
    return predict(schedule, machine._replace(host_seconds=lambda kind, k: host * 1e-6))


def fitted_link(network: Network, times: BlockTimes, of: Measures, overlaps: bool) -> Link:
    """The bandwidth with which FDG, K = 2, is as fast as in the paper.

    By bisection: slower links are never faster.
    """
    speeds = {(s.network, s.method, s.K): float(s.images_per_second) for s in SPEEDS}
    wanted = speeds[network.label, "FDG", 2]
    cuts = models.paper_split(network.model, 2)
    assert cuts
    slow, fast = 1e8, 1e11
    for _ in range(24):
        middle = (slow * fast) ** 0.5
        speed = network.batch_size / run(times, of, cuts, "fdg", Link(0, 1 / middle, overlaps)).seconds
        slow, fast = (middle, fast) if speed < wanted else (slow, middle)
    return Link(0, 1 / fast, overlaps)


def reason(found: Prediction, cuts: Sequence[int], times: BlockTimes) -> str:
    """What limits the speed. It is "one block" if the slowest stage is a single block, so that no cut helps."""
    if found.limiting != "stage":
        return found.limiting
    ends = (0, *cuts, len(times.F))
    stages = [(sum(times.F[a:b]) + sum(times.B[a:b]), b - a) for a, b in pairwise(ends)]
    return "one block" if max(stages)[1] == 1 else "stage"


def paper_rows(network: Network, times: BlockTimes, of: Measures, links: Mapping[str, Link]) -> list[dict[str, Any]]:
    bp = network.batch_size / (sum(times.F) + sum(times.B))
    rows = []
    for speed in SPEEDS:
        if speed.network != network.label or speed.method == "BP":
            continue
        cuts = models.paper_split(network.model, speed.K)
        assert cuts
        found = {name: run(times, of, cuts, speed.method.lower(), link) for name, link in links.items()}
        rows.append(
            {
                "benchmark": "scaling",
                "row": "table 7",
                "network": network.label,
                "K": speed.K,
                "method": speed.method,
                "paper_images_per_second": float(speed.images_per_second),
                "paper_over_bp": float(speed.images_per_second) / bp,
                "over_bp": {name: network.batch_size / each.seconds / bp for name, each in found.items()},
                "limiting": {name: each.limiting for name, each in found.items()},
                "barrier_over_bp": with_barrier(speed.method.lower(), speed.K),
            }
        )
    return rows


def with_barrier(method: str, K: int) -> float:
    """Speed-up over BP with even stages, no link, and a barrier at the end of each tick: the paper's Table 2."""
    found = methods.find(method)
    time = tick_time(found.schedule(K), found.costs(K), COMPARED).at(COMPARED)
    return float((COMPARED.Tf + COMPARED.Tb) / time)


def scaling_rows(
    network: Network, times: BlockTimes, of: Measures, links: Mapping[str, Link], host: float, order: str
) -> list[dict[str, Any]]:
    alone, rows = sum(times.F) + sum(times.B), []
    for K in network.Ks:
        cuts = split.balanced([f + b for f, b in zip(times.F, times.B, strict=True)], K) if K > 1 else ()
        for name, link in links.items():
            found = run(times, of, cuts, "fdg", link, host, order=order)
            rows.append(
                {
                    "benchmark": "scaling",
                    "row": "K",
                    "network": network.label,
                    "order": order,
                    "K": K,
                    "cuts": list(cuts),
                    "link": name,
                    "over_bp": alone / found.seconds,
                    "reason": reason(found, cuts, times),
                    "host_microseconds": host,
                }
            )
    return rows


def parser() -> argparse.ArgumentParser:
    made = report.parser("scaling", __doc__)
    made.add_argument("--out", default="benchmarks/results", help="folder for scaling.md and scaling.png")
    dispatch = f"a dispatch (default {HOST_MICROSECONDS:g})"
    made.add_argument("--host-microseconds", type=float, default=HOST_MICROSECONDS, help=dispatch)
    return made


def main(arguments: list[str] | None = None) -> int:
    try:
        given = parser().parse_args(arguments)
        host = given.host_microseconds
        if not host >= 0:
            raise BadInput(f"--host-microseconds {host}: give 0 or more.")
        report.check_json(given.json)
        out = report.folder(given.out)
        known = {network.label: measures(network) for network in NETWORKS}
        speeds = {n.label: flops_per_second(n, known[n.label]) for n in NETWORKS if n.fitted_to == n.label}
        of = {n.label: times_of(known[n.label], speeds[n.fitted_to]) for n in NETWORKS}
        last = NETWORKS[-1]
        slow, blocking = (fitted_link(last, of[last.label], known[last.label], how) for how in (True, False))
        links = {**{name: LINKS[name] for name in ("none", "nvlink", "pcie")}, "fitted link": slow}
        rows: list[dict[str, Any]] = []
        for network in NETWORKS:
            times, measured = of[network.label], known[network.label]
            rows += paper_rows(network, times, measured, {**links, "fitted link, blocking": blocking})
            for order in scaling_page.ORDERS:
                rows += scaling_rows(network, times, measured, links, host, order)
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    facts = [
        f"{network.label}: batch {network.batch_size}, one constant fitted to the images/s of {network.fitted_to} with "
        f"BP: {speeds[network.fitted_to] / 1e12:.2f} TFLOP/s."
        for network in NETWORKS
    ]  # fmt: skip
    facts.append("A batch of 64 is assumed, the paper does not say. Latency and the host apart it does not matter.")
    facts.append(
        "Links: pcie 10 us and 12 GB/s, nvlink 5 us and 45 GB/s, overlapping copies. Fitted link: "
        f"{1e-9 / slow[1]:.2f} GB/s, "
        f"fitted to FDG's images/s for {last.label} and K = 2; {1e-9 / blocking[1]:.2f} GB/s where a copy occupies the "
        "stage that sends (blocking)."
    )  # fmt: skip
    (out / "scaling.md").write_text(scaling_page.document(rows, facts, host) + "\n", encoding="utf-8")
    scaling_page.picture(rows, out / "scaling.png", host)
    note = f"Predicted; {host:g} us of the host a dispatch. In {out}: scaling.md (every K, Table 7), scaling.png."
    report.emit(rows, f"{scaling_page.summary(rows)}\n\n{note}", given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
