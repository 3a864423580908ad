"""The speeds: processes that are compiled and warm take turns, as in benchmarks.images_per_second."""

import dataclasses
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from benchmarks.harness import report, side_specs
from benchmarks.harness.side_specs import Side
from benchmarks.harness.turns import Worker, WorkerDied
from benchmarks.peers import sides as peers
from experiments.gpu import checks, children
from experiments.gpu.folder import Line
from experiments.gpu.plan import SPEED, Once, Workplace
from fdg_jax.errors import BadInput
from fdg_jax.runs.run_files import SUMMARY, read_json

BASE_PRECISION = "float32"
FASTER = 1.05  # a way is taken only if it is so much faster: less is within the spread
ROW_SIDE = "delay-line"  # what trains the rows where stages share a device
DTYPE = {"float32": "float32", "tf32": "float32", "bfloat16": "bfloat16"}


def side(at: Workplace, text: str, model: str, precision: str, *flags: str) -> Side:
    """A side of this machine, all of whose cores it may use. BadInput for what it cannot train."""
    s = at.settings
    common = {"K": 2, "model": model, "batch_size": s.batch_size, "device": s.device}
    made = peers.parse(text, common, children.joined(children.DETERMINISTIC, checks.base_flags(at), *flags), "balanced")
    cores = min(made.cores, len(side_specs.cores_available()))
    highest = "highest" if precision == "float32" else "default"
    return dataclasses.replace(made, cores=cores, dtype=DTYPE[precision], precision=highest)


class Sides:
    """Processes of sides, all of them compiling at once; those that fail are left out, with a sentence on why."""

    def __init__(self, at: Workplace, named: Mapping[str, Side], stack: ExitStack):
        self.at, self.why = at, dict[str, str]()
        cores = side_specs.cores_available()
        self.workers = {name: stack.enter_context(Worker(made, cores)) for name, made in named.items()}
        for name, worker in list(self.workers.items()):
            self.attempt(name, lambda worker=worker: worker.start(at.settings.seconds))

    def attempt(self, name: str, what: Any) -> None:
        try:
            what()
        except (WorkerDied, BadInput) as error:
            self.why[name] = str(error)
            del self.workers[name]

    def take_turns(self) -> None:
        for turn in range(self.at.settings.windows):
            names = list(self.workers)
            for name in names if turn % 2 == 0 else names[::-1]:
                self.attempt(name, self.workers[name].window)

    def speeds(self) -> dict[str, list[float]]:
        """Images per second of every side that is left, one number a turn."""
        return {name: worker.column("images_per_second") for name, worker in self.workers.items()}


def compared(speeds: Mapping[str, Sequence[float]], base: str) -> dict[str, float]:
    """Of every side the median of its speed over that of the baseline in the same turn."""
    first = speeds[base]
    return {name: statistics.median(a / b for a, b in zip(each, first, strict=True)) for name, each in speeds.items()}


class Speed(Once):
    """Images per second of one network in one precision: every engine, and PyTorch where it is installed."""

    def __init__(self, model: str, precision: str, checked: Sequence[str]):
        super().__init__(f"speed-{model}@{precision}", SPEED, f"images/s of {model} in {precision}")
        self.model, self.precision, self.needs = model, precision, tuple(checked)

    def run(self, at: Workplace) -> list[Line]:
        named, absent = {text: side(at, text, self.model, self.precision) for text in at.settings.sides}, {}
        for text in at.settings.peers:
            try:
                if peers.has(sys.executable, "torch"):
                    named[text] = side(at, text, self.model, self.precision)
                else:
                    absent[text] = "PyTorch is not installed here"
            except BadInput as error:  # it does not have this network
                absent[text] = str(error)
        with ExitStack() as stack:
            sides = Sides(at, named, stack)
            sides.take_turns()
        speeds, why = sides.speeds(), {**sides.why, **absent}
        if at.settings.sides[0] not in speeds:
            raise WorkerDied(f"{at.settings.sides[0]}: {why[at.settings.sides[0]]}")
        ratios = compared(speeds, at.settings.sides[0])
        about = {"model": self.model, "precision": self.precision, "batch_size": at.settings.batch_size}
        return [
            *(one(name, speeds[name], ratios[name], at.settings.sides[0], about) for name in speeds),
            *({**about, "side": name, "says": f"{name}: not measured: {text}"} for name, text in why.items()),
        ]


def one(name: str, speeds: Sequence[float], ratio: float, base: str, about: Mapping[str, Any]) -> Line:
    says = f"{name}: {report.spread(speeds, 0)} images/s, {ratio:.2f} of {base}, n={len(speeds)}"
    kept = {"images_per_second": round(statistics.median(speeds), 1), "over": base, "ratio": round(ratio, 4)}
    return {**about, "side": name, **kept, "windows": [round(speed, 1) for speed in speeds], "says": says}


class Flags(Once):
    """XLA flags for many small programs: each is a process, for XLA reads them once."""

    def __init__(self, model: str, checked: Sequence[str]):
        super().__init__("flags", SPEED, f"XLA flags, on the delay line of {model}")
        self.model, self.needs = model, tuple(checked)

    def run(self, at: Workplace) -> list[Line]:
        named = {"as it is": side(at, ROW_SIDE, self.model, at.choices.precision)}
        unknown = {}
        for name, (flags, _) in at.settings.flags.items():
            if known(at, flags):
                named[name] = side(at, ROW_SIDE, self.model, at.choices.precision, flags)
            else:
                unknown[name] = f"this XLA does not know {flags}"
        with ExitStack() as stack:
            sides = Sides(at, named, stack)
            sides.take_turns()
        speeds = sides.speeds()
        if "as it is" not in speeds:
            raise WorkerDied(sides.why["as it is"])
        ratios, about = compared(speeds, "as it is"), {"model": self.model, "precision": at.choices.precision}
        flags = {
            name: {"flags": at.settings.flags.get(name, ("", True))[0]} for name in [*speeds, *unknown, *sides.why]
        }
        return [
            *(one(name, speeds[name], ratios[name], "as it is", about | flags[name]) for name in speeds),
            *(
                {**about, **flags[name], "side": name, "says": f"{name}: not measured: {text}"}
                for name, text in {**unknown, **sides.why}.items()
            ),
        ]


