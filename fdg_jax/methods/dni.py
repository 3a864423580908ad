"""DNI, decoupled neural interfaces (Jaderberg et al. 2017): a stage guesses its gradient instead of waiting for it.

    θ_k^{t+1} = θ_k^t - γ_t s_k(y_k^t, labels^t) ∂y_k^t / ∂θ_k        y_k^t: the output of stage k for batch t
    s_k learns to predict dy_k, by the squared difference

At every stage boundary, a synthesizer s_k maps activations (and labels) to the gradient that stage k+1 would send. It
is trained on the gradient that stage k+1 sends a tick later. That gradient is itself based on a guess (bootstrapping).

Deviation: the stages use the same optimizer as with all other methods (in the commands SGD with momentum, learning rate
0.1); only the synthesizers use Adam. DGL's code, which compares DGL with DNI, trains everything with Adam at 3e-5 and
says that SGD does not converge. So our poor results with DNI say little about DNI. The FDG paper leaves DNI out of its
comparisons, because others report poor results for deep networks.

The synthesizer models the gradient of an example's own loss: the batch size times the gradient of the batch's mean
loss. The gradient of the mean loss would be a hundred times smaller than the change of a synthesizer's outputs in one
step of Adam.
"""

import dataclasses
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fdg_jax.checkpoint import state as states
from fdg_jax.errors import BadInput
from fdg_jax.machine import programs
from fdg_jax.methods._auxiliary import Synthesizer
from fdg_jax.methods.interface import Method
from fdg_jax.options.fields import option
from fdg_jax.schedule import Messages, Op, Schedule, Tick, chain, check_K, existing_ops
from fdg_jax.stages.functions import Spec, split_variables
from fdg_jax.stages.nonfinite import all_finite, select
from fdg_jax.stages.shapes import zeros
from fdg_jax.stages.stage import Stage

LEARNING_RATE = 3e-5  # of the synthesizers' Adam, in DNI's paper


@dataclasses.dataclass(frozen=True)
class Options:
    """DNI's options."""

    conditional: bool = option(
        True, "dni: synthesizers also get the labels (conditional DNI)."
    )


def dni(K: int) -> Schedule:
    """Tick t: stage k < K trains its synthesizer (S) on batch t-k-1. Then all stages k go forward and backward on batch
    t-k+1.

        K = 2:  t=1    2      3        4
          k=1   F1B1   F2B2   S1F3B3   S2F4B4
          k=2          F1B1   F2B2     F3B3

    Raises:
        BadInput: K is below 1.
    """
    check_K(K)

    def tick(t: int, last: int | None = None) -> Tick:
        ops: list[Op] = []
        for k in range(1, K + 1):
            ops += [Op("S", k, t - k - 1)] if k < K else []
            ops += [Op("F", k, t - k + 1), Op("B", k, t - k + 1)]
        return existing_ops(ops, last)

    def ticks(batches: int) -> int:
        return batches + (K if K > 1 else 0) if batches else 0

    return Schedule("dni", K, tick, (0,) * K, ticks, dni_messages(K))


def dni_messages(K: int) -> Messages:
    """B takes no cotangent. S takes the cotangent that stage k+1 sent. Labels go to every stage."""
    takes, gives, enters = chain(K, local=True)
    return Messages(
        takes=lambda op: () if op.kind == "B" else takes(op),
        gives=lambda op: () if op.kind == "S" else gives(op),
        enters=enters,
    )


class SynthesizerState(NamedTuple):
    """The state of a synthesizer.

    params, extra: its Flax variables.
    opt_state: the state of its optimizer, Adam.
    """

    params: Any
    extra: Any
    opt_state: Any


class Guess(NamedTuple):
    """The batch and the inputs of a synthesizer's guess, kept until the gradient arrives.

    batch: the batch's number.
    y, labels: the activations and the labels.
    """

    batch: int
    y: Any
    labels: Any


