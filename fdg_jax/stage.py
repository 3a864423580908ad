"""A stage may not wait for its gradient. It remembers how to use one, and uses it 2(K-k) ticks later.

`functions` turns a Flax module into pure functions (forward, backward, update, evaluate), which both engines
share. `Stage` jits them onto one device and owns the only mutable things of a stage: its state and its memos.
"""

import inspect
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.errors
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from fdg_jax import compat
from fdg_jax.errors import ScheduleError

Array = jax.Array
Tree = Any
Loss = Callable[[Tree, Tree], Array]


class StageState(NamedTuple):
    """Everything of stage k that training changes.

    params: the weights. extra: the module's other collections ("batch_stats", ...) and, for modules that draw
    random numbers (dropout), "rng", a key that every forward pass splits. opt_state: optax's.
    """

    params: Tree
    extra: dict[str, Tree]
    opt_state: Tree


class Functions(NamedTuple):
    """A stage as pure functions; `labels` is None except for stage K, whose output is the loss.

    forward(params, extra, x, labels) -> (y, extra, closure): training mode; closure comes stripped of its arguments
    backward(closure, params, x, dy) -> (grads, dx): at the stashed activations and the given weights; dy None is the
        loss's own cotangent, 1
    update(params, opt_state, grads) -> (params, opt_state)
    outputs(params, extra, x) -> y: evaluation mode, without the loss
    """

    forward: Callable[..., tuple[Tree, dict[str, Tree], Any]]
    backward: Callable[..., tuple[Tree, Tree]]
    update: Callable[..., tuple[Tree, Tree]]
    outputs: Callable[..., Tree]


def takes_train(module: nn.Module) -> bool:
    """Whether the module's __call__ distinguishes training from evaluation by an argument called `train`."""
    return "train" in inspect.signature(type(module).__call__).parameters


def init_variables(module: nn.Module, key: Array, x: Tree) -> dict[str, Tree]:
    """The module's Flax variables {"params": ..., "batch_stats": ...} for an input like x."""
    flag: dict[str, Any] = {"train": False} if takes_train(module) else {}
    return dict(module.init({"params": key, "dropout": key}, x, **flag))


def draws_random_numbers(module: nn.Module, variables: Mapping[str, Tree], x: Tree) -> bool:
    """Whether a training forward pass asks for a random key (found by tracing, nothing runs)."""
    flag: dict[str, Any] = {"train": True} if takes_train(module) else {}
    try:
        jax.eval_shape(lambda v, x: module.apply(v, x, mutable=True, **flag), dict(variables), x)
    except flax.errors.InvalidRngError:
        return True
    return False


def functions(
    module: nn.Module, optimizer: optax.GradientTransformation, loss: Loss | None = None, loss_dtype: Any = None
) -> Functions:
    """The pure functions of a stage; `loss` and the dtype of what it returns are given for stage K only."""
    flag = takes_train(module)

    def apply(params, extra, x, train: bool):
        collections = {name: value for name, value in extra.items() if name != "rng"}
        arguments: dict[str, Any] = {"train": train} if flag else {}
        variables = {"params": params, **collections}
        if not train:
            return module.apply(variables, x, **arguments), extra
        rng = {}
        if "rng" in extra:
            rng["rng"], arguments["rngs"] = jax.random.split(extra["rng"])
            arguments["rngs"] = {"dropout": arguments["rngs"]}
        y, changed = module.apply(variables, x, mutable=list(collections), **arguments)
        return y, {**dict(changed), **rng}

    def forward(params, extra, x, labels=None):
        def run(params, x):
            y, changed = apply(params, extra, x, train=True)
            return (y if loss is None else loss(y, labels)), changed

        y, closure, extra = jax.vjp(run, params, x, has_aux=True)
        return y, extra, compat.strip(closure)

    def backward(closure, params, x, dy):
        return compat.bind(closure, params, x)(jnp.ones((), loss_dtype) if dy is None else dy)

    def update(params, opt_state, grads):
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    return Functions(forward, backward, update, lambda params, extra, x: apply(params, extra, x, False)[0])


