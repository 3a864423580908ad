"""The flags of the training command that no method's file declares: meaning, the paper's symbol, default.

Names are a contract with scripts outside the repository (tests/test_cifar_command.py freezes them). The help
texts are written for somebody who has the paper open beside the terminal.
"""

import dataclasses
from typing import Any, Literal, TypeAlias

Resume: TypeAlias = bool | Literal["auto"]  # the value of --resume, which is a switch that also takes "auto"

GROUPS = {
    "method": "How the network is trained. K, beta and k are the paper's symbols; stage k runs from 1 to K.",
    "fdg": "What --method fdg can be asked for. A flag that a method does not have is refused.",
    "others": "What the methods it is compared with can be asked for, each for its own.",
    "model": "What is trained.",
    "data": "What it is trained on.",
    "recipe": "The paper's recipe (Section V): SGD, 300 epochs, learning rate divided by 10 at 50%, 75% and 91.67%.",
    "run": "Where the run goes, how it can be stopped and resumed, and what is written down.",
}


def flag(
    default: Any,
    group: str,
    help: str,
    *,
    metavar: str = "",
    shown: str = "",
    free: bool = False,
    methods: tuple[str, ...] = (),
) -> Any:
    """A field of `fdg_jax.runs.options.Options`.

    shown: the default in words. free: may be changed when a run is resumed. methods: whose files declare it, if any.
    """
    assert group in GROUPS
    told = {"group": group, "help": help, "metavar": metavar, "shown": shown, "free": free, "methods": methods}
    return dataclasses.field(default=default, metadata=told)