def known(at: Workplace, flags: str) -> bool:
    """Whether XLA knows the flags: else it ends the process when it reads them. Asked of the CPU's, which parses those
    of a GPU too."""
    words = ["-c", "import jax; jax.jit(lambda x: x + 1)(1).block_until_ready()"]
    env = {**children.environment(BASE_PRECISION, flags), "JAX_PLATFORMS": "cpu"}
    try:
        children.run(words, at.folder.place("flags.log"), env)
    except children.ChildFailed:
        return False
    return True


class RowFlags(Once):
    """The XLA flags that the rows are trained with: the fastest of those that change only how kernels are launched, if
    training with them ends in the very bits of the determinism check; else none."""

    needs: tuple[str, ...] = ("flags", "determinism")

    def __init__(self) -> None:
        super().__init__("row-flags", SPEED, "the XLA flags of the rows: the fastest that change no bit")

    def run(self, at: Workplace) -> list[Line]:
        launch = {name for name, (_, launching) in at.settings.flags.items() if launching}
        found = [line for line in at.folder.lines("flags") if line.get("ratio", 0) >= FASTER and line["side"] in launch]
        tried = []
        for line in sorted(found, key=lambda line: -line["ratio"]):
            path, name = at.folder.place("flags"), line["side"]
            words = checks.training(at, path, at.settings.check_steps)
            try:
                children.run(words, path.with_suffix(".log"), checks.environment(at, line["flags"]))
            except children.ChildFailed as error:
                tried.append(f"{name}: {error}")
                continue
            if read_json(path / SUMMARY)["final_state_sha256"] == checks.reference(at):
                says = f"{name} ({line['flags']}): {line['ratio']:.2f} times as fast and the same bits"
                return [{"flags": line["flags"], "tried": tried, "says": says}]
            tried.append(f"{name}: other bits")
        why = "; ".join(tried) or f"none that changes no bit is {FASTER} times as fast"
        return [{"flags": "", "tried": tried, "says": f"none: {why}"}]


class Together(Once):
    """How many rows to train at a time: images per second of all processes together."""

    def __init__(self, model: str):
        super().__init__("together", SPEED, f"how many runs of {model} to train at a time")
        self.model, self.needs = model, ("row-flags",)

    def run(self, at: Workplace) -> list[Line]:
        flags = at.folder.line("row-flags").get("flags", "")
        made = side(at, ROW_SIDE, self.model, at.choices.precision, flags)
        totals: dict[int, list[float]] = {n: [] for n in at.settings.together}
        with ExitStack() as stack:
            first = Sides(at, {"1": made}, stack)  # compiles, so that the others find the programs
            rest = Sides(at, {str(i): made for i in range(2, max(totals) + 1)}, stack)
            workers = [*first.workers.values(), *rest.workers.values()]
            if len(workers) < max(totals):
                raise WorkerDied("; ".join([*first.why.values(), *rest.why.values()]))
            for worker in workers:
                worker.batches = workers[0].batches
            for _ in range(at.settings.windows):
                for n in totals:
                    totals[n].append(side_by_side(workers[:n]))
        medians = {n: statistics.median(each) for n, each in totals.items()}
        best = min(totals)
        for n in sorted(totals):
            best = n if medians[n] >= FASTER * medians[best] else best
        told = ", ".join(f"{n}: {report.spread(each, 0)}" for n, each in totals.items())
        says = f"images/s of all together: {told}; so {best} at a time"
        return [
            {
                "model": self.model,
                "jobs": best,
                "images_per_second": {str(n): medians[n] for n in medians},
                "says": says,
            }
        ]


def side_by_side(workers: Sequence[Worker]) -> float:
    """Images per second of all while each trains one window; the slowest one's time counts."""
    for worker in workers:
        worker.tell({"run": worker.batches})
    replies = [worker.answer() for worker in workers]
    images = sum(r.get("batches", w.batches) * w.side.batch_size for w, r in zip(workers, replies, strict=True))
    return images / max(reply["seconds"] for reply in replies)


class Host(Once):
    """Microseconds that the host takes for the calls of a stage (benchmarks.host_cost)."""

    def __init__(self, model: str, checked: Sequence[str]):
        super().__init__("host", SPEED, f"microseconds of the host per call, {model}")
        self.model, self.needs = model, tuple(checked)

    def run(self, at: Workplace) -> list[Line]:
        file, log = at.folder.place("host.jsonl"), at.folder.place("host.log")
        words = [
            "-m",
            "benchmarks.host_cost",
            "--model",
            self.model,
            "--K",
            "2",
            "--ticks",
            str(at.settings.host_ticks),
        ]
        children.run([*words, "--json", str(file)], log, children.environment(BASE_PRECISION))
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        lines = []
        for row in rows:
            if row["row"] == "stage":
                calls = ", ".join(f"{what} {row[f'{what}_microseconds']:.0f}" for what in "FBU")
                lines.append({**row, "says": f"stage k={row['k']} of K={row['K']}: {calls} microseconds"})
            if row["row"] == "tick":
                says = f"a tick of K={row['K']}: {row['tick_microseconds']:.0f} microseconds of the host"
                lines.append({**row, "says": says})
        return lines
