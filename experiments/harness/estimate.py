"""Estimates how long the runs of a table would take: their remaining steps times the time of a step.

The training command measures the time of a step with the run's own flags, in a separate process and on synthetic
images. It measures once for all runs whose steps take the same time, and keeps the result in the user's cache
directory. The estimate does not include evaluations and checkpoints.
"""

import hashlib
import math
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.harness.run_table import CUT_OFF, DONE, MISSING, ROOT, RUNNING, Run, State, command, on_text, state
from fdg_jax import sweep
from fdg_jax.config import run_length
from fdg_jax.errors import BadInput
from fdg_jax.machine import facts
from fdg_jax.machine.facts import pinned
from fdg_jax.runs.run_files import METRICS, SUMMARY, read_json, read_metrics, unit, version

IMAGES = {"cifar10": 50_000, "cifar10_16": 50_000, "cifar100": 50_000, "tiny_imagenet": 100_000}  # training images
AREA = {"tiny_imagenet": 4, "cifar10_16": 1 / 4}  # pixels relative to the 32x32 images of the measurement
# Flags that do not change the time of a step.
WITHOUT_TIME = (
    *("beta", "seed", "epochs", "evaluate_every", "drain", "train_size", "hold_out", "learning_rate", "momentum"),
    *("anneal_updates", "discrepancy", "compensation_strength", "gate_decay", "text"),
)
FEW, MANY = 5, 150  # steps; if an accelerator takes many steps per dispatch, a few steps are not timed at all
SHORT_SECONDS = 10.0  # shorter times mean little, as the first steps wait for compiling
LIMIT_SECONDS = 180
TYPICAL_SECONDS = 30.0  # for measuring a small network on a quiet machine
WHAT = "step times"


class Step(NamedTuple):
    """The time of a training step.

    seconds: None if it could not be measured.
    how: how the time was measured, or why this was impossible.
    """

    seconds: float | None
    how: str


def tell(runs: Sequence[Run], runs_dir: Path, jobs: int, given: float | None, again: bool = False) -> int:
    """Prints the estimate, one line per run, and the total.

    given: seconds per step, instead of measuring. again: whether to repeat measurements whose times are known.
    """
    if given is not None and not (given > 0 and math.isfinite(given)):
        raise BadInput(f"--seconds-per-step {given}: use a positive number.")
    core = sweep.cores_for(jobs)[0]
    states = [(run, state(run, runs_dir)) for run in runs]
    waiting = [run for run, now in states if now.kind not in (DONE, RUNNING)]
    known = {} if given is not None else step_times(waiting, core, again)
    total, unknown = 0.0, 0
    for run, now in states:
        if run not in waiting:
            print(f"{run.name}: {now}")
            continue
        left, seconds = steps_left(run, now), known.get(step_kind(run), Step(given, "")).seconds
        left_time = "no estimate" if seconds is None else duration(left * seconds)
        unknown += seconds is None
        total += left * (seconds or 0.0)
        print(f"{run.name}: {now}, {left:,} steps to go: {left_time}")
    print(f"total: {duration(total / jobs)} of training, {jobs} runs at a time, without evaluations and checkpoints")
    if unknown:
        print(f"the total leaves out {unknown} runs without an estimate; --seconds-per-step X gives an estimate")
    return 0


def step_times(runs: Sequence[Run], core: int | None, again: bool) -> dict[tuple, Step]:
    """The step time of every kind of run. First prints how many times are measured and how long that takes."""
    from fdg_jax.machine import compile_cache as kept  # imports JAX, which the other verbs do not need

    kinds: dict[tuple, Run] = {}
    for run in runs:
        kinds.setdefault(step_kind(run), run)
    found = {kind: None if again else kept.load_times(WHAT, conditions(run, core), 1) for kind, run in kinds.items()}
    known = {kind: Step(kept[0], f"{kept[0]:.3g} s a step, measured before") for kind, kept in found.items() if kept}
    if new := len(kinds) - len(known):
        least, most = duration(TYPICAL_SECONDS * new), duration(LIMIT_SECONDS * new)
        print(f"{new} of {len(kinds)} kinds of run are measured now, one after another: {least} to {most}")
        print("Ctrl-C stops and keeps these times; --seconds-per-step X measures nothing; --measure-again measures all")
    for kind, run in kinds.items():
        about = "{model}, {method}, K={K}, batches of {batch_size}".format(**run.flags)
        print(f"  {about}: ", end="", flush=True)
        if kind not in known:
            known[kind] = step = measured(run, core)
            if step.seconds is not None:
                kept.save_times(WHAT, conditions(run, core), [step.seconds])
        print(known[kind].how, flush=True)
    return known


