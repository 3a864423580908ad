"""Splits a network into K stages.

A network is a list of blocks 0..n-1. A split is the tuple of the first block numbers of stages 2..K: with (3, 7), stage
1 has blocks 0-2, stage 2 has blocks 3-6 and stage 3 has blocks 7-(n-1). A stage names its blocks by their number in the
whole network (block000, block001, ...), so the names and the initial values of parameters are the same for every K.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.errors import LazyInitError

from fdg_jax import models
from fdg_jax.errors import BadInput, sentence
from fdg_jax.machine import programs
from fdg_jax.stages.functions import DROPOUT, init_variables
from fdg_jax.stages.shapes import describe
from fdg_jax.stages.switches import arguments

Split = tuple[int, ...]
T = TypeVar("T")


def block_name(number: int) -> str:
    """The name of a block in a stage's variables: its number in the whole network."""
    return f"block{number:03d}"


class Stage(nn.Module):
    """Consecutive blocks of a network as one module.

    blocks: linen modules `__call__(x, train)`, or `__call__(x)` if training and evaluation are the same.
    first: the number of the first block in the whole network.
    __call__(x, train): the first block's input -> the last block's output. Both may be a tuple of arrays.
    """

    blocks: tuple[nn.Module, ...]
    first: int = 0
    passes_train_on = True  # it only passes `train` to its blocks

    @nn.compact
    def __call__(self, x: Any, train: bool) -> Any:
        made: dict[str, nn.Module] = {}
        inner: Any = {}  # clones of modules within blocks: modules that blocks share stay shared
        for name, block in self.named_blocks():
            if name not in made:
                made[name] = block.clone(parent=self, name=name, _deep_clone=inner)
            given, by_name = arguments(block, x, train)
            x = made[name](*given, **by_name)
        return x

    def named_blocks(self) -> list[tuple[str, nn.Module]]:
        """(name, block) of each block. A block that occurs several times has one name and shares its weights."""
        first: dict[int, str] = {}
        for number, block in enumerate(self.blocks, start=self.first):
            first.setdefault(id(block), block_name(number))
        return [(first[id(block)], block) for block in self.blocks]


def stages(blocks: Sequence[nn.Module], cuts: Split) -> list[nn.Module]:
    """Makes the K stages of a split.

    Arguments:
        blocks: the network.
        cuts: the split.

    Returns: a linen module `__call__(x, train)` for each stage k = 1..K.

    Raises:
        BadInput: the split does not fit the blocks.
    """
    check(cuts, len(cuts) + 1, len(blocks))
    return [Stage(tuple(blocks[a:b]), a) for a, b in pairwise((0, *cuts, len(blocks)))]


def whole(blocks: Sequence[nn.Module]) -> "Stage":
    """The uncut network as one linen module `__call__(x, train)`."""
    return Stage(tuple(blocks))


def cuts_of(stages: Sequence[nn.Module]) -> Split | None:
    """The split from which `stages` made these stages. None if they are other modules, or not all stages of one
    network."""
    cuts, end = [], 0
    for stage in stages:
        if not isinstance(stage, Stage) or stage.first != end:
            return None
        cuts.append(end)
        end += len(stage.blocks)
    return tuple(cuts[1:])


def init_whole(blocks: Sequence[nn.Module], key: jax.Array, example_x: Any) -> dict[str, Any]:
    """The initial variables of the whole network. No forward pass is run.

    Flax derives a parameter's value from the key and the parameter's full name, which does not depend on the split. So
    `stage.init(key, ...)` with the same key gives the same values.

    Arguments:
        blocks: the network.
        key: a JAX random key.
        example_x: a batch of inputs, as a tree of arrays or of their shapes and dtypes.

    Returns: {"params": {"block000": ...}, "batch_stats": ...}.
    """
    shape = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), example_x)
    network, keys = whole(blocks), {"params": key, DROPOUT: key}
    kept = list(jax.eval_shape(partial(init_variables, network), key, shape))  # without collections that blocks sow
    try:
        return dict(network.lazy_init(keys, shape, True, mutable=kept))
    except LazyInitError as error:
        fact = f"a block's initial variables depend on the values of its inputs: {sentence(error)}"
        way_out = "Initialise the blocks yourself and call init(key, example, variables)."
        raise BadInput(f"{fact} Only the inputs' shapes are known here. {way_out}") from error


def split_variables(variables: Mapping[str, Mapping[str, Any]], cuts: Split) -> list[dict[str, Any]]:
    """Splits the whole network's variables. Nothing is copied.

    Arguments:
        variables: what `init_whole` returns.
        cuts: the split.

    Returns: for each stage k = 1..K, {"params": ..., "batch_stats": ...}. Collections that are empty for a stage are
    left out, as in `stage.init`.
    """
    parts: list[dict[str, Any]] = [{} for _ in range(len(cuts) + 1)]
    for collection, by_block in variables.items():
        for name, values in by_block.items():
            index = int(np.searchsorted(cuts, int(name.removeprefix("block")), side="right"))
            parts[index].setdefault(collection, {})[name] = values
    return parts


