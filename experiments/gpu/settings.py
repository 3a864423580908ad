"""The settings of checks, measurements and trainings: on a GPU, and small ones for a CPU."""

from collections.abc import Mapping
from typing import NamedTuple

from experiments import table3
from experiments.harness.run_table import Run, Table

METHODS = ("bp", "fdg")  # the columns of Table 3 that these runs fill
DETERMINISTIC = "--xla_gpu_deterministic_ops=true"
LOOPS = "--xla_gpu_enable_command_buffer=+WHILE,+CONDITIONAL --xla_gpu_graph_min_graph_size=1"

# XLA flags that may speed up many small programs. True: the flag only changes how kernels are launched, so training
# must end in the same bits. The last two may change fusion or the choice of kernels.
GPU_FLAGS: Mapping[str, tuple[str, bool]] = {
    "no command buffers": ("--xla_gpu_enable_command_buffer=", True),
    "command buffers from one command on": ("--xla_gpu_graph_min_graph_size=1", True),
    "command buffers with loops": (LOOPS, True),
    "exclusive lock": ("--xla_gpu_require_exclusive_lock=true", True),
    "loop unrolled twice": ("--xla_gpu_enable_while_loop_unrolling=WHILE_LOOP_UNROLLING_DOUBLE_BUFFER", False),
    "not deterministic": ("--xla_gpu_deterministic_ops=false", False),
}


class Settings(NamedTuple):
    """The settings that differ between a GPU and the small version.

    device: as in a benchmark's side. models: the networks whose speed is measured, the first one also with XLA flags
        and several processes. sides: the sides to compare, the baseline first. flags: as GPU_FLAGS. together: the
        numbers of processes to try at a time. check_model, check_words: the training that must repeat its bits;
        check_steps: its batches. compile_anew: whether these runs compile without the cache. table: the table whose
        rows are filled. every: epochs between its runs' evaluations, and batches between their checkpoints.
    guesses: seconds of a step, before anything is known.
    """

    name: str
    device: str
    models: tuple[str, ...]
    precisions: tuple[str, ...]
    batch_size: int
    windows: int
    seconds: float
    sides: tuple[str, ...]
    flags: Mapping[str, tuple[str, bool]]
    together: tuple[int, ...]
    check_model: str
    check_words: str
    check_steps: int
    compile_anew: bool
    host_ticks: int
    table: Table
    dataset: str
    every: tuple[int, int]
    guesses: Mapping[str, float]


FULL = Settings(
    name="full", device="gpu", models=("resnet20", "wrn28_10"), precisions=("float32", "tf32", "bfloat16"),
    batch_size=128, windows=5, seconds=3.0, flags=GPU_FLAGS, together=(1, 2, 4),
    sides=("bp:engine=delay-line", "delay-line", "bp", "fdg", "torch", "torch:graph=on"),
    check_model="resnet20", check_words="--dataset synthetic --batch-size 128 --epochs 4", check_steps=160,
    compile_anew=True, host_ticks=100, table=table3.TABLE, dataset="cifar10", every=(5, 3910),
    guesses={
        "devices": 15, "determinism": 100, "engines": 90, "resume": 120, "memory": 60, "speed-resnet20": 130,
        "speed-wrn28_10": 240, "flags": 200, "row-flags": 70, "together": 100, "host": 60,
    },
)  # fmt: skip


def small_run(method: str, K: int, beta: float | None) -> Run:
    """A run on digits that takes seconds, in place of one of Table 3."""
    flags = {"dataset": "digits", "model": "resnet8", "epochs": 3, "batch_size": 64, "method": method, "K": K}
    flags |= {"train_size": 640, "seed": 0} | ({} if beta is None else {"beta": beta})
    return Run(f"resnet8-digits-{method}-K{K}{'' if beta is None else f'-beta{beta:g}'}-seed0", flags)


SMALL = Settings(
    name="small", device="cpu", models=("resnet8",), precisions=("float32",), batch_size=16, windows=2, seconds=0.3,
    sides=("bp", "fdg"), flags={"exclusive lock": GPU_FLAGS["exclusive lock"]}, together=(1, 2), check_model="resnet8",
    check_words="--dataset digits --train-size 256 --batch-size 16 --epochs 1", check_steps=8, compile_anew=False,
    host_ticks=4, dataset="digits", every=(1, 5),
    table=Table(
        "gpu_small", (small_run("bp", 1, None), small_run("fdg", 2, 1.0), small_run("fdg", 2, 0.2)), lambda lines: {}
    ),
    guesses={
        "devices": 3, "determinism": 9, "resume": 15, "engines": 10, "memory": 5, "speed-resnet8": 6, "flags": 12,
        "row-flags": 5, "together": 11, "host": 5, "rows-resnet8": 34,
    },  # measured on two cores of an AMD EPYC; row-flags takes no time, or as long as determinism
)  # fmt: skip


def rows(settings: Settings) -> list[Run]:
    """The runs whose rows can be filled, in the order of Table 3: the cheapest network first. For each network, the
    first seed of every method comes first."""
    wanted = [run for run in settings.table.runs if run.flags["method"] in METHODS]
    order = list(dict.fromkeys(run.flags["model"] for run in wanted))
    return sorted(wanted, key=lambda run: (order.index(run.flags["model"]), run.flags["seed"]))