@dataclasses.dataclass(frozen=True)
class CommonOptions:
    """The flags that do not belong to a method alone, as given or by default."""

    method: str = flag(
        "fdg",
        "method",
        "Training method: {methods}. fdg is the paper's (Algorithm I), bp is back-propagation, the baseline; "
        "python -m fdg_jax.methods compares them all.",
        metavar="NAME",
    )
    K: int = flag(
        2,
        "method",
        "Number of stages K the network is cut into, one worker each. With fdg stage k uses its gradient "
        "2(K-k) batches late (Fig. 1). 1 is ordinary BP. The paper uses 2, 3 and 4.",
    )
    engine: Literal["auto", "pipeline", "delay-line"] = flag(
        "auto",
        "method",
        "pipeline: K stages at work on K devices. delay-line: the same training on one device as "
        "BP with delayed gradients.",
        shown="pipeline; delay-line where accelerators are fewer than K, or for K=1 on an accelerator, and the "
        "method allows it",
    )
    split: str | None = flag(
        None,
        "method",
        "Where to cut: paper (the authors' cut), even (equal numbers of blocks), balanced (slowest stage as fast as "
        "can be, by FLOPs: the same cut on every machine with devices of this kind, CPU or GPU), measured (by block "
        "times measured on this device and kept: another machine may cut elsewhere, which changes results; config.json "
        "has the block numbers), or the first block of each stage from 2 to K, e.g. 3,7.",
        metavar="paper|even|balanced|measured|3,7",
        shown="paper where the authors give one, else balanced",
    )
    window: int | None = flag(
        None,
        "method",
        "Batches per dispatch. On an accelerator the delay-line engine runs them as one program; a "
        "signal is obeyed and a checkpoint written between two dispatches.",
        metavar="INT",
        shown="1; up to 50 for delay-line on an accelerator",
    )

    beta: float = flag(
        1.0,
        "fdg",
        "Shrinking factor beta in (0, 1] (Eq. 15): stage k's gradient is multiplied by beta^(K-k) "
        "before weight decay and momentum. 1 is no shrinking; the paper's best are 0.2 to 0.8.",
    )
    weights: Literal["stashed", "current"] = flag(
        "stashed",
        "fdg",
        "The weights the late backward pass is taken at, by fdg and ddg: stashed, those of its own forward pass "
        "(Eq. 10); or current, today's, as the authors' released code does for both.",
    )

    model: str = flag(
        "resnet20",
        "model",
        "The network: {models}. resnet8 to resnet1202 are those for small images (6n+2 layers, shortcut A) that the "
        "paper uses most; resnet20 is its smallest (0.27M parameters).",
        metavar="NAME",
    )
    dtype: Literal["float32", "bfloat16"] = flag(
        "float32",
        "model",
        "What is computed in: float32 is the paper's; with bfloat16 activations and kernels are rounded to it, while "
        "parameters, optimizer, BatchNorm's statistics and the loss stay float32.",
    )
    remat: str = flag(
        "none",
        "model",
        "Stages whose backward pass computes the activations again, so that of a batch in flight only their input is "
        "kept: none, all, or numbers k, e.g. 1,2. Stage 1 has most in flight. Same training, a third more work there.",
        metavar="none|all|1,2",
    )

    dataset: str = flag(
        "auto",
        "data",
        "The images: {datasets}. auto is CIFAR-10 if it is prepared or can be downloaded, otherwise scikit-learn's "
        "digits (said loudly). A set asked for by name is never replaced.",
        metavar="NAME",
    )
    data_dir: str | None = flag(
        None,
        "data",
        "A TensorFlow Datasets directory, e.g. path/to/tfds.",
        metavar="DIR",
        shown="$TFDS_DATA_DIR or ~/tensorflow_datasets",
        free=True,
    )
    train_size: int | None = flag(
        None,
        "data",
        "Use the first N training images only (with --dataset auto: at most N).",
        metavar="N",
        shown="all",
    )

    epochs: int = flag(300, "recipe", "Passes over the training images. Other lengths than 300 scale the schedule.")
    batch_size: int = flag(128, "recipe", "Images in a batch. An epoch's last, smaller batch is trained on as well.")
    learning_rate: float = flag(0.1, "recipe", "Initial learning rate gamma, for every stage.")
    weight_decay: float = flag(5e-4, "recipe", "Coupled L2 weight decay on every parameter; never shrunk by beta.")
    momentum: float = flag(0.9, "recipe", "Momentum of SGD, in [0, 1).")
    warmup: Literal["paper", "on", "off"] = flag(
        "paper",
        "recipe",
        "Learning rate 0.01 for the first 3 of 300 epochs. paper: for resnet110, resnet1202 and "
        "every K >= 3 (not for bp, fa, data_parallel and gpipe, which train the same for every K).",
    )
    seed: int = flag(
        0,
        "recipe",
        "Decides initial weights, order of images and augmentation. The paper: 3 runs. On a GPU the last bits of "
        "a number follow from it only with XLA_FLAGS=--xla_gpu_deterministic_ops=true, which may be slower.",
    )
    steps: int | None = flag(
        None,
        "recipe",
        "Stop after this many batches, wherever the epoch stands. The learning-rate schedule still follows --epochs.",
        metavar="N",
        shown="no limit",
        free=True,
    )

    run_dir: str | None = flag(
        None,
        "run",
        "Where everything of the run goes.",
        metavar="DIR",
        shown="runs/<time>-<method>-<model>-K<K>",
        free=True,
    )
    resume: bool | Literal["auto"] = flag(
        False,
        "run",
        "Go on exactly where the run in --run-dir stands. Its options are read from its config.json; "
        "those that would change the training are refused if they contradict it. --resume auto: go on if there is a "
        "run, else begin it, for jobs that a scheduler starts again with the same command line.",
        free=True,
    )
    resume_into: str | None = flag(
        None,
        "run",
        "Go on with the run in --run-dir as another one in this directory, with another --K, --method, --split, "
        "--epochs, --learning-rate, other options of the recipe or other versions; only --model, --dataset, "
        "--train-size, --batch-size and --seed stay as they were. Batches in flight are used first, blocks keep "
        "parameters and momentum, and what had to be given up is said. The old run is left alone.",
        metavar="DIR",
        shown="off",
        free=True,
    )
    checkpoint_every: int | None = flag(
        None,
        "run",
        "Batches between checkpoints (0: only at the end). SIGINT, SIGTERM, SIGHUP and SIGUSR1 write one as well.",
        metavar="N",
        shown="once an epoch",
        free=True,
    )
    keep: int = flag(2, "run", "How many of the newest checkpoints are kept.", metavar="N", free=True)
    keep_best: bool = flag(
        False, "run", "Keep the checkpoint of the least test error as well (chosen on the test images!).", free=True
    )
    on_failed_save: Literal["go-on", "stop"] = flag(
        "go-on",
        "run",
        "When a checkpoint cannot be written (a full disk): go-on warns, keeps the earlier ones and tries again at the "
        "next; stop ends the run with exit code 1, as either does if the last one fails.",
        free=True,
    )
    on_nan: Literal["stop", "skip", "rollback"] = flag(
        "stop",
        "run",
        "When a loss or a gradient is not finite (no update is made by such a gradient): stop names stage and batch "
        "and ends with exit code 1; skip warns and goes on, as long as weights and statistics are finite; rollback "
        "goes back to the newest checkpoint, for faults of the machine, and stops if it happens there again.",
        free=True,
    )
    stall_seconds: float = flag(
        600.0,
        "run",
        "When the oldest operation under way has not finished for so long, name it (stage, batch, since when) on "
        "stderr and in stalls.jsonl, and again every so often. The run goes on. 0: never.",
        metavar="SECONDS",
        free=True,
    )
    replay_check: int = flag(
        0,
        "run",
        "Of every N batches do one, chosen by the seed, a second time from the same state; if anything comes out "
        "differently, stop with exit code 1. Costs two states on the host and the time of a few batches. 0: never.",
        metavar="N",
        free=True,
    )
    evaluate_every: int = flag(
        1, "run", "Epochs between evaluations on the test images (0: only at the end).", free=True
    )
    log_every: int = flag(10, "run", "Batches between two lines of metrics.jsonl; their losses are averaged.")
    drain: bool = flag(
        True,
        "run",
        "At the end, finish the batches in flight, so that every batch updates every stage. The "
        "authors' code drops them: --no-drain.",
    )
    tensorboard: bool = flag(True, "run", "Write TensorBoard scalars into <run-dir>/tensorboard.", free=True)
