"""`python -m benchmarks` lists the benchmarks; `python -m benchmarks NAME ...` runs one of them.

The list is made from the files' text, without importing them, so that it appears at once.
"""

import ast
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from fdg_jax.errors import did_you_mean
from fdg_jax.machine import output

HERE = Path(__file__).parent


def names() -> list[str]:
    """The names of all benchmarks: the files of this folder."""
    return sorted(file.stem for file in HERE.glob("[!_]*.py"))


def summary(name: str) -> str:
    """The first line of a benchmark's docstring."""
    tree = ast.parse((HERE / f"{name}.py").read_text(encoding="utf-8"))
    return (ast.get_docstring(tree) or "").partition("\n")[0]


@output.forgiving()
def main(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        width = max(map(len, names()))
        print("\n".join(f"{name:{width}}  {summary(name)}" for name in names()))
        print("\nRun one: python -m benchmarks NAME [--json] (NAME --help lists the flags)")
        return 0
    if arguments[0] not in names():
        asked = did_you_mean(arguments[0], names()) or " python -m benchmarks lists them."
        print(f"error: there is no benchmark {arguments[0]!r}.{asked}", file=sys.stderr)
        return 2
    return import_module(f"benchmarks.{arguments[0]}").main(list(arguments[1:])) or 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
