"""The options that every training has: type, default, range, help. A method, a correction or a family of models
declares its options in its own file; fdg_jax.config joins all of them.

config.json has the same names and values. The names are a contract with scripts outside the repository
(tests/test_cifar_command.py freezes them). The help texts are for a reader with the paper at hand.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from fdg_jax.errors import BadInput
from fdg_jax.options.fields import option

AUTO = "auto"  # of --coordinator

GROUPS = {
    "method": "How the network is trained. K, beta and k are the paper's symbols; k is a stage's number, from 1 to K.",
    "fdg": "Options of --method fdg; ddg has some of them, too. A flag that the method does not have is an error.",
    "others": "Options of the other methods. Each text begins with the methods that have the option.",
    "correction": "Corrections of late gradients, and their options.",
    "model": "The network.",
    "data": "The data set.",
    "recipe": "How weights are updated. The paper's recipe (Section V) is SGD, 300 epochs, learning rate divided by 10 "
    "at 50%, 75% and 91.67%. Every stage has its own optimizer, which sees that stage's gradients only.",
    "run": "The run directory, stopping and resuming, and records.",
    "processes": "Training in several processes; python -m fdg_jax.launch starts them on one host. Their messages are "
    "neither encrypted nor authenticated, so use a private network.",
    "start": "Flags for this start only. They are not stored in config.json, so --resume does not repeat them.",
}


@dataclasses.dataclass(frozen=True)
class Common:
    """The options that do not belong to a single method, correction or family of models."""

    method: str = option(
        "fdg", "Training method: {methods}. fdg is the paper's (Algorithm I), bp is back-propagation, the baseline. "
        "pipedream is ddg with stashed weights. python -m fdg_jax.methods compares all methods. The path of a file "
        "adds your own, ./mine.py, also with --correct, --model and --dataset (docs/extending.md).", metavar="NAME",
        group="method"
    )
    K: int = option(
        2, "Number of stages K into which the network is cut, with one device for each. With fdg, stage k gets the "
        "gradient of a batch 2(K-k) ticks after its forward pass (Fig. 1). K = 1 is ordinary BP, and the default of bp "
        "without --split. The paper uses 2, 3 and 4.",
        inside="[1, 10000]", use="1 (plain BP) to 10000: every stage needs a block of the model", group="method"
    )
    engine: Literal["auto", "pipeline", "delay-line", "scan"] = option(
        "auto", "pipeline: K stages work at the same time on K devices. delay-line: the same training on one device, "
        "as BP with delayed gradients. scan: the same as one compiled program, also on a CPU.", group="method",
        shown="pipeline; delay-line if there are fewer accelerators than K, or K=1, and the method allows it"
    )
    replicas: int | str = option(
        1, "Number of devices of each stage, K x R in all; or a number for each stage, such as 4,2; or 8/K for 8 in "
        "all. Each device has the stage's weights and computes its share of a batch. Results are those of one device "
        "per stage, except for rounding.", metavar="R", group="method", free=True
    )
    tensor: int = option(
        1, "Tensor parallelism of transformers: the heads and hidden units of each replica are divided over T devices, "
        "K x R x T in all.", metavar="T", inside="[1, 1000]", use="1 for whole layers", group="method", free=True
    )
    fsdp: bool = option(
        False, "Shard the weights of transformers, their optimizer state and waiting gradients over the replicas. "
        "Each stage gathers a layer's weights when it needs them.", group="method", free=True
    )
    split: str | None = option(
        None, "Where to cut the network: paper (as the authors do), even (equal numbers of blocks), balanced (equal "
        "FLOPs), measured (equal block times on this device; on another machine cuts, and so results, may "
        "differ), or the first block of each stage from 2 to K, e.g. 3,7.",
        metavar="paper|even|balanced|measured|3,7", group="method",
        shown="paper if the authors give a cut, else balanced"
    )
    window: int | None = option(
        None, "Batches per dispatch; with the delay line on an accelerator, a dispatch is one program. Signals and "
        "checkpoints wait for the end of a dispatch.", metavar="INT", inside="[1, inf)", group="method",
        shown="1; up to 50 for delay-line on an accelerator"
    )

    beta: float = option(
        1.0, "Shrinking factor beta of fdg and ddg, in (0, 1] (Eq. 15): the gradients of stage k are multiplied by "
        "beta^(K-k) before weight decay and momentum. The paper's best values are 0.2 to 0.8.",
        inside="(0, 1]", use="1 for no shrinking", group="fdg"
    )
    weights: Literal["stashed", "current"] = option(
        "stashed", "The weights at which fdg and ddg compute late gradients. stashed: those of the forward pass of "
        "the batch (Eq. 10). current: the newest ones, as the authors' released code does.", group="fdg"
    )

    correct: str = option(
        "none", "Corrections of late gradients: {corrections}; or several, separated by commas. Corrections that "
        "change a gradient act first, in this order; then shrink (which is --beta), the optimizer, and rate. "
        "docs/corrections.md describes each.", metavar="NAME[,NAME]", group="correction"
    )

    model: str = option(
        "resnet20", "The network: {models}. resnet8 to resnet1202 are for small images (6n+2 layers, shortcut A).",
        metavar="NAME", group="model"
    )
    dtype: Literal["float32", "bfloat16"] = option(
        "float32", "The dtype to compute in. float32 is the paper's. bfloat16 rounds activations and kernels; "
        "parameters, optimizer state, BatchNorm's statistics and the loss stay float32.", group="model"
    )
    precision: Literal["auto", "float32", "tf32", "bfloat16"] = option(
        "auto", "Precision of products on a GPU: float32, tf32 (float32 numbers, rounded to 10 bits in products), or "
        "bfloat16 (the same as --dtype bfloat16). auto: JAX's default, which is tf32 on recent GPUs.", group="model"
    )
    remat: str = option(
        "none", "Stages that keep only the inputs of batches in flight and recompute their activations in the backward "
        "pass: none, all, or numbers k, e.g. 1,2. Stage 1 has the most batches in flight. The training is the same, "
        "with a third more work in these stages.", metavar="none|all|1,2", group="model"
    )

    dataset: str = option(
        "auto", "The data set: {datasets}. auto is CIFAR-10 if it is prepared or can be downloaded, otherwise "
        "scikit-learn's digits, with a notice. Your own: a folder with train/CLASS/ and test/CLASS/ (./folder), or "
        "a file .npz with x_train, y_train, x_test and y_test.", metavar="NAME", group="data"
    )
    data_dir: str | None = option(
        None, "A TensorFlow Datasets directory, e.g. path/to/tfds. If your own folder or file has moved: its new path.",
        metavar="DIR", group="data", shown="$TFDS_DATA_DIR or ~/tensorflow_datasets", free=True
    )
    train_size: int | None = option(
        None, "Use only the first N training examples (with --dataset auto: at most N).",
        metavar="N", inside="[1, inf)", group="data", shown="all"
    )
    hold_out: int = option(
        0, "Test on the last N training examples instead of the test examples, and do not train on them: for "
        "choosing options. --train-size counts the remaining examples.",
        metavar="N", inside="[0, inf)", use="a number of training examples, or 0 for none", group="data",
        shown="0, none"
    )
    text: str | None = option(
        None, "Files, of any content, that --dataset text reads byte by byte. The last tenth is for testing.",
        metavar="FILE", group="data", shown="the help texts that come with Python", free=True
    )
    tokens: str | None = option(
        None, "Train on files of tokens: raw numbers (nanoGPT's train.bin), or shards with a header (llm.c, "
        "modded-nanogpt), also by a pattern such as 'shards/*.bin'. python -m fdg_jax.data encode makes such files.",
        metavar="FILE", group="data", free=True
    )
    validation: str | None = option(
        None, "With --tokens: the files for testing.", metavar="FILE", group="data",
        shown="the last tenth of the tokens", free=True
    )
    vocabulary: int | None = option(
        None, "With --tokens: size N of the vocabulary. Tokens are 0 to N-1.", metavar="N", inside="[2, 1048576]",
        group="data", shown="up to the largest token in the files"
    )
    token_dtype: Literal["uint16", "uint32"] = option(
        "uint16", "With --tokens: the dtype of files without a header.", group="data"
    )
    block_size: int | None = option(
        None, "Tokens per example of a text. The network predicts the token after each of them.",
        metavar="T", inside="[1, inf)", group="data", shown="128"
    )
    blocks: Literal["consecutive", "random"] = option(
        "consecutive", "consecutive: the text is cut into blocks, and an epoch uses each of them once. random: each "
        "block begins at a random token, as in nanoGPT; an epoch has as many batches, all full.",
        group="data"
    )

    epochs: int = option(
        300, "Passes over the training examples. The learning-rate schedule is scaled to them. 0: --steps sets the "
        "length of run and schedule, and --evaluate-every counts batches; this is the default with --tokens and "
        "--steps.", inside="[0, inf)", use="1 or more, or 0 for --steps", group="recipe"
    )
    batch_size: int = option(
        128, "Examples per batch. The last, smaller batch of an epoch is used, too.", inside="[1, inf)", group="recipe"
    )
    learning_rate: float = option(
        0.1, "Learning rate gamma of every stage. With a schedule, its highest value.",
        inside="(0, 3.4e38)", use="a positive number; the paper's is 0.1", group="recipe"
    )
    weight_decay: float = option(
        5e-4, "Weight decay; beta does not shrink it. L2 regularisation with sgd, decoupled with other optimizers.",
        inside="[0, 3.4e38)", use="0 or a positive number; the paper's is 0.0005", group="recipe"
    )
    momentum: float = option(
        0.9, "Momentum of sgd and muon, or beta1 of the other optimizers, in [0, 1).", inside="[0, 1)", group="recipe"
    )
    warmup: Literal["paper", "on", "off"] = option(
        "paper", "Warm-up of --lr-schedule paper: learning rate 0.01 for the first 1% of the epochs. paper: on for "
        "resnet110, resnet1202 and every K >= 3 (except bp, fa, data_parallel and gpipe).", group="recipe"
    )
    seed: int = option(
        0, "Random seed of initial weights, order of examples, augmentation and dropout. On a GPU, a run stores its "
        "choice of kernels in autotune.textproto, so that it resumes exactly; another run may choose other kernels.",
        inside="[0, 2147483647]", group="recipe"
    )
    steps: int | None = option(
        None, "Stop after this many batches, even within an epoch. The learning-rate schedule still follows --epochs, "
        "except with --epochs 0.",
        metavar="N", inside="[1, inf)", group="recipe", shown="no limit", free=True
    )
    optimizer: Literal["sgd", "adamw", "lion", "muon", "nadam", "rotation"] = option(
        "sgd", "sgd is the paper's: SGD as in PyTorch. The others have their own defaults: {optimizers}. They divide "
        "a gradient by its typical size, which cancels a constant factor such as beta. muon updates matrices, and "
        "adamw the other weights. nadam is PyTorch's with decoupled decay; rotation is Adam in rotated coordinates "
        "(SOAP); the rest are optax's.", group="recipe"
    )
    decay: Literal["all", "matrices"] = option(
        "all", "Parameters that --weight-decay acts on: all, or matrices (not biases or scales of norms).",
        group="recipe"
    )
    b2: float = option(
        0.999, "beta2 of all optimizers except sgd, in [0, 1); with muon, of adamw.", inside="[0, 1)", group="recipe"
    )
    clip_norm: float = option(
        0.0, "Clip the gradient of each stage to this norm; 0: do not clip. With --K 1 the whole network's gradient is "
        "clipped, as usual. With more stages the result depends on the split.",
        inside="[0, inf)", use="a positive number, or 0 for never", group="recipe"
    )
    lr_schedule: Literal["paper", "cosine", "constant", "wsd"] = option(
        "paper", "How the learning rate changes over all epochs: paper (steps), cosine (down to 0), constant, or wsd "
        "(constant, then linearly down to 0 in the last fifth).", group="recipe"
    )
    final_rate: float = option(
        0.0, "Last learning rate of cosine and wsd, as a fraction of --learning-rate.", inside="[0, 1]",
        use="0.1, say, or 0", group="recipe"
    )
    warmup_steps: int = option(
        0, "Batches of linear warm-up at the start of cosine, constant or wsd.",
        metavar="N", inside="[0, inf)", use="a number of batches, or 0 for none", group="recipe"
    )

    run_dir: str | None = option(
        None, "The directory for all files of the run.",
        metavar="DIR", group="run", shown="runs/<time>-<method>-<model>-K<K>", free=True
    )
    resume: bool | Literal["auto"] = option(
        False, "Go on exactly where the run in --run-dir stopped, with the options of its config.json. Other options "
        "that would change the training are refused. --resume auto: go on if there is a run, otherwise begin one, for "
        "jobs that a scheduler restarts.", group="run", free=True
    )
    init_from: str | None = option(
        None, "Begin with the weights and BatchNorm statistics of a run (RUN, RUN@STEP or RUN@best), of a file that "
        "fdg_jax.export wrote, or of GPT-2's published file. The network must be the same; K, method, split, optimizer "
        "and version may differ. Optimizer, learning rate and batches start anew.", metavar="RUN|FILE", group="run",
        shown="random weights by --seed"
    )
    checkpoint_every: int | None = option(
        None, "Batches between checkpoints (0: only at the end). SIGINT, SIGTERM, SIGHUP and SIGUSR1 also cause one.",
        metavar="N", inside="[0, inf)", use="0 for only at the end", group="run",
        shown="once an epoch; with --epochs 0 a tenth of --steps", free=True
    )
    keep: int = option(
        2, "Number of checkpoints to keep, the newest ones.", metavar="N", inside="[1, inf)", group="run", free=True
    )
    keep_best: bool = option(
        False, "Keep the checkpoint with the lowest test error, too (chosen on the test data!).", group="run", free=True
    )
    on_failed_save: Literal["go-on", "stop"] = option(
        "go-on", "If a checkpoint cannot be written (disk full): go-on warns and continues the run; stop ends the run "
        "with exit code 1. If the last checkpoint fails, both end with exit code 1.", group="run", free=True
    )
    on_nan: Literal["stop", "skip", "rollback"] = option(
        "stop", "If a loss or a gradient is NaN or infinite: stop names stage and batch and ends with exit code 1; "
        "skip warns and goes on, as long as weights and statistics are finite; rollback goes back to the newest "
        "checkpoint, and stops the second time. Such a gradient never updates weights.", group="run", free=True
    )
    stall_seconds: float = option(
        600.0, "If an operation does not finish within this time, report it on stderr and in stalls.jsonl, and again "
        "after each further such time. The run goes on. 0: never report.", metavar="SECONDS",
        inside="[0, inf)", use="a positive number of seconds, or 0 for never", group="run", free=True
    )
    evaluate_every: int = option(
        1, "Epochs between evaluations on the test data (0: only at the end). With --epochs 0: batches.",
        inside="[0, inf)", use="0 for only at the end", group="run", free=True,
        shown="1; with --epochs 0 a tenth of --steps"
    )
    sample: str | None = option(
        None, "After each evaluation, print 100 tokens with which the network continues this text.",
        metavar="TEXT", group="run", shown="no samples", free=True
    )
    temperature: float = option(
        1.0, "For samples: divide the logits by this number. 0: always take the most probable token.",
        inside="[0, inf)", use="1, say, or 0", group="run", free=True
    )
    top_k: int | None = option(
        None, "For samples: draw only from the N most probable tokens.", metavar="N", inside="[1, inf)",
        group="run", shown="all", free=True
    )
    log_every: int = option(
        10, "Batches per line of metrics.jsonl, which has the mean of their losses.", inside="[1, inf)", group="run"
    )
    drain: bool = option(
        True, "At the end, finish the batches in flight, so that every batch updates every stage. --no-drain drops "
        "these batches, as the authors' code does.", group="run"
    )
    tensorboard: bool = option(True, "Write TensorBoard scalars into <run-dir>/tensorboard.", group="run", free=True)


@dataclasses.dataclass(frozen=True)
class Joining:
    """The flags that join a process to the other processes of its training. They are no options of the run."""

    coordinator: str | None = option(
        None, "IPv4 address and port where process 0 listens, such as 10.0.0.1:1234. auto: take this and the number of "
        "the process from SLURM, Open MPI or Kubernetes.", metavar="HOST:PORT", group="processes"
    )
    processes: int | None = option(
        None, "Number of processes that train together, 1 to K. With fewer than K, neighbouring stages share one.",
        metavar="N", group="processes"
    )
    process_id: int | None = option(
        None, "The number of this process, from 0. Process 0 writes the run directory and prints.",
        metavar="I", group="processes"
    )
    address: str | None = option(
        None, "The IPv4 address at which the other processes reach this process.",
        metavar="IP", group="processes", shown="that of the interface towards the coordinator"
    )
    peer_timeout: float = option(
        300.0, "Longest wait for a message from another process; four times as long while programs compile.",
        metavar="SECONDS", inside="(0, inf)", group="processes"
    )

    @property
    def wanted(self) -> bool:
        """Whether there are other processes to join."""
        return self.coordinator is not None


@dataclasses.dataclass(frozen=True)
class Start:
    """Flags for a single start of a command: where it reads options, what it shows, how many runs it makes."""

    config: str | None = option(
        None, "Read options from a file in TOML, YAML or JSON. Write their names without the dashes in front "
        "(train_size or train-size). Options on the command line take precedence. The config.json of a run works, too, "
        "except for its run_dir; choices left to the program (split, engine, ...) are made anew.", metavar="FILE",
        group="start"
    )
    dry_run: bool = option(
        False, "Print shapes, split, predicted memory, and total time, estimated from a few steps. Nothing is written.",
        group="start"
    )
    profile: int = option(
        0, "Write a trace of N batches, after compilation, into <run-dir>/profile. Results stay the same.",
        metavar="N", inside="[0, inf)", use="a number of batches, or 0 for no trace", group="start",
        shown="0, no trace"
    )
    quiet: bool = option(False, "Print only warnings, errors and the last line.", group="start")
    track: str | None = option(
        None, "Send the curves to these trackers, too: wandb, mlflow, trackio. A resumed run goes on in its trackers, "
        "except with --track none.", metavar="NAME,NAME", group="start", shown="none"
    )
    trust_code: bool = option(
        False, "Allow copies of .py files in the named run directories to be executed. Do so only if you trust their "
        "author.", group="start"
    )
    seeds: str | None = option(
        None, "One run for each of these seeds, e.g. 0,1,2 or 0-31, as with --sweep.",
        metavar="0,1,2", group="start", shown="one run"
    )
    sweep: tuple = option(
        (), "One run for each value, e.g. beta=0.2,0.5,1, or for each combination of values of several options; values "
        "with commas: split=3,7;2,5. Each run lies in <run-dir>/<name>. After a stop, the same command goes on. At the "
        "end compared.html compares the runs.", metavar="NAME=VALUES", group="start", shown="one run"
    )
    together: bool = option(
        False, "With --seeds, or --sweep of beta or learning_rate: all runs as one program on one device, which uses a "
        "GPU better. Each run has its own directory and can be resumed alone or with the others. On a GPU, a run that "
        "diverges to infinity can make NaN in up to three others.", group="start"
    )
    jobs: int = option(
        1, "With --seeds or --sweep: number of runs at the same time. If there are several, each has its own core.",
        metavar="N", inside="[1, inf)", group="start"
    )

    @property
    def several(self) -> bool:
        """Whether several runs are asked for."""
        return self.seeds is not None or bool(self.sweep)

    @property
    def swept(self) -> frozenset[str]:
        """The options that differ from run to run."""
        names = {text.partition("=")[0].lstrip("-").replace("-", "_") for text in self.sweep}
        return frozenset(names | ({"seed"} if self.seeds is not None else set()))


ONE_RUN = Start()  # with no such flag
# Options of earlier versions: skipped in the files of old runs; on a command line, the error names the replacement.
RETIRED = {
    "live": "--live was removed: the progress line, TensorBoard and --track NAME show a running training.",
    "replay_check": "--replay-check was removed: run twice, and compare final_state_sha256 in both summary.json files.",
    "resume_into": "--resume-into was removed: --init-from RUN begins a new run with the weights of another one.",
}
# The defaults that an optimizer changes. SGD's are the paper's, above. AdamW's are usual for small transformers. Lion
# has a tenth of AdamW's rate and ten times its decay, as Lion's paper advises. The others have AdamW's defaults, since
# their updates are about as large as AdamW's. NAdam's momentum is that of asynchronous Nesterov. Vectors are not
# decayed.
ADAMW = {"learning_rate": 1e-3, "weight_decay": 0.1, "decay": "matrices"}
OF_OPTIMIZER: Mapping[str, Mapping[str, Any]] = {
    "sgd": {},
    "adamw": ADAMW,
    "lion": {**ADAMW, "learning_rate": 1e-4, "weight_decay": 1.0, "b2": 0.99},
    "muon": {**ADAMW, "momentum": 0.95},
    "nadam": {**ADAMW, "momentum": 0.99},
    "rotation": ADAMW,
}


def own_defaults(optimizer: Any) -> Mapping[str, Any]:
    """The options whose defaults an optimizer changes; {} for an unknown name, which is refused later."""
    return OF_OPTIMIZER.get(optimizer, {})


def chosen(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a command line sets. Given options take precedence over the command's defaults, and the
    command's defaults over the optimizer's. Plain BP has no use for several stages, so its K is 1. The paper's schedule
    has its own warm-up, so the command's default warm-up is ignored. Files of tokens select the data set "tokens". With
    --steps, the default of --epochs is then 0, since an epoch may be longer than any run."""
    found = {**defaults, **given}
    if found.get("method") == "bp" and "split" not in given:
        found = {"K": 1, **found}
    if "tokens" in given and "dataset" not in given:
        found["dataset"] = "tokens"
    if found.get("dataset") == "tokens" and "steps" in given and "epochs" not in given:
        found["epochs"] = 0
    if found.get("precision") == "bfloat16":
        found = {"dtype": "bfloat16", **found}
    if found.get("epochs") == 0:
        tenth = max(1, (found.get("steps") or 0) // 10)
        found = {"evaluate_every": tenth, "checkpoint_every": tenth, **found}
    if found.get("lr_schedule", "paper") == "paper" and "warmup_steps" not in given:
        found.pop("warmup_steps", None)
    return {**own_defaults(found.get("optimizer")), **found}


def refuse_retired(words: Sequence[str]) -> None:
    """Raises BadInput if a command line has the flag of a retired option."""
    for word in words:
        name = word.partition("=")[0].removeprefix("--").replace("-", "_")
        if word.startswith("--") and name in RETIRED:
            raise BadInput(RETIRED[name])
