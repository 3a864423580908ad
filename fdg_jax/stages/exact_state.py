"""Saves a stage for a checkpoint, as plain arrays {path: array}, and restores it.

A VJP closure is not stored. Restoring replays the forward pass that made the closure, which gives the same bits.
"""

import copy
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

import numpy as np
from flax.errors import FlaxError

from fdg_jax.checkpoint import state as states
from fdg_jax.checkpoint.state import number
from fdg_jax.errors import BadInput, sentence
from fdg_jax.stages.functions import Spec, StageState
from fdg_jax.stages.packing import Layout, Packing, Unpacked
from fdg_jax.stages.update import first_refused, newest_norm
from fdg_jax.transport.devices import Place

Tree = Any


class Stash(NamedTuple):
    """What a stage keeps of a batch until the gradient arrives. Saved states call it "memo".

    batch: the batch's number.
    closure: the VJP closure, which holds the activations only.
    params, x: the weights and the inputs of the forward pass; references, not copies.
    extra: the other collections before the forward pass. Together with params and x, these suffice to replay the
        forward pass.
    version: how many updates the stage had made before the forward pass.
    labels: the labels, if the stage has a loss; else None.
    """

    batch: int
    closure: Any
    params: Tree
    extra: Tree
    x: Tree
    version: int
    labels: Tree = None


