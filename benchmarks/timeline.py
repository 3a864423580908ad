"""When each stage of a real run computed, sent and waited, and what the simulator predicts: a picture and a trace.

    .venv/bin/python -m benchmarks.timeline --model resnet20 --K 2 --method fdg --out runs/timeline

The run is the same as the training command's. When an operation is dispatched, its results go to a thread of its stage,
which waits for one after the other. So the end of each operation is known, without extra work for the devices and
without delaying the loop. The beginning is computed: it is the latest of the operation's dispatch, the end of the
stage's operation before, and the arrival of its messages. A CPU device runs one program after another, so an operation
can begin at this time. Only the lack of a free thread may delay it; such a delay counts as computing.

Precision: an end is seen late, because the thread has to wake up and get Python's lock. During the run, threads ask for
this lock every 0.1 ms. The last line of the output has the delay. The delay is measured in the same process, relative
to a thread that polls without pause and never gives up the lock by itself. This is the worst case. Busy cores increase
the delay. Recording begins when the pipeline is full and everything is compiled.

The benchmark writes timeline.png, and timeline.json in Chrome's trace format, for ui.perfetto.dev. In the trace, one
process is the measured run and another is the predicted run; a row is a stage or a link.
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

if __name__ == "__main__":
    from fdg_jax.machine.huge_pages import restart_once

    restart_once()  # as in the training command, before the slow imports

from benchmarks.harness import bench_worker, gantt, report, side_specs, validate, waiting
from benchmarks.harness.recording import Recording, lateness, quick_threads
from fdg_jax import methods
from fdg_jax.errors import BadInput
from fdg_jax.schedule.simulator import Event
from fdg_jax.transport import devices


def trace(measured: Sequence[Event], predicted: Sequence[Event], about: Mapping[str, Any]) -> dict[str, Any]:
    """Makes a trace in Chrome's format, in microseconds: one process is measured, one predicted, with a thread per row.

    Arguments:
        measured, predicted: the events.
        about: further facts, for the file.
    """
    made: list[dict[str, Any]] = []
    for pid, (name, found) in enumerate((("measured", measured), ("predicted", predicted)), 1):
        rows = sorted({(event.k, event.to) for event in found})
        made.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}})
        made += [{"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": gantt.name_of(row)}}
                 for tid, row in enumerate(rows)]  # fmt: skip
        made += [{"ph": "X", "name": f"{event.what}{event.batch}", "cat": event.what, "pid": pid,
                  "tid": rows.index((event.k, event.to)), "ts": round(event.begin * 1e6, 3),
                  "dur": round((event.end - event.begin) * 1e6, 3), "args": {"k": event.k, "batch": event.batch}}
                 for event in found]  # fmt: skip
    return {"traceEvents": made, "displayTimeUnit": "ms", "otherData": dict(about)}


def shares(found: Sequence[Event], length: float, k: int) -> dict[str, float]:
    """Percent of a window in which stage k did each kind of operation; the rest is waiting. length: in seconds."""
    taken = sorted(waiting.seconds_by_kind(found, k).items())
    percent = {what: round(100 * seconds / length, 1) for what, seconds in taken}
    return {**percent, "waiting": max(0.0, round(100 - sum(percent.values()), 1))}


def record(side: side_specs.Side, batches: int) -> tuple[list[Event], dict[str, Any]]:
    """Trains on so many batches with a full pipeline.

    Returns: (the events, the result of Trainer.operations: the time of each operation alone).
    """
    trainer = bench_worker.Trainer(side)
    report.say("compiling, filling the pipeline")
    trainer.run(2 * side.K + 2)
    timed = trainer.operations(3)
    recording = Recording(trainer.engine)
    trainer.run(batches)
    return [event for event in waiting.events(recording.stop()) if event.what not in waiting.WAITING], timed


def parser() -> report.Parser:
    usual = {"model": "resnet20", "batch_size": 128, "K": 2, "method": "fdg", "split": "balanced", "batches": 6}
    made = report.parser("timeline", __doc__, **usual)
    made.add_argument("--out", required=True, metavar="DIR", help="folder for timeline.json and timeline.png")
    return made


def results(given: report.Given) -> list[dict[str, Any]]:
    cores = len(side_specs.cores_available())
    side = validate.parse(given.method, given, given.K, cores)
    if methods.find(side.method).places:
        raise BadInput(f"--method {side.name}: each of its stages is on all devices. Choose another method.")
    out = report.folder(given.out)
    devices.emulate_cpu(given.K)
    ahead = 2 * given.K + 2  # the host runs ahead after these first batches
    with quick_threads():
        found, timed = record(side, ahead + given.batches + 2)
        late = [1e6 * seconds for seconds in lateness()]
    predicted = validate.predicted(side, timed).events
    first = min(e.batch for e in found if e.what == "enter") + ahead
    measured, took = waiting.window(found, first, first + given.batches - 1)
    steady = max(e.batch for e in predicted if e.what == "enter") - given.batches - 2
    simulated, predicted_to_take = waiting.window(predicted, steady, steady + given.batches - 1)
    # Batches have the same numbers in both pictures, so that they can be compared.
    simulated = [e._replace(batch=e.batch - steady + first) for e in simulated if e.what != "host"]
    about = {name: getattr(side, name) for name in ("model", "batch_size", "K")}
    about |= {"side": side.name, "cores": cores, "late_microseconds": round(statistics.median(late), 1)}
    (out / "timeline.json").write_text(json.dumps(trace(measured, simulated, about)), encoding="utf-8")
    title = f"{side.name}, {side.model}, K={side.K}, batch {side.batch_size}, {cores} core{'s' * (cores > 1)}"
    gantt.draw({"measured": measured, "predicted": simulated}, out / "timeline.png", title)
    about["late_microseconds_most"] = round(max(late), 1)
    return [{**about, "k": k, "measured_percent": shares(measured, took, k),
             "predicted_percent": shares(simulated, predicted_to_take, k)} for k in range(1, side.K + 1)]  # fmt: skip


def table(rows: report.Rows, given: report.Given) -> str:
    def words(name: str) -> report.Cell:
        return lambda row: ", ".join(f"{what} {share:.0f}%" for what, share in row[name].items())

    one = rows[0]
    cores = f"{one['cores']} core{'s' * (one['cores'] > 1)} of {one['cpu']}"
    if one["cores"] < one["K"]:
        cores += f" for {one['K']} stages, which wait for cores, too"
    columns = {"k": "{k}", "measured": words("measured_percent"), "predicted": words("predicted_percent")}
    about = f"{one['side']}, {one['model']}, batch {one['batch_size']}, {given.batches} batches, {cores}, "
    about += f"{report.versions(one)}. Ends are recorded {one['late_microseconds']:.0f} us late (median; most "
    about += f"{one['late_microseconds_most']:.0f}). In {given.out}: timeline.json (ui.perfetto.dev), timeline.png."
    return report.table(columns, rows, about)


main = report.run(__name__, parser, results, table, report.here)