def merge_variables(parts: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """The inverse of `split_variables`: the variables of the whole network, which `whole(blocks)` takes."""
    merged: dict[str, Any] = {}
    for part in parts:
        for collection, by_block in part.items():
            merged.setdefault(collection, {}).update(by_block)
    return merged


def check(cuts: Sequence[int], K: int, n_blocks: int) -> Split:
    """Returns the split as a tuple. Raises BadInput unless it cuts n_blocks blocks into K non-empty stages."""
    increasing = all(a < b for a, b in pairwise((0, *cuts, n_blocks)))
    if len(cuts) != K - 1 or not increasing:
        fact = f"split {','.join(map(str, cuts)) or 'of no numbers'} for K={K} stages of {n_blocks} blocks"
        needed = f"{K - 1} increasing block numbers in 1..{n_blocks - 1}"
        raise BadInput(f"{fact}: {needed} are needed. Use --split even or balanced, or give these numbers.")
    return tuple(cuts)


def parse(
    text: str, name: str, K: int, n_blocks: int, costs: Sequence[float] | None = None, R: Sequence[int] | None = None
) -> Split:
    """The split that `--split TEXT` means.

    Arguments:
        text: paper, even, balanced, measured, or block numbers as in "3,7".
        name: the model.
        K: number of stages.
        n_blocks: number of the model's blocks.
        costs: the cost of each block; only ratios matter. `measured` needs seconds. For `balanced` the default is
            `block_costs`.
        R: the number of devices of each stage, for `balanced` and `measured`; None: one device per stage.

    Raises:
        BadInput: there is no such split.

    Example:
        >>> parse("even", "resnet20", K=2, n_blocks=11)
        (5,)
    """
    if n_blocks < K:
        raise BadInput(
            f"K={K} stages are more than the {n_blocks} blocks of {name}. Use --K 1..{n_blocks} or a deeper model."
        )
    if text == "paper":
        return _paper(name, K, n_blocks)
    if text == "even":
        return even(n_blocks, K)
    if text == "balanced":
        return balanced(block_costs(name) if costs is None else costs, K, R)
    if text == "measured":
        if costs is None:
            fact = f"split measured of {name} for K={K} needs seconds for each of its {n_blocks} blocks"
            raise BadInput(f"{fact}, but none were given. Use --split balanced, even or block numbers.")
        return balanced(costs, K, R)
    try:
        cuts = [int(word) for word in text.split(",")] if text.strip() else []
    except ValueError:
        raise BadInput(
            f"split {text!r} is neither paper, even, balanced, measured nor block numbers as 3,7. For K={K} stages "
            f"of the {n_blocks} blocks of {name} give {K - 1} increasing numbers in 1..{n_blocks - 1}."
        ) from None
    return check(cuts, K, n_blocks)


def even(n_blocks: int, K: int) -> Split:
    """The split into K stages whose numbers of blocks differ by at most one."""
    return tuple(n_blocks * k // K for k in range(1, K))


def _paper(name: str, K: int, n_blocks: int) -> Split:
    """The authors' split. Raises BadInput if they give none."""
    cuts = models.paper_split(name, K)
    if cuts is None:
        given = [str(k) for k in range(2, n_blocks + 1) if models.paper_split(name, k) is not None]
        instead = f"only for K={', '.join(given)}" if given else "or for any other K"
        raise BadInput(
            f"the authors give no split of {name} ({n_blocks} blocks) for K={K}, {instead}. "
            f"Use --split balanced, even, or {K - 1} block numbers in 1..{n_blocks - 1}."
        )
    return check(cuts, K, n_blocks)


def block_costs(name: str, classes: int = 10, example_shape: Sequence[int] = (1, 32, 32, 3)) -> list[float]:
    """Estimates the FLOPs of each block's forward pass in training. Nothing is compiled or run.

    The numbers come from XLA's analysis of the program for this kind of device: on a CPU, narrow convolutions take more
    FLOPs (`fdg_jax.layers.convolution`). In every block the backward pass takes about twice as many FLOPs as the
    forward pass, so the ratios between blocks hold for training. If time is not proportional to FLOPs, give `parse`
    measured seconds.

    Arguments:
        name: the model.
        classes: number of classes.
        example_shape: [batch, height, width, channel].

    Returns: FLOPs, one number for each block.
    """
    return costs(models.blocks(name, classes), jax.ShapeDtypeStruct(tuple(example_shape), jnp.float32))


def costs(blocks: Sequence[nn.Module], x: Any) -> list[float]:
    """Estimates the FLOPs of each block's forward pass as `block_costs` does, for blocks instead of a model's name.

    Arguments:
        blocks: the network.
        x: the shape and dtype of block 0's input.

    Raises:
        BadInput: a block cannot take the output of the block before it (the message names both), or JAX is configured
            without a CPU.
    """
    return list(of_each_kind(blocks, x, partial(_flops, _analyst())))


def of_each_kind(
    blocks: Sequence[nn.Module], x: Any, find: Callable[[nn.Module, Any, bool], tuple[T, Any]]
) -> Iterator[T]:
    """Yields a result for each block, from find(block, x, first) -> (result, shape of the block's output). Equal blocks
    with inputs of equal shape share one call. first: whether it is block 0, whose input needs no gradient.

    If find raises anything, raises BadInput: the block cannot take the output of the block before it.
    """
    known: list[tuple[nn.Module, Any, tuple[T, Any]]] = []
    before = f"the input is {describe(x)}"
    for number, block in enumerate(blocks):
        case = number == 0, describe(x)
        result = next((each for other, its, each in known if its == case and _alike(block, other)), None)
        try:
            found, y = result or find(block, x, number == 0)
        except Exception as error:  # whatever a block raises when shapes do not fit
            who = f"block {number} ({type(block).__name__}) of the network cannot take {describe(x)}; {before}"
            raise BadInput(f"{who}. {sentence(error)} Change one of these blocks.") from error
        known += [] if result else [(block, case, (found, y))]
        before, x = f"block {number} takes {describe(x)} and gives {describe(y)}", y
        yield found


def _alike(a: nn.Module, b: nn.Module) -> bool:
    """Whether two blocks have equal fields. Comparing their repr would not be enough: Flax prints only the names of
    functions."""
    try:
        return type(a) is type(b) and bool(a == b)
    except Exception:  # for example, comparing fields that are arrays gives no single bool
        return False


def _flops(cpu: Any, block: nn.Module, x: Any, first: bool) -> tuple[float, Any]:
    """(FLOPs of a block's forward pass, shape of its output) for inputs with the shape of x. The program is lowered for
    the kind of device on which JAX computes, and analysed on a CPU."""
    del first
    key = jax.eval_shape(jax.random.key, 0)

    def run(variables, x, key):
        given, named = arguments(block, x, train=True)
        rngs = {"params": key, DROPOUT: key}
        return block.apply(variables, *given, mutable=nn.DenyList("params"), rngs=rngs, **named)[0]

    variables, forward = jax.eval_shape(lambda key, x: init_variables(block, key, x), key, x), programs.jit(run)
    kind = jax.default_backend()
    platform = "cuda" if kind == "gpu" else kind  # our layers treat all GPUs alike
    with jax.default_device(cpu):
        analysis: Any = forward.trace(variables, x, key).lower(lowering_platforms=(platform,)).cost_analysis()
    return float(analysis.get("flops", 0.0)), jax.eval_shape(forward, variables, x, key)


def _analyst() -> Any:
    """A CPU device, the only kind on which JAX analyses programs without compiling them. Raises BadInput if JAX has
    none."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError as error:
        fact = f"the FLOPs of blocks are counted on a CPU, and JAX has none here: {sentence(error)}"
        raise BadInput(f"{fact} Unset JAX_PLATFORMS, or add cpu to it: JAX_PLATFORMS=cuda,cpu") from error


def balanced(costs: Sequence[float], K: int, R: Sequence[int] | None = None) -> Split:
    """The split into K non-empty stages whose slowest stage is as fast as possible.

    If several splits reach this, the one with the smallest sum of squared stage times is returned.

    Arguments:
        costs: a positive number for each of K or more blocks.
        K: number of stages.
        R: the number of devices of each stage, which share the stage's work evenly: a stage's time is its cost / R.
            None: one device per stage.

    Example:
        >>> balanced([1, 1, 2, 4], 2)
        (3,)
        >>> balanced([1, 1, 2, 4], 2, R=[1, 3])
        (2,)
    """
    ends = np.concatenate([[0.0], np.cumsum(np.asarray(costs, np.float64))])
    cost = ends[None, :] - ends[:, None]  # [a, b]: blocks a..b-1 as one stage
    cost[np.tril_indices(len(ends))] = np.inf  # a stage is never empty
    times = [cost / r for r in R or [1] * K]
    slowest, _ = _cheapest_path(times, np.maximum)
    most = slowest * (1 + 1e-12)  # room for the rounding of the sums
    _, cuts = _cheapest_path([np.where(time <= most, time**2, np.inf) for time in times], np.add)
    return cuts


def _cheapest_path(costs: Sequence[np.ndarray], combine: np.ufunc) -> tuple[float, Split]:
    """The cheapest split, as (total cost, cuts). costs[k-1][a, b]: the cost of stage k if it has blocks a..b-1.
    combine: np.add or np.maximum, which makes the total of the stages' costs."""
    best, choices = costs[0][0], []
    for cost in costs[1:]:
        totals = combine(best[:, None], cost)  # [a, b]: the earlier stages end at a, this one at b
        choices.append(np.argmin(totals, axis=0))
        best = np.min(totals, axis=0)
    cuts, end = [], len(best) - 1
    for choice in reversed(choices):
        end = int(choice[end])
        cuts.append(end)
    return float(best[-1]), tuple(reversed(cuts))
