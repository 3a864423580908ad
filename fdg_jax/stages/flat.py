"""Packs the state of a stage into few vectors, within a program that trains many batches on an accelerator.

On an accelerator every operation is a launch. A network has many small arrays, and the optimizer, the guard and the
statistics need operations for each array. If an optimizer treats all numbers alike, one operation on a vector of all
arrays gives the same result. Other optimizers keep their trees, since they may clip by a norm or treat weights by name.
"""

from collections.abc import Sequence
from typing import Any

import jax

from fdg_jax.stages.delay_line import DelayState
from fdg_jax.stages.functions import Functions, StageState
from fdg_jax.stages.packing import Packed, Packing, small
from fdg_jax.stages.update import UpdateRule

Tree = Any
# Primitives that compute each number of an array from the numbers at the same place.
EACH = {
    "abs", "add", "add_any", "and", "clamp", "convert_element_type", "copy", "cos", "div", "eq", "exp", "exp2",
    "expm1", "ge", "gt", "integer_pow", "is_finite", "le", "log", "log1p", "logistic", "lt", "max", "min", "mul",
    "ne", "neg", "not", "or", "pow", "real", "reduce_precision", "round", "rsqrt", "select_n", "sign", "sin", "sqrt",
    "square", "stop_gradient", "sub", "tanh", "xor",
}  # fmt: skip


def is_packed(tree: Tree) -> bool:
    """Whether this is `Packed`."""
    return isinstance(tree, Packed)


def carried(run: DelayState, rules: Sequence[UpdateRule] = (), alike: Sequence[bool] = ()) -> Packed:
    """The form of a run's state that a window hands from batch to batch. Its scalars are packed into one vector.

    rules: of the stages. alike: for each stage, whether its state is packed, too.
    """
    stages, sums = list(run.stages), list(run.sums)
    for i in (i for i, whole in enumerate(alike) if whole):
        stages[i], total = pack(stages[i], rules[i]), sums[i]
        sums[i] = total and total._replace(grads=packed(total.grads))
    return Packed.pack(run._replace(stages=tuple(stages), sums=tuple(sums)), lambda leaf: leaf.ndim == 0)


def plain(tree: Tree) -> Tree:
    """The tree with all packed parts unpacked."""
    unpacked = jax.tree.map(lambda part: part.unpack() if is_packed(part) else part, tree, is_leaf=is_packed)
    return plain(unpacked) if any(map(is_packed, jax.tree.leaves(unpacked, is_leaf=is_packed))) else unpacked


def packing(gradient: Any, whole: bool) -> Packing:
    """The packing of a waiting `Gradient` of a stage. whole: whether the gradient inside is already packed."""
    as_it_comes = gradient._replace(grads=jax.eval_shape(packed, gradient.grads)) if whole and gradient else gradient
    return Packing(as_it_comes)


def packed(tree: Tree) -> Packed:
    """A tree whose small arrays are packed."""
    return Packed.pack(tree, small)


def pack(state: StageState, rule: UpdateRule) -> StageState:
    """Packs a stage's weights, its other collections, and the arrays of the optimizer that belong to weights."""
    params = packed(state.params)
    like, _ = jax.eval_shape(rule.start, params)

    def as_there(like: Any, part: Tree) -> Any:
        return Packed(like.packing.grouped(jax.tree.leaves(part)), like.packing) if is_packed(like) else part

    opt_state = jax.tree.map(as_there, like, state.opt_state, is_leaf=is_packed)
    return state._replace(params=params, extra=pack_each(state.extra), opt_state=opt_state)


def pack_each(extra: dict[str, Tree]) -> dict[str, Tree]:
    """Packs each collection, except a random key."""
    return {name: part if name == "rng" else packed(part) for name, part in extra.items()}


def functions(stage: Functions) -> Functions:
    """A stage's functions, changed so that they take and return packed states."""

    def forward(params, extra, x, labels=None):
        messages, extra, closure = stage.forward(params.unpack(), plain(extra), x, labels)
        return messages, pack_each(extra), closure

    def backward(closure, params, x, dy):
        grads, dx = stage.backward(closure, params.unpack(), x, dy)
        return packed(grads), dx

    return stage._replace(forward=forward, backward=backward)


