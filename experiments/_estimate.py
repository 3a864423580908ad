"""How long the runs of a table would take: the steps they still have to make, times a step measured now.

A step is measured with the run's own flags by the training command, in a process of its own and on synthetic images,
once for all runs that differ in nothing a step's time depends on. Time for evaluations and checkpoints is not in it.
"""

import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from experiments import _running
from experiments._runs import CUT_OFF, DONE, MISSING, ROOT, RUNNING, Run, State, command, state
from fdg_jax.errors import BadInput
from fdg_jax.experiments.run_directory import METRICS, SUMMARY, read_json, read_metrics

IMAGES = {"cifar10": 50_000, "cifar100": 50_000, "tiny_imagenet": 100_000}  # of the training sets
AREA = {"tiny_imagenet": 4}  # pixels of an image, in those of the 32x32 images that are measured with
WITHOUT_TIME = ("beta", "seed", "epochs")  # flags that a step takes no longer for
FEW, MANY = 5, 150  # steps; where an accelerator takes many steps a dispatch, a few are not timed at all
SHORT_SECONDS = 1.0  # a shorter time than that tells too little
LIMIT_SECONDS = 180


class Step(NamedTuple):
    """seconds: of one training step, None where it could not be measured. how: that in words, if it was."""

    seconds: float | None
    how: str


def tell(runs: Sequence[Run], runs_dir: Path, jobs: int, given: float | None) -> int:
    """Prints a line a run, what was measured, and the total. given: seconds a step, instead of measuring."""
    if given is not None and not (given > 0 and math.isfinite(given)):
        raise BadInput(f"--seconds-per-step {given}: use a positive number.")
    core = _running.cores_for(jobs)[0]
    known: dict[tuple, Step] = {}
    total, unknown = 0.0, 0
    for run in runs:
        now = state(run, runs_dir)
        left = steps_left(run, now)
        if now.kind in (DONE, RUNNING):
            print(f"{run.name}: {now}")
            continue
        kind = step_kind(run)
        if kind not in known:
            known[kind] = Step(given, "") if given is not None else measured(run, core)
            if known[kind].how:
                print(f"  {what(run)}: {known[kind].how}", flush=True)
        seconds = known[kind].seconds
        time = "no estimate" if seconds is None else duration(left * seconds)
        unknown += seconds is None
        total += left * (seconds or 0.0)
        print(f"{run.name}: {now}, {left:,} steps to go: {time}", flush=True)
    words = "one run at a time" if jobs == 1 else f"{jobs} runs at a time"
    print(f"total: {duration(total / jobs)} of training, {words}; evaluations and checkpoints come on top")
    if unknown:
        print(f"not in it: {unknown} runs without an estimate; --seconds-per-step X gives them one")
    return 0


def steps_left(run: Run, now: State) -> int:
    """Batches that a missing or cut-off run has still to train on; an epoch's last, smaller batch is one too."""
    per_epoch = math.ceil(IMAGES[run.flags["dataset"]] / run.flags["batch_size"])
    done = {MISSING: 0.0, CUT_OFF: now.epochs}.get(now.kind, run.flags["epochs"])
    return max(0, round((run.flags["epochs"] - done) * per_epoch))


def step_kind(run: Run) -> tuple:
    """What the time of a step depends on."""
    return run.module, *sorted((name, value) for name, value in run.flags.items() if name not in WITHOUT_TIME)


def what(run: Run) -> str:
    flags = run.flags
    return f"{flags['model']}, {flags['method']}, K={flags['K']}, batches of {flags['batch_size']}"


def measured(run: Run, core: int | None) -> Step:
    """A step's time, from a few steps; from more where those were not timed or took next to no time."""
    flags = run.flags
    rate, problem = once(run, 2 * flags["K"] + FEW, core)  # 2K may compile and are not timed
    timed = FEW
    if not problem and (rate is None or FEW * flags["batch_size"] / rate < SHORT_SECONDS):
        rate, problem = once(run, 2 * flags["K"] + MANY, core)
        timed = MANY
    if not rate:
        return Step(None, f"not measured ({problem or 'the command timed nothing'})")
    times = AREA.get(flags["dataset"], 1)
    larger = f", times {times} for the larger images of {flags['dataset']}" if times > 1 else ""
    seconds = flags["batch_size"] / rate * times
    return Step(seconds, f"{seconds:.3g} s a step, from up to {timed} steps made now on synthetic images{larger}")


def once(run: Run, steps: int, core: int | None) -> tuple[float | None, str]:
    """(images a second, why there is no such number) of so many steps of the run. Only the command for CIFAR has
    synthetic images; the others do the same with their own."""
    with tempfile.TemporaryDirectory(prefix="step-") as folder:
        path = Path(folder) / "run"
        few = {"dataset": "synthetic", "steps": steps, "log_every": 1, "evaluate_every": 0, "checkpoint_every": 0}
        words = [*command(Run(run.name, {**run.flags, **few}), None, str(path))[1:], "--no-tensorboard"]
        with _running.pinned(core):
            process = subprocess.Popen(
                [sys.executable, *words], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
        try:
            _, said = process.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:  # what it has logged may be enough: its last evaluation takes long
            lines = read_metrics(path / METRICS)
            return lines[-1].get("images_per_second") if lines else None, f"{LIMIT_SECONDS} s were not enough"
        finally:
            process.kill()
            process.wait()
        if process.returncode:
            return None, (said.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
        return read_json(path / SUMMARY)["images_per_second"], ""


def duration(seconds: float) -> str:
    """In the unit a person would take: 40 s, 12 minutes, 7.5 hours, 41 days."""
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.0f} s"
