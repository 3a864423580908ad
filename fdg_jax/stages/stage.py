"""Stage k of the network on its device: its state, its compiled programs, and what it keeps of batches in flight.

A stage never waits for a gradient. It keeps what it needs to use the gradient later (a stash), and uses the gradient
when it arrives: 2(K-k) ticks later in FDG. `Stage` compiles a module's pure functions (fdg_jax.stages.functions) and
owns everything that changes. If a method's stages keep something else, or compute gradients in another way, the
method's file has a subclass of `Stage`.
"""

import copy
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax.errors import FlaxError

from fdg_jax.checkpoint import state as states
from fdg_jax.checkpoint.state import number
from fdg_jax.errors import BadInput, ScheduleError, sentence
from fdg_jax.machine import programs
from fdg_jax.stages import hyperparameters
from fdg_jax.stages.functions import (
    Functions,
    Spec,
    StageState,
    flax_variables,
    make_stage_functions,
    split_variables,
)
from fdg_jax.stages.nonfinite import guard_statistics
from fdg_jax.stages.packing import Layout, Packed, Packing, Unpacked, on_packed
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


class Stage:
    """Stage k of K on its devices, mostly one.

    A stash refers to the weights of its forward pass even if `stashed` is False (weights="current"), because a
    checkpoint needs them; so "current" saves no memory. Weights are never donated, since stashes refer to them. The
    arrays of `state`, `line`, `sum` and the stashes are packed (fdg_jax.stages.packing).

    Arguments:
        spec: what the stage consists of.
        place: the device or devices that it is on.
        stashed: whether gradients are taken at the weights of the forward pass (Eq. 10). Otherwise they are taken at
            the newest weights and the old activations, as in the authors' code.
        accumulate: backward passes per update.
        mean: whether the gradients of these passes are averaged instead of summed.
        delay: how many backward passes a gradient waits before its use. In a pipeline it is 0, since the schedule
            itself delays gradients. If one device computes all stages (the delay line), it is the stage's entry in the
            schedule's `delays`.

    Raises:
        BadInput: the method cannot train such a stage.

    A method's subclass may set these:
        backward_at_other_weights: the option that keeps the backward pass from using the weights of the forward pass,
            as messages name it ("method=fa"); "" if there is none.
        cotangent_down: whether its stages send cotangents to the stage below.
        keeps: what a stage keeps of a batch, as {its name in a checkpoint: the kind of operation that needs it last}.
        local_loss: whether every stage has a loss of its own, so that its forward pass takes the labels.
        fixed_lengths: whether the method's additions to the network fit only the shapes of the example batch, except
            for the batch size.
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
        # Updates donate opt_state, and the first state of some optimizers (averages) is the weights themselves: hence a
        # copy.
        state = state._replace(opt_state=jax.tree.map(jnp.copy, opt_state), correction=corrected)
        self.functions = functions._replace(forward=guard_statistics(functions.forward)) if guard else functions
        self.spec = spec._replace(variables={})  # else the initial weights would stay in memory
        self.packs = self.packs and len(place.devices) == 1  # a packed array would be cut elsewhere than its parts
        state = place.put_weights(state)
        self.layout = layout = Layout.of(state, self.packs)
        self.state = layout.pack_now(state)
        self.stashes: deque[Any] = deque()
        # (gradients, the weight version at which they were taken, those weights where a correction needs them)
        self.line: deque[tuple[Tree, int, Tree]] = deque()
        self.sum: Tree = None  # of the gradients of `summed` backward passes, the oldest taken at version `since`
        self.summed, self.since = 0, 0
        self.updates, self.staleness = 0, 0
        self.ahead: Tree = None  # the weights that a correction predicts for forward passes
        # With a guard: the number of the first refused update so far. It is a copy, because the one in `state` is
        # donated.
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
        # in the same way everywhere, so that both engines agree bit for bit. In a larger program, XLA turns beta*g +
        # decay*p into either of two fused multiply-adds.
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
        """Makes the stage's pure functions and its initial state. A method's stages may override this.

        The functions must not close over `spec`, which would keep the initial weights in memory.
        """
        return make_stage_functions(spec)

    def update_rule(self, spec: Spec) -> UpdateRule:
        """The rule by which a gradient becomes new weights. A method's stages may override this."""
        return UpdateRule.of(spec)

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
        # Without this, XLA would choose the results' shardings.
        shapes = {"params": params.shapes, "grads": params.shapes, "opt_state": opt_state.shapes}
        results = self.place.results([shapes.get(name) for name in gives.split()])
        return programs.jit(on_packed(function, before, after), **options, **results)

    def run(self, kind: str, batch: int, messages: dict[str, Tree]) -> dict[str, Tree]:
        """Dispatches an operation of the schedule.

        Arguments:
            kind: "F", "B", or a kind of the method's own.
            batch: the batch's number, from 1.
            messages: the messages that the operation reads, by name: "x", "labels", "dy".

        Returns: the messages that the operation sends, by name.

        Raises:
            ScheduleError: the schedule's backward passes are not in the order of the forward passes.
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
        """The weights for a forward pass: the newest weights, or the weights that a correction predicts from them."""
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
            raise ScheduleError(f"stage k={self.k} is to do B{batch}, but its oldest stash is of batch {stash.batch}")
        return stash

    def use(self, grads: Tree, version: int, then: Tree = None) -> None:
        """Puts a gradient into the delay line. If a gradient comes out, applies it.

        Arguments:
            grads: the gradient, packed.
            version: the weight version (number of updates) at which the gradient was taken.
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

        The forward pass is traced as in training, so that training need not trace it again.

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
        """The newest weights, as the optimizer wants them evaluated (fdg_jax.stages.update.evaluated)."""
        state = self.state
        return self._evaluated(state.params, state.opt_state) if self._elsewhere else state.params

    def variables(self) -> dict[str, Tree]:
        """The network's Flax variables {"params": ..., "batch_stats": ...}, without the method's additions."""
        layout, state = self.layout, self.state
        return flax_variables(layout.params.unpack_now(self.evaluated_params()), layout.extra.unpack_now(state.extra))

    def own_trees(self, variables: Mapping[str, Tree]) -> tuple[Tree, Tree]:
        """The inverse of `variables`: (params, extra) as the stage has them, including the method's additions."""
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
        """A copy of this stage with other parts of the state, which evaluation uses whatever the optimizer."""
        other = copy.copy(self)
        other.state, other._elsewhere = self.state._replace(**parts), False
        return other

    def optimizer_state(self) -> Tree:
        """The state of the user's optimizer, as optax has it. No later update donates its arrays."""
        return hyperparameters.of_user(self.layout.opt_state.unpack_now(self._copy(self.state.opt_state)))

    def with_hyperparameters(self, values: Mapping[str, Any]) -> StageState:
        """The stage's state with other values of injected hyperparameters. Raises BadInput if the optimizer cannot have
        these values."""
        opt_state = self.layout.opt_state.unpack_now(self.state.opt_state)
        changed = self.place.put_weights(hyperparameters.with_values(opt_state, values, self.k))
        return self.state._replace(opt_state=self.layout.opt_state.pack_now(changed))

    def auxiliary(self) -> Tree:
        """The trained parameters that the method adds to the network's."""
        return ()

    # Checkpoints. A VJP closure is not stored. Restoring replays the forward pass that made it, which gives the same
    # bits. If a method's stages do not keep a `Stash`, they override `saved_stashes` and `restored_stash`.

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