class Checkpointed:
    """The part of a stage (fdg_jax.stages.stage.Stage) that saves and restores it.

    If a method's stages do not keep a `Stash`, they override `saved_stashes` and `restored_stash`.
    """

    spec: Spec
    place: Place
    layout: Layout
    accumulate: int
    state: StageState
    stashes: deque[Any]
    line: deque[tuple[Tree, int, Tree]]
    sum: Tree
    summed: int
    since: int
    updates: int
    staleness: int
    bad: Any
    norm: Any
    ahead: Tree
    _forward: Callable[..., Any]
    _copy: Callable[..., Any]
    _correct: Callable[..., Any] | None
    takes_labels: bool

    def saved(self) -> dict[str, Any]:
        """Everything that a resumed run needs of this stage, as {path: array}.

        The arrays may still be unfinished. No later program donates them: arrays that the stage will donate are copied
        here.
        """
        of_params = self.layout.params
        # The next update donates these, so they are copied.
        opt_state, own, summed = self._copy((self.state.opt_state, self.state.own, self.sum))
        line = [grads for grads, *_ in self.line]
        if self.accumulate > 1:  # the next addition donates its first argument
            line = self._copy(line)
        state = self.layout.unpack_now(self.state._replace(opt_state=opt_state, own=own))
        flat: dict[str, Any] = states.flatten(state, "state/")
        counters = {"updates": self.updates, "staleness": self.staleness, "summed": self.summed, "since": self.since}
        flat |= {name: np.int64(value) for name, value in counters.items()}
        if summed is not None:
            flat |= states.flatten(of_params.unpack_now(summed), "sum/")
        for i, grads in enumerate(line):
            flat |= states.flatten(of_params.unpack_now(grads), f"line/{i}/")
            flat[f"line/{i}/version"] = np.int64(self.line[i][1])
        flat |= self.saved_weights({version: then for _, version, then in self.line if then is not None})
        return flat | self.saved_stashes()

    def saved_weights(self, weights: Mapping[int, Tree]) -> dict[str, Any]:
        """The weights of each version. A version is saved once, however many stashes refer to it."""
        flat: dict[str, Any] = {}
        for version, params in weights.items():
            flat |= states.flatten(self.layout.params.unpack_now(params), f"weights/{version}/")
        return flat

    def saved_stashes(self) -> dict[str, Any]:
        """The inputs of the stashes' forward passes, and the weights of these passes."""
        flat: dict[str, Any] = {}
        for stash in self.stashes:
            flat |= states.flatten(stash.x, f"memo/{stash.batch}/x")
            flat |= states.flatten(self.layout.extra.unpack_now(stash.extra), f"memo/{stash.batch}/extra")
            flat[f"memo/{stash.batch}/version"] = np.int64(stash.version)
            flat |= {} if stash.labels is None else states.flatten(stash.labels, f"memo/{stash.batch}/labels")
        return flat | self.saved_weights({stash.version: stash.params for stash in self.stashes})

    def empty_copy(self) -> Self:
        """A stage with the same programs and nothing in flight. Restoring the copy does not change this stage."""
        other = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, deque):
                setattr(other, name, deque())
        return other

    def restore(self, flat: Mapping[str, Any]) -> None:
        """The inverse of `saved`.

        Arguments:
            flat: what `saved` returned.

        Raises:
            BadInput: `flat` is of another stage. This stage is then in an undefined state.
        """
        template = StageState(*self.layout.shapes, self.state.own, self.state.correction)
        state = states.unflatten(template, flat, "state/")
        summed = number(flat, "summed")
        self.sum = self.restored_packed(self.layout.params, flat, "sum/") if summed else None
        self.state = self.layout.pack_now(self.place.put_weights(state, template))
        self.ahead = None
        self.bad = np.int32(first_refused(state.opt_state)) if self.spec.guard else None
        self.norm = np.float32(newest_norm(state.opt_state)) if self.spec.norms else None
        self.updates, self.staleness = number(flat, "updates"), number(flat, "staleness")
        self.summed, self.since = summed, number(flat, "since")
        self.line.clear()
        self.stashes.clear()
        for i in states.numbers(flat, "line/"):
            grads = self.restored_packed(self.layout.params, flat, f"line/{i}/")
            version = number(flat, f"line/{i}/version")
            self.line.append((grads, version, self.restored_weights(version, flat) if self._correct else None))
        for batch in states.numbers(flat, "memo/"):
            self.stashes.append(self.restored_stash(batch, flat))

    def restored_stash(self, batch: int, flat: Mapping[str, Any]) -> Any:
        """The stash of a batch. Its closure is made by replaying the forward pass, so that every bit is as in the saved
        stash."""
        version = number(flat, f"memo/{batch}/version")
        params = self.restored_weights(version, flat)
        extra = self.restored_packed(self.layout.extra, flat, f"memo/{batch}/extra")
        x = self.restored_message(self.spec.x, flat, f"memo/{batch}/x")
        labels = None
        if self.takes_labels:
            labels = self.restored_message(self.spec.labels, flat, f"memo/{batch}/labels")
        try:
            _, _, closure = self._forward(params, extra, x, labels)
        except (TypeError, ValueError, FlaxError) as error:
            fact = f"the checkpoint's batch {batch} does not fit stage k={self.spec.k}: {sentence(error)}"
            raise BadInput(f"{fact} The checkpoint is of another model, split or method.") from error
        return Stash(batch, closure, params, extra, x, version, labels)

    def restored_weights(self, version: int, flat: Mapping[str, Any]) -> Tree:
        """The weights of a version. Stashes and gradients that shared weights before share them again."""
        known = [(stash.version, stash.params) for stash in self.stashes if hasattr(stash, "params")]
        known += [(version, then) for _, version, then in self.line if then is not None]
        shared = next((params for found, params in known if found == version), None)
        return self.restored_packed(self.layout.params, flat, f"weights/{version}/") if shared is None else shared

    def restored_packed(self, packing: Packing | Unpacked, flat: Mapping[str, Any], prefix: str) -> Tree:
        """Saved weights, gradients or statistics on the stage's device, packed."""
        shapes = packing.shapes
        return packing.pack_now(self.place.put_weights(states.unflatten(shapes, flat, prefix), shapes))

    def restored_message(self, template: Tree, flat: Mapping[str, Any], prefix: str) -> Tree:
        """A saved message on the stage's device.

        Arguments:
            template: a tree of arrays, or shapes, like the message; its axes may have other lengths.
            flat: {path: array}.
            prefix: the beginning of the message's paths.

        Raises:
            BadInput: a path is missing, or a shape or dtype differs.
        """
        return self.place.put_batch(states.unflatten(template, flat, prefix, any_lengths=True))
