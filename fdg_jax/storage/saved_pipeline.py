"""A pipeline in one file: its exact state, batches in flight included, and its weights beside it."""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fdg_jax.errors import BadInput
from fdg_jax.storage import tensor_file
from fdg_jax.storage.named import flattened, unflattened

Tree = Any
STATE, STAGE = "state", "stage"


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
    arrays, containers = {f"{STATE}/{name}": value for name, value in state.items()}, {}
    for k, stage in enumerate(variables, 1):
        own_arrays, own_containers = flattened(stage, f"{STAGE}/{k}")
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
    K = about.get("K", "")
    if not re.fullmatch("[1-9][0-9]{0,4}", K):
        fact = f"{path} is damaged: its header says K={K[:20]!r}, which is no number of stages"
        raise BadInput(f"{fact}. Write it again.")
    state: dict[str, Any] = {}
    stages = {str(k): ({}, {}) for k in range(1, int(K) + 1)}
    for number, named in enumerate((arrays, containers)):
        for name, value in named.items():
            kind, k, rest = (*name.split("/", 2), "", "")[:3]
            if name.startswith(f"{STATE}/") and not number:
                state[name.removeprefix(f"{STATE}/")] = value
            elif kind == STAGE and k in stages:
                stages[k][number][rest] = value
            else:
                raise BadInput(f"{path} is damaged: it holds {name[:40]!r}, which no pipeline of {K} stages has.")
    for _, own_containers in stages.values():
        own_containers.pop("", None)  # the stage itself, if it has no variables
    return Saved(state, [unflattened(path, *own) for own in stages.values()], about)
