"""The interface of corrections of late gradients.

A gradient is late if the stage has updated its weights between the forward pass of a batch and the update by that
batch. A file of this folder has `CORRECTION = CorrectionSpec(name=..., summary=..., make=...)`. `make` is called once
for every stage whose gradients are late. It returns a `Correction`: functions that act at fixed points of a training
step. All engines use the same object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from fdg_jax.errors import BadInput
from fdg_jax.options import fields
from fdg_jax.options.fields import Option

if TYPE_CHECKING:  # commands list the corrections without waiting for JAX
    import optax

Tree = Any
LearningRate = Callable[[Any], Any]
OF_OPTIMIZER = "of_optimizer"  # the key of the user's optimizer state, if a correction wraps the optimizer


class Late(NamedTuple):
    """The facts about a stage that a correction can use.

    k, K: the stage's number from 1, and the number of stages.
    staleness: the average number of updates between a batch's forward pass and the update by that batch, once the
        pipeline is full. With `accumulate` it may be a fraction.
    learning_rate: learning_rate(n) is the rate of the stage's update number n, from 0; None if it is not known.
    momentum: the optimizer's momentum; None if it is not known.
    """

    k: int
    K: int
    staleness: float
    learning_rate: LearningRate | None = None
    momentum: float | None = None

    def check(self, need: str, name: str) -> None:
        """Raises BadInput if `need` is not known. need: "learning_rate" or "momentum". name: the correction's name."""
        if getattr(self, need) is None:
            raise BadInput(
                f"correction {name} needs the optimizer's {need.replace('_', ' ')}, which cannot be read from "
                f"an optax chain. Add {need}=... to the call."
            )


class Correction(NamedTuple):
    """The correction of one stage's late gradients. Every part may be left out; all are traced by JAX.

    before: a transformation of gradients in front of the stage's optimizer.
    optimizer(chain) -> chain: wraps the stage's optimizer, including `before`.
    init(params) -> state: the initial state of the functions below, a pytree of arrays. Checkpoints contain the state.
    forward(params, state) -> params: the weights for forward passes, computed once after every update. Gradients are
        taken at these weights. Evaluated and saved weights are `params`. If `accumulate` is above 1, `forward` should
        not depend on state that `gradient` changes. Such state changes between two updates, so a run that is resumed
        between them would continue with other weights.
    backward(params, state) -> params: the weights for backward passes, instead of the newest weights. Only for
        `--weights current`.
    gradient(grads, then, now, state) -> (grads, state): corrects a gradient when it is used. then: the weights of the
        batch's forward pass. now: the weights to which the gradient is about to be applied.
    updated(before, after, state) -> state: the state after an update, from the weights before and after it. If `guard`
        skips the update, the old state is kept. Only counts (single integers) advance, as learning-rate schedules do.
    drained(state) -> state: the state after a drain, to reset a prediction. The next batches see fewer updates than the
        staleness, as the first batches of a run do.
    """

    before: optax.GradientTransformation | None = None
    optimizer: Callable[[optax.GradientTransformation], optax.GradientTransformation] | None = None
    init: Callable[[Tree], Tree] | None = None
    forward: Callable[[Tree, Tree], Tree] | None = None
    backward: Callable[[Tree, Tree], Tree] | None = None
    gradient: Callable[[Tree, Tree, Tree, Tree], tuple[Tree, Tree]] | None = None
    updated: Callable[[Tree, Tree, Tree], Tree] | None = None
    drained: Callable[[Tree], Tree] | None = None

    def around(self, optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
        """The stage's optimizer, wrapped by `before` and `optimizer`."""
        import optax

        own = named(optimizer) if self.optimizer else optimizer
        chain = optax.chain(self.before or optax.identity(), own)
        return self.optimizer(chain) if self.optimizer else chain

    def start(self, params: Tree) -> Tree:
        """The initial state; () if the correction has no state."""
        return self.init(params) if self.init else ()


NONE = Correction()


def named(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """The optimizer with its state in a dictionary, under OF_OPTIMIZER."""
    import optax

    chain = optax.with_extra_args_support(optimizer)

    def update(updates: Tree, state: Tree, params: Tree = None, **extra: Any) -> tuple[Tree, Tree]:
        updates, own = chain.update(updates, state[OF_OPTIMIZER], params, **extra)
        return updates, {OF_OPTIMIZER: own}

    return optax.GradientTransformationExtraArgs(lambda params: {OF_OPTIMIZER: chain.init(params)}, update)


class CorrectionSpec(NamedTuple):
    """The definition of a correction in a file of this folder.

    make(late, **options) -> Correction.
    options: the file's class `Options`; None if the correction has no options of its own (fdg_jax.options.fields).
    takes: the options of the run that `make` also takes; can be ("beta",).
    needs: the fields of `late` that must be known: "learning_rate", "momentum".
    weights: "stashed" or "current" if the correction is only for gradients at these weights (`--weights`); "" for both.
    """

    name: str
    summary: str
    make: Callable[..., Correction]
    options: type | None = None
    takes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    weights: str = ""

    @property
    def declared(self) -> dict[str, Option]:
        """The correction's own options by name. Raises BadInput if `options` is not a class that declares options."""
        return fields.of_class(self.options, f"correction {self.name}: Options")

    @property
    def answers_to(self) -> tuple[str, ...]:
        """The names of all options that the correction accepts."""
        return (*self.declared, *self.takes)

    def accepted(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The options for `make`: all options of the correction, and those in `takes` that are given.

        Arguments:
            asked: name -> value; other names are ignored.

        Raises: BadInput for a value of the wrong type, or one that the class `Options` refuses.
        """
        taken = {name: asked[name] for name in self.takes if name in asked}
        return fields.instance(self.options, self.declared, asked) | taken
