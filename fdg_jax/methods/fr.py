"""FR, features replay (Huo et al. 2018): DDG's schedule, but a stage keeps only its input of a batch.

    θ_k^{t+1} = θ_k^t - γ_t dy_k^d ∂h_k(x_k^d; θ_k^t) / ∂θ_k        d = t - (K-k)
    h_k: the stage; x_k^d: its input of batch d, which it kept; dy_k^d: the gradient that came from above

When the gradient comes, the stage runs the forward pass on this input again (the replay), with the newest weights. The
replay is an ordinary training pass, so running statistics change twice per batch. Two implementations were released, by
FR's authors (slowbull/FeaturesReplay) and by FDG's authors (Accumulated-Decoupled-Learning). Ours deviates from them:

- Here stage K replays, too. This does not change its gradients, because its weights have not changed since the first
  pass. But its running statistics change twice per batch, as in the other stages. In both released codes the last
  module does not replay. Table 2 of the FDG paper counts a replay for every module.
- FR's code trains module 1 at twice the learning rate. Here all stages have the same learning rate.
- Here the replay uses the dropout mask of the first forward pass, as activation checkpointing does. FR's code would
  draw a new mask, which does not match the gradient from above; its networks have no dropout.
- The FDG authors' code starts the modules between the first and the last one iteration late. So these modules, and the
  modules below them, get no gradient of batch 1. Here every batch updates every stage.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fdg_jax.checkpoint import state as states
from fdg_jax.checkpoint.state import number
from fdg_jax.methods.ddg import forward_locked
from fdg_jax.methods.interface import Method
from fdg_jax.stages.functions import Spec
from fdg_jax.stages.stage import Stage


class StoredInput(NamedTuple):
    """The data of a batch that a stage keeps for the replay.

    batch: the batch's number.
    x, labels: the stage's inputs, and the labels if the stage takes them.
    rng: the random key of the first forward pass; None for a stage that draws no random numbers.
    version: the number of the stage's updates before the first forward pass.
    """

    batch: int
    x: Any
    labels: Any
    rng: Any
    version: int


class ReplayStage(Stage):
    """A stage that stashes only inputs. Its operation B is a forward and a backward pass."""

    keeps_weights = False

    def __init__(self, spec: Spec, place, **options):
        super().__init__(spec, place, **options)
        forward = self.functions.forward

        def again(params, extra, rng, x, labels):
            """The replay: a forward pass with the first pass's random key. The state keeps the newest key."""
            if rng is None:
                return forward(params, extra, x, labels)
            messages, changed, closure = forward(params, {**extra, "rng": rng}, x, labels)
            return messages, {**changed, "rng": extra["rng"]}, closure

        def play(params, extra, x, labels):
            """The first forward pass. It returns its random key instead of a closure."""
            return *forward(params, extra, x, labels)[:2], extra.get("rng")

        self._again = self.program(again, "params extra rng x labels", "messages extra closure")
        self._play = self.program(play, "params extra x labels", "messages extra rng")

    def forward(self, batch: int, x, labels=None):
        messages, changed, rng = self._play(self.state.params, self.state.extra, x, labels)
        self.stashes.append(StoredInput(batch, x, labels, rng, self.updates))
        self.state = self.state._replace(extra=changed)
        return messages

    def backward(self, batch: int, dy=None):
        """Dispatches B: a forward pass on the stored inputs with the newest weights, then the backward pass."""
        stored, params = self.take_stash(batch), self.state.params
        _, changed, closure = self._again(params, self.state.extra, stored.rng, stored.x, stored.labels)
        self.state = self.state._replace(extra=changed)
        grads, dx = self._backward(closure, params, stored.x, dy)
        self.use(grads, stored.version)
        return {"dy": dx}

    def kept_shapes(self, x, labels):
        return {"B": StoredInput(0, x, labels, self.key_shape, 0)}

    @property
    def key_shape(self) -> Any:
        """The shape of the stage's random key; None if the stage draws no random numbers."""
        return self.layout.extra.shapes.get("rng")

    def saved_stashes(self) -> dict[str, Any]:
        flat: dict[str, Any] = {}
        for stored in self.stashes:
            flat |= states.flatten((stored.x, stored.labels), f"memo/{stored.batch}/")
            flat |= states.flatten({"rng": stored.rng}, f"memo/{stored.batch}/")
            flat[f"memo/{stored.batch}/version"] = np.int64(stored.version)
        return flat

    def restored_stash(self, batch: int, flat: Mapping[str, Any]) -> StoredInput:
        template = (self.spec.x, self.spec.labels if self.takes_labels else None)
        x, labels = self.restored_message(template, flat, f"memo/{batch}/")
        rng = self.place.put_weights(states.unflatten({"rng": self.key_shape}, flat, f"memo/{batch}/"))["rng"]
        return StoredInput(batch, x, labels, rng, number(flat, f"memo/{batch}/version"))


METHOD = Method(
    name="fr",
    summary="features replay (Huo et al. 2018): DDG's delays, inputs kept instead of activations",
    schedule=partial(forward_locked, name="fr"),
    cost={"F": (1, 0, 0), "B": (1, 1, 0)},
    stage=ReplayStage,
)
