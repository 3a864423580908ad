"""Real processes of the command on the smallest real run: watched, struck at a chosen moment, taken up again, compared.

A moment is a phase, seen from outside in the files of the run, and a random delay of up to the time that the phase
took in the run that was left alone.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

from fdg_jax import methods
from fdg_jax.checkpoint import run_checkpoints
from fdg_jax.runs.run_files import read_metrics

ROOT = Path(__file__).parents[2]
# Two epochs of three batches, the last of 4 images; a checkpoint after every batch, an evaluation after 3 and 6.
SMALL = """--dataset digits --train-size 20 --batch-size 8 --epochs 2 --learning-rate 0.01 --log-every 1
    --checkpoint-every 1 --no-tensorboard"""
EPOCH, STEPS = 3, 6
PHASES = ("start", "compile", "step", "evaluate", "save")
COLD = ("compile", "prepare")  # of which one does not want to find the programs compiled
SPEEDS = ("images_per_second", "tokens_per_second")

# The same length on text, with all that draws random numbers or counts updates by itself.
SMALL_TEXT = """--train-size 20 --batch-size 8 --epochs 2 --log-every 1 --checkpoint-every 1 --no-tensorboard
    --block-size 512 --dropout 0.1 --warmup-steps 2 --dtype bfloat16 --remat 1"""


class Config(NamedTuple):
    method: str
    K: int
    engine: str
    model: str = "resnet8"

    @property
    def command(self) -> str:
        return "language_model" if self.model.startswith("transformer") else "cifar"

    @property
    def program(self) -> tuple[str, str]:
        """The words for Python that begin it."""
        return "-m", f"fdg_jax.experiments.{self.command}"

    def words(self) -> list[str]:
        small = SMALL if self.command == "cifar" else SMALL_TEXT
        return f"{small} --method {self.method} --K {self.K} --engine {self.engine} --model {self.model}".split()

    def __str__(self) -> str:
        return f"{self.method} K={self.K} {self.engine}{' on text' if self.command != 'cifar' else ''}"


def configs() -> list[Config]:
    """Every method, K = 1, 2 and 4, on every engine that has it."""
    found = []
    for method in methods.names():
        engines = ["pipeline", "delay-line"] if methods.find(method).delay_line else ["pipeline"]
        found += [Config(method, K, engine) for K in (1, 2, 4) for engine in engines]
    return found


class Process:
    """One process of the command in a run directory, begun or resumed. Its files lie beside that directory."""

    launcher: Sequence[str] = ()  # the words for Python before those of the program
    environment: Mapping[str, str] = types.MappingProxyType({})

    def __init__(self, path: Path, config: Config, cache: Path, *more: str):
        self.path, self.before = path, newest(path)
        self.resumed = (path / "config.json").exists()
        words = [*self.launcher, *config.program, "--run-dir", str(path)]
        words += [*(["--resume"] if self.resumed else config.words()), *more]
        self.temporary = path.parent / "temporary"
        self.temporary.mkdir(exist_ok=True)
        self.cache = cache
        settings = {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "TMPDIR": str(self.temporary)}
        settings |= {"XDG_CACHE_HOME": str(cache), **self.environment}
        self.out, self.err = path.parent / "out", path.parent / "err"
        self.began = time.time()
        with self.out.open("w") as out, self.err.open("w") as err:
            self.popen = subprocess.Popen(
                [sys.executable, *words],
                stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=ROOT, env={**os.environ, **settings},
            )  # fmt: skip

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_) -> None:
        self.popen.kill()
        self.popen.wait()

    def seen(self, phase: str, step: int) -> bool:
        """Whether the process has come to a phase; step: of its checkpoint, more than the newest before."""
        saved = self.path / "checkpoints"
        if phase == "start":
            return True
        if phase == "prepare":  # the cache's folder is made just before
            return any(self.cache.glob("fdg_jax/xla-*"))
        if phase == "compile":
            return "compiling...\n" in self.out.read_text()
        if phase == "obeyed":
            return "stopping after the current operation" in self.err.read_text()
        if phase == "step":
            return run_checkpoints.path_of(saved, step).exists()
        if phase == "evaluated":
            return any("test_loss" in event and event["step"] >= step for event in lines(self.path))
        beginning = run_checkpoints.path_of(saved, step)
        with contextlib.suppress(OSError):
            if beginning.with_name(f".{beginning.name}.tmp").stat().st_ctime > self.began:
                return True
        return beginning.exists()

    def wait_for(self, phase: str, step: int = 0, seconds: float = 300) -> bool:
        """Until the phase is seen; False where the process ends first."""
        until = time.monotonic() + seconds
        while not self.seen(phase, step):
            if self.popen.poll() is not None:
                return False
            assert time.monotonic() < until, f"the run does not get to {phase} {step}: {self.told()}"
            time.sleep(0.002)
        return True

    def strike(self, phase: str, step: int, delay: float, number: int) -> bool:
        """Sends a signal so long after the phase is seen; False where the process has ended by then."""
        if not self.wait_for(phase, step):
            return False
        time.sleep(delay)
        if self.popen.poll() is not None:
            return False
        self.popen.send_signal(number)
        return True

    def finish(self, seconds: float = 300) -> int:
        return self.popen.wait(seconds)

    def told(self) -> str:
        return f"{self.out.read_text()}\n{self.err.read_text()}"


class Reference(NamedTuple):
    """The run that was left alone, and how many seconds its phases took."""

    path: Path
    seconds: dict[str, float]


def reference(path: Path, config: Config, cache: Path) -> Reference:
    with Process(path, config, cache) as process:
        return Reference(path, timed(process))


def timed(process: Process) -> dict[str, float]:
    """How many seconds each phase takes of a process that has just been started. Waits for its end."""
    marks = [time.monotonic()]
    for phase, step in [("compile", 0), ("save", 1), ("step", 1), ("save", EPOCH), ("evaluated", EPOCH)]:
        assert process.wait_for(phase, step), process.told()
        marks.append(time.monotonic())
    assert process.finish() == 0, process.told()
    begun, compiled, saving_1, saved_1, saving_3, evaluated = marks
    step = max(saving_3 - saving_1, 0.02) / (EPOCH - 1)
    seconds = {"start": compiled - begun, "prepare": 0.5 * (compiled - begun), "compile": saving_1 - compiled}
    return {**seconds, "save": saved_1 - saving_1, "step": step, "evaluate": evaluated - saving_3}


def moment(random: Random, phase: str, before: int, seconds: dict[str, float]) -> tuple[int, float]:
    """(step, delay) of a random moment in a phase of a process that begins after batch `before` < STEPS."""
    if phase == "evaluate":
        step = random.choice([end for end in (EPOCH, STEPS) if end > before])
    else:
        step = random.randint(before + 1, max(before + 1, STEPS - 1))
    return step, random.uniform(0, seconds[phase])


def newest(path: Path) -> int:
    """The batch after which the newest checkpoint was made; -1 without any."""
    stored = run_checkpoints.stored(path / "checkpoints")
    return int(stored[-1].name[5:]) if stored else -1


def lines(path: Path) -> list[dict]:
    events = read_metrics(path / "metrics.jsonl")
    return [{name: event[name] for name in event if name not in SPEEDS} for event in events]


def assert_same(path: Path, whole: Path) -> None:
    """That a run ended as another, to the last bit, and left nothing behind that the other has not."""
    ours, theirs = (json.loads((each / "summary.json").read_text()) for each in (path, whole))
    for name in theirs.keys() - {"seconds", "sessions", *SPEEDS}:
        assert ours[name] == theirs[name], name
    assert lines(path) == lines(whole)
    for folder in (".", "checkpoints"):
        there, expected = (sorted(os.listdir(each / folder)) for each in (path, whole))
        assert there == expected, f"{folder}: {there} instead of {expected}"
    assert os.listdir(path.parent / "temporary") == []


def summary(path: Path) -> dict:
    return json.loads((path / "summary.json").read_text())


def name_of(number: int) -> str:
    return signal.Signals(number).name
