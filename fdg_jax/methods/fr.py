"""FR, features replay (Huo et al. 2018): DDG's ticks, but a stage keeps only the input of a batch and goes forward
on it again, with the weights of now, when the gradient comes.

The replay is an ordinary training pass, so running statistics move twice a batch. There are two released codes, FR's
own (slowbull/FeaturesReplay) and that of the FDG authors (Accumulated-Decoupled-Learning). Ours deviates from them:

- Stage K replays here, too. Its weights have not changed, so its gradient is the same, but its running statistics move
  twice a batch as those of the other stages do. In neither released code does the last module replay. Table 2 of the
  FDG paper counts a replay for every module.
- FR's own code trains module 1 at twice the learning rate; here all stages follow the recipe they are given.
- The FDG authors' code makes no gradient of batch 1 in the modules between the first and the last, as they get to know
  of it one iteration late, and so none below them either. Here every batch updates every stage.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fdg_jax.machine import programs
from fdg_jax.methods.ddg import forward_locked
from fdg_jax.methods.interface import Method
from fdg_jax.stage.functions import Spec
from fdg_jax.stage.stage import Stage
from fdg_jax.storage import checkpoint
from fdg_jax.storage.restoring import number


class Feature(NamedTuple):
    """What is kept of a batch: what stage k needs to go forward on it once more."""

    batch: int
    x: Any
    labels: Any
    version: int


class Replay(Stage):
    """A stage whose memo is an input and whose B is a forward and a backward pass."""

    def __init__(self, spec: Spec, place, **options):
        super().__init__(spec, place, **options)
        forward = self.functions.forward
        self._play = programs.jit(  # nothing is kept for a backward pass
            lambda *arguments: forward(*arguments)[:2], place.device.platform, reductions=self.fast_reductions
        )

    def forward(self, batch: int, x, labels=None):
        messages, changed = self._play(self.state.params, self.state.extra, x, labels)
        self.memos.append(Feature(batch, x, labels, self.updates))
        self.state = self.state._replace(extra=changed)
        return messages

    def backward(self, batch: int, dy=None):
        feature, params = self.oldest(batch), self.state.params
        _, changed, closure = self._forward(params, self.state.extra, feature.x, feature.labels)
        self.state = self.state._replace(extra=changed)
        grads, dx = self._backward(closure, params, feature.x, dy)
        self.use(grads, feature.version)
        return {"dy": dx}

    def kept(self, x, labels):
        return {"B": Feature(0, x, labels, 0)}

    def saved_memos(self) -> dict[str, Any]:
        flat: dict[str, Any] = {}
        for feature in self.memos:
            flat |= checkpoint.flatten((feature.x, feature.labels), f"memo/{feature.batch}/")
            flat[f"memo/{feature.batch}/version"] = np.int64(feature.version)
        return flat

    def restored_memo(self, batch: int, flat: Mapping[str, Any]) -> Feature:
        template = (self.spec.x, self.spec.labels if self.spec.last else None)
        x, labels = self.restored(template, flat, f"memo/{batch}/")
        return Feature(batch, x, labels, number(flat, f"memo/{batch}/version"))


METHOD = Method(
    name="fr",
    summary="features replay (Huo et al. 2018): DDG's delays, inputs kept instead of activations",
    schedule=partial(forward_locked, name="fr"),
    cost={"F": (1, 0, 0), "B": (1, 1, 0)},
    stage=Replay,
)
