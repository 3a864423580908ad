"""`python -m fdg_jax` lists the commands that there are, one line each, and how to begin.

The list imports nothing of what it lists, so that it comes at once. Benchmarks and tables are listed where they are:
they belong to the repository and not to the installed package.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from fdg_jax.errors import meant
from fdg_jax.machine.interpreter import python_command

COMMANDS = {
    "Train a network": {
        "fdg_jax.experiments.cifar": "on CIFAR-10 or -100, or a smaller set",
        "fdg_jax.experiments.tiny_imagenet": "on Tiny-ImageNet",
        "fdg_jax.experiments.imagenet": "on ImageNet, decoded while it trains",
        "fdg_jax.experiments.report": "write the report of a run again",
    },
    "Understand the methods": {
        "fdg_jax.schedule": "draw which stage does what, tick by tick",
        "fdg_jax.methods": "compare them: locks, memory, ideal time",
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


def there(command: str) -> bool:
    """Whether the command can be run from here: those outside this package need the repository."""
    return command.startswith("fdg_jax.") or (REPOSITORY / command / "__main__.py").is_file()


def overview() -> str:
    """All commands, in groups."""
    width = max(len(command) for group in COMMANDS.values() for command in group)
    lines = [
        "fdg_jax trains a deep network as a pipeline of K modules, none of which waits",
        f"for another. Each of these is a command: {python_command()} -m NAME",
    ]
    for title, group in COMMANDS.items():
        rows = [f"  {command:{width}}  {does}" for command, does in group.items() if there(command)]
        lines += ["", title, *rows] if rows else []
    return "\n".join([*lines, "", "For example", *(f"  {python_command()} {words}" for words in EXAMPLES)])


def main(arguments: Sequence[str]) -> int:
    """Exit codes: 0; 2 if a command was named, as it is a module of its own."""
    if arguments and arguments[0] not in ("-h", "--help"):
        known = {command.rpartition(".")[2]: command for group in COMMANDS.values() for command in group}
        name = arguments[0]
        asked = f" Write python -m {known[name]}." if name in known else meant(name, known)
        fact = f"{name!r} is not taken here: every command is a module of its own."
        print(f"error: {fact}{asked} python -m fdg_jax lists them.", file=sys.stderr)
        return 2
    print(overview())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
