"""The blocks of a network and the stages that they are cut into, resolved once before a run."""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from fdg_jax import block_times, data, models, split
from fdg_jax.config import Config, model_options


class Partition(NamedTuple):
    """How a network is cut into K stages."""

    blocks: list[nn.Module]
    name: str  # paper, even, balanced, measured or block numbers
    cuts: tuple[int, ...]  # the first block of stages 2..K
    costs: list[float]  # of each block; only their ratios count
    unit: str  # of the costs: time (in seconds) or FLOPs
    has_paper_split: bool  # whether the authors' code cuts this model into K stages

    @property
    def bounds(self) -> tuple[int, ...]:
        """[K + 1] The first block of every stage, and the number of blocks."""
        return (0, *self.cuts, len(self.blocks))


def partition(
    options: Config, dataset: data.Source, device: Any, seconds: list[float] | None = None
) -> Partition:
    """Cuts the model as --split asks, or as the authors do, or else balanced. Raises BadInput.

    device: of stage 1, on which `--split measured` measures. seconds: of each block, if they have been measured.
    """
    blocks = models.blocks(options.model, dataset.classes, **model_options(options))
    has_paper_split = models.paper_split(options.model, options.K) is not None
    name = options.split or ("paper" if has_paper_split else "balanced")
    costs, unit = (seconds, "time") if seconds else block_costs(name, options, blocks, dataset, device)
    cuts = split.parse(name, options.model, options.K, len(blocks), costs)
    return Partition(blocks, name, cuts, costs, unit, has_paper_split)


def block_costs(
    name: str, options: Config, blocks: list[nn.Module], dataset: data.Source, device: Any
) -> tuple[list[float], str]:
    """(the cost of each block, its unit): time where `--split measured` asks for it, else FLOPs by XLA's analysis."""
    if name == "measured" and options.K > 1:
        return block_times.seconds(blocks, network_input(dataset, options.batch_size), device), "time"
    return split.costs(blocks, network_input(dataset, 1)), "FLOPs"


def network_input(dataset: data.Source, batch_size: int) -> Any:
    """The shape and dtype of a batch as block 0 takes it, after augmentation or whatever the data set does."""
    stored = jax.ShapeDtypeStruct((batch_size, *dataset.shape), dataset.dtype)
    return jax.eval_shape(dataset.train_transform(0), stored, jax.ShapeDtypeStruct((), jnp.int32))
