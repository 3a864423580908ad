"""DGL, decoupled greedy learning (Belilovsky et al. 2020), pipelined: every stage learns from a loss of its own.

A stage below K ends in a small auxiliary network (`--aux`) that sees the labels; nothing comes back from above, so a
batch is done with in the tick in which it comes. With the linear head or with similarity matching it is local error
learning (Mostafa et al. 2018; Nokland and Eidnes 2019), cut by stages instead of layers.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from fdg_jax.errors import BadInput
from fdg_jax.methods._auxiliary import HEADS, local_loss
from fdg_jax.methods.interface import Method
from fdg_jax.options.fields import option
from fdg_jax.schedule import Messages, Op, Schedule, Tick, chain, check_K, existing_ops
from fdg_jax.stage.functions import Spec, StageState, applied, differentiated, ended, flax_variables, split
from fdg_jax.stage.shapes import zeros
from fdg_jax.stage.stage import Stage


@dataclasses.dataclass(frozen=True)
class Options:
    """What DGL can be asked for."""

    aux: Literal["mlp-sr", "linear", "predsim"] = option(
        "mlp-sr",
        "dgl: the auxiliary network of stages 1 to K-1. mlp-sr is DGL's MLP-SR-aux; linear a local linear classifier; "
        "predsim adds similarity matching to it (Nokland and Eidnes).",
    )


def dgl(K: int) -> Schedule:
    """Tick t: stage k forwards and backwards batch t-k+1; nobody waits for anybody, and nothing is stale."""
    check_K(K)

    def tick(t: int, last: int | None = None) -> Tick:
        ops = [Op(kind, k, t - k + 1) for k in range(1, K + 1) for kind in "FB"]
        return existing_ops(ops, last)

    return Schedule("dgl", K, tick, (0,) * K, lambda batches: batches + K - 1 if batches else 0, upwards(K))


def upwards(K: int) -> Messages:
    """Activations go up, labels to every stage, no cotangent comes down."""
    takes, gives, enters = chain(K, local=True)
    return Messages(
        takes=lambda op: takes(op) if op.kind == "F" else (),
        gives=lambda op: gives(op) if op.kind == "F" else (),
        enters=enters,
    )


class Local(Stage):
    """A stage that trains the pair (module's parameters, auxiliary network's parameters) on its local loss.

    The auxiliary network's statistics lie in extra["auxiliary"]. Stage K is an ordinary one.
    """

    cotangent_down = False
    local_loss = True

    def make(self, spec: Spec):
        if spec.last:
            return super().make(spec)
        aux, apply, weights = head(spec), applied(spec.module, spec.how), spec.how.precision.weights
        of_network, loss, dtype = ended(apply, spec.how), spec.loss, spec.value.dtype

        def objective(params, extra, x, labels):
            y, changed = apply(params[0], network(extra), x, train=True)
            variables = {"params": params[1], **extra["auxiliary"]}
            outputs, moved = aux.apply(variables, y, True, mutable=list(extra["auxiliary"]))
            value = local_loss(loss, outputs, labels).astype(dtype)
            return value, ({"x": y}, {**changed, "auxiliary": dict(moved)})

        def outputs(params, extra, x):
            return of_network(params[0], network(extra), x)

        params, extra = split(spec.variables)
        aux_params, aux_extra = split(jax.jit(lambda key: aux.init(key, zeros(spec.y), False))(spec.key))
        pair = (params, aux_params)
        state = StageState(pair, {**extra, "auxiliary": aux_extra}, spec.optimizer.init(pair))
        # The auxiliary network computes in float32, whatever the network does.
        pair_weights = lambda pair: (weights(pair[0]), pair[1])  # noqa: E731
        return differentiated(objective, outputs, spec.optimizer, dtype, spec.how, pair_weights), state

    def variables(self):
        if self.spec.last:
            return super().variables()
        params, extra, _ = self.layout
        return flax_variables(params.open(self.state.params)[0], network(extra.open(self.state.extra)))

    def auxiliary(self):
        return () if self.spec.last else self.layout.params.open(self.state.params)[1]


def network(extra: Mapping[str, Any]) -> dict[str, Any]:
    """The collections of the network itself."""
    return {name: value for name, value in extra.items() if name != "auxiliary"}


def head(spec: Spec) -> nn.Module:
    """The auxiliary network of a stage, with as many classes as the network has. BadInput where that is no number."""
    outputs, kind = spec.outputs, spec.options["aux"]
    array = isinstance(outputs, jax.ShapeDtypeStruct)
    if not (array and outputs.ndim == 2 and jnp.issubdtype(outputs.dtype, jnp.floating)):
        raise BadInput(
            f"method dgl gives every stage a loss on class scores [batch, classes], but stage k={spec.K} gives "
            f"{jax.tree.map(jnp.shape, outputs)}. Use a method without auxiliary networks, e.g. fdg."
        )
    return HEADS[kind](outputs.shape[1])


METHOD = Method(
    name="dgl",
    summary="decoupled greedy learning (Belilovsky et al. 2020): a local loss for every stage, pipelined",
    schedule=dgl,
    options=Options,
    cost={"F": (1, 0, 0), "B": (0, 1, 1)},
    stage=Local,
)
