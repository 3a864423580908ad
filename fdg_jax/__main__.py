"""The command `python -m fdg_jax`: lists all commands, the values that their flags take, and a few examples.

It imports neither the commands nor JAX, so that it answers at once. Benchmarks and tables are not part of the installed
package, so they are listed only inside the repository.
"""

import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from fdg_jax import corrections, data, methods, models
from fdg_jax.errors import did_you_mean
from fdg_jax.machine import output
from fdg_jax.machine.facts import python_command
from fdg_jax.options.parser import continued

COMMANDS = {
    "Train a network": {
        "fdg_jax.experiments.cifar": "images: CIFAR-10, CIFAR-100, or a smaller set",
        "fdg_jax.experiments.tiny_imagenet": "images: Tiny-ImageNet",
        "fdg_jax.experiments.imagenet": "images: ImageNet, decoded during the training",
        "fdg_jax.experiments.language_model": "text: a transformer language model",
        "fdg_jax.data": "encode text as files of tokens for a language model",
        "fdg_jax.launch": "start a training, or a program of your own, in several processes",
        "fdg_jax.experiments.report": "write the report of a run again",
    },
    "Use what was trained": {
        "fdg_jax.compare": "compare runs: final numbers, options, curves",
        "fdg_jax.evaluate": "measure a run's test loss and error, at any checkpoint",
        "fdg_jax.sample": "continue a text with a trained language model",
        "fdg_jax.export": "write a run's weights into a safetensors file",
    },
    "Understand the methods": {
        "fdg_jax.schedule": "draw which stage does what at which time; --open: as a page",
        "fdg_jax.methods": "compare the methods: locks, memory, ideal time",
    },
    "Measure and reproduce (in the repository)": {
        "benchmarks": "list the benchmarks: speed, memory, traces",
        "experiments": "list the paper's tables, and run them",
    },
}
EXAMPLES = (
    "-m fdg_jax.experiments.cifar --help",
    "-m fdg_jax.experiments.cifar --dataset digits --model resnet8 --epochs 2",
    "-m fdg_jax.schedule --K 3",
)
REPOSITORY = Path(__file__).resolve().parent.parent


def can_run_here(command: str) -> bool:
    """Whether a command exists here. Commands outside this package exist only in the repository."""
    return command.startswith("fdg_jax.") or (REPOSITORY / command / "__main__.py").is_file()


def asked_for() -> dict[str, list[str]]:
    """For each of these flags of a training command, the names that it takes."""
    return {
        "--method": methods.names(),
        "--correct": corrections.names(),
        "--model": models.names_and_patterns(),
        "--dataset": [*data.names(), *data.stream_names(), *data.text_names()],
    }


def row(name: str, text: str, width: int) -> str:
    """A row of the list, wrapped to the width of the terminal."""
    columns = max(width + 24, min(100, shutil.get_terminal_size().columns))
    indent = " " * (width + 4)
    return textwrap.fill(f"  {name:{width}}  {text}", columns, subsequent_indent=indent, break_on_hyphens=False)


def overview() -> str:
    """The text that lists all commands, in groups."""
    width = max(len(command) for group in COMMANDS.values() for command in group)
    lines = [
        "fdg_jax trains a deep network as a pipeline of K stages that never wait for one",
        f"another. The names below are commands. Start one with {python_command()} -m NAME",
    ]
    for title, group in COMMANDS.items():
        rows = [row(command, does, width) for command, does in group.items() if can_run_here(command)]
        lines += ["", title, *rows] if rows else []
    lines += ["", "Choices of a training command"]
    lines += [row(flag, ", ".join(found), width) for flag, found in asked_for().items()]
    return "\n".join([*lines, "", "For example", *(continued(f"{python_command()} {words}") for words in EXAMPLES)])


@output.forgiving()
def main(arguments: Sequence[str]) -> int:
    """Prints the list and returns exit code 0. Given a command's name, prints how to start that command; returns 2."""
    if arguments and arguments[0] not in ("-h", "--help"):
        known = {command.rpartition(".")[2]: command for group in COMMANDS.values() for command in group}
        name = arguments[0]
        asked = f" Write python -m {known[name]}." if name in known else did_you_mean(name, known)
        fact = f"{name!r} is not an argument of fdg_jax: every command is a module of its own."
        print(f"error: {fact}{asked} python -m fdg_jax lists them.", file=sys.stderr)
        return 2
    print(overview())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
