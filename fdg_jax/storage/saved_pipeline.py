"""A pipeline in one file: its exact state, batches in flight included, and its weights beside it."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fdg_jax.storage import tensor_file
from fdg_jax.storage.named import flattened, unflattened

Tree = Any
STATE, STAGE = "state/", "stage/"


class Saved(NamedTuple):
    """What a file of `Pipeline.save` holds. All arrays are NumPy's, but for random keys.

    state: the exact state, for `Pipeline.restore`.
    variables: for each stage k = 1..K its Flax dictionary, for `Pipeline.init(..., variables=...)` or `module.apply`,
        as `load_weights` gives one.
    about: the texts of the header: method, K and so on.
    """

    state: dict[str, Any]
    variables: list[dict[str, Tree]]
    about: dict[str, str]


def save(
    path: str | os.PathLike[str],
    state: Mapping[str, Any],
    variables: Sequence[Mapping[str, Tree]],
    about: Mapping[str, Any],
) -> None:
    """Writes what `load` reads. Raises BadInput and OSError as `tensor_file.write` does."""
    arrays, containers = {STATE + name: value for name, value in state.items()}, {}
    for k, stage in enumerate(variables, 1):
        own_arrays, own_containers = flattened(stage, f"{STAGE}{k}")
        arrays |= own_arrays
        containers |= own_containers
    tensor_file.write(path, tensor_file.PIPELINE, arrays, containers, about)


def load(path: str | os.PathLike[str]) -> Saved:
    """Reads what `Pipeline.save` has written.

    A file holds arrays and no code. So it cannot make the pipeline, which consists of modules, a loss and an optimizer.
    Make that as it was made before, call its `init`, and then:

        pipeline.restore(fdg_jax.load(path).state)

    Arguments:
        path: the file.

    Returns: the exact state, the weights of each stage, and the header.

    Raises:
        BadInput: there is no file, it is damaged, or it is of another kind.
    """
    arrays, containers, about = tensor_file.read(path, tensor_file.PIPELINE)
    stages = [f"{STAGE}{k}/" for k in range(1, int(about["K"]) + 1)]
    variables = [unflattened(path, below(arrays, stage), below(containers, stage)) for stage in stages]
    return Saved(below(arrays, STATE), variables, about)


def below(named: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """What has a name with this prefix, by the rest of its name."""
    return {name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)}
