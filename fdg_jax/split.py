"""Where a network is cut into K stages. A cut must change nothing but the place where work is done.

A network is a list of blocks 0..n-1, a split is the tuple of the first block numbers of stages 2..K: (3, 7)
makes blocks 0-2, 3-6 and 7-(n-1) stages 1, 2 and 3. A stage names its blocks by their number in the whole
network (block000, block001, ...): parameters, their names and their initial values are the same for every K.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from fdg_jax import models
from fdg_jax.errors import BadInput

Split = tuple[int, ...]


def block_name(number: int) -> str:
    """The name of a block in a stage's variables: its number in the whole network."""
    return f"block{number:03d}"


class Stage(nn.Module):
    """Consecutive blocks of a network, the first of them being block number `first` of the whole.

    __call__(x, train): x as the first block takes it, the result as the last block gives it.
    """

    blocks: tuple[nn.Module, ...]
    first: int = 0

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        for number, block in enumerate(self.blocks, start=self.first):
            x = block.clone(parent=self, name=block_name(number))(x, train)
        return x


def stages(blocks: Sequence[nn.Module], cuts: Split) -> list[nn.Module]:
    """The K stages of a split: linen modules `__call__(x, train)` with their blocks under global names."""
    check(cuts, len(cuts) + 1, len(blocks))
    return [Stage(tuple(blocks[a:b]), a) for a, b in pairwise((0, *cuts, len(blocks)))]


def init_whole(
    blocks: Sequence[nn.Module], key: jax.Array, example_x: jax.Array | jax.ShapeDtypeStruct
) -> dict[str, Any]:
    """Initial variables {"params": {"block000": ...}, "batch_stats": ...} of the whole network.

    key: a JAX PRNG key. Flax folds a parameter's full name into it and the names do not depend on the cuts,
    so `stage.init(key, ...)` with the same key gives a stage the very same values. example_x: a batch of
    inputs or its shape; only the shape is used, no forward pass is run.
    """
    shape = jax.ShapeDtypeStruct(example_x.shape, example_x.dtype)
    return dict(Stage(tuple(blocks)).lazy_init(key, shape, True))


def split_variables(variables: Mapping[str, Mapping[str, Any]], cuts: Split) -> list[dict[str, Any]]:
    """The whole network's variables as a list over k = 1..K of {"params": ..., "batch_stats": ...}.

    A collection in which a stage has nothing is left out, as `stage.init` does. Nothing is copied.
    """
    parts: list[dict[str, Any]] = [{} for _ in range(len(cuts) + 1)]
    for collection, by_block in variables.items():
        for name, values in by_block.items():
            index = int(np.searchsorted(cuts, int(name.removeprefix("block")), side="right"))
            parts[index].setdefault(collection, {})[name] = values
    return parts


def check(cuts: Sequence[int], K: int, n_blocks: int) -> Split:
    """The split itself if it makes K stages of n_blocks blocks and none of them is empty; else BadInput."""
    fact = f"split {','.join(map(str, cuts)) or 'of no numbers'} for K={K} stages of {n_blocks} blocks:"
    ways = f"Give {K - 1} increasing block numbers in 1..{n_blocks - 1}, or use --split even or balanced."
    if len(cuts) != K - 1:
        raise BadInput(f"{fact} {len(cuts)} block numbers where {K - 1} are needed. {ways}")
    for cut in cuts:
        if not 0 <= cut <= n_blocks:
            raise BadInput(f"{fact} there is no block {cut} to begin a stage with. {ways}")
    for k, (a, b) in enumerate(pairwise((0, *cuts, n_blocks)), start=1):
        if a == b:
            raise BadInput(f"{fact} stage k={k} is empty (begins and ends at block {a}). {ways}")
        if a > b:
            raise BadInput(f"{fact} not increasing, stage k={k} would run from block {a} back to {b}. {ways}")
    return tuple(cuts)


