"""Stage k of the network on its device: its state, its compiled programs, and what it keeps of batches in flight.

A stage never waits for a gradient. It keeps what it needs to use the gradient later (a stash), and uses the gradient
when it arrives: 2(K-k) ticks later in FDG. `Stage` compiles a module's pure functions (fdg_jax.stages.functions) and
owns everything that changes. A method whose stages keep something else, or compute gradients in another way, has a
subclass of `Stage` in its own file.
"""

import copy
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from fdg_jax.errors import ScheduleError
from fdg_jax.machine import programs
from fdg_jax.stages import hyperparameters
from fdg_jax.stages.exact_state import Checkpointed, Stash
from fdg_jax.stages.functions import (
    Functions,
    Spec,
    StageState,
    flax_variables,
    make_stage_functions,
    split_variables,
)
from fdg_jax.stages.nonfinite import guard_statistics
from fdg_jax.stages.packing import Layout, Packed, on_packed
from fdg_jax.stages.update import (
    UpdateRule,
    average,
    evaluated,
    evaluated_elsewhere,
    first_refused,
    newest_norm,
    was_made,
)
from fdg_jax.transport.devices import Place

Tree = Any


class Stage(Checkpointed):
    """Stage k of K on its device.

    A stash refers to the weights of its forward pass even if `stashed` is False (weights="current"), because a
    checkpoint needs them; so "current" saves no memory. Weights are never donated, since stashes refer to them. The
    arrays of `state`, `line`, `sum` and the stashes are packed (fdg_jax.stages.packing).

    Arguments:
        spec: what the stage consists of.
        place: where it is.
        stashed: whether gradients are taken at the weights of the forward pass (Eq. 10). Otherwise they are taken at
            the newest weights and the old activations, as in the authors' code.
        accumulate: backward passes per update.
        mean: whether the gradients of these passes are averaged instead of summed.
        delay: for how many backward passes a gradient waits before its use. 0 in a pipeline, where the schedule itself
            delays; the schedule's `delays` where one device computes all stages (the delay line).

    Raises:
        BadInput: the method cannot train such a stage.

    A method's subclass may set these:
        backward_at_other_weights: if its backward pass is never taken at the weights of the forward pass, the option
            that is the reason, for messages ("method=fa"); else "".
        cotangent_down: whether its stages send cotangents to the stage below.
        keeps: {name in a checkpoint of what a stage keeps of a batch: the kind of operation that needs it last}.
        local_loss: whether every stage has a loss of its own, so that its forward pass takes the labels.
        fixed_lengths: whether what it adds to the network fits arrays of the example batch's shapes only, but for the
            batch size.
        packs: whether small arrays are packed.
        keeps_weights: whether a stash refers to the weights of its forward pass.
    """

    backward_at_other_weights = ""
    cotangent_down = True
    fixed_lengths = False
    keeps: Mapping[str, str] = {"memo": "B"}
    local_loss = False
    packs = True
    keeps_weights = True

    def __init__(
        self, spec: Spec, place: Place, stashed: bool, accumulate: int = 1, mean: bool = False, delay: int = 0
    ):
        self.k, self.place, self.stashed = spec.k, place, stashed
        self.accumulate, self.mean, self.delay = accumulate, mean, delay
        functions, state = self.make(spec)
        rule, correction, guard = self.update_rule(spec), spec.correction, spec.guard
        opt_state, corrected = rule.start(state.params)
        # opt_state is donated, and some optimizers begin with the weights themselves (averages): hence a copy.
        state = state._replace(opt_state=jax.tree.map(jnp.copy, opt_state), correction=corrected)
        self.functions = functions._replace(forward=guard_statistics(functions.forward)) if guard else functions
        self.spec = spec._replace(variables={})  # else the initial weights would stay in memory
        self.packs = self.packs and len(place.devices) == 1  # a packed array has one layout, and may be cut elsewhere
        state = place.put_weights(state)
        self.layout = layout = Layout.of(state, self.packs)
        self.state = layout.pack_now(state)
        self.stashes: deque[Any] = deque()
        # (gradients, the weight version at which they were taken, those weights where a correction needs them)
        self.line: deque[tuple[Tree, int, Tree]] = deque()
        self.sum: Tree = None  # of the gradients of `summed` backward passes, the oldest taken at version `since`
        self.summed, self.since = 0, 0
        self.updates, self.staleness = 0, 0
        self.ahead: Tree = None  # what a correction makes of the newest weights for forward passes
        # With a guard: the number of the first refused update so far, as a copy, because that in `state` is donated.
        self.bad: Any = np.int32(0) if guard else None
        self.norm: Any = np.float32(0) if spec.norms else None  # the norm of the newest gradient, also a copy
        self.takes_labels = spec.last or self.local_loss
        is_end = spec.k == 1 or not self.cotangent_down

        def passed(params, extra, x, labels):
            messages, changed, closure = self.functions.forward(params, extra, x, labels)
            return place.cut(messages), changed, closure

        def gradient(closure, params, x, dy):
            grads, dx = functions.backward(closure, params, x, dy)
            return grads, None if is_end else place.cut(dx)

        def updated(params, before, grads):
            return reported_update(rule, params, before, grads)

        # Forward and backward are separate programs: otherwise XLA's CPU backend recomputes activations inside the
        # transposed convolutions (docs/log.md, 2026-11-21). The update is separate, too. Compiled by itself it rounds
        # in the same way everywhere, so that both engines agree bit for bit. In a larger program, XLA contracts beta*g
        # + decay*p into one or the other fused multiply-add.
        program = self.program
        self._forward = program(passed, "params extra x labels", "messages extra closure")
        self._backward = program(gradient, "closure params x dy", "grads dx")
        corrects = "grads params params state", "grads state"
        self._correct = program(rule.correct, *corrects) if correction.gradient else None
        self._add = programs.jit(partial(jax.tree.map, jnp.add), donate_argnums=0)
        self._divide = programs.jit(divided)
        self._update = program(updated, "params opt_state grads", "params opt_state report", donate_argnums=1)
        self._remember = program(rule.remember, "params params state made", "state") if correction.updated else None
        self._ahead = program(correction.forward, "params state", "params") if correction.forward else None
        self._back = program(correction.backward, "params state", "params") if correction.backward else None
        self._evaluated = program(evaluated, "params opt_state", "params")
        self._average = program(average, "params opt_state", "params") if spec.ema else None
        self._elsewhere = evaluated_elsewhere(state.opt_state)
        self._outputs = program(functions.outputs, "params extra x key", "y")
        self._copy = programs.jit(lambda tree: jax.tree.map(jnp.copy, tree))

    def make(self, spec: Spec) -> tuple[Functions, StageState]:
        """Makes the stage's pure functions and its initial state; a method's stages may have others.

        The functions must not close over `spec`: that would keep the initial weights in memory.
        """
        return make_stage_functions(spec)

    def update_rule(self, spec: Spec) -> UpdateRule:
        """How a gradient becomes new weights; a method's stages may have another rule."""
        return UpdateRule(spec.optimizer, spec.correction, spec.guard, spec.norms, spec.ema)

    def program(self, function: Callable, takes: str, gives: str, **options: Any) -> Callable[..., Any]:
        """Compiles a function on plain trees as a program on the stage's packed arrays.

        Arguments:
            function: what to compile.
            takes, gives: names of its arguments and results. "params", "grads", "extra", "opt_state" and "closure" are
                packed; all others are left as they are.
            options: further arguments of `jax.jit`.
        """
        params, extra, opt_state = self.layout
        closure = Packed if self.packs else None
        how = {"params": params, "grads": params, "extra": extra, "opt_state": opt_state, "closure": closure}
        before, after = ([how.get(name) for name in names.split()] for names in (takes, gives))
        # Without this, XLA would choose how the results lie on several devices.
        shapes = {"params": params.shapes, "grads": params.shapes, "opt_state": opt_state.shapes}
        results = self.place.results([shapes.get(name) for name in gives.split()])
        return programs.jit(on_packed(function, before, after), **options, **results)

    def run(self, kind: str, batch: int, messages: dict[str, Tree]) -> dict[str, Tree]:
        """Dispatches an operation of the schedule.

        Arguments:
            kind: "F", "B", or a kind of the method's own.
            batch: the batch's number, from 1.
            messages: what the operation reads, by name: "x", "labels", "dy".

        Returns: what it sends, by name.

        Raises:
            ScheduleError: the schedule asks for batches in another order than that of their forward passes.
        """
        return self.forward(batch, **messages) if kind == "F" else self.backward(batch, **messages)

    def forward(self, batch: int, x: Tree, labels: Tree = None) -> dict[str, Tree]:
        """Dispatches F. Returns {"x": outputs}, or {"loss": loss} for stage K."""
        params, extra, version = self.forward_params(), self.state.extra, self.updates
        messages, changed, closure = self._forward(params, extra, x, labels)
        self.stashes.append(Stash(batch, closure, params, extra, x, version, labels))
        self.state = self.state._replace(extra=changed)
        return messages

    def backward(self, batch: int, dy: Tree = None) -> dict[str, Tree]:
        """Dispatches B, and the update if one is due. Returns {"dy": cotangent of the inputs}, for stage k-1."""
        stash = self.take_stash(batch)
        grads, dx = self._backward(stash.closure, self.backward_params(stash), stash.x, dy)
        then = (stash.params,) if self._correct else ()  # so that a subclass may override `use` without it
        self.use(grads, stash.version, *then)
        return {"dy": dx}

    def forward_params(self) -> Tree:
        """The weights for a forward pass: the newest ones, or what a correction makes of them."""
        if self._ahead is None:
            return self.state.params
        if self.ahead is None:  # once per update, so that all stashes of a weight version share them
            self.ahead = self._ahead(self.state.params, self.state.correction)
        return self.ahead

    def backward_params(self, stash: Stash) -> Tree:
        """The weights for a backward pass."""
        if self.stashed:
            return stash.params
        state = self.state
        return self._back(state.params, state.correction) if self._back else state.params

    def take_stash(self, batch: int) -> Any:
        """Removes and returns the oldest stash. Raises ScheduleError if it is of another batch."""
        stash = self.stashes.popleft()
        if stash.batch != batch:
            raise ScheduleError(f"stage k={self.k} is asked for B{batch} but the oldest stash is of {stash.batch}")
        return stash

    def use(self, grads: Tree, version: int, then: Tree = None) -> None:
        """Puts a gradient into the delay line and applies the one that comes out, if any.

        Arguments:
            grads: the gradient, packed.
            version: the weight version (number of updates) at which it was taken.
            then: the weights of that version, if a correction needs them.
        """
        self.line.append((grads, version, then))
        if len(self.line) > self.delay:
            self.add_gradient(*self.line.popleft())

    def add_gradient(self, grads: Tree, version: int, then: Tree) -> None:
        """Corrects a gradient, adds it to the sum, and updates the weights once the sum is complete."""
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
            grads = self._divide(grads, self.place.put_weights(np.int32(summed)))
        before, correction = self.state.params, self.state.correction
        params, opt_state, (self.bad, self.norm, made) = self._update(before, self.state.opt_state, grads)
        correction = self._remember(before, params, correction, made) if self._remember else correction
        self.state = self.state._replace(params=params, opt_state=opt_state, correction=correction)
        self.ahead = None
        self.staleness = max(self.staleness, self.updates - since)
        self.updates += 1
        self.sum, self.summed = None, 0

    def drain(self) -> None:
        """Applies the gradients in the delay line, then the incomplete sum. Predictions then begin anew."""
        while self.line:
            self.add_gradient(*self.line.popleft())
        if self.summed:
            self.update()
        if begin_anew := self.spec.correction.drained:
            self.state = self.state._replace(correction=begin_anew(self.state.correction))
            self.ahead = None

    def kept_shapes(self, x: Tree, labels: Tree) -> dict[str, Tree]:
        """What a stage keeps of a batch after its forward pass.

        It traces the forward pass as training does, so that training need not trace it again.

        Arguments:
            x, labels: shapes of what the forward pass takes.

        Returns: shapes, by the kind of operation that needs them last.
        """
        state = self.state
        _, _, closure = self._forward.eval_shape(state.params, state.extra, x, labels)
        return {"B": Stash(0, closure, state.params, state.extra, x, 0, labels)}

    def outputs(self, x: Tree, key: Any = None) -> Tree:
        """Dispatches a forward pass in evaluation mode, with the newest weights and statistics. key: a random key, for
        a stage that draws in evaluation."""
        return self._outputs(self.evaluated_params(), self.state.extra, x, self.place.put_weights(key))

    def evaluated_params(self) -> Tree:
        """The newest weights, at the point where the optimizer wants them evaluated."""
        state = self.state
        return self._evaluated(state.params, state.opt_state) if self._elsewhere else state.params

    def variables(self) -> dict[str, Tree]:
        """The network's Flax variables {"params": ..., "batch_stats": ...}, without what the method adds."""
        layout, state = self.layout, self.state
        return flax_variables(layout.params.unpack_now(self.evaluated_params()), layout.extra.unpack_now(state.extra))

    def own_trees(self, variables: Mapping[str, Tree]) -> tuple[Tree, Tree]:
        """The inverse of `variables`: (params, extra) as the stage has them, with what the method adds."""
        params, extra = split_variables(variables)
        return params, {**self.layout.extra.unpack_now(self.state.extra), **extra}

    def holding(self, variables: Mapping[str, Tree]) -> Self:
        """A copy of this stage with other Flax variables, for evaluation alone."""
        layout = self.layout
        params, extra = self.place.put_weights(self.own_trees(variables), (layout.params.shapes, layout.extra.shapes))
        return self.evaluated_at(params=layout.params.pack_now(params), extra=layout.extra.pack_now(extra))

    def averaged(self) -> Self:
        """A copy of this stage with the average of its weights, for evaluation alone."""
        assert self._average
        opt_state = self._copy(self.state.opt_state)  # the next update donates it
        return self.evaluated_at(params=self._average(self.state.params, opt_state))

    def evaluated_at(self, **parts: Tree) -> Self:
        """A copy of this stage that is evaluated at other parts of its state, whatever its optimizer."""
        other = copy.copy(self)
        other.state, other._elsewhere = self.state._replace(**parts), False
        return other

    def optimizer_state(self) -> Tree:
        """The state of the user's optimizer, as optax has it. No later update donates its arrays."""
        return hyperparameters.of_user(self.layout.opt_state.unpack_now(self._copy(self.state.opt_state)))

    def with_hyperparameters(self, values: Mapping[str, Any]) -> StageState:
        """The stage's state with other values of injected hyperparameters. Raises BadInput if it cannot have them."""
        opt_state = self.layout.opt_state.unpack_now(self.state.opt_state)
        changed = self.place.put_weights(hyperparameters.with_values(opt_state, values, self.k))
        return self.state._replace(opt_state=self.layout.opt_state.pack_now(changed))

    def auxiliary(self) -> Tree:
        """The trained parameters that the method adds to the network's."""
        return ()


def reported_update(rule: UpdateRule, params: Tree, before: Tree, grads: Tree) -> tuple[Tree, Tree, tuple[Any, ...]]:
    """An update: (the weights, the optimizer's state, what the host sees of it). The host sees copies, since the next
    update donates the state: the number of the first refused update, the norm of the gradient, whether it was made."""
    params, opt_state, _ = rule.new_weights(params, before, grads)
    copies = [None if each is None else each + 0 for each in (first_refused(opt_state), newest_norm(opt_state))]
    return params, opt_state, (*copies, was_made(before, opt_state) if rule.correction.updated else None)


def divided(grads: Tree, n: jax.Array) -> Tree:
    """The mean of n gradients from their sum, in their own dtypes."""
    return jax.tree.map(lambda leaf: leaf / n.astype(leaf.dtype), grads)