def reported_update(rule: UpdateRule, params: Tree, before: Tree, grads: Tree) -> tuple[Tree, Tree, tuple[Any, ...]]:
    """Makes an update. Returns (the weights, the optimizer's state, (the number of the first refused update, the norm
    of the gradient, whether the update was made)). The host reads the last three. They are copies, since the next
    update donates the state."""
    params, opt_state, _ = rule.new_weights(params, before, grads)
    copies = [None if each is None else each + 0 for each in (first_refused(opt_state), newest_norm(opt_state))]
    return params, opt_state, (*copies, was_made(before, opt_state) if rule.correction.updated else None)


def divided(grads: Tree, n: jax.Array) -> Tree:
    """The mean of n gradients from their sum, in their own dtypes."""
    return jax.tree.map(lambda leaf: leaf / n.astype(leaf.dtype), grads)


class OneProgramStage(Stage):
    """An ordinary stage with K = 1 that updates its weights by every batch, as one program: forward and backward pass,
    and the update. Its states are those of `Stage`.

    Nobody waits for what such a stage sends, so nothing is gained by dispatching the three by themselves. One program
    costs the host one dispatch, and XLA fuses across their borders. The one program rounds otherwise than the three do.
    On a CPU it is slower: there XLA computes activations again inside the transposed convolutions.

    done: the weights, optimizer state and reported values after the newest update. F computes them; B makes them
        current.
    """

    def __init__(self, spec: Spec, place: Place, **options: Any):
        super().__init__(spec, place, **options)
        forward, backward, rule = self.functions.forward, self.functions.backward, self.update_rule(spec)
        self.done: list[Any] = []

        def step(params, extra, opt_state, x, labels):
            messages, extra, closure = forward(params, extra, x, labels)
            grads, _ = backward(closure, params, x, None)
            return messages, extra, *reported_update(rule, params, opt_state, grads)

        takes, gives = "params extra opt_state x labels", "messages extra params opt_state report"
        self._step = self.program(step, takes, gives, donate_argnums=2)

    def forward(self, batch: int, x: Tree, labels: Tree = None) -> dict[str, Tree]:
        """Dispatches F, B and the update. Returns {"loss": loss}."""
        state = self.state
        messages, extra, *self.done = self._step(state.params, state.extra, state.opt_state, x, labels)
        self.state = state._replace(extra=extra)
        return messages

    def backward(self, batch: int, dy: Tree = None) -> dict[str, Tree]:
        """Makes the update of `forward` the stage's state."""
        params, opt_state, (self.bad, self.norm, _) = self.done
        self.state = self.state._replace(params=params, opt_state=opt_state)
        self.done, self.updates = [], self.updates + 1
        return {"dy": None}