def parse(text: str, name: str, K: int, n_blocks: int, costs: Sequence[float] | None = None) -> Split:
    """The split that `--split text` asks for: paper, even, balanced, measured, or block numbers as in "3,7".

    name: the model. costs: a number per block (only their ratios count) for `balanced`, by default `block_costs`, and
    for `measured`: seconds. Raises BadInput naming K, the number of blocks and the way out.
    """
    if K < 1:
        raise BadInput(f"K={K}: {name} ({n_blocks} blocks) makes at least 1 stage. Use --K 1..{n_blocks}.")
    if n_blocks < K:
        raise BadInput(
            f"K={K} stages are more than the {n_blocks} blocks of {name}. Use --K 1..{n_blocks} or a deeper model."
        )
    if text == "paper":
        return _paper(name, K, n_blocks)
    if text == "even":
        return tuple(n_blocks * k // K for k in range(1, K))
    if text == "balanced":
        return balanced(block_costs(name) if costs is None else costs, K)
    if text == "measured":
        if costs is None:
            fact = f"split measured of {name} for K={K} needs seconds for each of its {n_blocks} blocks"
            raise BadInput(f"{fact}, and none were given. Use --split balanced, even or block numbers.")
        return balanced(costs, K)
    try:
        cuts = [int(word) for word in text.split(",")] if text.strip() else []
    except ValueError:
        raise BadInput(
            f"split {text!r} is neither paper, even, balanced, measured nor block numbers as 3,7. For K={K} stages "
            f"of the {n_blocks} blocks of {name} give {K - 1} of them, increasing, in 1..{n_blocks - 1}."
        ) from None
    return check(cuts, K, n_blocks)


def _paper(name: str, K: int, n_blocks: int) -> Split:
    cuts = models.paper_split(name, K)
    if cuts is None:
        given = [str(k) for k in range(2, n_blocks + 1) if models.paper_split(name, k) is not None]
        instead = f"only for K={', '.join(given)}" if given else "nor for any other K"
        raise BadInput(
            f"the authors give no split of {name} ({n_blocks} blocks) for K={K}, {instead}. "
            f"Use --split balanced, even, or {K - 1} block numbers in 1..{n_blocks - 1}."
        )
    return check(cuts, K, n_blocks)


def block_costs(name: str, classes: int = 10, example_shape: Sequence[int] = (1, 32, 32, 3)) -> list[float]:
    """FLOPs of each block's forward pass in training, by XLA's analysis of the program lowered for this kind of device
    (on a CPU narrow convolutions are computed with more of them, `fdg_jax.layers.convolution`).

    Nothing is compiled or run. example_shape: [batch, height, width, channel]. The backward pass takes about
    twice as many in every block, so the ratios hold for training if FLOPs tell time; where they do not,
    give `parse` measured seconds.
    """
    known: dict[Any, tuple[float, Any]] = {}
    costs = []
    x = jax.ShapeDtypeStruct(tuple(example_shape), jnp.float32)
    for block in models.blocks(name, classes):
        if (block, x.shape) not in known:  # blocks that are alike are analysed once
            known[block, x.shape] = _flops(block, x)
        flops, x = known[block, x.shape]
        costs.append(flops)
    return costs


def _flops(block: nn.Module, x: Any) -> tuple[float, Any]:
    variables = jax.eval_shape(lambda key, x: block.init(key, x, True), jax.random.key(0), x)
    forward = jax.jit(lambda variables, x: block.apply(variables, x, True, mutable=["batch_stats"])[0])
    analysis: Any = forward.lower(variables, x).cost_analysis() or {}
    return float(analysis.get("flops", 0.0)), jax.eval_shape(forward, variables, x)


def balanced(costs: Sequence[float], K: int) -> Split:
    """The split into K non-empty stages whose slowest is as fast as can be; of those, the most even one.

    costs: a positive number per block, at least K of them. Most even: of the least sum of squares.
    """
    ends = np.concatenate([[0.0], np.cumsum(np.asarray(costs, np.float64))])
    cost = ends[None, :] - ends[:, None]  # [a, b]: blocks a..b-1 as one stage
    cost[np.tril_indices(len(ends))] = np.inf  # a stage is never empty
    slowest, _ = _cheapest_path(cost, K, np.maximum)
    allowed = cost <= slowest * (1 + 1e-12)  # room for the rounding of the sums
    _, cuts = _cheapest_path(np.where(allowed, cost**2, np.inf), K, np.add)
    return cuts


def _cheapest_path(cost: np.ndarray, K: int, combine: np.ufunc) -> tuple[float, Split]:
    """K stages from block 0 to the end, cost[a, b] each, totalled by `combine`: (least total, its cuts)."""
    best, choices = cost[0], []
    for _ in range(K - 1):
        totals = combine(best[:, None], cost)  # [a, b]: the earlier stages end at a, this one at b
        choices.append(np.argmin(totals, axis=0))
        best = np.min(totals, axis=0)
    cuts, end = [], len(cost) - 1
    for choice in reversed(choices):
        end = int(choice[end])
        cuts.append(end)
    return float(best[-1]), tuple(reversed(cuts))
