"""`--seeds 0-31 --together`: the runs of several seeds, betas or learning rates as one program (fdg_jax.engine.seeds).

Each run goes through the same steps as a single run (`life` in fdg_jax.training.lifecycle) and has its own directory.
It pauses after its batches have entered, and this module lets the runs go on in turns. So all runs are at the same
batch. Runs that were stopped at different batches train one group after another. A run that ends early does not disturb
the others.
"""

import contextlib
import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fdg_jax.cli import Program
from fdg_jax.config import Config
from fdg_jax.data.dataset import Dataset
from fdg_jax.engine.scan_engine import ScanEngine
from fdg_jax.engine.seeds import Seeds
from fdg_jax.errors import BadInput
from fdg_jax.machine import gpu_flags
from fdg_jax.machine.signals import Signals
from fdg_jax.options.common import Start
from fdg_jax.runs import locking
from fdg_jax.sweep import Combination
from fdg_jax.training import job as jobs
from fdg_jax.training import lifecycle
from fdg_jax.training.job import Job
from fdg_jax.training.loop import Steps
from fdg_jax.training.processes import Peers

FLAG = "--together"


class Asked(NamedTuple):
    """A run to be made: its directory, its options, and config.json if it goes on."""

    path: Path
    options: Config
    before: dict[str, Any] | None


class Round(Signals):
    """Shows every run the signals that had come when a round began, so that all runs stop at the same batch."""

    def __init__(self, signals: Signals):
        super().__init__()
        self.signals = signals

    def begin(self) -> None:
        """Looks whether a signal has come."""
        self.number = self.signals.number


def run(found: Sequence[Combination], folder: Path, program: Program, signals: Signals, start: Start) -> int:
    """Makes the runs that are not finished. Returns the first exit code that is not 0. Raises BadInput."""
    with contextlib.ExitStack() as held:
        asked = [each for one in found if (each := to_make(one, folder, held))]
        if not asked:
            return 0
        asked.sort(key=lambda each: each.before is not None)  # only a new run reads --init-from
        before = next((each.before for each in asked if each.before), None)
        gpu_flags.prepare(folder, before)
        options = dataclasses.replace(asked[0].options, engine="scan")
        first, weights = lifecycle.prepare(options, asked[0].before, program, signals, Peers())
        check(first)
        initial = weights.read if weights else None
        made = [first]
        for each in asked[1:]:
            if like := next((job for job in made if numbers(job.options) == numbers(each.options)), None):
                made.append(jobs.of_seed(like, each.options.seed, initial))
            else:
                own = dataclasses.replace(each.options, engine="scan")
                made.append(jobs.built(own, first.dataset, first.peers, first.partition, initial))
        check_layouts(made)
        together, lives = Round(signals), list[Steps[int]]()
        for job, each in zip(made, asked, strict=True):
            life = lifecycle.life(
                job, weights, each.options, each.before, each.path, program, together, start, name=each.path.name
            )
            next(life)  # restores its state
            lives.append(life)
        groups: dict[int, list[int]] = {}
        for i, job in enumerate(made):
            groups.setdefault(job.pipeline.batches, []).append(i)
        told = ", ".join(f"{len(group)} from batch {batch + 1:,} on" for batch, group in sorted(groups.items()))
        print(f"{len(made)} runs as one program: {told}\ncompiling...", flush=True)
        codes = [code for _, group in sorted(groups.items())
                 for code in trained([made[i] for i in group], [lives[i] for i in group], together)]  # fmt: skip
        return next((code for code in codes if code), 0)


def to_make(one: Combination, folder: Path, held: contextlib.ExitStack) -> Asked | None:
    """Claims the directory of a run; None if the run is finished. Raises BadInput."""
    path, resumes = held.enter_context(locking.claim(folder / one.name, "auto"))
    options = dataclasses.replace(one.options, resume=resumes)
    if not resumes:
        return Asked(path, options, None)
    options, before = lifecycle.resumed(path, options, one.given)
    return None if lifecycle.finished(path, options) else Asked(path, options, before)


def numbers(options: Config) -> tuple[float, float]:
    """The numbers in which runs may differ beside their seeds."""
    return options.beta, options.learning_rate


def engines_of(made: Sequence[Job]) -> list[ScanEngine]:
    """The engines of runs."""
    return [job.pipeline.engine for job in made if isinstance(job.pipeline.engine, ScanEngine)]


def check_layouts(made: Sequence[Job]) -> None:
    """Raises BadInput if the states of runs have different layouts."""
    if len({jax.tree.structure(engine.run) for engine in engines_of(made)}) > 1:
        fact = f"with --correct {made[0].options.correct} the state of a run with beta 1 has another layout"
        raise BadInput(f"{FLAG}: {fact}. Leave beta 1 or {FLAG} out.")


def check(job: Job) -> None:
    """Raises BadInput for runs that cannot be one program."""
    if not isinstance(job.dataset, Dataset):
        fact = f"{FLAG} needs a data set of images that fits into memory, unlike {job.dataset.name}"
        raise BadInput(f"{fact}. Leave {FLAG} out.")


def trained(made: Sequence[Job], lives: Sequence[Steps[int]], signals: Round) -> list[int]:
    """Trains runs that are at the same batch to their ends. Returns their exit codes."""
    engines, differ = engines_of(made), dict[str, np.ndarray]()
    if len({job.options.beta for job in made}) > 1:
        differ["beta"] = np.array([job.options.beta for job in made], np.float32)
    if len({job.options.learning_rate for job in made}) > 1:
        differ["rates"] = np.stack([job.learning_rates for job in made])
    transforms, rules = made[0].dataset.train_transform, partial(jobs.update_rules, made[0])
    seeds = Seeds(engines, [job.options.seed for job in made], transforms, rules, differ)
    going, codes = dict(enumerate(lives)), [0 for _ in lives]
    while going:
        signals.begin()
        for i, life in list(going.items()):
            try:
                next(life)
            except StopIteration as end:
                codes[i] = end.value
                del going[i]
                seeds.leave(engines[i])
    return codes
