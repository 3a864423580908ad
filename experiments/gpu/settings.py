"""The settings of checks, measurements and trainings on a GPU, and small settings for a CPU."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from experiments import table3
from experiments.harness.run_table import Run, Table
from fdg_jax.machine.gpu_flags import REPEATABLE, UNTUNED

METHODS = ("bp", "fdg")  # the columns of Table 3 that these runs fill
# With these flags a window of batches is one launch: XLA captures a loop only if it captures all of its body.
CAPTURE = "--xla_gpu_enable_command_buffer=+CONVOLUTION,+WHILE,+CONDITIONAL --xla_gpu_graph_min_graph_size=1"
PRECISIONS = {"float32": ":precision=highest", "TF32": "", "bfloat16": ":dtype=bfloat16"}  # -> options of a side


def matrix(name: str) -> dict[str, str]:
    """The sides of the flag matrix (a comparison of XLA flags), for one precision: name -> side."""
    own = f"delay-line{PRECISIONS[name]}:xla={REPEATABLE}"
    return {f"tuned, {name}": own, f"tuned, captured, {name}": f"{own} {CAPTURE}"}


class Settings(NamedTuple):
    """The settings that differ between a GPU and the small version.

    device: the device, as for a benchmark's side. model: the network whose speed is measured. sides: those of the flag
        matrix, the baseline first. seeds: the numbers of seeds that are trained together, to find their speed.
        check_model, check_words: the training that must repeat its bits. check_steps: how many batches it has. table:
        the table
            whose rows are
        filled. every: epochs between its runs' evaluations, and batches between their checkpoints.
    guesses: seconds of each step, used until its time is known.
    """

    name: str
    device: str
    model: str
    batch_size: int
    windows: int
    seconds: float
    sides: Mapping[str, str]
    seeds: tuple[int, ...]
    check_model: str
    check_words: str
    check_steps: int
    table: Table
    dataset: str
    every: tuple[int, int]
    guesses: Mapping[str, float]


FULL = Settings(
    name="full", device="gpu", model="resnet20", batch_size=128, windows=5, seconds=2.0, seeds=(1, 8, 32),
    sides={
        "untuned, float32": f"delay-line:precision=highest:xla={UNTUNED}",
        **matrix("float32"), **matrix("TF32"), **matrix("bfloat16"),
        "PyTorch, float32": "torch:graph=on:precision=highest", "PyTorch, TF32": "torch:graph=on",
    },
    check_model="resnet20", check_words="--dataset synthetic --batch-size 128 --epochs 4", check_steps=160,
    table=table3.TABLE, dataset="cifar10", every=(5, 3910),
    guesses={
        "devices": 15, "flags": 240, "seeds": 150, "determinism": 100, "engines": 90, "resume": 120, "memory": 60,
    },
)  # fmt: skip


def small_run(method: str, K: int, beta: float | None) -> Run:
    """A run on digits that takes seconds, in place of a run of Table 3."""
    flags = {"dataset": "digits", "model": "resnet8", "epochs": 3, "batch_size": 64, "method": method, "K": K}
    flags |= {"train_size": 640, "seed": 0} | ({} if beta is None else {"beta": beta})
    return Run(f"resnet8-digits-{method}-K{K}{'' if beta is None else f'-beta{beta:g}'}-seed0", flags)


SMALL = Settings(
    name="small", device="cpu", model="resnet8", batch_size=16, windows=2, seconds=0.3, seeds=(1, 4),
    sides={"untuned, float32": f"delay-line:xla={UNTUNED}", "tuned, float32": f"delay-line:xla={REPEATABLE}"},
    check_model="resnet8", check_words="--dataset digits --train-size 256 --batch-size 16 --epochs 1", check_steps=8,
    dataset="digits", every=(1, 5),
    table=Table(
        "gpu_small", (small_run("bp", 1, None), small_run("fdg", 2, 1.0), small_run("fdg", 2, 0.2)), lambda lines: {},
        shares="gpu_small",
    ),
    guesses={
        "devices": 3, "flags": 12, "seeds": 20, "determinism": 9, "resume": 15, "engines": 10, "memory": 5,
        "rows-resnet8": 60,
    },  # measured on two cores of an AMD EPYC
)  # fmt: skip


def rows(settings: Settings) -> list[Run]:
    """The runs for the rows of Table 3, in an order that begins with the cheapest network. For each network, the first
    seed of every method comes first."""
    wanted = [run for run in settings.table.runs if run.flags["method"] in METHODS]
    order = list(dict.fromkeys(run.flags["model"] for run in wanted))
    return sorted(wanted, key=lambda run: (order.index(run.flags["model"]), run.flags["seed"]))


def more_seeds(runs: Sequence[Run], most: int) -> list[Run]:
    """The runs of the same rows with further seeds, below `most`."""
    return [run._replace(name=f"{run.name.rpartition('-seed')[0]}-seed{seed}", flags={**run.flags, "seed": seed})
            for seed in range(runs[-1].flags["seed"] + 1, most)
            for run in runs if run.flags["seed"] == runs[0].flags["seed"]]  # fmt: skip
