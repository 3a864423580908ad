"""FA, feedback alignment (Lillicrap et al. 2016): BP whose backward pass uses fixed random weights.

    y = W x:    dW = dy x^T as in BP,    dx = B^T dy instead of W^T dy        B: random, and never trained

To compute the cotangents of inputs, each parameter with more than one axis (a kernel) is replaced by a random array of
the same initial distribution. Scales and biases of batch norms are not replaced. Nor are weights that reach a stage in
a message, such as the table of a tied embedding. A layer's own gradient, inputs times cotangent, is computed as in BP.
No derivatives are written by hand: the stage's VJP is stored without its weights, and any weights can be put in.
"""

import jax

from fdg_jax.errors import BadInput
from fdg_jax.machine import jax_internals, programs
from fdg_jax.methods.interface import Method
from fdg_jax.schedule import bp
from fdg_jax.stages.functions import Spec, init_variables
from fdg_jax.stages.shapes import zeros
from fdg_jax.stages.stage import Stage


class FeedbackStage(Stage):
    """A stage with a second, random set of weights in `state.own`, for the backward pass."""

    backward_at_other_weights = "method=fa"
    packs = False

    def make(self, spec: Spec):
        """The stage's functions, and fixed random weights for the backward pass."""
        if not jax_internals.strippable():
            raise BadInput(f"method fa must replace weights in VJP closures; JAX {jax.__version__} does not allow it.")
        functions, state = super().make(spec)
        example = spec.compute.precision.example
        variables = programs.jit(lambda key: init_variables(spec.module, key, example(zeros(spec.x))))(spec.key)
        return functions, state._replace(own=variables.get("params", {}))

    def backward_params(self, stash):
        return jax.tree.map(lambda own, random: random if own.ndim > 1 else own, stash.params, self.state.own)


METHOD = Method(
    name="fa",
    summary="feedback alignment (Lillicrap et al. 2016): BP through fixed random weights",
    schedule=lambda K: bp(K)._replace(name="fa"),
    same_for_every_K=True,
    stage=FeedbackStage,
)
