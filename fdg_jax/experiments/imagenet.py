"""`python -m fdg_jax.experiments.imagenet --data-dir DIR` trains on ImageNet, while other processes decode the images.

The paper only measures the speed of ResNet-101 on ImageNet, so it has no recipe for a full training. The defaults are
those of the paper for all models (SGD, 0.1, batch 128, weight decay 5e-4, drops at 50, 75 and 91.67%). Only the number
of epochs is 90, as usual on ImageNet, instead of 300.
"""

import sys
from collections.abc import Sequence

if __name__ == "__main__":
    from fdg_jax.machine.huge_pages import restart_once

    restart_once()  # before the slow imports, so that they are not done twice

from fdg_jax.experiments import command

PROGRAM = command.Program(
    "python -m fdg_jax.experiments.imagenet",
    trains="a network on ImageNet (ILSVRC 2012)",
    datasets=("imagenet",),
    defaults={"dataset": "imagenet", "model": "resnet101_imagenet", "epochs": 90},
    help={
        "dataset": "imagenet, the only choice here.",
        "data_dir": "The directory that holds train/<class>/*.JPEG and val/, or a TensorFlow Datasets directory with "
        "a prepared imagenet2012. FDG_JAX_LOADER_WORKERS sets how many processes decode images.",
        "model": "The network: {models}. The paper trains resnet101_imagenet here.",
    },
)


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    return command.main(arguments, PROGRAM)


if __name__ == "__main__":
    command.leave(main(sys.argv[1:]))
