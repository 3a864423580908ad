"""A Flax dictionary in a safetensors file: weights that leave this library, and come back."""

import os
import types
from collections.abc import Mapping
from typing import Any, NamedTuple

from fdg_jax.errors import BadInput
from fdg_jax.storage import checkpoint, tensor_file
from fdg_jax.storage.named import flattened, unflattened

Tree = Any
HASH = "parameters_sha256"


class Weights(NamedTuple):
    """What a file of weights holds.

    variables: the Flax dictionary {"params": ..., "batch_stats": ...}, NumPy arrays.
    about: the texts of the header. What was not a text is JSON.
    """

    variables: dict[str, Tree]
    about: dict[str, str]


def save_weights(
    path: str | os.PathLike[str], variables: Mapping[str, Tree], about: Mapping[str, Any] = types.MappingProxyType({})
) -> None:
    """Writes a Flax dictionary into a safetensors file, completely or not at all.

    An array's name is its path, such as `params/block000/conv/kernel`; a slash in a key is written as %2F. The header
    has the sha256 of the parameters (`parameters_sha256`, as in summary.json) and of the whole file.

    Arguments:
        path: the file. If it exists, it is replaced.
        variables: {"params": ..., "batch_stats": ...}, such as `Pipeline.export(whole=True)` gives, or one entry of
            the list that `Pipeline.export()` gives.
        about: what else the header shall say. A text stays as it is, anything else becomes JSON. The names "format",
            "sha256", "containers" and "dtypes" are the file's own.

    Raises:
        BadInput: `variables` is no dictionary, an array is not of numbers or random keys, or `about` has something
            that no header can have.
        OSError: the disk is full, or the like.

    Example:
        >>> import numpy, tempfile
        >>> file = tempfile.mkdtemp() + "/weights.safetensors"
        >>> save_weights(file, {"params": {"bias": numpy.zeros(2)}}, {"classes": 10})
        >>> found = load_weights(file)
        >>> found.variables["params"]["bias"], found.about["classes"]
        (array([0., 0.]), '10')
    """
    if not isinstance(variables, Mapping):
        fact = f"save_weights takes one Flax dictionary, not a {type(variables).__name__}"
        raise BadInput(f"{fact}. Give pipeline.export(whole=True), or write each stage of export() into its own file.")
    sha256 = checkpoint.parameters_sha256([variables.get("params", {})])
    tensor_file.write(path, tensor_file.WEIGHTS, *flattened(variables), {**about, HASH: sha256})


def load_weights(path: str | os.PathLike[str]) -> Weights:
    """Reads what `save_weights` or `python -m fdg_jax.export` has written.

    Arguments:
        path: the file.

    Returns: the Flax dictionary, for `module.apply` or for `Pipeline.init(..., variables=...)`, and the header. Tuples,
    lists, None, whole numbers as keys, empty dictionaries and random keys (`jax.random.key`) come back as they were.
    Containers of other classes come back as dictionaries, and `nn.Partitioned` and its like as the arrays in them;
    `Pipeline.init` makes of them what the modules have.

    Raises:
        BadInput: there is no file, it is damaged, or another program wrote it.
    """
    arrays, containers, about = tensor_file.read(path, tensor_file.WEIGHTS)
    return Weights(unflattened(path, arrays, containers), about)

