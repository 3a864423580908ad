"""When each stage of a real run computed, sent and waited, beside the simulator's prediction: a picture and a trace.

    .venv/bin/python -m benchmarks.timeline --model resnet20 --K 2 --method fdg --out runs/timeline

The run is the training command's own. When an operation is dispatched, its results are handed to a thread of its stage,
which waits for one after the other. So it is known when each ended, without extra work for the devices and without
delaying the loop. The beginning of an operation is computed: the latest of the end of its stage's previous operation,
the arrival of its messages and its dispatch. On a CPU device programs run one after another, so it could begin then;
only the lack of a free thread may delay it, which counts as computing.

Precision: an end is seen late, because the thread has to wake up and to get Python's lock, for which threads ask every
0.1 ms during the run. The last line of the output says how late, measured in the same process: how much later a thread
saw the end of a computation than another thread that polls without pause and never gives up the lock by itself, which
is the worst case. Busy cores make it worse. The events begin when the pipeline is full and everything is compiled.

It writes timeline.json (Chrome's trace format, for ui.perfetto.dev: one process is measured, one predicted; a row is a
stage or a link) and timeline.png.
"""

import argparse
import json
import queue
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

if __name__ == "__main__":
    from fdg_jax.machine.huge_pages import restart_once

    restart_once()  # as the training command does, before imports that would be done twice

import jax
import numpy as np

from benchmarks.harness import gantt, report, side_specs, validate
from benchmarks.harness.bench_worker import Trainer
from benchmarks.harness.turns import say
from fdg_jax import methods
from fdg_jax.data.dataset import Dataset
from fdg_jax.engine.host_engine import HostEngine
from fdg_jax.errors import BadInput
from fdg_jax.machine import jax_internals
from fdg_jax.schedule import Box, Op
from fdg_jax.schedule.simulator import Event
from fdg_jax.stage.stage import Stage
from fdg_jax.transport import devices


class Dispatched(NamedTuple):
    """An operation: when it was dispatched, which messages it takes and gives."""

    what: str
    k: int
    batch: int
    at: float
    takes: tuple[Box, ...] = ()
    gives: tuple[Box, ...] = ()
    to: int = 0


class Watcher:
    """A thread that waits for the results of one stage (or link), in the order in which they were dispatched."""

    def __init__(self) -> None:
        self.queue: queue.SimpleQueue[tuple[Dispatched, Any] | None] = queue.SimpleQueue()
        self.ended: list[tuple[Dispatched, float]] = []
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def watch(self) -> None:
        while (item := self.queue.get()) is not None:
            dispatched, arrays = item
            jax.block_until_ready(arrays)
            self.ended.append((dispatched, time.perf_counter()))
            del item, arrays  # else memory is held until the next comes

    def stop(self) -> list[tuple[Dispatched, float]]:
        self.queue.put(None)
        self.thread.join()
        return self.ended


class Recording:
    """Adds watchers to the stages and links of an engine. `stop` removes them and returns what happened."""

    def __init__(self, engine: HostEngine):
        self.engine, self.send = engine, engine.loop.send
        self.watchers: dict[Any, Watcher] = {}
        self.giver = 0  # whose operation was dispatched last: what is sent is its
        for stage in engine.stages.values():
            self.record(stage)
        engine.loop.send = self.sent
        self.step, engine.loop.step = engine.loop.step, self.entered

    def tell(self, where: Any, dispatched: Dispatched, arrays: Any) -> None:
        if where not in self.watchers:
            self.watchers[where] = Watcher()
        self.watchers[where].queue.put((dispatched, arrays))

    def record(self, stage: Stage) -> None:
        run, update, k, schedule = stage.run, stage.update, stage.k, self.engine.loop.schedule
        takes, gives, _ = schedule.messages
        now: list[Any] = [("F", 0, 0.0)]  # the operation that is being dispatched

        def recorded_run(kind: str, batch: int, messages: dict[str, Any]) -> dict[str, Any]:
            op = Op(kind, k, batch)
            self.giver = k
            now[0] = Dispatched(kind, k, batch, time.perf_counter(), takes(op), gives(op))
            given = run(kind, batch, messages)
            if now[0] is not None:  # else the update has reported it
                self.tell(k, now[0], (given, stage.sum if kind == "B" else stage.state.extra))
            return given

        def recorded_update() -> None:
            self.tell(k, now[0], stage.sum)
            batch, now[0] = now[0].batch, None
            at = time.perf_counter()
            update()
            self.tell(k, Dispatched("U", k, batch, at), stage.state.params)

        stage.run, stage.update = recorded_run, recorded_update

    def sent(self, box: Box, message: Any) -> Any:
        entering = box in self.engine.loop.schedule.messages.enters(box.batch)
        at, arrived = time.perf_counter(), self.send(box, message)
        if not entering:
            self.tell((self.giver, box.k), Dispatched("send", self.giver, box.batch, at, (), (box,), box.k), arrived)
        return arrived

    def entered(self, parts: Any) -> None:
        batch = self.engine.loop.t + 1
        self.tell(1, Dispatched("enter", 1, batch, time.perf_counter()), parts)
        self.step(parts)

    def stop(self) -> list[tuple[Dispatched, float]]:
        del self.engine.loop.step
        self.engine.loop.send = self.send
        for stage in self.engine.stages.values():
            del stage.run, stage.update
        return [each for watcher in self.watchers.values() for each in watcher.stop()]


