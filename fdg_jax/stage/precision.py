"""bfloat16 is for what is computed, float32 for what is remembered: the one place where the two meet.

With `dtype="bfloat16"` a stage's kernels (parameters with two axes or more) and its activations are rounded to
bfloat16 *before* the VJP is taken, and gradients come back as float32. Rounded inside a layer, weights would land
among the closure's activations: a copy for every memo, and yesterday's weights where `current` asks for today's.
Vectors (biases, a batch norm's scale and running statistics), the optimizer's state, gradients on their way to it,
and the network's outputs, so the loss, stay float32. bfloat16 has float32's range, so no loss is scaled.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Tree = Any


class Precision(NamedTuple):
    """What a stage computes in and what it hands on; None leaves arrays as they are, which is what float32 means."""

    compute: Any = None
    hand_on: Any = None

    def weights(self, params: Tree) -> Tree:
        """Parameters as a stage computes with them."""
        return rounded(params, self.compute, axes=2)

    def inputs(self, x: Tree) -> Tree:
        """What comes from the stage below, or from the data, as a stage computes with it."""
        return rounded(x, self.compute)

    def outputs(self, y: Tree) -> Tree:
        """What a module gives as the next stage, or the loss, takes it."""
        return rounded(y, self.hand_on)

    def example(self, x: Tree) -> Tree:
        """An example of a stage's inputs as the module takes it with float32 parameters, to make these."""
        return rounded(x, jnp.float32) if self.compute else x

    def gradients(self, grads: Tree, of: Tree) -> Tree:
        """The gradients by what `weights` and `inputs` made of a tree, in the dtypes of that tree."""
        if self.compute is None:
            return grads
        return jax.tree.map(lambda g, a: g if g.dtype == jax.dtypes.float0 else g.astype(a.dtype), grads, of)


def precision(dtype: str, last: bool) -> Precision:
    """Of a stage, for a value of `--dtype`. last: whether it is stage K, whose outputs meet the loss in float32."""
    return Precision(jnp.bfloat16, jnp.float32 if last else jnp.bfloat16) if dtype == "bfloat16" else Precision()


def rounded(tree: Tree, dtype: Any, axes: int = 0) -> Tree:
    """Arrays of float32 and bfloat16 with at least that many axes in another dtype of the two; all others alone."""
    if dtype is None:
        return tree
    ours = (jnp.float32, jnp.bfloat16)
    return jax.tree.map(lambda a: a.astype(dtype) if a.dtype in ours and a.ndim >= axes else a, tree)
