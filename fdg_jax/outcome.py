"""What leaves a pipeline: outputs for inputs, its weights as NumPy arrays, and a file of all that it is."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, overload

import flax.linen as nn
import jax

from fdg_jax import split
from fdg_jax.checkpoint import state as states
from fdg_jax.checkpoint import weights
from fdg_jax.checkpoint.weights import HASH
from fdg_jax.checks.batches import check_inputs, copy_arrays
from fdg_jax.engine.interface import Engine
from fdg_jax.errors import BadInput

Tree = Any


class Outcome:
    """The part of `fdg_jax.Pipeline` that gives things away. It changes nothing of the pipeline."""

    _example: tuple[Tree, Tree]
    K: int

    @property
    def engine(self) -> Engine:
        """The engine, once `init` has made it."""
        raise NotImplementedError

    @property
    def modules(self) -> Sequence[nn.Module]:
        """The Flax modules of the stages k = 1..K, to which `params` and `export` belong."""
        raise NotImplementedError

    def about(self) -> Mapping[str, Any]:
        """What a file says of the pipeline that it was written by."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """The exact state."""
        raise NotImplementedError

    def check_whole(self) -> None:
        """Raises BadInput where a call was cut off within a tick."""
        raise NotImplementedError

    @property
    def params(self) -> list[dict[str, Tree]]:
        """Per stage k = 1..K the Flax variables {"params": ..., "batch_stats": ...}, each on its stage's device.

        `export` gives them as NumPy arrays, which any program on any device can use together. With
        optax.contrib.schedule_free these are the weights for evaluation, here and wherever weights are given away.
        """
        return self.engine.stage_variables()

    @property
    def cuts(self) -> tuple[int, ...] | None:
        """The number of the first block of stages 2..K; None where stages are modules of their own.

        Where `split=` cuts, it is known from `init` on.
        """
        return split.cuts_of(self.modules)

    def parameters_sha256(self) -> str:
        """sha256 over the bytes of all parameters, sorted by (key path, k): where stages have distinct names, as the
        experiments' have, the order is that of the whole network and does not depend on K."""
        return states.parameters_sha256([stage["params"] for stage in self.params])

    def predict(self, inputs: Tree, transform: Callable[[Tree], Tree] | None = None) -> Tree:
        """What stage K gives for inputs, with the newest weights, batches in flight or not, in evaluation mode.

        It waits for the result. A program is compiled for every new shape, so give batches of one size. In
        several processes all of them call it, and all get the result.

        Arguments:
            inputs: a tree of arrays [n, ...] like those in training, for any n from 1; their other axes may have other
                lengths, too.
            transform: (traced) takes the inputs to what stage 1 takes, as in `evaluate`; then they may be anything.
                `preprocess` is for training and is not used.

        Returns: a tree of NumPy arrays [n, ...].

        Raises:
            BadInput: the inputs do not fit.
        """
        engine = self.engine
        self.check_whole()
        check_inputs(self._example[0], inputs, transformed=transform is not None)
        return jax.device_get(engine.predict(copy_arrays(inputs), transform))

    @overload
    def export(self, whole: Literal[False] = False) -> list[dict[str, Tree]]: ...

    @overload
    def export(self, whole: Literal[True]) -> dict[str, Tree]: ...

    def export(self, whole: bool = False) -> list[dict[str, Tree]] | dict[str, Tree]:
        """The weights and statistics as NumPy arrays: for plain Flax, or for `init(..., variables=...)`.

        Arguments:
            whole: one dictionary for the uncut network, where the stages are blocks of one: cut by `split=`, or by
                fdg_jax.split.stages. It belongs to `fdg_jax.split.whole(blocks)`, whatever the cut was.

        Returns: for each stage k = 1..K {"params": ..., "batch_stats": ...}, for `modules[k-1].apply`; or one such
        dictionary.

        Raises:
            BadInput: `whole` is asked for, and the stages are modules of their own.

        Example: `fdg_jax.split.whole(blocks).apply(pipeline.export(whole=True), x, train=False)`
        """
        if whole and self.cuts is None:
            fact = "export(whole=True): the stages are modules of their own, so there is no uncut network"
            raise BadInput(f"{fact}. Use export(), which gives one dictionary a stage, or Pipeline(blocks, split=...).")
        stages = jax.device_get(self.params)
        return split.merge_variables(stages) if whole else stages

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the exact state, batches in flight included, and the weights beside it into one safetensors file.

        It is read by `fdg_jax.load(path)`. The file appears completely or not at all: if writing fails, a file that was
        there before stays. In several processes all of them call it, and process 0 writes.

        Arguments:
            path: the file.

        Raises:
            BadInput: there is no such folder, or an array has a dtype that no safetensors file can hold.
            OSError: the disk is full, or the like.
        """
        state, variables = self.state(), self.export()
        if jax.process_index() == 0:
            sha256 = states.parameters_sha256([stage.get("params", {}) for stage in variables])
            about = {**self.about(), HASH: sha256, "jax": jax.__version__}
            weights.save(path, state, variables, about)
