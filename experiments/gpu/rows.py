"""The rows of a network: its runs by the training command, several at a time, each going on where it stands."""

import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.gpu import children
from experiments.gpu.checks import base_flags
from experiments.gpu.children import ChildFailed
from experiments.gpu.folder import Line
from experiments.gpu.packed import Brought
from experiments.gpu.plan import ROWS, Workplace
from experiments.harness import estimate, result_files
from experiments.harness.run_table import DONE, RUNNING, Run, State, command, state
from fdg_jax.data import cifar
from fdg_jax.errors import BadInput
from fdg_jax.runs.run_files import CHECKPOINTS, SUMMARY, read_json
from fdg_jax.training.child_runs import last_line

IMAGES = {"digits": 1438, **estimate.IMAGES}
LOCKED_SECONDS = 60.0  # that a run of an earlier call, which was killed, may take for its last checkpoint
TELL_SECONDS = 30.0


class Going(NamedTuple):
    """A run under way."""

    run: Run
    process: subprocess.Popen
    log: Path


class Rows:
    """All chosen runs of one network."""

    kind, goes_on = ROWS, True

    def __init__(self, model: str, runs: Sequence[Run], needs: Sequence[str]):
        self.name, self.model, self.runs, self.needs = f"rows-{model}", model, list(runs), tuple(needs)
        self.about = f"{len(runs)} runs of {runs[0].flags['epochs']} epochs"

    def seconds(self, at: Workplace) -> float | None:
        """By the speed measured for this network; evaluations and compiling come on top. Before that, a guess if the
        settings have one."""
        speed = self.speed(at)
        if not speed:
            return at.settings.guesses.get(self.name)
        return sum(images_left(run, state(run, at.folder.rows)) for run in self.runs) / speed

    def speed(self, at: Workplace) -> float | None:
        together = at.folder.line("together")
        if together.get("model") == self.model:
            return together["images_per_second"][str(together["jobs"])]
        lines = at.folder.lines(f"speed-{self.model}@{at.choices.precision}")
        side = at.settings.sides[0]
        return next((line["images_per_second"] for line in lines if line["side"] == side and "ratio" in line), None)

    def refused(self, at: Workplace) -> str:
        seconds = self.seconds(at)
        if seconds and seconds > at.choices.hours * 3600:
            wanted = estimate.duration(seconds)
            return f"it would take about {wanted}, more than --hours {at.choices.hours:g}: give --hours more"
        return data_missing(at)

    def run(self, at: Workplace) -> list[Line]:
        going: list[Going] = []
        jobs = at.folder.line("together").get("jobs", 1)
        try:
            self.wait_for_earlier(at)
            queue = [run for run in self.runs if state(run, at.folder.rows).kind != DONE]
            print(f"           {len(self.runs) - len(queue)} of {len(self.runs)} runs are done, {jobs} at a time")
            told = time.monotonic()
            while queue or going:
                while queue and len(going) < jobs:
                    going.append(begin(queue.pop(0), at))
                time.sleep(children.POLL_SECONDS)
                for one in [one for one in going if one.process.poll() is not None]:
                    going.remove(one)
                    self.finished(one, at)
                if time.monotonic() - told > TELL_SECONDS:
                    told = time.monotonic()
                    tell(going)
        finally:
            children.end([one.process for one in going], at.clock.left_to_stop())
            for one in going:
                print(f"           {one.run.name}: {state(one.run, at.folder.rows)}", flush=True)
            tidy(self.runs, at)
        return [result(run, at) for run in self.runs]

    def wait_for_earlier(self, at: Workplace) -> None:
        """Waits for runs of an earlier call, which was killed, to write their checkpoints."""
        until = time.monotonic() + LOCKED_SECONDS
        while any(state(run, at.folder.rows).kind == RUNNING for run in self.runs):
            if time.monotonic() > until:
                raise BadInput(f"another process trains in {at.folder.rows}. Wait for it, or stop it first.")
            time.sleep(children.POLL_SECONDS)

    def finished(self, one: Going, at: Workplace) -> None:
        """Keeps the row of a run that has ended. Raises ChildFailed if it has failed."""
        tell([one])
        if one.process.returncode:
            raise ChildFailed(
                f"{one.run.name}: {children.told(one.process.returncode, one.log)} (all of it: {one.log})"
            )
        tidy([one.run], at)
        collect(at)


def begin(run: Run, at: Workplace) -> Going:
    """Starts a run, or goes on with it. What is added to the table's words changes nothing that is trained."""
    s, path, log = at.settings, at.folder.rows / run.name, at.folder.rows / f"{run.name}.log"
    data_dir = str(at.choices.data_dir) if at.choices.data_dir else None
    words = command(run, data_dir, str(path))[1:]
    words += ["--resume", "auto", "--keep", "1", "--no-tensorboard", "--evaluate-every", str(s.evaluate_every)]
    words += ["--checkpoint-every", str(s.checkpoint_every)]
    flags = [base_flags(at), at.folder.line("row-flags").get("flags", "")]
    env = children.environment(at.choices.precision, *flags)
    return Going(run, children.start(words, log, env), log)


def images_left(run: Run, now: State) -> float:
    images = run.flags.get("train_size") or IMAGES[run.flags["dataset"]]
    return max(0.0, (run.flags["epochs"] - now.epochs) * images) if now.kind != DONE else 0.0


def data_missing(at: Workplace) -> str:
    """What the rows lack, "" if nothing."""
    choices = at.choices
    if at.settings.dataset != "cifar10":
        return ""
    try:
        if choices.brought and choices.data_dir:
            missing = Brought(choices.data_dir, choices.brought).collect()
            return f"of CIFAR-10 still to be brought with --parts: {', '.join(missing)}" if missing else ""
        found = cifar.find("cifar10", choices.data_dir)
    except BadInput as error:
        return str(error)
    return "" if found or choices.data_dir is None else f"{choices.data_dir} holds no CIFAR-10"


def tell(going: Sequence[Going]) -> None:
    for one in going:
        print(f"           {one.run.name}: {last_line(one.log)}", flush=True)


def tidy(runs: Sequence[Run], at: Workplace) -> None:
    """Removes the checkpoints of runs that are done: they are what is large in the folder."""
    for run in runs:
        if (at.folder.rows / run.name / CHECKPOINTS).exists() and state(run, at.folder.rows).kind == DONE:
            shutil.rmtree(at.folder.rows / run.name / CHECKPOINTS, ignore_errors=True)


def collect(at: Workplace) -> None:
    """Writes the lines of all finished runs where the table keeps its results."""
    results = at.choices.results or at.folder.path / "collected"
    result_files.collect(at.settings.table, at.folder.rows, results)


def result(run: Run, at: Workplace) -> Line:
    summary = read_json(at.folder.rows / run.name / SUMMARY)
    kept = {
        name: summary[name] for name in ("test_error_percent", "images_per_second", "seconds", "final_state_sha256")
    }
    error, hours = kept["test_error_percent"], kept["seconds"] / 3600
    return {"run": run.name, **kept, "says": f"{run.name}: test error {error:.2f}%, {hours:.2f} hours"}
