"""The flags of the training command that no method's file declares: meaning, the paper's symbol, default.

Names are a contract with scripts outside the repository (tests/test_cifar_command.py freezes them). The help
texts are written for somebody who has the paper open beside the terminal.
"""

import dataclasses
from typing import Any, Literal, TypeAlias

Resume: TypeAlias = bool | Literal["auto"]  # the value of --resume, which is a switch that also takes "auto"

GROUPS = {
    "method": "How the network is trained. K, beta and k are the paper's symbols; k is a stage's number, from 1 to K.",
    "fdg": "Options of --method fdg, some also of ddg. A flag that the method does not have is refused.",
    "others": "Options of the other methods; the text says of which.",
    "correction": "What is done about late gradients: corrections, and their options.",
    "model": "The network.",
    "data": "The data set.",
    "recipe": "How weights are updated. The paper's recipe (Section V) is SGD, 300 epochs, learning rate divided by 10 "
    "at 50%, 75% and 91.67%; this command's own is the defaults below. Every stage has an optimizer of its own, which "
    "sees the gradients of that stage only.",
    "run": "The run directory, stopping and resuming, and what is recorded.",
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
    corrections: tuple[str, ...] = (),
    models: tuple[str, ...] = (),
) -> Any:
    """A field of `fdg_jax.runs.options.Options`.

    shown: the default in words. free: may be changed when a run is resumed. methods, corrections, models: whose files
    declare it, if any.
    """
    assert group in GROUPS
    metadata = {"group": group, "help": help, "metavar": metavar, "shown": shown, "free": free}
    declared = {"methods": methods, "corrections": corrections, "models": models}
    return dataclasses.field(default=default, metadata={**metadata, **declared})


