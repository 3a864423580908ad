"""What is checked, measured and trained: on a GPU, and in small on a CPU."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from experiments import table3
from experiments.harness.printed import Cell
from experiments.harness.run_table import Run, Table

METHODS = ("BP", "FDG")  # the columns of Table 3 that are filled
DETERMINISTIC = "--xla_gpu_deterministic_ops=true"
EVERY_COMMAND = "+WHILE,+CONDITIONAL"

# XLA flags that may matter for many small programs. "launch": whether they change only how kernels are launched, so
# that training must end in the same bits. The last two may fuse or choose kernels otherwise.
GPU_FLAGS: Mapping[str, tuple[str, bool]] = {
    "no command buffers": ("--xla_gpu_enable_command_buffer=", True),
    "command buffers from one command on": ("--xla_gpu_graph_min_graph_size=1", True),
    "command buffers with loops": (
        f"--xla_gpu_enable_command_buffer={EVERY_COMMAND} --xla_gpu_graph_min_graph_size=1",
        True,
    ),
    "exclusive lock": ("--xla_gpu_require_exclusive_lock=true", True),
    "loop unrolled twice": ("--xla_gpu_enable_while_loop_unrolling=WHILE_LOOP_UNROLLING_DOUBLE_BUFFER", False),
    "not deterministic": ("--xla_gpu_deterministic_ops=false", False),
}


class Settings(NamedTuple):
    """device: as of a benchmark's side. models: whose speed is measured, the first one also with XLA flags and several
    processes. check_model, check_words: what is trained to see whether bits repeat, by these words of the training
    command; check_steps: how many batches. sides: what is compared, the first is the baseline. peers: sides of
    PyTorch. flags: as GPU_FLAGS. together: how many processes are tried at a time. compile_anew: whether the runs whose
    bits are compared compile for themselves. table: whose rows are filled. evaluate_every, checkpoint_every: of its
    runs, in epochs and batches."""

    name: str
    device: str
    models: tuple[str, ...]
    precisions: tuple[str, ...]
    batch_size: int
    windows: int
    seconds: float
    sides: tuple[str, ...]
    peers: tuple[str, ...]
    flags: Mapping[str, tuple[str, bool]]
    together: tuple[int, ...]
    check_model: str
    check_words: str
    check_steps: int
    compile_anew: bool
    engine_steps: int
    engine_batch: int
    host_ticks: int
    table: Table
    dataset: str
    evaluate_every: int
    checkpoint_every: int
    guesses: Mapping[str, float]  # seconds of a part, before anything is known


FULL = Settings(
    name="full",
    device="gpu",
    models=("resnet20", "wrn28_10"),
    precisions=("float32", "tf32", "bfloat16"),
    batch_size=128,
    windows=5,
    seconds=3.0,
    sides=("bp:engine=delay-line", "delay-line", "bp", "fdg"),
    peers=("torch", "torch:graph=on"),
    flags=GPU_FLAGS,
    together=(1, 2, 4),
    check_model="resnet20",
    check_words="--dataset synthetic --batch-size 128 --epochs 4",
    check_steps=160,
    compile_anew=True,
    engine_steps=10,
    engine_batch=16,
    host_ticks=100,
    table=table3.TABLE,
    dataset="cifar10",
    evaluate_every=5,
    checkpoint_every=3910,
    guesses={
        "devices": 15, "determinism": 100, "engines": 90, "resume": 120, "memory": 60, "speed-resnet20": 130,
        "speed-wrn28_10": 240, "flags": 200, "row-flags": 70, "together": 100, "host": 60,
    },
)  # fmt: skip

SMALL_FLAGS = {"exclusive lock": ("--xla_gpu_require_exclusive_lock=true", True)}
SMALL_CELLS = (
    Cell("ResNet-8", "digits", "BP", 1, None, ""),
    Cell("ResNet-8", "digits", "FDG", 2, 1.0, ""),
    Cell("ResNet-8", "digits", "FDG", 2, 0.2, ""),
)


def small_run(cell: Cell, seed: int) -> Run:
    """A run of seconds on digits that stands for one of Table 3."""
    beta = {} if cell.beta is None else {"beta": cell.beta}
    name = f"resnet8-digits-{cell.method.lower()}-K{cell.K}{'' if cell.beta is None else f'-beta{cell.beta:g}'}"
    flags: dict[str, Any] = {
        "dataset": "digits", "model": "resnet8", "epochs": 3, "batch_size": 64, "method": cell.method.lower(),
        "K": cell.K, **beta, "train_size": 640, "seed": seed,
    }  # fmt: skip
    return Run(f"{name}-seed{seed}", flags)


SMALL = Settings(
    name="small",
    device="cpu",
    models=("resnet8",),
    precisions=("float32",),
    batch_size=16,
    windows=2,
    seconds=0.3,
    sides=("bp", "fdg"),
    peers=(),
    flags=SMALL_FLAGS,
    together=(1, 2),
    check_model="resnet8",
    check_words="--dataset digits --train-size 256 --batch-size 16 --epochs 1",
    check_steps=8,
    compile_anew=False,
    engine_steps=10,
    engine_batch=16,
    host_ticks=4,
    table=Table(
        name="gpu_small",
        summary="three runs of seconds that stand for a row of Table 3",
        title="Three runs of seconds",
        runs=tuple(small_run(cell, 0) for cell in SMALL_CELLS),
        document=lambda lines: f"{len(lines)} runs",
    ),
    dataset="digits",
    evaluate_every=1,
    checkpoint_every=5,
    guesses={
        "devices": 3, "determinism": 9, "resume": 15, "engines": 10, "memory": 5, "speed-resnet8": 6, "flags": 12,
        "row-flags": 5, "together": 11, "host": 5, "rows-resnet8": 34,
    },  # as measured on two cores of an AMD EPYC; row-flags: nothing, or as long as determinism
)  # fmt: skip


def rows(settings: Settings) -> list[Run]:
    """The runs whose rows can be filled, cheapest network first: the order of Table 3. Of a network, first one seed of
    every method."""
    methods = [method.lower() for method in METHODS]
    wanted = [run for run in settings.table.runs if run.flags["method"] in methods]
    order = list(dict.fromkeys(run.flags["model"] for run in wanted))
    return sorted(wanted, key=lambda run: (order.index(run.flags["model"]), run.flags["seed"]))
