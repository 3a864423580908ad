"""DGL, decoupled greedy learning (Belilovsky et al. 2020), pipelined: every stage learns from its own loss.

    θ_k^{t+1} = θ_k^t - γ_t ∂loss(a_k(h_k(x_k^t)), labels^t) / ∂θ_k        a_k: the auxiliary network of stage k < K

A stage below K ends in a small auxiliary network (`--aux`), whose loss on the labels trains the stage. No gradient
comes from above, so a stage finishes a batch in the tick in which the batch arrives. With `--aux linear` or `predsim`
this is local error learning (Mostafa et al. 2018; Nokland and Eidnes 2019), by stages instead of layers.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from fdg_jax.errors import BadInput
from fdg_jax.machine import programs
from fdg_jax.methods._auxiliary import HEADS, local_loss
from fdg_jax.methods.interface import Method
from fdg_jax.options.fields import option
from fdg_jax.schedule import Messages, Op, Schedule, Tick, chain, check_K, existing_ops
from fdg_jax.stages.functions import (
    LOSS_KEY,
    LOSSES,
    Spec,
    StageState,
    add_sown,
    flax_variables,
    make_apply,
    make_functions,
    make_outputs,
    split_variables,
)
from fdg_jax.stages.shapes import zeros
from fdg_jax.stages.stage import Stage


@dataclasses.dataclass(frozen=True)
class Options:
    """DGL's options."""

    aux: Literal["mlp-sr", "linear", "predsim"] = option(
        "mlp-sr",
        "dgl: the auxiliary network of stages 1 to K-1. mlp-sr is DGL's MLP-SR-aux; linear is a linear classifier; "
        "predsim is linear with similarity matching (Nokland and Eidnes).",
    )


def dgl(K: int) -> Schedule:
    """Tick t: stage k goes forward and backward on batch t-k+1. No stage waits within a tick, and no gradient is late.

    Raises:
        BadInput: K is below 1.
    """
    check_K(K)

    def tick(t: int, last: int | None = None) -> Tick:
        ops = [Op(kind, k, t - k + 1) for k in range(1, K + 1) for kind in "FB"]
        return existing_ops(ops, last)

    return Schedule("dgl", K, tick, (0,) * K, lambda batches: batches + K - 1 if batches else 0, dgl_messages(K))


def dgl_messages(K: int) -> Messages:
    """Activations go up, and labels go to every stage. No cotangent comes down."""
    takes, gives, enters = chain(K, local=True)
    return Messages(
        takes=lambda op: takes(op) if op.kind == "F" else (),
        gives=lambda op: gives(op) if op.kind == "F" else (),
        enters=enters,
    )


class LocalLossStage(Stage):
    """A stage that is trained on its own loss. Its params are a pair: the module's, and the auxiliary network's.

    The auxiliary network's statistics are in extra["auxiliary"]. Stage K is an ordinary stage.
    """

    cotangent_down = False
    fixed_lengths = True
    local_loss = True

    def make(self, spec: Spec):
        """The stage's functions, with its local loss and auxiliary network. Stage K has BP's functions."""
        if spec.last:
            return super().make(spec)
        aux, apply, weights = head(spec), make_apply(spec.module, spec.compute), spec.compute.precision.weights
        of_network, loss, dtype = make_outputs(apply, spec.compute), spec.loss, spec.value.dtype

        def objective(params, extra, x, labels):
            y, changed = apply(params[0], network(extra), x, train=True)
            sown, key = changed.pop(LOSSES, None), changed.pop(LOSS_KEY, ())
            variables = {"params": params[1], **extra["auxiliary"]}
            outputs, moved = aux.apply(variables, y, True, mutable=list(extra["auxiliary"]))
            value = add_sown(local_loss(lambda *batch: loss(*batch, *key), outputs, labels).astype(dtype), sown)
            return value, ({"x": y}, {**changed, "auxiliary": dict(moved)})

        def outputs(params, extra, x, key):
            return of_network(params[0], network(extra), x, key)

        params, extra = split_variables(spec.variables)
        aux_params, aux_extra = split_variables(programs.jit(lambda key: aux.init(key, zeros(spec.y), False))(spec.key))
        state = StageState((params, aux_params), {**extra, "auxiliary": aux_extra})
        # The auxiliary network computes in float32, also if the network computes in bfloat16.
        pair_weights = lambda pair: (weights(pair[0]), pair[1])  # noqa: E731
        return make_functions(objective, outputs, dtype, spec.compute, pair_weights), state

    def variables(self):
        if self.spec.last:
            return super().variables()
        params, extra, _ = self.layout
        pair = params.unpack_now(self.evaluated_params())
        return flax_variables(pair[0], network(extra.unpack_now(self.state.extra)))

    def own_trees(self, variables):
        params, extra = super().own_trees(variables)
        return (params if self.spec.last else (params, self.auxiliary())), extra

    def auxiliary(self):
        return () if self.spec.last else self.layout.params.unpack_now(self.state.params)[1]


def network(extra: Mapping[str, Any]) -> dict[str, Any]:
    """The collections in `extra` of the network, without those of the auxiliary network."""
    return {name: value for name, value in extra.items() if name != "auxiliary"}


def head(spec: Spec) -> nn.Module:
    """Makes the auxiliary network of a stage. Raises BadInput if the network's outputs are not class scores."""
    outputs, kind = spec.outputs, spec.options["aux"]
    array = isinstance(outputs, jax.ShapeDtypeStruct)
    if not (array and outputs.ndim in (2, 3) and jnp.issubdtype(outputs.dtype, jnp.floating)):
        raise BadInput(
            f"method dgl gives every stage a loss on class scores [batch, classes] or [batch, T, classes], but stage "
            f"k={spec.K} gives {jax.tree.map(jnp.shape, outputs)}. Use a method without auxiliary networks, e.g. fdg."
        )
    return HEADS[kind](outputs.shape[-1])


METHOD = Method(
    name="dgl",
    summary="decoupled greedy learning (Belilovsky et al. 2020): a local loss for every stage, pipelined",
    schedule=dgl,
    options=Options,
    cost={"F": (1, 0, 0), "B": (0, 1, 1)},
    stage=LocalLossStage,
)
