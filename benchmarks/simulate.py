"""Predicted images/s, utilisation, bubble and memory of any method, K, split and link (fdg_jax.schedule.simulator).

    .venv/bin/python -m benchmarks.simulate --model wrn16_4 --K 2 4 --method fdg ddg gpipe:micro_batches=8 --link pcie
    .venv/bin/python -m benchmarks.simulate --model wrn16_4 --K 2 --link 10ms,1Gbit/s --processes 2
    .venv/bin/python -m benchmarks.simulate --validate --K 2 --method bp fdg ddg fr dgl dni gpipe data_parallel

The simulator runs a schedule on devices whose operations take given times. `--times measured` (default) measures every
operation of every stage alone, in a process that trains this pipeline. The process is pinned to one core, so a device
is a core. `--times FILE` has the seconds of blocks on any device: {"F": [...], "B": [...], "U": [...], "auxiliary":
0.0}. `--times 50TFLOP/s` divides the blocks' FLOPs by this speed; a backward pass has twice the FLOPs. Images/s of K
devices exclude the host, unless `--host-microseconds` gives the time of a dispatch. Memory is given for each device of
a stage.

`--processes N` spreads the stages over N processes as the library does. Each process has its own host. `--link` is then
the link between processes, and messages within a process take no time. "Links busy" is the share of time in which bytes
travel from one stage to another; latency does not count. "Lost to links" is the percentage by which links lower the
images/s. It is 0% where computing hides all transfers.

`--validate` tests the simulator on this machine. Every method has a process pinned to as many cores as stages. The
methods take turns. Each measures the times of its operations, which predict its speed, and then its speed. The emulated
devices of a process share its cores, so an operation that runs alone may use them all. The simulator therefore gets the
times of each operation alone and while other stages compute.
"""

import dataclasses
from collections.abc import Sequence
from itertools import pairwise, product
from typing import Any

from benchmarks import scaling
from benchmarks.harness import machines, report, side_specs, turns, validate
from fdg_jax import methods, models, split
from fdg_jax.checks.options import replicas
from fdg_jax.errors import BadInput
from fdg_jax.machine.child import processes_of_stages
from fdg_jax.schedule.simulator import NO_LINK, Link, Machine, predict
from fdg_jax.stages.shapes import with_examples
from fdg_jax.transport import devices

RUN_AHEAD = 16  # losses that may be unread


def network(given: report.Given, K: int) -> tuple[list[Link], list[int]]:
    """(the links between neighbouring stages, the process of each stage). Raises BadInput if there are too many
    processes."""
    if K == 1:
        return [], [0]
    if given.processes > K:
        raise BadInput(f"--processes {given.processes}: each has a stage, and there are K={K}. Use {K} or fewer.")
    processes, link = processes_of_stages(K, given.processes), machines.link(given.link)
    return [NO_LINK if given.processes > 1 and a == b else link for a, b in pairwise(processes)], processes