class Memo(NamedTuple):
    """What a stage keeps of a batch until its gradient comes.

    The closure holds the activations only. params and x are references, not copies; with `extra` they are enough
    to make the closure again by replaying the forward pass, which is what a checkpoint does. version: the stage's
    updates when it went forward.
    """

    batch: int
    closure: Any
    params: Tree
    extra: dict[str, Tree]
    x: Tree
    version: int


class Stage:
    """Stage k of K on its device: jitted functions, state, and the deque of memos.

    stashed: differentiate at the weights of the forward pass (Eq. 10). Otherwise at today's weights and the old
    activations, as the authors' code does; where the staleness is 0 the two are the same and nothing is stashed.
    A memo refers to its old weights in both cases, for an exact checkpoint, so `current` saves no memory here.
    delay: updates by which a gradient waits between its backward pass and its use; 0 in a pipeline, where the
    schedule is the delay, and the staleness where one device stands in for K (the delay line).
    Weights are never donated, since memos refer to them.
    """

    def __init__(self, k: int, functions: Functions, state: StageState, device, stashed: bool, delay: int = 0):
        self.k, self.device, self.stashed, self.delay = k, device, stashed, delay
        # opt_state is donated and may alias the weights (an average that starts at them): its own copy, then.
        self.state = jax.device_put(state._replace(opt_state=jax.tree.map(jnp.copy, state.opt_state)), device)
        self.memos: deque[Memo] = deque()
        self.line: deque[tuple[Tree, int]] = deque()  # (gradients, weight version they were taken at)
        self.updates, self.staleness = 0, 0
        first = k == 1

        def backward(closure, params, x, dy):
            grads, dx = functions.backward(closure, params, x, dy)
            return grads, None if first else dx

        # Forward and backward are separate programs: XLA's CPU backend would otherwise recompute activations inside
        # the transposed convolutions (LOG.md, 2026-11-21). So is the update: compiled by itself it rounds the same
        # way wherever it is used, so that both engines agree bit for bit (inside a larger program XLA contracts
        # beta*g + decay*p into one or the other fused multiply-add).
        self._forward = jax.jit(functions.forward)
        self._backward = jax.jit(backward)
        self._update = jax.jit(functions.update, donate_argnames="opt_state")
        self._outputs = jax.jit(functions.outputs)

    def forward(self, batch: int, x: Tree, labels: Tree = None) -> Tree:
        """Dispatches F. Returns y, or the loss on stage K."""
        params, extra, opt_state = self.state
        y, changed, closure = self._forward(params, extra, x, labels)
        self.memos.append(Memo(batch, closure, params, extra, x, self.updates))
        self.state = StageState(params, changed, opt_state)
        return y

    def backward(self, batch: int, dy: Tree) -> Tree:
        """Dispatches B and the update that falls due. Returns dx, the cotangent for stage k-1 (None for k = 1)."""
        memo = self.memos.popleft()
        if memo.batch != batch:
            raise ScheduleError(f"stage k={self.k} is asked for B{batch} but the oldest memo is of {memo.batch}")
        params = memo.params if self.stashed else self.state.params
        grads, dx = self._backward(memo.closure, params, memo.x, dy)
        self.line.append((grads, memo.version))
        if len(self.line) > self.delay:
            self.update()
        return dx

    def update(self) -> None:
        """Dispatches the update by the oldest gradient in the line."""
        grads, version = self.line.popleft()
        params, opt_state = self._update(self.state.params, self.state.opt_state, grads)
        self.state = StageState(params, self.state.extra, opt_state)
        self.staleness = max(self.staleness, self.updates - version)
        self.updates += 1

    def drain(self) -> None:
        """Uses up the delay line."""
        while self.line:
            self.update()

    def outputs(self, x: Tree) -> Tree:
        """Dispatches a forward pass in evaluation mode with the newest weights and statistics."""
        return self._outputs(self.state.params, self.state.extra, x)

    def replay(self, batch: int, params: Tree, extra: dict[str, Tree], x: Tree, version: int) -> None:
        """Makes a memo again from what it was made of (after a restore); bit for bit the one that was lost."""
        _, _, closure = self._forward(params, extra, x, None)
        self.memos.append(Memo(batch, closure, params, extra, x, version))