def conditions(run: Run, core: int | None) -> dict[str, Any]:
    """All conditions of a step's time that are known without starting JAX."""
    prefixes = ("JAX_", "XLA_", "CUDA_", "FDG_JAX_", "GLIBC_TUNABLES")
    code = hashlib.sha256()
    for file in sorted((ROOT / "fdg_jax").rglob("*.py")):
        code.update(file.read_bytes())
    return {
        "run": [list(part) if isinstance(part, tuple) else part for part in step_kind(run)],
        "machine": platform.node(),
        "processor": facts.processor_name(),
        "cores": facts.usable_cores() if core is None else 1,
        "environment": {name: os.environ[name] for name in sorted(os.environ) if name.startswith(prefixes)},
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("jax", "jaxlib", "flax")},
        "code": code.hexdigest(),
    }


def steps_left(run: Run, now: State) -> int:
    """The remaining batches of a missing or interrupted run. The smaller last batch of an epoch counts as a whole
    batch."""
    images = run.flags.get("train_size") or IMAGES[run.flags["dataset"]] - run.flags.get("hold_out", 0)
    length = run_length(images, run.flags["batch_size"], run.flags["epochs"], run.flags.get("steps"))
    done = {MISSING: 0, CUT_OFF: round(now.epochs * length.per_epoch)}.get(now.kind, length.end)
    return max(0, length.end - done)


def step_kind(run: Run) -> tuple:
    """What the time of a step depends on."""
    return run.module, *sorted((name, value) for name, value in run.flags.items() if name not in WITHOUT_TIME)


def measured(run: Run, core: int | None) -> Step:
    """The time of a step, measured over a few steps. If these were not timed or took too little time, more steps are
    measured."""
    flags = run.flags
    rate, problem = once(run, 2 * flags["K"] + FEW, core)  # the first 2K may compile and are not timed
    timed = FEW
    if not problem and (rate is None or FEW * flags["batch_size"] / rate < SHORT_SECONDS):
        rate, problem = once(run, 2 * flags["K"] + MANY, core)
        timed = MANY
    if not rate:
        return Step(None, f"not measured ({problem or 'the command timed nothing'})")
    times = AREA.get(flags["dataset"], 1)
    other = "larger" if times > 1 else "smaller"
    scaled = f", times {times} for the {other} images of {flags['dataset']}" if times != 1 else ""
    seconds = flags["batch_size"] / rate * times
    on = "its text" if on_text(run) else f"synthetic images{scaled}"
    return Step(seconds, f"{seconds:.3g} s a step, from up to {timed} steps made now on {on}")


def once(run: Run, steps: int, core: int | None) -> tuple[float | None, str]:
    """Trains for this many steps of the run.

    Returns: (examples per second, why there is no such number). Runs on other images use the command for CIFAR, too,
        since only this command has synthetic images. A run on text uses its own text.
    """
    with tempfile.TemporaryDirectory(prefix="step-") as folder:
        path = Path(folder) / "run"
        few: dict[str, Any] = {"steps": steps, "log_every": 1, "evaluate_every": 0, "checkpoint_every": 0}
        flags = {name: value for name, value in run.flags.items() if name not in ("train_size", "hold_out")}
        made = Run(run.name, {})
        if on_text(run):
            made = made._replace(module=run.module)
            few["hold_out"] = flags["batch_size"]  # keeps the last evaluation short, as it is not measured
        else:
            few["dataset"] = "synthetic"
        words = [*command(made._replace(flags={**flags, **few}), None, str(path))[1:], "--no-tensorboard"]
        try:
            with pinned([] if core is None else [core]):
                done = subprocess.run(
                    [sys.executable, *words], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE, text=True, timeout=LIMIT_SECONDS,
                )  # fmt: skip
        except subprocess.TimeoutExpired:  # the logged lines may be enough: the last evaluation takes long
            lines = read_metrics(path / METRICS)
            return examples_per_second(run, lines[-1]) if lines else None, f"{LIMIT_SECONDS} s were not enough"
        if done.returncode:
            return None, (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return examples_per_second(run, read_json(path / SUMMARY)), ""


def examples_per_second(run: Run, of: Mapping[str, Any]) -> float | None:
    """The speed in a summary or a logged line, in images or in blocks of text."""
    speed = of.get(f"{unit(of)}_per_second")
    return speed and speed / run.flags.get("block_size", 1)


def duration(seconds: float) -> str:
    """A time in a readable unit: 40 s, 12 minutes, 7.5 hours, 41 days."""
    for name, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {name}"
    return f"{seconds:.0f} s"