def machine(side: side_specs.Side, given: report.Given, known: dict[Any, Any], R: Sequence[int]) -> tuple[Any, ...]:
    """The machine of a side.

    known: earlier measurements, which are extended. R: the devices of each stage.

    Returns: (the machine, the cuts, bytes of its stages and messages), measured now or read from the file.
    """
    from benchmarks.harness import model_shapes

    blocks, *example = scaling.network_of(side.model)
    flops = split.costs(blocks, example[0])
    if side.split == "balanced" and side.K > 1:
        side = dataclasses.replace(side, split=",".join(map(str, split.balanced(flops, side.K, R))))
    links, processes = network(given, side.K)
    shared: dict[str, Any] = {"link": links, "processes": processes, "run_ahead": RUN_AHEAD}
    shared["host_seconds"] = lambda kind, k: given.host_microseconds * 1e-6
    if given.times != "measured":
        speed, batch = machines.quantity(given.times, {"TFLOP/s": 1e12}), [side.batch_size * n for n in flops]
        times = scaling.times_of(batch, speed) if speed else machines.read(given.times, len(blocks))
        costs = [sum(three) for three in zip(times.F, times.B, times.U, strict=True)]
        cuts = split.parse(side.split or "balanced", side.model, side.K, len(blocks), costs, R) if side.K > 1 else ()
    else:
        times, programs = None, programs_of(side)
        if programs not in known:
            known[programs] = measured(side, given)
        timed, cuts = known[programs]
    of = {r: model_shapes.of(blocks, cuts, side.method, side.options, *with_examples(example, side.batch_size // r))
          for r in {1, *R}}  # fmt: skip
    shapes = of[1]._replace(memory=[of[r].memory[k] for k, r in enumerate(R) if of[r].memory])
    shared["size"] = machines.sizes(shapes.messages)
    if times is None:
        made = machines.of_operations(timed, side.method, None)._replace(patient=False, **shared)
    else:
        made = machines.of_blocks(times, cuts, side_specs.schedule_of(side), shapes.weights, **shared)
    return made.replicated(R, shapes.weights, machines.link(given.within)), cuts, shapes


def replicas_of(side: side_specs.Side, given: report.Given) -> list[int]:
    """The devices of each stage of a side. The method data_parallel spreads every stage itself."""
    alone = methods.find(side.method).places or (side.K == 1 and "," in given.replicas)
    return [1] * side.K if alone else replicas(given.replicas, side.K)


def programs_of(side: side_specs.Side) -> str:
    """A key for the programs that a side's stages run.

    Methods with ordinary stages run the same programs. The programs are measured once, so that predictions for these
    methods differ by their schedules only.
    """
    method, schedule = methods.find(side.method), side_specs.schedule_of(side)
    if method.stage is not None or schedule.micro_batches > 1:
        return repr(side)
    decides = {"accumulate": schedule.accumulate, "accumulation": side.options.get("accumulation")}
    decides |= method.accepted(side.options)[1]
    return repr(dataclasses.replace(side, name="", method="", options=decides))


def measured(side: side_specs.Side, given: report.Given) -> tuple[dict[str, Any], tuple[int, ...]]:
    """(the time of each operation, the cuts), measured on one core, one stage at a time."""
    if methods.find(side.method).places and side.K > 1:
        raise BadInput(f"{side.name}: replicas on one core cannot be timed as if each had its own. Use --times FILE.")
    report.say(f"{side.name}, K={side.K}: measuring its operations on one core")
    with turns.Worker(side, side_specs.cores_available()) as worker:
        cuts = tuple(worker.ready().about["cuts"])
        return worker.time_operations(given.batches), cuts


def row(
    side: side_specs.Side, baseline: float, given: report.Given, device: Machine, cuts: Sequence[int], shapes: Any
) -> dict[str, Any]:
    schedule = side_specs.schedule_of(side)
    found = predict(schedule, device)
    # None for data parallel, whose link is part of the time of its backward passes.
    unlinked = predict(schedule, device._replace(link=NO_LINK))
    lost = None if device.spread else round(100 * (1 - unlinked.seconds / found.seconds), 1)
    about = {"R": replicas_of(side, given), "K": side.K, "batch_size": side.batch_size, "method": side.method}
    about |= {name: getattr(given, name) for name in ("link", "within", "replicas", "times", "host_microseconds")}
    return {
        "side": side.name, "model": side.model, **about, "cuts": list(cuts), "processes": len(set(device.processes)),
        "images_per_second": round(side.batch_size / found.seconds, 2),
        "milliseconds_per_batch": round(1e3 * found.seconds, 3), "over_bp": round(baseline / found.seconds, 4),
        "utilisation_percent": report.rounded([100 * share for share in found.utilisation], 1),
        "bubble_percent": round(100 * found.bubble, 1), "lost_to_links_percent": lost,
        "link_percent": {f"{k} to {j}": round(100 * share, 1) for (k, j), share in sorted(found.links.items())},
        "limiting": found.limiting, "limit_seconds": {name: round(each, 6) for name, each in found.limits.items()},
        "memory_bytes": [each.total for each in shapes.memory], "kept_batches": found.kept,
        "waiting_bytes": [round(n) for n in found.waiting],
    }  # fmt: skip


COLUMNS: dict[str, report.Cell] = {
    "method": "`{side}`", "K": "{K}", "R": lambda r: ",".join(map(str, r["R"] if len({*r["R"]}) > 1 else r["R"][:1])),
    "later stages begin at": lambda r: ",".join(map(str, r["cuts"])) or "none",
    "images/s": "{images_per_second:.1f}", "ms a tick": "{milliseconds_per_batch:.1f}",
    "over BP on one": "{over_bp:.3f}", "stages busy": lambda r: report.percents(r["utilisation_percent"]),
    "bubble": "{bubble_percent:.0f}%",
    "links busy": lambda r: ", ".join(f"{pair}: {share:.0f}%" for pair, share in r["link_percent"].items()) or "none",
    "lost to links": lambda r: "–" if r["lost_to_links_percent"] is None else f"{r['lost_to_links_percent']:.0f}%",
    "limited by": "{limiting}",
    "memory of a device, by stage, MB": lambda r: ", ".join(f"{size / 1e6:.0f}" for size in r["memory_bytes"]) or "–",
}  # fmt: skip


def table(rows: report.Rows, given: report.Given) -> str:
    if given.validate:
        return validate.table(rows, given)
    times = f"a core of {rows[0]['cpu']}" if given.times == "measured" else f"`{given.times}`"
    where = f" ({given.processes} processes)" if given.processes > 1 else ""
    about = (
        f"Predicted: {given.model}, batch {given.batch_size}, link {given.link}{where}, {given.replicas} devices a "
        f"stage (link {given.within}), times of {times}, {given.host_microseconds:g} us of the host per dispatch, at "
        f"most {RUN_AHEAD} unread losses. Limited by: the slowest stage, the busiest link or the host, if one of them "
        f"alone explains the time; otherwise stages wait for each other. Memory without XLA's temporary buffers."
        + (f" {report.disturbed(rows)}" if given.times == "measured" else "")
    )
    return report.table(COLUMNS, rows, about)


def parser() -> report.Parser:
    epilog = f"A method may have options: NAME:option=value, {side_specs.METHODS_OWN}. All are compared with BP on one."
    usual = {"model": "wrn16_4", "batch_size": 64, "K": [2, 4], "method": ["bp", "ddg", "fdg"], "split": "balanced"}
    made = report.parser("simulate", __doc__, epilog, **usual, batches=8, windows=4, seconds=8.0)
    add = made.add_argument
    add("--link", default="none", help="none, pcie, nvlink, <latency>,<bandwidth>: 10ms,1Gbit/s (no units: us, GB/s)")
    add("--processes", type=report.positive, default=1, help="number of processes, each with a host (default 1)")
    add("--replicas", default="1", help="devices of each stage: R, or R_1,...,R_K, or 8/K")
    add("--within", default="none", help="the link between the devices of a stage, as --link (default none)")
    add("--times", default="measured", help="measured (default), a file of block times, or 50TFLOP/s")
    add("--host-microseconds", type=float, default=0.0, help="time of the host thread per dispatch (default 0)")
    add("--validate", action="store_true", help="compare the prediction with training on this machine")
    return made


def simulated(given: report.Given) -> list[dict[str, Any]]:
    known = dict[Any, Any]()
    # BP on one device is the same for every K.
    sides = [validate.parse(text, given, 1 if text.partition(":")[0] == "bp" else K, cores=1)
             for text, K in product(given.method, given.K)]  # fmt: skip
    sides = list({(side.name, side.K): side for side in sides}.values())
    n_blocks = len(models.blocks(given.model, 10))
    for side in (side for side in sides if side.K > 1):  # before anything is measured
        split.parse(given.split, given.model, side.K, n_blocks, [1.0] * n_blocks)
        network(given, side.K)
        replicas_of(side, given)
        if given.processes > 1 and methods.find(side.method).places:
            raise BadInput(f"--processes {given.processes}: {side.name} needs one process. Leave it out.")
    alone = validate.parse("bp", given, 1)
    baseline = predict(side_specs.schedule_of(alone), machine(alone, given, known, [1])[0]).seconds
    rows = [row(side, baseline, given, *machine(side, given, known, replicas_of(side, given))) for side in sides]
    others = max((timed["others_percent"] for timed, _ in known.values()), default=0.0)
    return [{**each, "others_percent": round(others, 1)} for each in rows]


def results(given: report.Given) -> list[dict[str, Any]]:
    if not given.host_microseconds >= 0:
        raise BadInput(f"--host-microseconds {given.host_microseconds}: use 0 or more.")
    machines.link(given.link)
    if given.validate and given.processes > 1:
        raise BadInput("--validate measures training in one process. Leave --processes out.")
    if given.validate:
        return validate.rows(given)
    devices.emulate_cpu(1)
    return simulated(given)


main = report.run(__name__, parser, results, table)
