"""A stage may not wait for its gradient. It remembers how to use one, and uses it 2(K-k) ticks later.

`Stage` jits a module's pure functions (fdg_jax.stage.functions) onto one device and owns the only mutable things of a
stage: its state and its memos. A method that remembers something else, or computes its gradient in another way, is
a subclass in the method's own file.
"""

import copy
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fdg_jax.errors import ScheduleError
from fdg_jax.machine import programs
from fdg_jax.stage.correcting import forward_program, gradient_program
from fdg_jax.stage.functions import Functions, Spec, StageState, flax_variables, made
from fdg_jax.stage.nonfinite import guarded
from fdg_jax.stage.packing import Layout, Packing, Unpacked, packed
from fdg_jax.storage import checkpoint
from fdg_jax.storage.restoring import number
from fdg_jax.transport.devices import Place

Tree = Any


class Memo(NamedTuple):
    """What a stage keeps of a batch until its gradient comes.

    The closure holds the activations only. params and x are references, not copies; with `extra` they are enough
    to make the closure again by replaying the forward pass, which is what a checkpoint does. version: the stage's
    updates when it went forward.
    """

    batch: int
    closure: Any
    params: Tree
    extra: Tree
    x: Tree
    version: int


class Stage:
    """Stage k of K on its device: jitted functions, state, and the deque of memos.

    stashed: differentiate at the weights of the forward pass (Eq. 10). Otherwise at today's weights and the old
    activations, as the authors' code does; where the staleness is 0 the two are the same and nothing is stashed.
    A memo refers to its old weights in both cases, for an exact checkpoint, so `current` saves no memory here.
    accumulate, mean: backward passes per update, and whether their gradients are averaged instead of summed.
    delay: backward passes by which a gradient waits before its use; 0 in a pipeline, where the schedule is the delay,
    and the schedule's `behind` where one device stands in for K (the delay line).
    Weights are never donated, since memos refer to them. What lies in `state`, `line`, `sum` and the memos is packed
    (fdg_jax.stage.packing); `functions` are those on packed arrays.
    """

    backward_at_other_weights = ""  # whose, if a method's backward pass is never taken at those of the forward pass
    cotangent_down = True  # whether a method sends cotangents from stage to stage
    # Of what a stage keeps of a batch, as its state names it: the kind of operation that uses it up.
    keeps: Mapping[str, str] = {"memo": "B"}
    local_loss = False  # whether every stage has a loss of its own, and so takes the labels in its forward pass
    packs = True  # False: small arrays stay as they are, for a method whose programs or places want them so

    def __init__(
        self, spec: Spec, place: Place, stashed: bool, accumulate: int = 1, mean: bool = False, delay: int = 0
    ):
        self.k, self.place, self.stashed = spec.k, place, stashed
        self.accumulate, self.mean, self.delay = accumulate, mean, delay
        functions, state = self.make(spec)
        if spec.guard:
            functions, state = guarded(functions, state)
        # opt_state is donated and may alias the weights (an average that starts at them): its own copy, then.
        opt_state = jax.tree.map(jnp.copy, state.opt_state)
        state = state._replace(opt_state=opt_state, correction=spec.correction.start(state.params))
        self.layout = layout = Layout.of(state, self.packs)
        self.functions = functions = packed(functions, layout) if self.packs else functions
        self.spec = spec._replace(variables={})  # else the first weights would lie in memory as long as the stage does
        ends, guards = spec.k == 1 or not self.cotangent_down, spec.guard
        self.state = layout.close(place.weights(state))
        self.memos: deque[Any] = deque()
        # (gradients, the weight version they were taken at, those weights where a correction asks for them)
        self.line: deque[tuple[Tree, int, Tree]] = deque()
        self.sum: Tree = None  # of the gradients of `summed` backward passes, the oldest taken at version `since`
        self.summed, self.since = 0, 0
        self.updates, self.staleness = 0, 0
        # Of a guarded stage, as of the newest update (in its state it is given away to the next one).
        self.bad: Any = np.int32(0) if guards else None

        def backward(closure, params, x, dy):
            grads, dx = functions.backward(closure, params, x, dy)
            return grads, None if ends else dx

        def update(params, opt_state, grads):
            params, opt_state = functions.update(params, opt_state, grads)
            return params, opt_state, layout.opt_state.unpack(opt_state).bad + 0 if guards else None

        # Forward and backward are separate programs: XLA's CPU backend would otherwise recompute activations inside
        # the transposed convolutions (LOG.md, 2026-11-21). So is the update: compiled by itself it rounds the same
        # way wherever it is used, so that both engines agree bit for bit (inside a larger program XLA contracts
        # beta*g + decay*p into one or the other fused multiply-add).
        platform = place.device.platform
        labels = spec.labels if spec.last or self.local_loss else None
        first = self.state.params, self.state.extra, spec.x, labels
        self.fast_reductions = programs.reductions_are_right(platform, functions.forward, *first)
        self._forward = programs.jit(functions.forward, platform, reductions=self.fast_reductions)
        self._backward = programs.jit(backward, platform, reductions=self.fast_reductions)
        self._update = jax.jit(update, donate_argnames="opt_state")
        self._outputs = programs.jit(functions.outputs, platform, reductions=False)
        self._ahead = forward_program(spec.correction, layout.params)
        self._correct = gradient_program(spec.correction, layout.params, guards)
        self._add = jax.jit(lambda a, b: jax.tree.map(jnp.add, a, b), donate_argnums=0)
        self._copy = jax.jit(lambda tree: jax.tree.map(jnp.copy, tree))
        self._divide = jax.jit(lambda a, n: jax.tree.map(lambda leaf: leaf / n.astype(leaf.dtype), a))

    def make(self, spec: Spec) -> tuple[Functions, StageState]:
        """The stage's pure functions and its first state. A method's stage may have others; functions that refer to
        the spec itself, and not to what they want of it, keep the first weights in memory as long as they live."""
        return made(spec)

    def run(self, kind: str, batch: int, messages: dict[str, Tree]) -> dict[str, Tree]:
        """Dispatches an operation of the schedule; returns what it sends."""
        return self.forward(batch, **messages) if kind == "F" else self.backward(batch, **messages)

    def forward(self, batch: int, x: Tree, labels: Tree = None) -> dict[str, Tree]:
        """Dispatches F. Returns {"x": y}, or {"loss": ...} on stage K."""
        params, extra, version = self.forward_params(), self.state.extra, self.updates
        messages, changed, closure = self._forward(params, extra, x, labels)
        self.memos.append(Memo(batch, closure, params, extra, x, version))
        self.state = self.state._replace(extra=changed)
        return messages

    def backward(self, batch: int, dy: Tree = None) -> dict[str, Tree]:
        """Dispatches B and the update that falls due. Returns {"dy": dx}, the cotangent for stage k-1."""
        memo = self.oldest(batch)
        grads, dx = self._backward(memo.closure, self.backward_params(memo), memo.x, dy)
        then = (memo.params,) if self._correct else ()  # so that a subclass may override `use` without it
        self.use(grads, memo.version, *then)
        return {"dy": dx}

    def forward_params(self) -> Tree:
        """The weights that the forward pass is taken at: the newest ones, or what a correction makes of them."""
        state = self.state
        return self._ahead(state.params, state.correction) if self._ahead else state.params

    def backward_params(self, memo: Memo) -> Tree:
        """The weights that the backward pass is taken at."""
        return memo.params if self.stashed else self.state.params

    def oldest(self, batch: int) -> Any:
        """Takes the oldest memo, which must be of that batch."""
        memo = self.memos.popleft()
        if memo.batch != batch:
            raise ScheduleError(f"stage k={self.k} is asked for B{batch} but the oldest memo is of {memo.batch}")
        return memo

    def use(self, grads: Tree, version: int, then: Tree = None) -> None:
        """Puts a gradient into the line and applies what comes out. then: the weights it was taken at, if needed."""
        self.line.append((grads, version, then))
        if len(self.line) > self.delay:
            self.apply(*self.line.popleft())

    def apply(self, grads: Tree, version: int, then: Tree) -> None:
        """Corrects a gradient and adds it to the sum; updates when that is complete."""
        if self._correct:
            state = self.state
            grads, corrected = self._correct(grads, then, state.params, state.correction)
            self.state = state._replace(correction=corrected)
        if self.summed == 0:
            self.sum, self.since = grads, version
        else:
            self.sum = self._add(self.sum, grads)
        self.summed += 1
        if self.summed == self.accumulate:
            self.update()

    def update(self) -> None:
        """Dispatches the update by the gradients summed so far."""
        grads, since, summed = self.sum, self.since, self.summed
        if self.mean and summed > 1:
            grads = self._divide(grads, self.place.weights(np.int32(summed)))
        params, opt_state, self.bad = self._update(self.state.params, self.state.opt_state, grads)
        self.state = self.state._replace(params=params, opt_state=opt_state)
        self.staleness = max(self.staleness, self.updates - since)
        self.updates += 1
        self.sum, self.summed = None, 0

    def drain(self) -> None:
        """Uses up the delay line and what has been summed for the next update."""
        while self.line:
            self.apply(*self.line.popleft())
        if self.summed:
            self.update()

    def kept(self, x: Tree, labels: Tree) -> dict[str, Tree]:
        """What stays of a batch after its forward pass, as shapes, by the kind of operation that uses it up.

        x, labels: shapes of what the forward pass takes. Traced as the forward pass will be, so that is not done twice.
        """
        state = self.state
        _, _, closure = self._forward.eval_shape(state.params, state.extra, x, labels)
        return {"B": Memo(0, closure, state.params, state.extra, x, 0)}

    def outputs(self, x: Tree) -> Tree:
        """Dispatches a forward pass in evaluation mode with the newest weights and statistics."""
        return self._outputs(self.state.params, self.state.extra, x)

    def variables(self) -> dict[str, Tree]:
        """The network's own Flax variables {"params": ..., "batch_stats": ...}, without what a method adds."""
        return flax_variables(self.layout.params.open(self.state.params), self.layout.extra.open(self.state.extra))

    def auxiliary(self) -> Tree:
        """The trained parameters that a method adds to the network's."""
        return ()

    # What follows is the way to a checkpoint and back. All of it is plain arrays: a closure is made again.

    def saved(self) -> dict[str, Any]:
        """Everything a resumed run needs of this stage, as {path: array}; nothing of it is given away later."""
        of_params = self.layout.params
        given_away = self.state.opt_state, self.state.own, self.sum  # to the next update, so these are copied
        opt_state, own, summed = self._copy(given_away)
        line = [grads for grads, *_ in self.line]
        if self.accumulate > 1:  # and these to an addition
            line = self._copy(line)
        state = self.layout.open(self.state._replace(opt_state=opt_state, own=own))
        flat: dict[str, Any] = checkpoint.flatten(state, "state/")
        counters = {"updates": self.updates, "staleness": self.staleness, "summed": self.summed, "since": self.since}
        flat |= {name: np.int64(value) for name, value in counters.items()}
        if summed is not None:
            flat |= checkpoint.flatten(of_params.open(summed), "sum/")
        for i, grads in enumerate(line):
            flat |= checkpoint.flatten(of_params.open(grads), f"line/{i}/")
            flat[f"line/{i}/version"] = np.int64(self.line[i][1])
        flat |= self.saved_weights({version: then for _, version, then in self.line if then is not None})
        return flat | self.saved_memos()

    def saved_weights(self, weights: Mapping[int, Tree]) -> dict[str, Any]:
        """Weights by their version, each once however many memos refer to it."""
        flat: dict[str, Any] = {}
        for version, params in weights.items():
            flat |= checkpoint.flatten(self.layout.params.open(params), f"weights/{version}/")
        return flat

    def anew(self) -> "Stage":
        """Another stage with the same programs and nothing in flight: what is restored there leaves this one alone."""
        other = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, deque):
                setattr(other, name, deque())
        return other

    def restore(self, flat: Mapping[str, Any]) -> None:
        """The inverse of `saved`. BadInput where it is of another stage; then this one is half restored."""
        template = StageState(*self.layout.shapes, self.state.own, self.state.correction)
        state = checkpoint.unflatten(template, flat, "state/")
        summed = number(flat, "summed")
        self.sum = self.read(self.layout.params, flat, "sum/") if summed else None
        self.state = self.layout.close(self.place.weights(state))
        self.bad = np.int32(state.opt_state.bad) if self.spec.guard else None
        self.updates, self.staleness = number(flat, "updates"), number(flat, "staleness")
        self.summed, self.since = summed, number(flat, "since")
        self.line.clear()
        self.memos.clear()
        for i in checkpoint.numbers(flat, "line/"):
            grads, version = self.read(self.layout.params, flat, f"line/{i}/"), number(flat, f"line/{i}/version")
            self.line.append((grads, version, self.restored_weights(version, flat) if self._correct else None))
        for batch in checkpoint.numbers(flat, "memo/"):
            self.memos.append(self.restored_memo(batch, flat))

    def read(self, how: Packing | Unpacked, flat: Mapping[str, Any], prefix: str) -> Tree:
        """Saved weights, gradients or statistics back on the stage's device, packed."""
        return how.close(self.place.weights(checkpoint.unflatten(how.shapes, flat, prefix)))

    def saved_memos(self) -> dict[str, Any]:
        """A memo as its input and its weights."""
        flat: dict[str, Any] = {}
        for memo in self.memos:
            flat |= checkpoint.flatten(memo.x, f"memo/{memo.batch}/x")
            flat |= checkpoint.flatten(self.layout.extra.open(memo.extra), f"memo/{memo.batch}/extra")
            flat[f"memo/{memo.batch}/version"] = np.int64(memo.version)
        return flat | self.saved_weights({memo.version: memo.params for memo in self.memos})

    def restored_memo(self, batch: int, flat: Mapping[str, Any]) -> Any:
        """The memo again, by replaying the forward pass it comes from; bit for bit the one that was saved."""
        version = number(flat, f"memo/{batch}/version")
        params = self.restored_weights(version, flat)
        extra = self.read(self.layout.extra, flat, f"memo/{batch}/extra")
        x = self.restored(self.spec.x, flat, f"memo/{batch}/x")
        _, _, closure = self._forward(params, extra, x, None)
        return Memo(batch, closure, params, extra, x, version)

    def restored_weights(self, version: int, flat: Mapping[str, Any]) -> Tree:
        """The weights of that version, which several memos and gradients may share."""
        known = [(memo.version, memo.params) for memo in self.memos if hasattr(memo, "params")]
        known += [(version, then) for _, version, then in self.line if then is not None]
        shared = next((params for found, params in known if found == version), None)
        return self.read(self.layout.params, flat, f"weights/{version}/") if shared is None else shared

    def restored(self, template: Tree, flat: Mapping[str, Any], prefix: str) -> Tree:
        """A message (its first axis is the batch) back on the stage's device."""
        return self.place.batch(checkpoint.unflatten(template, flat, prefix, any_batch_size=True))
