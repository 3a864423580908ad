"""What a correction is: what may be done about the late gradients of one stage.

A gradient is late when the stage has updated its weights between the forward pass of a batch and the update by that
batch. A file of this folder has `CORRECTION = CorrectionSpec(name=..., summary=..., make=...)`; `make` is called once
for every stage whose gradients are late, and returns a `Correction`: functions for the places where something can be
done. Both engines use the same object.
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
OF_OPTIMIZER = "of_optimizer"  # the name of the stage's own optimizer in a state, if a correction wraps it


class Late(NamedTuple):
    """What a correction knows about a stage.

    k, K: the stage's number from 1, and the number of stages.
    staleness: updates of the stage between a batch's forward pass and the update by that batch, as an average once the
        pipeline is full. It comes from the schedule, with its order and `accumulate`, so it may be a fraction.
    learning_rate: learning_rate(n) is the rate of the stage's update number n, from 0; None if it is not known.
    momentum: of the optimizer; None if it is not known.
    """

    k: int
    K: int
    staleness: float
    learning_rate: LearningRate | None = None
    momentum: float | None = None

    def check(self, need: str, name: str) -> None:
        """Raises BadInput if `need` ("learning_rate" or "momentum"), which correction `name` needs, is not known."""
        if getattr(self, need) is None:
            raise BadInput(
                f"correction {name} needs the optimizer's {need.replace('_', ' ')}, which cannot be read from "
                f"an optax chain. Add {need}=... to the call."
            )


class Correction(NamedTuple):
    """What is done about the late gradients of one stage. Every part may be left out; all are traced by JAX.

    before: a transformation of gradients in front of the stage's optimizer.
    optimizer(chain) -> chain: wraps the stage's optimizer, `before` included.
    init(params) -> state: the first state of the functions below, a pytree of arrays. It is part of every checkpoint.
    forward(params, state) -> params: the weights for forward passes, made once after every update. Gradients are taken
        at these. The stage's own weights, which are evaluated and saved, stay those of the optimizer. If `accumulate`
        is above 1, `forward` should not depend on what `gradient` changes. That state changes between two updates, so a
        run that is resumed between them would continue with other weights.
    backward(params, state) -> params: the weights for backward passes, instead of the newest ones (`--weights
        current`).
    gradient(grads, then, now, state) -> (grads, state): the gradient to use, at the moment of its use. then: the
        weights of the batch's forward pass; now: the weights to which the gradient is about to be applied.
    updated(before, after, state) -> state: the state after an update, from the weights before and after it. If a guard
        refuses the update, the old state stays, except for counts (single integers), which keep step with schedules.
    drained(state) -> state: the state after the pipeline has been emptied. The batches that fill it again see fewer
        updates than the staleness, as the first ones did; so a prediction begins anew.
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
        """The stage's optimizer with what the correction adds to it."""
        import optax

        own = named(optimizer) if self.optimizer else optimizer
        chain = optax.chain(self.before or optax.identity(), own)
        return self.optimizer(chain) if self.optimizer else chain

    def start(self, params: Tree) -> Tree:
        """The first state; () if the correction has no state."""
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
    """A correction as a file of this folder describes it.

    make(late, **options) -> Correction.
    options: the file's class `Options`; None if the correction has no options of its own (fdg_jax.options.fields).
    takes: which options of every run `make` takes, too: "beta".
    needs: what `make` requires in `late`: "learning_rate", "momentum".
    weights: "stashed" or "current" if it is only for gradients taken at these weights (`--weights`); "" for both.
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
        """The values that go to `make`: all of its own options, and those in `asked` that it `takes`.

        Arguments:
            asked: name -> value; other names are ignored.

        Raises: BadInput for a value that is not of its type, or that the class `Options` refuses.
        """
        taken = {name: asked[name] for name in self.takes if name in asked}
        return fields.instance(self.options, self.declared, asked) | taken
