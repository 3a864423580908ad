"""Makes the machine on which the simulator runs a schedule from measured times, or from times in a file."""

import functools
import json
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from fdg_jax import methods
from fdg_jax.errors import BadInput
from fdg_jax.schedule import Schedule
from fdg_jax.schedule.hardware import NO_LINK, Link, Machine, ring_seconds, slowest

# Seconds and bytes per second in one direction. PCIe 3.0 x16 gives about 12 of its 15.75 GB/s. NVLink 2.0 with two
# links (V100, neighbours) has 50 GB/s, of which transfers reach about nine tenths.
LINKS = {"none": Link(), "pcie": Link(10e-6, 1 / 12e9), "nvlink": Link(5e-6, 1 / 45e9)}


# Factors to seconds and to bytes a second; without a unit: microseconds and GB/s.
LATENCY_UNITS = {"": 1e-6, "us": 1e-6, "ms": 1e-3, "s": 1.0}
BANDWIDTH_UNITS = {"": 1e9, "GB/s": 1e9, "MB/s": 1e6, "Gbit/s": 1e9 / 8, "Mbit/s": 1e6 / 8}


def link(text: str) -> Link:
    """Reads a link: pcie, nvlink, none, or <latency>,<bandwidth> such as 10ms,1Gbit/s.

    Without units, latency is in microseconds and bandwidth in GB/s.
    """
    if text in LINKS:
        return LINKS[text]
    latency, _, bandwidth = text.partition(",")
    seconds, speed = quantity(latency, LATENCY_UNITS), quantity(bandwidth, BANDWIDTH_UNITS)
    if seconds is None or not speed:
        units = f"units {', '.join(filter(None, LATENCY_UNITS))}; {', '.join(filter(None, BANDWIDTH_UNITS))}"
        fact = f"--link {text} is neither {', '.join(LINKS)} nor <latency>,<bandwidth> such as 10ms,1Gbit/s"
        raise BadInput(f"{fact} ({units}; without them us and GB/s).")
    return Link(seconds, 1 / speed)


def quantity(text: str, units: Mapping[str, float]) -> float | None:
    """A number of 0 or more, times the factor of the unit after it, such as 10ms; None if the text has another form."""
    found = re.fullmatch(r"(\d+\.?\d*(?:e-?\d+)?)([a-zA-Z/]*)", text)
    return float(found[1]) * units[found[2]] if found and found[2] in units else None


class BlockTimes(NamedTuple):
    """Seconds of each block's forward pass, backward pass and update, and of one auxiliary network."""

    F: Sequence[float]
    B: Sequence[float]
    U: Sequence[float]
    auxiliary: float = 0.0


def read(path: str, blocks: int) -> BlockTimes:
    """Reads a file {"F": [seconds of each block], "B": [...], "U": [...], "auxiliary": seconds}.

    U and auxiliary may be missing.
    """
    try:
        times = BlockTimes(**{"U": [0.0] * blocks, **json.loads(Path(path).read_text(encoding="utf-8"))})
        numbers = [*times.F, *times.B, *times.U, times.auxiliary]
        if {len(times.F), len(times.B), len(times.U)} != {blocks} or not all(0 <= n < math.inf for n in numbers):
            raise ValueError(f"these are not the times of {blocks} blocks")
    except (OSError, ValueError, TypeError) as error:
        holds = f'{{"F": [...], "B": [...], "U": [...], "auxiliary": 0.0}}, seconds of each of {blocks} blocks'
        raise BadInput(f"--times {path} cannot be read ({error}). It holds {holds}.") from None
    return times


def of_blocks(
    times: BlockTimes, cuts: Sequence[int], schedule: Schedule, weights: Sequence[int] = (), **machine: Any
) -> Machine:
    """Makes a machine whose stages are sums of blocks. A method's `cost` says which parts its operations have.

    Stage K has no auxiliary network. A replica of data parallel takes 1/K of the time for 1/K of a batch, and a
    micro-batch of GPipe takes 1/M. This is the best case. The update takes the same time everywhere.

    weights: bytes of each stage's weights. After every backward pass, data parallel averages gradients by a ring
        all-reduce over the link, which sends 2 (K-1)/K of these bytes each way.
    """
    method, K = methods.find(schedule.name), schedule.K
    bounds = list(pairwise((0, *cuts, len(times.F))))
    costs = method.costs(K)
    parts, links = schedule.micro_batches, machine.get("link", NO_LINK)
    wire = links if isinstance(links, Link) else slowest(links)

    def seconds(kind: str, k: int) -> float:
        a, b = bounds[k - 1]
        if kind == "U":
            return sum(times.U[a:b])
        if kind not in costs:
            return 0.0
        f, back, aux = costs[kind]
        own = times.auxiliary * aux if k < K else 0.0
        taken = (f * sum(times.F[a:b]) + back * sum(times.B[a:b]) + own) / parts
        if kind == "B" and method.places and K > 1:
            taken += ring_seconds(K, weights[k - 1], wire)
        return taken

    if method.places:
        machine["link"] = NO_LINK  # nothing else is sent
    return Machine(functools.cache(seconds), spread=method.places is not None, **machine)


def of_operations(timed: Mapping[str, Any], name: str, cores: int | None, **machine: Any) -> Machine:
    """Makes a machine for the method `name` from its times (benchmarks.harness.operation_times.measure).

    cores: how many cores the stages share; None: a core for each stage. A stage's messages take the measured time of
        sending them, because the process copies them.
    """
    alone, host = timed["alone"]["device"], timed["alone"]["host"]
    crowded = timed["crowded"] or alone

    def seconds(kind: str, k: int) -> float:
        return crowded.get(f"{kind}/{k}", alone.get(f"{kind}/{k}", 0.0))

    def faster(kind: str, k: int) -> float:
        one = alone.get(f"{kind}/{k}", 0.0)
        return max(1.0, seconds(kind, k) / one) if one else 1.0

    def dispatch(kind: str, k: int) -> float:
        if kind == "send":  # every message is one array
            return statistics.fmean([taken for what, taken in host.items() if what.startswith("send")] or [0.0])
        return host.get(f"{kind}/{k}", 0.0)

    spread = methods.find(name).places is not None
    return Machine(
        functools.cache(seconds), host_seconds=functools.cache(dispatch), run_ahead=timed["run_ahead"], cores=cores,
        alone=functools.cache(faster), spread=spread, patient=spread, **machine,
    )  # fmt: skip


def sizes(table: Mapping[tuple[str, int], float]) -> Any:
    """The `size` of a machine, made from the bytes of messages by (what, receiving stage)."""

    return lambda address, op: table[address.what, address.k]
