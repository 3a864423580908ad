"""`python -m fdg_jax.experiments.language_model --K 8` trains a transformer to predict the next byte of a text,
or the next token of files of tokens.

The paper has no such experiment. Methods, engines, checkpoints and reports are the same as for images. The defaults are
not the paper's but those usual for small transformers (AdamW, cosine, warm-up, clipped gradients).
"""

import sys
from collections.abc import Sequence

if __name__ == "__main__":
    from fdg_jax.machine.huge_pages import restart_once

    restart_once()  # before the slow imports, so that they are not done twice

from fdg_jax.experiments import command

PROGRAM = command.Program(
    "python -m fdg_jax.experiments.language_model",
    trains="a transformer on text",
    datasets=("text", "tokens"),
    defaults={
        "dataset": "text", "model": "transformer8x64", "epochs": 3, "batch_size": 32, "optimizer": "adamw",
        "lr_schedule": "cosine", "warmup_steps": 50, "clip_norm": 1.0,
    },
    help={
        "dataset": "text: bytes of the files of --text, or of Python's help texts. tokens: the files of --tokens.",
        "model": "The network: {models}.",
    },
)  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    return command.main(arguments, PROGRAM)


if __name__ == "__main__":
    command.leave(main(sys.argv[1:]))