def events(ended: Sequence[tuple[Dispatched, float]]) -> list[Event]:
    """When each began as well: after the dispatch, its stage's last end and the arrival of its messages. What was
    seen to end before that which it waited for gets no length."""
    arrived = {box: end for dispatched, end in ended if dispatched.what == "send" for box in dispatched.gives}
    made = {box: end for dispatched, end in ended if dispatched.what != "send" for box in dispatched.gives}
    free: dict[Any, float] = {}
    found = []
    for dispatched, end in ended:  # of each stage and link in its own order
        where = (dispatched.k, dispatched.to) if dispatched.what == "send" else dispatched.k
        waits = [arrived[box] for box in dispatched.takes if box in arrived]
        if dispatched.what == "send":
            waits = [made[box] for box in dispatched.gives if box in made]
        begin = min(end, max([dispatched.at, free.get(where, 0.0), *waits]))
        free[where] = end
        found.append(Event(dispatched.what, dispatched.k, dispatched.batch, begin, end, dispatched.to))
    return found


@contextmanager
def quick_threads() -> Iterator[None]:
    """Threads that want Python's lock ask for it every 0.1 ms instead of every 5."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def lateness(tries: int = 40) -> list[float]:
    """Seconds by which a watcher sees an end later than a thread that polls without pause."""
    watcher, found = Watcher(), []
    step = jax.jit(lambda x: jax.lax.fori_loop(0, 60, lambda i, x: x @ x / 300, x))
    x = jax.device_put(np.ones((300, 300), np.float32))
    step(x).block_until_ready()
    for n in range(tries):
        y = step(x)
        watcher.queue.put((Dispatched("F", 1, n, 0.0), y))
        while not jax_internals.is_ready(y):
            pass
        seen = time.perf_counter()
        while len(watcher.ended) <= n:
            pass
        found.append(max(0.0, watcher.ended[-1][1] - seen))
    watcher.stop()
    return found


def trace(measured: Sequence[Event], predicted: Sequence[Event], about: Mapping[str, Any]) -> dict[str, Any]:
    """Chrome's trace format: microseconds, one process each for measured and predicted, one thread a stage or link."""
    made: list[dict[str, Any]] = []
    for process, (name, found) in enumerate((("measured", measured), ("predicted", predicted)), 1):
        made.append({"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}})
        rows = sorted({gantt.row_of(event) for event in found})
        for row in rows:
            names = {"name": gantt.name_of(row)}
            made.append({"ph": "M", "name": "thread_name", "pid": process, "tid": rows.index(row), "args": names})
        made += [
            {
                "ph": "X",
                "name": f"{event.what}{event.batch}",
                "cat": event.what,
                "pid": process,
                "tid": rows.index(gantt.row_of(event)),
                "ts": round(event.begin * 1e6, 3),
                "dur": round((event.end - event.begin) * 1e6, 3),
                "args": {"k": event.k, "batch": event.batch},
            }
            for event in found
        ]
    return {"traceEvents": made, "displayTimeUnit": "ms", "otherData": dict(about)}


def shares(found: Sequence[Event], length: float, k: int) -> dict[str, float]:
    """Percent of a window of that length in which stage k did what; the rest is waiting."""
    taken: dict[str, float] = {}
    for event in found:
        if event.k == k and event.what not in ("send", "host"):
            taken[event.what] = taken.get(event.what, 0.0) + event.end - event.begin
    percent = {what: round(100 * seconds / length, 1) for what, seconds in sorted(taken.items())}
    return {**percent, "waiting": max(0.0, round(100 - sum(percent.values()), 1))}


def window(found: Sequence[Event], first: int, last: int) -> tuple[list[Event], float]:
    """(what happens while these batches enter, from the first's entry to the one after the last's; how long that is).
    What begins before or ends after is cut there."""
    entry = "enter" if any(event.what == "enter" for event in found) else "F"
    begins = {event.batch: event.begin for event in reversed(found) if (event.what, event.k) == (entry, 1)}
    start, end = begins[first], begins[last + 1]
    inside = [e for e in found if e.begin < end and e.end > start]
    return [e._replace(begin=max(e.begin, start) - start, end=min(e.end, end) - start) for e in inside], end - start


def record(side: side_specs.Side, batches: int) -> tuple[list[Event], dict[str, Any]]:
    """(what happened while so many batches entered a full pipeline, what its operations take one by one)."""
    trainer = Trainer(side)
    engine, data = trainer.job.pipeline.engine, trainer.job.dataset
    assert isinstance(engine, HostEngine) and isinstance(data, Dataset)
    say("compiling, filling the pipeline")
    trainer.run(2 * side.K + 2)
    timed = trainer.operations(3)
    indices = trainer.random.integers(0, len(data.train_images), (batches, side.batch_size), dtype=np.int32)
    recording = Recording(engine)
    trainer.job.pipeline.train(data.train_images, data.train_labels, indices)
    trainer.job.pipeline.wait()
    return events(recording.stop()), timed


def parser() -> argparse.ArgumentParser:
    made = report.parser("timeline", __doc__)
    add = made.add_argument
    add("--model", default="resnet20", help="any of the training command's (default resnet20)")
    add("--batch-size", type=report.positive, default=128, help="(default 128)")
    add("--K", type=report.positive, default=2)
    add("--method", default="fdg", metavar="NAME[:option=value]", help="(default fdg)")
    add("--split", default="balanced", help="paper, even, balanced (default) or block numbers")
    add("--batches", type=report.positive, default=6, help="batches that are drawn (default 6)")
    add("--out", required=True, metavar="DIR", help="folder for timeline.json and timeline.png")
    return made


def main(arguments: list[str] | None = None) -> int:
    try:
        given = parser().parse_args(arguments)
        report.check_json(given.json)
        cores = len(side_specs.cores_available())
        common = {"K": given.K, "model": given.model, "batch_size": given.batch_size}
        side = validate.on_cores(side_specs.parse(given.method, common, "", given.split), cores)
        if methods.find(side.method).places:
            raise BadInput(f"--method {side.name}: its stages lie on all devices at once. Choose another method.")
        out = report.folder(given.out)
        devices.emulate_cpu(given.K)
        ahead = 2 * given.K + 2  # after the first batches the host has run ahead
        with quick_threads():
            found, timed = record(side, ahead + given.batches + 2)
            late = lateness()
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    predicted = validate.predicted(side, timed)
    first = min(e.batch for e in found if e.what == "enter") + ahead
    measured, took = window(found, first, first + given.batches - 1)
    steady = max(e.batch for e in predicted.events if e.what == "enter") - given.batches - 2
    simulated, predicted_to_take = window(predicted.events, steady, steady + given.batches - 1)
    # The same numbers in both pictures, so that batches can be compared.
    simulated = [e._replace(batch=e.batch - steady + first) for e in simulated if e.what != "host"]
    rows = [
        {
            "benchmark": "timeline",
            "side": side.name,
            "model": side.model,
            "batch_size": side.batch_size,
            "K": side.K,
            "k": k,
            "cores": cores,
            "measured_percent": shares(measured, took, k),
            "predicted_percent": shares(simulated, predicted_to_take, k),
            "late_microseconds": round(1e6 * statistics.median(late), 1),
            "late_microseconds_most": round(1e6 * max(late), 1),
            **report.here(),
        }
        for k in range(1, side.K + 1)
    ]
    about = {name: rows[0][name] for name in ("side", "model", "batch_size", "K", "cores", "late_microseconds")}
    (out / "timeline.json").write_text(json.dumps(trace(measured, simulated, about)), encoding="utf-8")
    title = f"{side.name}, {side.model}, K={side.K}, batch {side.batch_size}, {cores} core{'s' * (cores > 1)}"
    gantt.draw({"measured": measured, "predicted": simulated}, out / "timeline.png", title)
    report.emit(rows, table(rows, given), given.json)
    return 0


def table(rows: Sequence[dict[str, Any]], given: argparse.Namespace) -> str:
    def words(percent: Mapping[str, float]) -> str:
        return ", ".join(f"{what} {share:.0f}%" for what, share in percent.items())

    one = rows[0]
    cores = f"{one['cores']} core{'s' * (one['cores'] > 1)} of {one['cpu']}"
    if one["cores"] < one["K"]:
        cores += f" for {one['K']} stages, which wait for cores, too"
    body = [[str(r["k"]), words(r["measured_percent"]), words(r["predicted_percent"])] for r in rows]
    return (
        f"{report.markdown(['k', 'measured', 'predicted'], body)}\n\n{one['side']}, {one['model']}, batch "
        f"{one['batch_size']}, {given.batches} batches, {cores}, {report.versions(one)}. "
        f"An end is seen {one['late_microseconds']:.0f} us late (median; most {one['late_microseconds_most']:.0f}). "
        f"In {given.out}: timeline.json (ui.perfetto.dev), timeline.png."
    )


if __name__ == "__main__":
    sys.exit(main())
