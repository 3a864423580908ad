"""FDG in processes on separate hosts over slow networks, and the speed that the simulator predicts.

    .venv/bin/python -m benchmarks.network
    .venv/bin/python -m benchmarks.network --networks 10ms,1Gbit/s 50ms,100Mbit/s --windows system

The hosts are network namespaces of this machine (benchmarks.harness.hosts; Linux, root). Each of the K processes runs
on its own host and its own core. A network has a latency, which a relay adds to every packet each way, and a bandwidth
each way, which a token bucket limits. Networks take turns while the same processes stay connected: a turn is a window
on each of them. After each change of network, a shorter window that does not count comes first.

The prediction is computed as by `benchmarks.simulate --processes K --link LATENCY,BANDWIDTH`. The time of each
operation is measured in the same processes before each turn, one operation at a time, without latency and at full
bandwidth. A process has one core, so the time of its host thread for a dispatch is part of the operation's time. There
are two predictions:

    of the link      a message takes the latency, and its bytes over the bandwidth
    of messages      a message takes as long as it takes alone on this network, measured in each turn between the same
                     processes with the same copies. So this prediction includes the effect of TCP

--windows sets how much TCP may send without an acknowledgement. `system` keeps this system's setting. With `large` the
limit is 64 MiB, a window stays open while a connection is idle, and the algorithm is `reno`. With latency, a system's
usual windows are too small for the data that are on their way at full bandwidth, so they limit the speed.

Before training, a plain TCP connection measures each network: the round-trip time, and a stream of 16 MB. So the table
shows that the stated latency and bandwidth are reached. The relay itself takes some of the cores' time, with priority
(SCHED_FIFO), as a network would not wait for a free core.
"""

import functools
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness import hosts, machines, ranks, report, serving, side_specs, wire_probe
from benchmarks.harness.turns import Worker
from fdg_jax import models
from fdg_jax.errors import BadInput
from fdg_jax.schedule.simulator import Link, Machine, predict

NETWORKS = (
    "none", "0,10Gbit/s", "0,1Gbit/s", "0,100Mbit/s", "1ms,1Gbit/s", "10ms,1Gbit/s", "50ms,1Gbit/s", "50ms,100Mbit/s",
)  # fmt: skip
PORT = 1234  # at which process 0 listens on its host
STREAM_BYTES = 2**24
Sizes = Mapping[tuple[str, int], float]  # by (what, receiving stage)
SETTLE, TRIES = 6, 3  # batches after a change that do not count; messages that are timed alone in a turn
BOUND_PERCENT = 10.0  # the goal for the prediction's error
WINDOWS: Mapping[str, Mapping[str, str]] = {
    "system": {}, "large": {
        "net.ipv4.tcp_congestion_control": "reno", "net.ipv4.tcp_slow_start_after_idle": "0",
        "net.ipv4.tcp_wmem": "4096 16384 67108864", "net.ipv4.tcp_rmem": "4096 131072 67108864",
    },
}  # fmt: skip


class Turn(NamedTuple):
    """The measurements of a network in a turn.

    images_per_second: the speed in the window. link, messages: the two predictions. seconds: the time of a message
        alone, by (what, receiving stage). relay_percent, others_percent: the share of the cores' time that the relay,
        and other processes, took in the window.
    """

    images_per_second: float
    link: float
    messages: float
    seconds: Sizes
    relay_percent: float
    others_percent: float


def machine(timed: Mapping[str, Any], side: side_specs.Side, link: Link, size: Sizes) -> Machine:
    """A machine with a core for each stage.

    Arguments:
        timed: the result of benchmarks.harness.operation_times.measure.
        link: between any two stages.
        size: {(what, receiving stage): size of a message}, in the unit of the link's speed.
    """
    host, device = timed["alone"]["host"], timed["alone"]["device"]

    def seconds(kind: str, k: int) -> float:
        # On its one core, every process dispatches all messages, also those of other processes.
        sends = sum(host[name] for name in host if name.startswith("send")) / 2 if kind in "FB" else 0.0
        return device.get(f"{kind}/{k}", 0.0) + host.get(f"{kind}/{k}", 0.0) + sends

    ahead, processes = timed["run_ahead"], range(side.K)
    return Machine(functools.cache(seconds), machines.sizes(size), link, run_ahead=ahead, processes=processes)


