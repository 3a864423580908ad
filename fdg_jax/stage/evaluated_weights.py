"""The weights at which a stage is evaluated, where its optimizer trains at others: optax.contrib.schedule_free.

A schedule-free optimizer takes gradients at a point y, which is what a stage has as its weights, between an average x
and its own iterate z. Its answer is x. SAM goes back and forth between two points and tells neither.
"""

from typing import Any

import jax
import optax
from optax import contrib

from fdg_jax.errors import BadInput

Tree = Any


def states(opt_state: Tree, kind: type) -> list[Any]:
    """The states of that kind in the state of an optimizer, however deep in chains, masks and groups they are."""
    found = jax.tree.leaves(opt_state, is_leaf=lambda each: isinstance(each, kind))
    return [each for each in found if isinstance(each, kind)]


def elsewhere(opt_state: Tree) -> bool:
    """Whether the weights for evaluation are other ones than those that are trained."""
    return bool(states(opt_state, contrib.ScheduleFreeState))


def evaluated(params: Tree, opt_state: Tree) -> Tree:
    """The weights for evaluation, export and files: x of schedule_free, else the weights themselves. It can be traced.

    Arguments:
        params: the weights of the stage.
        opt_state: the state of its optimizer, which may have schedule_free for some weights only.
    """
    for state in states(opt_state, contrib.ScheduleFreeState):
        own = jax.tree.map(lambda z: not is_masked(z), state.z, is_leaf=is_masked)
        z = jax.tree.map(lambda own, z, y: z if own else y, own, state.z, params)
        x = contrib.schedule_free_eval_params(state._replace(z=z), params)
        params = jax.tree.map(lambda own, x, y: x.astype(y.dtype) if own else y, own, x, params)
    return params


def is_masked(leaf: Any) -> bool:
    """Whether an optimizer leaves this weight to others."""
    return isinstance(leaf, optax.MaskedNode)


def check(who: str, opt_state: Tree) -> None:
    """Raises BadInput for an optimizer that trains at two points and does not tell which one is its answer."""
    if states(opt_state, contrib.SAMState):
        fact = f"the optimizer of {who} is optax.contrib.sam: it trains at two points in turn and evaluates at one"
        raise BadInput(f"{fact} that it does not tell. Use the optimizer inside it by itself.")
