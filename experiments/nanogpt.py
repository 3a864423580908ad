"""nanoGPT's setting for a CPU: Tiny Shakespeare by characters, BP beside FDG and PipeDream at K = 4.

Runs of one seed see the same tokens: nanoGPT's two files, in blocks that begin anywhere. No rate was tuned: all rows
have nanoGPT's rate. nanoGPT's loss is the mean of 20 random batches of the validation file; ours is the mean of the
whole file.
"""

import hashlib
import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from experiments.harness import markdown
from experiments.harness.intervals import Seeds, of_runs
from experiments.harness.pictures import INK
from experiments.harness.run_table import RESULTS, ROOT, Lines, Run, Table
from experiments.harness.table_command import main
from fdg_jax import durable
from fdg_jax.errors import BadInput, reason
from fdg_jax.pages.charts import LIGHT, canvas, plain

FILE, SHA256 = "TINY_SHAKESPEARE", "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
ORIGINAL = "nanogpt_original.csv"
TOKENS, VALIDATION = "runs/nanogpt/train.bin", "runs/nanogpt/val.bin"
SEEDS, STEPS, EVERY = (0, 1, 2), 2000, 250
SHARED: dict[str, Any] = {
    "dataset": "tokens", "tokens": TOKENS, "validation": VALIDATION, "vocabulary": 65, "blocks": "random",
    "block_size": 64, "batch_size": 12, "train_size": 15_684, "epochs": 0, "steps": STEPS, "evaluate_every": EVERY,
    "model": "nanogpt-cpu", "positions": "learned", "tied": True, "norm": "layer", "heads": 4, "engine": "delay-line",
    "learning_rate": 1e-3, "lr_schedule": "cosine", "final_rate": 0.1, "warmup_steps": 100, "b2": 0.99,
    "weight_decay": 0.1, "decay": "matrices", "clip_norm": 1.0,
}  # fmt: skip
METHODS = {"BP": ("bp", 1), "FDG": ("fdg", 4), "PipeDream": ("ddg", 4)}
LINEAR = {"correct": "anticipate", "prediction": "linear"}
OPTIMIZERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # its options; further options of late methods
    "AdamW": ({"optimizer": "adamw", "momentum": 0.9}, {}),
    "Muon": ({"optimizer": "muon", "momentum": 0.95}, LINEAR),
    "rotation": ({"optimizer": "rotation", "momentum": 0.9}, LINEAR),
    "NAdam": ({"optimizer": "nadam", "momentum": 0.99}, {}),
}
ROWS = [(method, optimizer) for method in METHODS for optimizer in OPTIMIZERS]
HEADS = (
    "method", "K", "optimizer", "n", "validation loss, nats per character: mean", "standard deviation", "by seed",
    "minus BP with the same optimizer, by seed: mean (95% interval)", "minus BP with AdamW", "command",
)  # fmt: skip
PUBLISHED = (
    ("nanoGPT's README, this setting", "1.88", "of 20 random batches; one run"),
    ("nanoGPT's README, 6 layers x 384, block 256, batch 64, 5,000 steps", "1.4697", "not run here"),
)


def run(method: str, optimizer: str, seed: int) -> Run:
    (name, K), (options, late) = METHODS[method], OPTIMIZERS[optimizer]
    flags = {**SHARED, "method": name, "K": K, **options, **(late if K > 1 else {}), "seed": seed}
    return Run(f"{name}-{optimizer.lower()}-seed{seed}", flags, "fdg_jax.experiments.language_model")


RUNS = (  # BP with AdamW first, then seed by seed, so that an unfinished table is balanced
    *(run("BP", "AdamW", seed) for seed in SEEDS),
    *(run(*row, seed) for seed in SEEDS for row in ROWS if row != ("BP", "AdamW")),
)


