"""Computing in bfloat16 while weights, statistics and optimizer state stay in float32.

With `dtype="bfloat16"`, a stage rounds its kernels (parameters with two axes or more) and its activations to bfloat16
*before* the VJP is taken; gradients come back as float32. A layer that rounded its weights itself would put the rounded
copies among the closure's activations. That would cost a copy per stash, and `weights="current"` would use old weights.
Everything else stays float32: vectors (biases, scale and running statistics of a batch norm), gradients, the
optimizer's state, the network's outputs, the loss. bfloat16 has float32's range, so the loss needs no scaling.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fdg_jax.stages.reported import Reported

Tree = Any


class Precision(NamedTuple):
    """The dtypes of a stage. None leaves arrays as they are, which means float32.

    compute_dtype: the dtype of kernels and activations.
    output_dtype: the dtype of what the stage passes to the next one.
    """

    compute_dtype: Any = None
    output_dtype: Any = None

    def weights(self, params: Tree) -> Tree:
        """Parameters in the dtypes that the stage computes in."""
        return rounded(params, self.compute_dtype, axes=2)

    def inputs(self, x: Tree) -> Tree:
        """Inputs, from the stage below or from the data, in the dtype that the stage computes in."""
        return rounded(x, self.compute_dtype)

    def outputs(self, y: Tree) -> Tree:
        """A module's outputs in the dtype that the next stage, or the loss, takes."""
        return rounded(y, self.output_dtype)

    def example(self, x: Tree) -> Tree:
        """Example inputs in float32, so that a module initialised with them makes float32 parameters. Without a compute
        dtype, x as it is."""
        return rounded(x, jnp.float32) if self.compute_dtype else x

    def gradients(self, grads: Tree, of: Tree) -> Tree:
        """Gradients in the dtypes of `of`, the tree whose gradients they are."""
        if self.compute_dtype is None:
            return grads
        return jax.tree.map(lambda g, a: g if g.dtype == jax.dtypes.float0 else g.astype(a.dtype), grads, of)


def precision(dtype: str, last: bool) -> Precision:
    """The precision of a stage.

    Arguments:
        dtype: a value of `--dtype`.
        last: whether the stage is stage K, whose outputs are float32 for the loss.

    Returns: the precision.
    """
    return Precision(jnp.bfloat16, jnp.float32 if last else jnp.bfloat16) if dtype == "bfloat16" else Precision()


def rounded(tree: Tree, dtype: Any, axes: int = 0) -> Tree:
    """Casts float32 and bfloat16 arrays with at least `axes` axes to `dtype`, which is one of these two. Other arrays
    stay as they are.
    """
    if dtype is None:
        return tree
    if isinstance(tree, Reported):  # metrics are only reported
        return tree._replace(x=rounded(tree.x, dtype, axes))
    ours = (jnp.float32, jnp.bfloat16)
    return jax.tree.map(lambda a: a.astype(dtype) if a.dtype in ours and a.ndim >= axes else a, tree)
