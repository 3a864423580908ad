"""The flags of text, and of other recipes than the paper's, beside those of `CommonOptions`."""

import dataclasses
from typing import Literal

from fdg_jax.runs.common_options import CommonOptions, flag


@dataclasses.dataclass(frozen=True)
class RecipeOptions(CommonOptions):
    """`CommonOptions` with these flags. Their defaults are the paper's recipe, so a run without them is what it was."""

    text: str | None = flag(
        None,
        "data",
        "One or more files, of any content, that --dataset text reads byte by byte, one after the other. The last "
        "tenth is for testing.",
        metavar="FILE",
        shown="the text of Python's own help, which comes with it",
        free=True,
    )
    block_size: int | None = flag(
        None,
        "data",
        "Tokens per example of --dataset text: the network sees so many bytes and predicts after each the next one.",
        metavar="T",
        shown="128",
    )

    optimizer: Literal["sgd", "adamw", "lion", "muon", "nadam", "rotation"] = flag(
        "sgd",
        "recipe",
        "sgd is the paper's, PyTorch's SGD. The others have defaults of their own: {optimizers}. They divide a "
        "gradient by its own size, so a constant factor such as beta cancels. muon is for arrays of two axes and has "
        "adamw for all others, such as kernels of convolutions. nadam is PyTorch's with decoupled decay, as "
        "asynchronous Nesterov uses it; rotation is Adam in turned coordinates (SOAP); the rest are optax's.",
    )
    decay: Literal["all", "matrices"] = flag(
        "all", "recipe", "What --weight-decay is for: all parameters, or matrices only (no biases, scales of norms)."
    )
    b2: float = flag(0.999, "recipe", "beta2 of all but sgd (of muon: of its adamw), in [0, 1).")
    clip_norm: float = flag(
        0.0,
        "recipe",
        "Scale the gradient of a stage down where its norm is above this, 0 for never. Each stage knows only its own "
        "gradient and waits for no other, so the norm is not the whole network's, and the split matters.",
    )
    lr_schedule: Literal["paper", "cosine", "constant", "wsd"] = flag(
        "paper",
        "recipe",
        "How the learning rate changes over all epochs: paper (steps), cosine (down to 0), constant, or wsd (constant, "
        "then linearly down to 0 in the last fifth).",
    )
    warmup_steps: int = flag(
        0, "recipe", "Batches in which the learning rate rises linearly, before cosine, constant or wsd.", metavar="N"
    )
