"""The command `python -m fdg_jax.evaluate RUN`: test loss and error of a run's weights, on the run's own data set."""

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from fdg_jax import own_files
from fdg_jax.experiments import command
from fdg_jax.machine import compile_cache, output
from fdg_jax.options.parser import Parser
from fdg_jax.training.trained import Trained, read

EPILOG = """Without --checkpoint, a finished run has the weights of its end, as in summary.json: the last checkpoint,
updated with the batches that were still in flight. For an unfinished run, or with --checkpoint, the weights are those
of the checkpoint without such updates, as in the run's own evaluations."""


def parser(name: str, does: str) -> Parser:
    """A parser with the flags that this command and `export` share. name, does: the command's name and description."""
    made = Parser(prog=f"python -m fdg_jax.{name}", description=does, epilog=EPILOG)
    made.add_argument("run", metavar="RUN", help="The run directory, or a file that fdg_jax.export wrote.")
    made.add_argument(
        "--checkpoint",
        metavar="N|best",
        help="The checkpoint after batch N, or (best) the one with the lowest test error, kept by --keep-best.",
    )
    made.add_argument("--data-dir", metavar="DIR", help="The data set's directory. Default: the run's --data-dir.")
    about = "Allow the copies of .py files in the run directory to be executed. Do so only if you trust their author."
    made.add_argument("--trust-code", action="store_true", help=about)
    return made


def trained(given: Namespace) -> Trained:
    """Loads the weights that a command line names, and prints which weights these are. Raises BadInput."""
    compile_cache.enable()
    own_files.TRUSTED.set(given.trust_code)
    which = given.checkpoint
    which = int(which) if which is not None and which.isdecimal() else which
    found, remark = read(Path(given.run), which, given.data_dir)
    if remark:
        print(f"warning: {remark}", file=sys.stderr)
    o = found.options
    print(f"{o.model} on {o.dataset}, {o.method} with K={o.K}; {found.which}")
    return found


@output.command
def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code: 0, or 2 for bad input."""
    made = parser("evaluate", "Prints the test loss and error of a trained network.")
    made.add_argument("--text", metavar="FILE", nargs="+", help="Files of a run on text. Default: the same.")
    for name in ("tokens", "validation"):
        made.add_argument(f"--{name}", metavar="FILE", nargs="+", help="Files of a run on tokens. Default: the same.")
    given = made.parse_args(arguments)
    network = trained(given)
    found = network.evaluate(data_dir=given.data_dir, text=given.text, tokens=given.tokens, validation=given.validation)
    unit = "images" if network.inputs.mean else "blocks of text"
    print(f"test loss {found.loss:.6f}, test error {found.error_percent:.2f}% of {found.images:,} {unit}")
    return 0


if __name__ == "__main__":
    command.leave(main(sys.argv[1:]))
