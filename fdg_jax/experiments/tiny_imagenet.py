"""The paper's Table 5: `python -m fdg_jax.experiments.tiny_imagenet --data-dir DIR` trains on Tiny-ImageNet.

Defaults are the paper's: ResNet-18 (`--model mobilenet_v2` for its other model), K=2, and CIFAR's recipe.
"""

import sys
from collections.abc import Sequence

if __name__ == "__main__":
    from fdg_jax.machine.huge_pages import restart_once

    restart_once()  # before the slow imports, so that they are not done twice

from fdg_jax.experiments import command

PROGRAM = command.Program(
    "python -m fdg_jax.experiments.tiny_imagenet",
    trains="a network on Tiny-ImageNet (64x64 pixels, 200 classes)",
    datasets=("tiny_imagenet",),
    defaults={"dataset": "tiny_imagenet", "model": "resnet18"},
    help={
        "dataset": "tiny_imagenet, the only choice here.",
        "data_dir": "The directory that holds the unpacked folder tiny-imagenet-200, or that folder.",
        "model": "The network: {models}. The paper trains resnet18 and mobilenet_v2 here.",
    },
)


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    return command.main(arguments, PROGRAM)


if __name__ == "__main__":
    command.leave(main(sys.argv[1:]))
