"""The command `python -m fdg_jax.sample RUN --sample TEXT`: continues a text by a trained language model."""

import sys
from argparse import Namespace
from collections.abc import Sequence

import numpy as np

from fdg_jax.config import FIELDS
from fdg_jax.data import sampling
from fdg_jax.errors import BadInput
from fdg_jax.evaluate import parser, trained
from fdg_jax.experiments import command
from fdg_jax.machine import output
from fdg_jax.options.fields import as_flags, checked


@output.command
def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code: 0, or 2 for bad input."""
    about = "Continues a text with a trained language model. Each token takes a forward pass over a whole block."
    made = parser("sample", about)
    made.add_argument("--sample", metavar="TEXT", default="\n", help="The text to continue. Default: a new line.")
    made.add_argument("--length", metavar="N", type=int, default=500, help="Number of tokens to draw. Default: 500.")
    for name, kind in (("temperature", float), ("top_k", int), ("seed", int)):
        about = f"{FIELDS[name].help if name != 'seed' else 'Random seed of the draws.'} Default: the run's."
        made.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar="X", help=about)
    about = "tokenizer.json, for a run on tokens. Default: the one beside the tokens; if none, tokens are numbers."
    made.add_argument("--tokenizer", metavar="FILE", help=about)
    given = made.parse_args(arguments)
    with as_flags():
        print(text(given))
    return 0


def text(given: Namespace) -> str:
    """The text of `--sample`, continued by the network. Raises BadInput."""
    names = ("temperature", "top_k", "seed")
    asked = {name: value for name in names if (value := getattr(given, name)) is not None}
    for name, value in asked.items():
        checked(FIELDS[name], value)
    network = trained(given)
    o, inputs = network.options, network.inputs
    if o.dataset not in ("text", "tokens"):
        raise BadInput(f"{given.run}: {o.model} on {o.dataset} is not a language model. Give a run on text or tokens.")
    codec = sampling.codec_of(o, given.tokenizer, (network.about["data"] or {}).get("tokenizer"))
    start = sampling.start_of(given.sample, codec, inputs.classes)

    def scores(block: np.ndarray) -> np.ndarray:
        return network.predict(block[None].astype(inputs.data_dtype))[0]

    drawn = {name: getattr(o, name) for name in names} | asked
    return codec.decode(sampling.continued(scores, start, given.length, inputs.shape[0], **drawn))


if __name__ == "__main__":
    command.leave(main(sys.argv[1:]))
