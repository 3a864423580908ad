"""Cuts a list of blocks into stages for `Pipeline(blocks, split=...)`, as the training commands cut their networks."""

import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax

from fdg_jax import block_times, split
from fdg_jax.checks.arguments import kind
from fdg_jax.errors import BadInput
from fdg_jax.transport.devices import Place, all_here

Tree = Any
NAMES = ("balanced", "measured", "even")
WAYS = "Use split='balanced' (by FLOPs), 'measured' (by times of this device), 'even', or K-1 block numbers [3, 7]."


def number_of_stages(asked: Any, K: Any, devices: Any, alone: bool = False) -> int:
    """K: as given, else the number of devices that were given, else what the block numbers of `split` say.

    alone: whether one device computes all stages, so that a list of one device does not say how many there are.

    Raises:
        BadInput: nothing says it, or it is not a number of 1 or more.
    """
    if K is None and devices is not None and hasattr(devices, "__len__") and not (alone and len(devices) == 1):
        K = len(devices)
    if K is None and not isinstance(asked, str) and hasattr(asked, "__len__"):
        K = len(asked) + 1
    if K is None:
        raise BadInput(f"split={asked!r} does not say into how many stages. Give K=2, say, or devices=[...].")
    if isinstance(K, bool) or not isinstance(K, numbers.Integral) or K < 1:
        raise BadInput(f"K={K!r}: a number of stages is 1 or more. Use K=2, say.")
    return int(K)


def first_cut(asked: Any, K: int, blocks: Sequence[nn.Module]) -> split.Split:
    """The block numbers that are given; where a name is given, an even cut until shapes are known.

    Raises:
        BadInput: `split` is something else, or the blocks cannot be cut so.
    """
    if isinstance(asked, str):
        if asked not in NAMES:
            raise BadInput(f"split={asked!r} is not known. {WAYS}")
        if len(blocks) < K:
            raise BadInput(f"K={K} stages are more than the {len(blocks)} blocks. Use K=1..{len(blocks)}.")
        return split.even(len(blocks), K)
    if not isinstance(asked, list | tuple) or not all(
        isinstance(cut, numbers.Integral) and not isinstance(cut, bool) for cut in asked
    ):
        raise BadInput(f"split={asked!r} is {kind(asked)}, which is no split. {WAYS}")
    return split.check([int(cut) for cut in asked], K, len(blocks))


def cut(asked: Any, K: int, blocks: Sequence[nn.Module], x: Tree, places: Sequence[Place]) -> split.Split:
    """The first blocks of stages 2..K.

    Arguments:
        asked: what `split=` was given.
        x: the shape and dtype of what block 0 takes, [batch, ...].
        places: of the stages; `measured` measures on the first.

    Raises:
        BadInput: a block cannot take what the one before it gives, or stages are in several processes, which would each
            measure other times.
    """
    if asked == "measured" and K > 1:
        if not all_here(places):
            fact = "split='measured': stages in several processes would be cut by different measurements"
            raise BadInput(f"{fact}. Measure in one process, and give the block numbers that `cuts` has there.")
        return split.balanced(block_times.seconds(blocks, x, places[0].device), K)
    if asked == "balanced" and K > 1:
        one = jax.tree.map(lambda like: jax.ShapeDtypeStruct((1, *like.shape[1:]), like.dtype), x)
        try:
            costs = split.costs(blocks, one)
        except BadInput as refused:
            try:
                costs = split.costs(blocks, x)  # a block may need several examples
            except BadInput:
                raise refused from None
        return split.balanced(costs, K)
    return first_cut(asked, K, blocks)


def cut_variables(variables: Any, stages: Sequence[nn.Module]) -> list[dict[str, Any]]:
    """The variables of each stage of a network that are given as one dictionary.

    Raises:
        BadInput: the stages are not those of one cut network, or the dictionary has other names than its blocks.
    """
    cuts = split.cuts_of(stages)
    if cuts is None:
        fact = "variables is one dictionary, but the stages are modules of their own"
        raise BadInput(f"{fact}. Give a list with one dictionary for each of the {len(stages)} stages.")
    n = sum(len(stage.blocks) for stage in stages if isinstance(stage, split.Stage))
    known = {split.block_name(number) for number in range(n)}
    for collection, by_block in variables.items():
        if not isinstance(by_block, Mapping):
            raise BadInput(f"the variables have {kind(by_block)} as {collection!r}, where a dictionary is needed.")
        if unknown := sorted(map(str, by_block.keys() - known)):
            fact = f"the variables have {collection}/{unknown[0]}, but the {n} blocks are {split.block_name(0)} to"
            raise BadInput(f"{fact} {split.block_name(n - 1)}. Give what `export(whole=True)` of such a network gave.")
    return split.split_variables(variables, cuts)