def write_tokens() -> None:
    """Writes nanoGPT's two files of tokens: each character's place in the sorted alphabet. The first 90% are for
    training. Raises BadInput if the text is missing or differs."""
    named = os.environ.get(FILE, "")
    try:
        text = Path(named).read_bytes()
    except OSError as error:
        fact = f"{FILE}={named} cannot be read: {reason(error)}" if named else f"{FILE} is not set"
        raise BadInput(f"{fact}. Set it to Tiny Shakespeare, which nanoGPT downloads as input.txt.") from None
    if hashlib.sha256(text).hexdigest() != SHA256:
        raise BadInput(f"{FILE}={named} is another text: its sha256 is not {SHA256[:16]}.... Download the file again.")
    tokens = np.unique(np.frombuffer(text, np.uint8), return_inverse=True)[1].astype("<u2")
    (ROOT / TOKENS).parent.mkdir(parents=True, exist_ok=True)
    for path, part in ((TOKENS, tokens[: len(text) * 9 // 10]), (VALIDATION, tokens[len(text) * 9 // 10 :])):
        durable.write(ROOT / path, part.tobytes())


def losses(lines: Lines, method: str, optimizer: str, step: int = STEPS) -> Seeds:
    """The validation losses after so many steps."""
    value = lambda line: next(test["test_loss"] for test in line["evaluations"] if test["step"] == step)  # noqa: E731
    return of_runs(lines, {seed: run(method, optimizer, seed).name for seed in SEEDS}, value)


def original(step: int) -> Seeds:
    """The validation losses of nanoGPT's own script after so many steps. docs/log.md says how it was run."""
    rows = np.loadtxt(RESULTS / ORIGINAL, delimiter=",", skiprows=1, ndmin=2)  # seed, step, of 20 batches, of the file
    return Seeds({int(seed): loss for seed, at, _, loss in rows if at == step})


def row(lines: Lines, method: str, optimizer: str) -> list[str]:
    own, first, marks = losses(lines, method, optimizer), run(method, optimizer, SEEDS[0]), markdown.marks(lines)
    label = f"{optimizer}, linear prediction" if "correct" in first.flags else optimizer
    by_seed = {seed: marks.get(run(method, optimizer, seed).name, "") for seed in SEEDS}
    same = "" if method == "BP" else own.minus(losses(lines, "BP", optimizer)).told(3)
    adamw = "" if (method, optimizer) == ROWS[0] else own.minus(losses(lines, *ROWS[0])).told(3)
    return [method, str(first.flags["K"]), label, *own.cells(len(SEEDS), by_seed, 3), same, adamw, first.cell("S")]


def blocks(lines: Lines) -> Mapping[str, str]:
    published = ([name, "1", "AdamW", "", loss, "", said, *[""] * 3] for name, loss, said in PUBLISHED)
    theirs = ["nanoGPT's script, run here", "1", "AdamW", *original(STEPS).cells(len(SEEDS), {}, 3), *[""] * 3]
    return {"table": markdown.table(HEADS, [*(row(lines, *each) for each in ROWS), theirs, *published])}


def picture(lines: Lines, path: Path) -> None:
    """Draws the validation losses of every row and of nanoGPT's script, each as the mean of its seeds."""
    curves = [
        (f"{method}, {optimizer}", style, LIGHT[f"c{nth}"], partial(losses, lines, method, optimizer))
        for method, style in zip(METHODS, ("-", "--", ":"), strict=True) for nth, optimizer in enumerate(OPTIMIZERS)
    ]  # fmt: skip
    with canvas(path, "nanoGPT's setting for a CPU: validation loss, mean of the seeds", (10, 6)) as figure:
        axes = figure.subplots()
        for label, style, colour, found in (*curves, ("nanoGPT's script", "-", INK, original)):
            points = [(step, of.mean) for step in range(EVERY, STEPS + 1, EVERY) if (of := found(step=step)).by_seed]
            if points:
                axes.plot(*zip(*points, strict=True), style, color=colour, label=label)
        axes.set(xlabel="steps of 768 tokens", ylabel="nats per character", ylim=(1.6, 2.8))
        plain(axes)
        figure.legend(loc="outside right upper", frameon=False)


TABLE = Table("nanogpt", RUNS, blocks, picture, diverging=True, prepare=write_tokens)

if __name__ == "__main__":
    sys.exit(main(TABLE))