def turn(there: hosts.Hosts, worker: Worker, link: Link, timed: Mapping[str, Any], given: report.Given) -> Turn:
    """A window on a network, and its predictions."""
    side, schedule = worker.side, side_specs.schedule_of(worker.side)
    there.become(link)
    worker.ask({"run": SETTLE})
    before = there.relay_seconds()
    worker.window()
    window = worker.windows[-1]
    relay = 100 * (there.relay_seconds() - before) / (side.cores * window["seconds"])
    bytes_of, seconds = dict[tuple[str, int], float](), dict[tuple[str, int], float]()
    for what, _, to, size, tries in worker.ask({"messages": TRIES})["messages"]:
        bytes_of[what, to + 1] = size  # stage k is in process k - 1
        seconds[what, to + 1] = statistics.median(tries)
    of_link = predict(schedule, machine(timed, side, link, bytes_of)).seconds
    # The time beyond latency occupies the link.
    beyond = {key: max(0.0, each - link.latency_seconds) for key, each in seconds.items()}
    alone = Link(link.latency_seconds, 1.0)
    of_messages = predict(schedule, machine(timed, side, alone, beyond)).seconds
    predicted = side.batch_size / of_link, side.batch_size / of_messages
    return Turn(window["images_per_second"], *predicted, seconds, relay, max(0.0, window["others_percent"] - relay))


def row(
    text: str, link: Link, worker: Worker, turns: Sequence[Turn], probe: Mapping[str, Any], given: report.Given
) -> dict[str, Any]:
    """The row of a network. probe: the result of benchmarks.harness.wire_probe for it."""
    column = {name: [getattr(each, name) for each in turns] for name in Turn._fields}
    measured, kernel = column["images_per_second"], Path("/proc/sys/net/ipv4/tcp_congestion_control")
    system = kernel.read_text(encoding="utf-8").strip()
    alone = {f"{what} to {k}": report.rounded([each[what, k] for each in column["seconds"]], 6)
             for what, k in turns[0].seconds}  # fmt: skip
    return {
        **worker.about, "network": text, "latency_seconds": link.latency_seconds,
        "bytes_per_second": 1 / link.seconds_per_byte if link.seconds_per_byte else None, "windows": given.windows,
        "congestion_control": WINDOWS[given.windows].get("net.ipv4.tcp_congestion_control", system),
        "rounds": given.rounds, "batches_per_window": given.steps, "images_per_second": report.rounded(measured, 4),
        **{f"predicted_of_{what}": report.rounded(column[what], 4) for what in ("link", "messages")},
        **{f"ratio_of_{what}": report.over(column[what], measured, 4) for what in ("link", "messages")},
        "message_seconds": alone, "round_trip_seconds": probe["round_trip_seconds"],
        "stream_bytes_per_second": probe["bytes_per_second"],
        **{name: report.median(column[name], 1) for name in ("relay_percent", "others_percent")},
    }  # fmt: skip


def joined(given: report.Given, cores: int) -> side_specs.Side:
    """The side that is measured. Raises BadInput if the side cannot be measured."""
    models.blocks(given.model, 10)  # refuses an unknown model
    common = {"K": given.K, "model": given.model, "batch_size": given.batch_size}
    side = side_specs.parse(f"{given.method}:processes=each", common, "", given.split)
    side_specs.check([side], cores)
    return side