class Mixed(Exception):
    """An operation combines numbers of different places."""


def is_alike(rule: UpdateRule, params: Tree) -> bool:
    """Whether an update is elementwise, and the same for all parameters.

    The optimizer's update is traced for trees and for vectors. Both must give each number by the same expression of the
    numbers at its place (in the gradient, the weights and the optimizer's state) and of scalars such as a rate.

    Arguments:
        rule: the update rule of the stage.
        params: the stage's parameters, or their shapes.
    """
    correction, known = rule.correction, dict[Any, int]()
    if rule.norms or correction.init or correction.gradient or correction.forward or correction.updated:
        return False
    flat = jax.eval_shape(packed, params)
    try:
        like = flat, jax.eval_shape(rule.optimizer.init, flat)
        first, second = (expressions(rule, tree, like, known) for tree in (flat, params))
    except Exception:  # an optimizer that needs its tree may raise any exception on a vector
        return False
    return first == second and all(len(each) == 1 for each in first)


def expressions(rule: UpdateRule, params: Tree, like: tuple[Tree, Tree], known: dict[Any, int]) -> list[set[int]]:
    """The expressions that an update computes: for each packed tree among its results and each other result, a set.

    Arguments:
        rule, params: as in `is_alike`; the parameters may be packed.
        like: the packed parameters and the optimizer's state for them.
        known: numbers for expressions.
    """
    state = jax.eval_shape(rule.optimizer.init, params)
    closed, results = jax.make_jaxpr(rule.optimizer.update, return_shape=True)(params, state, params)

    def parts(tree: Tree, like: Tree) -> list[list[Any]]:
        structure = jax.tree.structure(like, is_leaf=is_packed)
        return [jax.tree.leaves(part) for part in structure.flatten_up_to(tree)]

    inputs = parts((params, state, params), (like[0], like[1], like[0]))
    belong = [is_packed(each) for each in jax.tree.leaves((like[0], like[1], like[0]), is_leaf=is_packed)]
    given = [
        (known.setdefault(("input", i), len(known)), n if belong[i] else None)
        for i, part in enumerate(inputs)
        for n, _ in enumerate(part)
    ]
    found = iter(evaluated(closed.jaxpr, closed.consts, given, known))
    told = [[next(found) for _ in part] for part in parts(results, like)]
    if any(place not in (None, n) for part in told for n, (_, place) in enumerate(part)):
        raise Mixed
    return [{expression for expression, _ in part} for part in told]


def evaluated(jaxpr: Any, constants: Sequence[Any], given: Sequence[Any], known: dict[Any, int]) -> list[Any]:
    """For each result of a jaxpr (its expression, its place): the number of the array of a tree that it belongs to, or
    None for what belongs to none. given: the same of its arguments. known: numbers for expressions.

    Raises:
        Mixed: the numbers of an array are not computed each by itself.
    """

    def numbered(expression: Any) -> int:
        return known.setdefault(expression, len(known))

    def constant(value: Any) -> tuple[int, None]:
        if getattr(value, "ndim", 0):
            raise Mixed
        return numbered(("constant", repr(value))), None

    known_first = [*given, *map(constant, constants)]
    values = dict(zip([*jaxpr.invars, *jaxpr.constvars], known_first, strict=True))
    read = lambda atom: constant(atom.val) if hasattr(atom, "val") else values[atom]  # noqa: E731
    for equation in jaxpr.eqns:
        name, options, operands = equation.primitive.name, equation.params, list(map(read, equation.invars))
        if inner := options.get("jaxpr") if name in ("jit", "pjit", "closed_call") else None:
            results = evaluated(inner.jaxpr, inner.consts, operands, known)
        elif name == "broadcast_in_dim" and operands[0][1] is None and not equation.invars[0].aval.shape:
            results = operands
        else:
            places = {place for _, place in operands if place is not None}
            if len(places) > 1 or (places and name not in EACH):
                raise Mixed
            expression = name, str(sorted(options.items(), key=str)), tuple(number for number, _ in operands)
            results = [(numbered((*expression, n)), next(iter(places), None)) for n in range(len(equation.outvars))]
        values |= zip(equation.outvars, results, strict=True)
    return [read(atom) for atom in jaxpr.outvars]
