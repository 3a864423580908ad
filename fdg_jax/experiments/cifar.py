"""The main command: `python -m fdg_jax.experiments.cifar --K 2 --beta 0.5` trains a network on CIFAR-10.

It takes every image data set that is held in memory. `fdg_jax.experiments.command` runs it; its flags are in
`fdg_jax.options`.
"""

import sys
from collections.abc import Sequence

if __name__ == "__main__":
    from fdg_jax.machine.huge_pages import restart_once

    restart_once()  # before the slow imports, so that they are not done twice

from fdg_jax.experiments import command

PROGRAM = command.Program("python -m fdg_jax.experiments.cifar")


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    return command.main(arguments, PROGRAM)


if __name__ == "__main__":
    command.leave(main(sys.argv[1:]))