def rows(given: report.Given) -> list[dict[str, Any]]:
    """Measures all networks."""
    links = {text: machines.link(text) for text in given.networks}
    if why := hosts.relay_missing():
        raise BadInput(f"there are no hosts to measure between: {why}. Run it as root on Linux.")
    cores = side_specs.cores_available()
    side = joined(given, len(cores))
    with hosts.Hosts(given.K, relay=True, settings=WINDOWS[given.windows]) as there:
        inside = [there.inside(number) for number in range(given.K)]
        probes = {}
        for text, link in links.items():
            there.become(link)
            probes[text] = wire_probe.measured(inside[:2], there.addresses[1], STREAM_BYTES)
        there.become(Link())
        meeting = {ranks.HOSTS: json.dumps(inside), serving.COORDINATOR: f"{there.addresses[0]}:{PORT}"}
        report.say(f"{side.name}: compiling, on {given.K} hosts")
        with Worker(side, cores, meeting) as worker:
            worker.ready().batches = given.steps
            turns: dict[str, list[Turn]] = {text: [] for text in links}
            for number in range(given.rounds):
                there.become(Link())
                worker.ask({"run": SETTLE})
                timed = worker.time_operations(given.batches)
                for text, link in links.items() if number % 2 == 0 else reversed(links.items()):
                    found = turn(there, worker, link, timed, given)
                    turns[text].append(found)
                    about = f"measured {found.images_per_second:.1f}, predicted {found.link:.1f}, {found.messages:.1f}"
                    report.say(f"turn {number + 1} of {given.rounds}, {text}, images/s: {about}")
            return [row(text, links[text], worker, turns[text], probes[text], given) for text in links]


def within(row: Mapping[str, Any]) -> str:
    near = (abs(statistics.median(row[name]) - 1) <= BOUND_PERCENT / 100
            for name in ("ratio_of_link", "ratio_of_messages"))  # fmt: skip
    return " and ".join("yes" if each else "**no**" for each in near)


def table(found: report.Rows, given: report.Given) -> str:
    head = {
        "network": "{network}",
        "there and back ms": lambda r: f"{1e3 * r['round_trip_seconds']:.2f}",
        "TCP stream Mbit/s": lambda r: f"{8e-6 * r['stream_bytes_per_second']:,.0f}",
        "a message alone ms": lambda r: ", ".join(f"{name}: {1e3 * statistics.median(each):.1f}"
                                                  for name, each in r["message_seconds"].items()),
        "images/s measured": report.spread_of("images_per_second", 1),
    }  # fmt: skip
    columns: list[tuple[str, report.Cell]] = list(head.items())
    for what in ("link", "messages"):
        middle = lambda r, what=what: f"{statistics.median(r[f'predicted_of_{what}']):.1f}"  # noqa: E731
        columns.append(("predicted of the link" if what == "link" else "predicted of messages", middle))
        columns.append(("predicted / measured", report.spread_of(f"ratio_of_{what}", 3)))
    columns.append((f"within {BOUND_PERCENT:.0f}%", within))
    one = found[0]
    about = f"`{one['side']}`, {one['model']}, batch {one['batch_size']}, K={one['K']}, later stages begin at "
    about += f"{report.cuts(one)}; TCP's windows: {one['windows']} ({one['congestion_control']}); cells: median "
    about += f"(least to most) of {one['rounds']} windows of {one['batches_per_window']} batches; ratios in a turn. "
    about += f"{report.place(one)}, {report.versions(one)}. The relay took at most "
    about += f"{max(row['relay_percent'] for row in found):.0f}% of the cores' time. {report.disturbed(found)}"
    return report.table(columns, found, about)


def parser() -> report.Parser:
    usual = {"model": "resnet20", "batch_size": 32, "K": 2, "method": "fdg", "split": "balanced"}
    made = report.parser("network", __doc__, **usual, rounds=5, steps=12, batches=6)
    add = made.add_argument
    networks = f"none, or <latency>,<bandwidth> such as 10ms,1Gbit/s; without latency 0 (default {' '.join(NETWORKS)})"
    add("--networks", nargs="+", default=list(NETWORKS), metavar="LINK", help=networks)
    add("--windows", choices=list(WINDOWS), default="large", help="TCP's: large (default) or this system's")
    return made


main = report.run(__name__, parser, rows, table)