@dataclasses.dataclass(frozen=True)
class CommonOptions:
    """The flags that do not belong to a method alone, as given or by default."""

    method: str = flag(
        "fdg",
        "method",
        "Training method: {methods}. fdg is the paper's (Algorithm I), bp is back-propagation, the baseline. pipedream "
        "is ddg with stashed weights by its other name. "
        "python -m fdg_jax.methods compares all methods.",
        metavar="NAME",
    )
    K: int = flag(
        2,
        "method",
        "Number of stages K that the network is cut into, one device for each. With fdg, stage k gets the gradient of "
        "a batch 2(K-k) ticks after its forward pass (Fig. 1). 1 is ordinary BP. The paper uses 2, 3 and 4.",
    )
    engine: Literal["auto", "pipeline", "delay-line"] = flag(
        "auto",
        "method",
        "pipeline: K stages work at the same time on K devices. delay-line: the same training on one device, as "
        "BP with delayed gradients.",
        shown="pipeline; delay-line if there are fewer accelerators than K, or for K=1 on an accelerator, and the "
        "method allows it",
    )
    split: str | None = flag(
        None,
        "method",
        "Where to cut the network: paper (as the authors do), even (equal numbers of blocks), balanced (equal work by "
        "FLOPs; the same on every machine with devices of this kind, CPU or GPU), measured (equal work by block times, "
        "measured on this device once; another machine may cut elsewhere, which changes results; config.json has the "
        "block numbers), or the first block of each stage from 2 to K, e.g. 3,7.",
        metavar="paper|even|balanced|measured|3,7",
        shown="paper if the authors give a cut, else balanced",
    )
    window: int | None = flag(
        None,
        "method",
        "Batches per dispatch. On an accelerator, the delay-line engine runs them as one program. Signals are obeyed "
        "and checkpoints written between dispatches only.",
        metavar="INT",
        shown="1; up to 50 for delay-line on an accelerator",
    )

    beta: float = flag(
        1.0,
        "fdg",
        "fdg and ddg: shrinking factor beta in (0, 1] (Eq. 15): the gradients of stage k are multiplied by beta^(K-k) "
        "before weight decay and momentum. 1 is no shrinking; the paper's best values are 0.2 to 0.8.",
    )
    weights: Literal["stashed", "current"] = flag(
        "stashed",
        "fdg",
        "The weights at which fdg and ddg compute late gradients. stashed: those of the forward pass of the batch "
        "(Eq. 10). current: the newest ones, as the authors' released code does for both methods.",
    )

    correct: str = flag(
        "none",
        "correction",
        "What is done about late gradients: {corrections}; or several, separated by commas. First "
        "those act that change a gradient, in the order named; then shrink, which is --beta by its other name, before "
        "the optimizer; then rate, behind it. docs/corrections.md says what each is and costs.",
        metavar="NAME[,NAME]",
    )

    model: str = flag(
        "resnet20",
        "model",
        "The network: {models}. resnet8 to resnet1202 are for small images (6n+2 layers, shortcut A); the paper's "
        "smallest is resnet20 (0.27M parameters).",
        metavar="NAME",
    )
    dtype: Literal["float32", "bfloat16"] = flag(
        "float32",
        "model",
        "The dtype to compute in. float32 is the paper's. With bfloat16, activations and kernels are rounded to it; "
        "parameters, optimizer state, BatchNorm's statistics and the loss stay float32.",
    )
    remat: str = flag(
        "none",
        "model",
        "Stages whose backward pass recomputes the activations, so that they keep only the inputs of batches in "
        "flight: none, all, or numbers k, e.g. 1,2. Stage 1 has the most batches in flight. The training is the same, "
        "with a third more work in these stages.",
        metavar="none|all|1,2",
    )

    dataset: str = flag(
        "auto",
        "data",
        "The data set: {datasets}. auto is CIFAR-10 if it is prepared or can be downloaded, otherwise scikit-learn's "
        "digits, with a clear notice. A data set chosen by name is never replaced.",
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
        "Use only the first N training examples (with --dataset auto: at most N).",
        metavar="N",
        shown="all",
    )
    hold_out: int = flag(
        0,
        "data",
        "Put aside the last N training examples and test on them instead of the test examples: for choosing options "
        "without a look at the test examples. --train-size counts what is left.",
        metavar="N",
        shown="0, none",
    )

    epochs: int = flag(
        300, "recipe", "Passes over the training examples. The schedule of the learning rate is scaled to it."
    )
    batch_size: int = flag(128, "recipe", "Examples per batch. The last, smaller batch of an epoch is used, too.")
    learning_rate: float = flag(
        0.1, "recipe", "Learning rate gamma, for every stage; the highest one, where a schedule changes it."
    )
    weight_decay: float = flag(
        5e-4,
        "recipe",
        "Weight decay, never shrunk by beta: coupled (L2) with sgd, decoupled with the other optimizers.",
    )
    momentum: float = flag(0.9, "recipe", "Momentum of sgd and muon, in [0, 1); beta1 of the other optimizers.")
    warmup: Literal["paper", "on", "off"] = flag(
        "paper",
        "recipe",
        "Of --lr-schedule paper: learning rate 0.01 for the first 3 of 300 epochs. paper: on for resnet110, resnet1202 "
        "and every K >= 3 (except bp, fa, data_parallel and gpipe, which train the same for every K).",
    )
    seed: int = flag(
        0,
        "recipe",
        "Decides initial weights, order of examples, augmentation and dropout. The paper has 3 runs each. On a GPU, "
        "runs are equal in every bit only with XLA_FLAGS=--xla_gpu_deterministic_ops=true, which may be slower.",
    )
    steps: int | None = flag(
        None,
        "recipe",
        "Stop after this many batches, also within an epoch. The learning-rate schedule still follows --epochs.",
        metavar="N",
        shown="no limit",
        free=True,
    )

    run_dir: str | None = flag(
        None,
        "run",
        "The directory for all files of the run.",
        metavar="DIR",
        shown="runs/<time>-<method>-<model>-K<K>",
        free=True,
    )
    resume: bool | Literal["auto"] = flag(
        False,
        "run",
        "Go on exactly where the run in --run-dir stopped. Its options are read from its config.json; an option that "
        "contradicts it and would change the training is refused. --resume auto: go on if there is a run, else begin "
        "it, for jobs that a scheduler starts again with the same command line.",
        free=True,
    )
    init_from: str | None = flag(
        None,
        "run",
        "Begin with the weights and statistics of another network: of a run (RUN for its end, RUN@STEP or RUN@best for "
        "one of its checkpoints) or of a file that fdg_jax.export wrote. Any K, method, split, optimizer and version "
        "will do, but the network has to be the same. Optimizer, learning rate and batches begin anew.",
        metavar="RUN|FILE",
        shown="first weights by --seed",
    )
    checkpoint_every: int | None = flag(
        None,
        "run",
        "Batches between checkpoints (0: only at the end). SIGINT, SIGTERM, SIGHUP and SIGUSR1 write one, too.",
        metavar="N",
        shown="once an epoch",
        free=True,
    )
    keep: int = flag(2, "run", "How many checkpoints to keep, the newest ones.", metavar="N", free=True)
    keep_best: bool = flag(
        False, "run", "Keep the checkpoint with the lowest test error, too (chosen on the test data!).", free=True
    )
    on_failed_save: Literal["go-on", "stop"] = flag(
        "go-on",
        "run",
        "If a checkpoint cannot be written (disk full): go-on warns, keeps the earlier ones and tries the next one; "
        "stop ends the run with exit code 1. Both do so if the last checkpoint fails.",
        free=True,
    )
    on_nan: Literal["stop", "skip", "rollback"] = flag(
        "stop",
        "run",
        "If a loss or a gradient is NaN or infinite (such a gradient never updates weights): stop names stage and "
        "batch and ends with exit code 1; skip warns and goes on, as long as weights and statistics are finite; "
        "rollback goes back to the newest checkpoint, which helps if the machine was at fault, and stops if it happens "
        "again.",
        free=True,
    )
    stall_seconds: float = flag(
        600.0,
        "run",
        "If the oldest unfinished operation makes no progress for this long, report it (stage, batch, since when) on "
        "stderr and in stalls.jsonl, and again after each such time. The run goes on. 0: never.",
        metavar="SECONDS",
        free=True,
    )
    evaluate_every: int = flag(
        1, "run", "Epochs between evaluations on the test data (0: only at the end).", free=True
    )
    log_every: int = flag(10, "run", "Batches per line of metrics.jsonl; their losses are averaged.")
    drain: bool = flag(
        True,
        "run",
        "At the end, finish the batches in flight, so that every batch updates every stage. "
        "--no-drain drops them, as the authors' code does.",
    )
    tensorboard: bool = flag(True, "run", "Write TensorBoard scalars into <run-dir>/tensorboard.", free=True)