class SyntheticGradientStage(Stage):
    """A stage with a synthesizer, whose state is in `state.own`. Stage K is an ordinary stage."""

    fixed_lengths = True
    keeps: Mapping[str, str] = {"memo": "B", "asked": "S"}

    def make(self, spec: Spec):
        """The stage's functions, and its synthesizer with its own optimizer."""
        functions, state = super().make(spec)
        if spec.last:
            return functions, state
        if not (isinstance(spec.outputs, jax.ShapeDtypeStruct) and isinstance(spec.y, jax.ShapeDtypeStruct)):
            raise BadInput(f"method dni predicts the gradient of one array, but stage k={spec.k} or {spec.K} has more.")
        module = Synthesizer(spec.outputs.shape[-1], spec.options["conditional"])
        init = programs.jit(lambda key: module.init(key, *zeros((spec.y, spec.labels)), False))
        params, extra = split_variables(init(spec.key))
        adam, guard = optax.adam(LEARNING_RATE), spec.guard

        def apply(params, extra, y, labels):
            return module.apply({"params": params, **extra}, y, labels, True, mutable=list(extra))

        def error(params, extra, y, labels, dy):
            guess, extra = apply(params, extra, y, labels)
            guess, dy = (
                a.astype(jnp.promote_types(a.dtype, jnp.float32)) for a in (guess, dy)
            )  # bfloat16 is too coarse
            return jnp.sum(jnp.square(guess - len(dy) * dy)) / len(dy), dict(extra)

        def learn(own: SynthesizerState, y, labels, dy) -> SynthesizerState:
            grads, extra = jax.grad(error, has_aux=True)(own.params, own.extra, y, labels, dy)
            updates, opt_state = adam.update(grads, own.opt_state, own.params)
            learnt = SynthesizerState(optax.apply_updates(own.params, updates), extra, opt_state)
            return select(all_finite(learnt), learnt, own) if guard else learnt

        # A guess normalises with the batch's own statistics and does not change the running statistics.
        self._guess = programs.jit(lambda own, y, labels: apply(own.params, own.extra, y, labels)[0] / len(y))
        self._learn = programs.jit(learn, donate_argnums=0)
        return functions, state._replace(own=SynthesizerState(params, extra, adam.init(params)))

    def __init__(self, spec: Spec, place, **options):
        super().__init__(spec, place, **options)
        self.asked: deque[Guess] = deque()

    def run(self, kind: str, batch: int, messages: dict[str, Any]) -> dict[str, Any]:
        return self.learn(batch, **messages) if kind == "S" else super().run(kind, batch, messages)

    def forward(self, batch: int, x, labels=None):
        if self.spec.last:
            return super().forward(batch, x, labels)
        messages = super().forward(batch, x)
        self.asked.append(Guess(batch, messages["x"], labels))
        return messages

    def backward(self, batch: int, dy=None):
        if self.spec.last:
            return super().backward(batch)
        newest = self.asked[-1]
        assert newest.batch == batch
        return super().backward(batch, self._guess(self.state.own, newest.y, newest.labels))

    def learn(self, batch: int, dy) -> dict[str, Any]:
        """Dispatches S: trains the synthesizer on the gradient that has arrived. S sends no messages."""
        asked = self.asked.popleft()
        assert asked.batch == batch
        self.state = self.state._replace(own=self._learn(self.state.own, asked.y, asked.labels, dy))
        return {}

    def kept_shapes(self, x, labels):
        kept_shapes = super().kept_shapes(x, labels if self.spec.last else None)
        return kept_shapes if self.spec.last else {**kept_shapes, "S": Guess(0, self.spec.y, labels)}

    def auxiliary(self):
        return () if self.spec.last else self.state.own.params

    def saved_stashes(self) -> dict[str, Any]:
        flat = super().saved_stashes()
        for asked in self.asked:
            flat |= states.flatten((asked.y, asked.labels), f"asked/{asked.batch}/")
        return flat

    def restore(self, flat: Mapping[str, Any]) -> None:
        super().restore(flat)
        self.asked.clear()
        for batch in states.numbers(flat, "asked/"):
            y, labels = self.restored_message((self.spec.y, self.spec.labels), flat, f"asked/{batch}/")
            self.asked.append(Guess(batch, y, labels))


METHOD = Method(
    name="dni",
    summary="decoupled neural interfaces (Jaderberg et al. 2017): synthetic gradients, pipelined",
    schedule=dni,
    options=Options,
    words={"S": "the synthesizer's step towards the gradient that has come for batch 3"},
    cost={"F": (1, 0, 0), "B": (0, 1, 0), "S": (0, 0, 1)},
    stage=SyntheticGradientStage,
)
