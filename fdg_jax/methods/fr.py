"""FR, features replay (Huo et al. 2018): DDG's ticks, but a stage keeps only the inputs of a batch.

    θ_k^{t+1} = θ_k^t - γ_t dy_k^d ∂h_k(x_k^d; θ_k^t) / ∂θ_k        d = t - (K-k)
    h_k: the stage; x_k^d: its inputs of batch d, which it kept; dy_k^d: the gradient that came from above

When the gradient comes, the stage goes forward on these inputs again, with the newest weights. This replay is an
ordinary training pass, so running statistics change twice per batch. There are two released codes, FR's own
(slowbull/FeaturesReplay) and that of the FDG authors (Accumulated-Decoupled-Learning). Ours deviates from them:

- Stage K replays here, too. Its weights have not changed, so its gradients are the same, but its running statistics
  change twice per batch, as those of the other stages do. In both released codes the last module does not replay. Table
  2 of the FDG paper counts a replay for every module.
- FR's own code trains module 1 at twice the learning rate. Here all stages follow the same recipe.
- The replay uses the dropout mask of the first forward pass, as checkpointing of activations does elsewhere. FR's own
  code would draw another one, to which the gradient from above does not belong; its networks have no dropout.
- The FDG authors' code starts the modules between the first and the last one iteration late. So it computes no gradient
  of batch 1 in these, nor in the modules below them. Here every batch updates every stage.
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
    """What a stage keeps of a batch, to go forward on it again.

    batch: the batch's number.
    x, labels: the stage's inputs, and the labels if it takes them.
    rng: the random key of the first forward pass; None for a stage that draws nothing.
    version: the stage's updates at the first forward pass.
    """

    batch: int
    x: Any
    labels: Any
    rng: Any
    version: int


class ReplayStage(Stage):
    """A stage whose stashes are inputs. Its B is a forward and a backward pass."""

    keeps_weights = False

    def __init__(self, spec: Spec, place, **options):
        super().__init__(spec, place, **options)
        forward = self.functions.forward

        def again(params, extra, rng, x, labels):
            """The replay. It uses the first pass's random key and keeps the newest key in the state."""
            if rng is None:
                return forward(params, extra, x, labels)
            messages, changed, closure = forward(params, {**extra, "rng": rng}, x, labels)
            return messages, {**changed, "rng": extra["rng"]}, closure

        def play(params, extra, x, labels):
            """The first pass. It returns its random key instead of a closure."""
            return *forward(params, extra, x, labels)[:2], extra.get("rng")

        self._again = self.program(again, "params extra rng x labels", "messages extra closure")
        self._play = self.program(play, "params extra x labels", "messages extra rng")

    def forward(self, batch: int, x, labels=None):
        messages, changed, rng = self._play(self.state.params, self.state.extra, x, labels)
        self.stashes.append(StoredInput(batch, x, labels, rng, self.updates))
        self.state = self.state._replace(extra=changed)
        return messages

    def backward(self, batch: int, dy=None):
        """Dispatches B: forward again on the stored inputs, with the newest weights, and then back."""
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
        """The shape of the stage's random key; None if it draws nothing."""
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
