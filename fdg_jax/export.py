"""The command `python -m fdg_jax.export RUN --to FILE`: a run's weights as one safetensors file for other programs.

The file has the whole network, uncut. Its header names the model, the data set, the options, the network's inputs, and
the sha256 of the parameters. `fdg_jax.load_weights(FILE)` returns the Flax dictionary. `fdg_jax.load_run(FILE)` also
returns the network. With `--format gpt2` the file has Hugging Face's parameter names instead, for `transformers`.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from fdg_jax import gpt2
from fdg_jax.errors import BadInput, reason
from fdg_jax.evaluate import parser, trained
from fdg_jax.experiments import command
from fdg_jax.machine import output


@output.command
def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code: 0, 2 for bad input, 1 if the file cannot be written."""
    made = parser("export", "Writes the weights of a trained network into a safetensors file.")
    made.add_argument("--to", metavar="FILE", required=True, help="The new file, such as weights.safetensors.")
    about = "gpt2: the names of GPT-2's weights. The network must be a transformer with GPT-2's options, of any size."
    made.add_argument("--format", choices=("fdg_jax", "gpt2"), default="fdg_jax", help=about)
    given = made.parse_args(arguments)
    check_new(Path(given.to))
    network = trained(given)
    try:
        if given.format == "gpt2":
            print(gpt2.save(given.to, network.options, network.variables))
        else:
            network.save(given.to)
    except OSError as error:
        print(f"error: {given.to} cannot be written: {reason(error)}.", file=sys.stderr)
        return 1
    print(f"{given.to}: parameters_sha256 {network.about['parameters_sha256']}")
    return 0


def check_new(file: Path) -> None:
    """Raises BadInput, before any work, if the file exists already or its folder does not."""
    if os.path.lexists(file):
        raise BadInput(f"--to {file} exists already. Choose another name, or remove it.")
    if not file.absolute().parent.is_dir():
        raise BadInput(f"--to {file}: its folder does not exist. Make that folder, or choose another place.")


if __name__ == "__main__":
    command.leave(main(sys.argv[1:]))
