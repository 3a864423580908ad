"""An optax optimizer that makes gradients late, to measure in your own training loop what late gradients cost.

    optimizer = late.optimizer(optax.adamw(1e-3), stage_of, method="fdg", K=8)
    state = optimizer.init(params)
    grads = jax.grad(loss)(late.forward_params(params, state), batch)
    updates, state = optimizer.update(grads, state, params)
    params = optax.apply_updates(params, updates)

It trains as a pipeline of K stages would: each stage uses the gradient of an earlier batch, as late as the method's
schedule makes it. Your network is not cut, and one device is enough. Each stage keeps its gradients in a queue, its
delay line. The code is that of the delay-line engine (fdg_jax.stages.delay_line says why the training is the same), so
corrections, β, accumulation and the guard work as in that engine. While the queue of a stage fills, the stage makes no
update and its optimizer's state does not change.

`update` works under jit, lax.scan and vmap, and on sharded arrays: a queue is sharded like its parameters. The state is
a pytree; Orbax and Flax's serialization save its arrays, but not its settings. In an `optax.chain` this optimizer must
be the last, because its predictions and `drain` ignore transformations behind it.
"""

import dataclasses
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

from fdg_jax import corrections, methods
from fdg_jax.checks import correction_parts, no_effect
from fdg_jax.checks.arguments import OF_PIPELINE, rate_of, stage_optimizers
from fdg_jax.checks.plan import plan
from fdg_jax.config import FIELDS
from fdg_jax.corrections.interface import CorrectionSpec, Late
from fdg_jax.errors import BadInput, NoEffect, sentence
from fdg_jax.methods.interface import Method
from fdg_jax.options.fields import checked
from fdg_jax.stages import delay_line
from fdg_jax.stages.delay_line import Gradient, LineOptions
from fdg_jax.stages.functions import StageState
from fdg_jax.stages.shapes import shape_of
from fdg_jax.stages.stage import Stage
from fdg_jax.stages.update import UpdateRule, evaluated, states_of

Tree = Any
ELSEWHERE = optax.MaskedNode()  # replaces other stages' parameters in a stage's tree, as in optax.partition


@dataclasses.dataclass(frozen=True)
class Layers:
    """Marks parameters whose first axis is the layer, as with `nn.scan` and `jax.lax.scan` over layers. The optimizer
    sees the parameters of each layer as separate arrays.

    stages: the stage of each layer, from 1; None cuts the layers into K groups of nearly equal size.
    """

    stages: tuple[int, ...] | None = None

    def of(self, where: str, n: int, K: int) -> tuple[int, ...]:
        """The stage of each of n layers. where: the parameter, for the message. Raises BadInput."""
        found = tuple(i * K // n + 1 for i in range(n)) if self.stages is None else tuple(self.stages)
        if len(found) != n:
            fact = f"{where} has {n} layers on its first axis, but Layers has stage numbers for {len(found)} layers"
            raise BadInput(f"{fact}. Give one stage number for each layer.")
        return tuple(checked_stage(where, k, K) for k in found)


LAYERS = Layers()
Cuts = Sequence[int | tuple[int, ...]]  # for each parameter its stage, or a stage for each of its layers


class StageLine(NamedTuple):
    """The part of the optimizer's state that belongs to one stage.

    opt_state, correction: the states of the stage's optax chain and of its correction.
    line: the stage's delay line of D gradients; () if D is 0.
    sum: the sum of the gradients since the last update; () if every gradient makes an update.
    updates, staleness: the number of updates so far, and the largest measured staleness; int32.
    cosine: with `measure`, the cosine between the newest gradient that was used and the gradient that was computed in
        the same step; float32, NaN before the first.
    distance: with `measure`, |weights - weights of the gradient's forward pass| / |weights|; float32, NaN at first.
    """

    opt_state: Tree
    correction: Tree
    line: Any
    sum: Any
    updates: jax.Array
    staleness: jax.Array
    cosine: Any = ()
    distance: Any = ()


@dataclasses.dataclass(eq=False)
class Profile:
    """The constants of an optimizer. Profiles compare by identity, so JAX never reuses another optimizer's programs.

    settings: (name, value) pairs; an optimizer accepts only a state with equal settings.
    stage_of: the argument of `optimizer`.
    lines: the options of the delay lines.
    asked_forward: whether `forward_params` was called.
    """

    settings: tuple[tuple[str, Hashable], ...]
    stage_of: Any
    lines: LineOptions
    asked_forward: bool = False

    @property
    def K(self) -> int:
        """The number of stages."""
        return len(self.lines.delays)

    def split(self, tree: Tree, cuts: "Cuts") -> list[Tree]:
        """Splits a tree like the parameters into one tree for each stage; the inverse of `join`.

        A stage's tree has ELSEWHERE in place of other stages' parameters. A parameter with `Layers` becomes
        {layer: array}, with the layers of this stage.
        """
        leaves, structure = jax.tree.flatten(tree)
        stages = []
        for k in range(1, self.K + 1):
            parts = []
            for leaf, cut in zip(leaves, cuts, strict=True):
                if isinstance(cut, int):
                    parts.append(leaf if cut == k else ELSEWHERE)
                else:
                    layers = {str(i): leaf[i] for i, at in enumerate(cut) if at == k}
                    parts.append(layers or ELSEWHERE)
            stages.append(structure.unflatten(parts))
        return stages

    def join(self, stages: Sequence[Tree], like: Tree, cuts: "Cuts") -> Tree:
        """Joins the trees of the stages into one tree. like: a tree of the result's structure."""
        structure = jax.tree.structure(like)
        of_stages = [structure.flatten_up_to(stage) for stage in stages]
        leaves = []
        for i, cut in enumerate(cuts):
            if isinstance(cut, int):
                leaves.append(of_stages[cut - 1][i])
            else:
                leaves.append(jnp.stack([of_stages[k - 1][i][str(layer)] for layer, k in enumerate(cut)]))
        return structure.unflatten(leaves)

    def cuts(self, tree: Tree) -> "Cuts":
        """For each leaf of a tree like the parameters, its stage, or a stage for each layer. Raises BadInput."""
        leaves = jax.tree_util.tree_leaves_with_path(tree)
        names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves]
        if callable(self.stage_of):
            said = [self.stage_of(name) for name in names]
        else:
            try:
                repeated = jax.tree.map(lambda k, below: [k] * len(jax.tree.leaves(below)), self.stage_of, tree)
            except ValueError as error:
                fact = f"stage_of does not fit the tree of parameters: {sentence(error)}"
                raise BadInput(f"{fact} Give a function of a parameter's path, such as {names[0]!r}.") from None
            said = jax.tree.leaves(repeated)
        found = []
        for name, (_, leaf), stage in zip(names, leaves, said, strict=True):
            layers = isinstance(stage, Layers)
            if layers and not leaf.ndim:
                raise BadInput(f"parameter {name} has no axes, so it cannot hold layers. Give it a stage number.")
            found.append(
                stage.of(name, leaf.shape[0], self.K) if layers else checked_stage(f"parameter {name}", stage, self.K)
            )
        return found


def checked_stage(where: str, k: Any, K: int) -> int:
    """A stage number as an int. Raises BadInput if it is not in 1..K."""
    if k is None or isinstance(k, bool) or not isinstance(k, int | np.integer):
        raise BadInput(f"{where} has no stage: stage_of gave {k!r}. Give 1 to {K}, or late.LAYERS.")
    if not 1 <= k <= K:
        raise BadInput(f"{where} is in stage k={k}, but there are stages 1 to {K}. Change stage_of or K.")
    return int(k)


@struct.dataclass
class State:
    """The state of an optimizer that `optimizer` made.

    batch: the number of batches since the queues were empty, int32.
    stages: the `StageLine` of each stage k = 1..K.
    trained: the structure of the parameters at `init`, and for each parameter whether this optimizer trains it.
        optax.masked and optax.partition hide the other parameters from it.
    """

    batch: jax.Array
    stages: tuple[StageLine, ...]
    profile: Profile = struct.field(pytree_node=False)
    trained: tuple[Any, tuple[bool, ...]] = struct.field(pytree_node=False)

    def seen(self, params: Tree) -> Tree:
        """The parameters as `init` saw them: with optax.MaskedNode in place of hidden parameters."""
        structure, trained = self.trained
        if all(trained):  # this also accepts other containers, such as those of nnx.as_pure
            return params
        parts = structure.flatten_up_to(params)
        return structure.unflatten([part if own else ELSEWHERE for part, own in zip(parts, trained, strict=True)])

    def whole(self, seen: Tree, params: Tree) -> Tree:
        """Adds the hidden parameters of `params` to `seen`; the inverse of the method `seen`."""
        structure, trained = self.trained
        if all(trained):
            return seen
        pairs = zip(structure.flatten_up_to(seen), structure.flatten_up_to(params), trained, strict=True)
        return structure.unflatten([new if own else old for new, old, own in pairs])


def is_hidden(part: Any) -> bool:
    """Whether optax.masked or optax.partition hides this part of a tree."""
    return isinstance(part, optax.MaskedNode)


def optimizer(
    make: optax.GradientTransformation
    | Sequence[optax.GradientTransformation]
    | Callable[[int], optax.GradientTransformation],
    stage_of: Any,
    *,
    method: str | Method = "fdg",
    K: int | None = None,
    delay: Sequence[int] | None = None,
    correct: str | CorrectionSpec | Sequence[str | CorrectionSpec] = "none",
    beta: float = 1.0,
    learning_rate: optax.ScalarOrSchedule | None = None,
    momentum: float | None = None,
    guard: bool = False,
    dtype: Any = None,
    measure: bool = False,
    **options: Any,
) -> optax.GradientTransformationExtraArgs:
    """An optimizer whose gradients are as late as those of a pipeline of K stages.

    Arguments:
        make: an optax chain, a list with one chain for each stage, or a function k -> chain. Each stage has its own
            chain, so clipping by the global norm clips each stage by its own norm.
        stage_of: which stage a parameter belongs to, from 1 (the inputs) to K (the loss). Either a function of the
            parameter's path, such as "Dense_0/kernel", or a tree of numbers that is a prefix of the parameters' tree.
            For a parameter whose first axis is the layer, give `Layers` instead of a number.
        method: a method that takes gradients at the weights of the forward pass: fdg, ddg or bp.
        K: number of stages; by default the length of `delay`.
        delay: for each stage, by how many batches its gradients are late, such as [4, 4, 4, 4]. It replaces the
            method's delays.
        correct, beta, learning_rate, momentum, guard: as for `fdg_jax.Pipeline`.
        dtype: the dtype of gradients in the queues, such as "bfloat16"; None keeps the gradients' own dtypes.
        measure: whether to measure the cosine and distance that `report` returns. A stage with delay D then also keeps
            the weights of D batches.
        options: options of the method and the corrections (accumulate, order, prediction, ...), as for `Pipeline`.

    Returns: the optimizer. Its `update` needs the parameters. Further arguments of `update`, such as value=loss, go to
        the chains of `make` in the same step, although the gradients that these chains use then are older.

    Raises:
        BadInput: the arguments do not fit together. `init` raises it if a parameter has no stage.
    """
    if delay is not None:
        K = checked_delay(delay, K, method, options)
    if K is None:
        raise BadInput("K=None. Give the number of stages, 1 or more, or delay=[...] with one number for each.")
    K, dtype = int(checked(FIELDS["K"], K)), dtype_of(dtype)
    measure = checked(OF_PIPELINE["guard"]._replace(name="measure"), measure)
    at_newest = [f"correction {kind.name}" for kind in corrections.parse(correct) if kind.weights == "current"]
    if checked(FIELDS["weights"], options.pop("weights", "stashed")) == "current":
        at_newest = ["weights='current'"]
    if at_newest:
        fact = f"{at_newest[0]} takes gradients at other weights than those of the forward pass"
        raise BadInput(f"{fact}, which an optimizer cannot do. Leave it out, or train with fdg_jax.Pipeline.")
    beta = checked(FIELDS["beta"], beta)
    asked = {name: value for name, value in options.items() if value is not None}
    made = plan(
        method, K, correct=correct, beta=beta, weights="stashed", engine="pipeline", remat="none",
        asked=asked if beta == 1.0 else {**asked, "beta": beta}, rest={},
    )  # fmt: skip
    if not made.method.delay_line or made.method.stage is not None:
        fact = f"method {made.method.name} is not BP with late gradients, so an optimizer cannot imitate it"
        raise BadInput(f"{fact}. Use fdg, ddg or bp here, or train with fdg_jax.Pipeline.")
    schedule = made.schedule if delay is None else made.schedule._replace(delays=tuple(map(int, delay)))
    rate, momentum = rate_of(learning_rate), None if momentum is None else checked(FIELDS["momentum"], momentum)
    guard, chains = checked(OF_PIPELINE["guard"], guard), stage_optimizers(make, K)
    rules, correcting = [], []
    for k, staleness in enumerate(schedule.mean_staleness, 1):
        parts = corrections.for_stage(made.corrections, Late(k, K, staleness, rate, momentum))
        correction = corrections.together([part for _, part in parts])
        correction_parts.check_correctable(k, correction, Stage, "stashed")
        chain = optax.with_extra_args_support(correction.around(chains[k - 1]))
        rules.append(UpdateRule(chain, correction, guard))
        correcting.append(parts)
    settings = {
        "method": made.method.name, "K": K, "delays": schedule.delays, "accumulate": schedule.accumulate,
        "accumulation": schedule.accumulation, "guard": guard, "dtype": str(dtype), "measure": measure,
        "corrections": tuple((kind.name, *sorted(own.items())) for kind, own in made.corrections),
    }  # fmt: skip
    mean = schedule.accumulation == "mean"
    lines = LineOptions(schedule.delays, rules, schedule.accumulate, mean, dtype, measure)
    profile = Profile(tuple(settings.items()), stage_of, lines)

    def init(params: Tree) -> Any:
        trees = profile.split(params, profile.cuts(params))
        for k, (parts, tree) in enumerate(zip(correcting, trees, strict=True), 1):
            for kind, correction in parts:
                correction_parts.check(kind, correction, k, chains[k - 1], shape_of(tree))
        if empty := [k for k, tree in enumerate(trees, 1) if not jax.tree.leaves(tree)]:
            warnings.warn(f"stage k={empty[0]} has no parameters. Check stage_of and K.", NoEffect, stacklevel=2)
        no_effect.warn(made._replace(schedule=schedule), momentum, chains[0], trees[0])
        leaves, structure = jax.tree.flatten(params, is_leaf=is_hidden)
        trained = structure, tuple(not is_hidden(leaf) for leaf in leaves)
        return State(jnp.zeros((), jnp.int32), tuple(map(start, range(len(trees)), trees)), profile, trained)

    def start(i: int, params: Tree) -> StageLine:
        state, line, total = delay_line.start_stage(StageState(params, {}), lines, i)
        first = [jnp.full((), jnp.nan, jnp.float32) if measure else () for _ in range(2)]
        line = line if schedule.delays[i] else ()
        counters = jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)
        return StageLine(state.opt_state, state.correction, line, () if total is None else total, *counters, *first)

    def update(updates: Tree, state: Any, params: Tree | None = None, **extra: Any) -> tuple[Tree, Any]:
        if params is None:
            raise BadInput("update needs the parameters: optimizer.update(grads, state, params).")
        check_state(state, profile)
        if not state.profile.asked_forward and any(rule.correction.forward for rule in rules):
            fact = "the correction needs a forward pass at predicted weights, but forward_params was not called"
            raise BadInput(f"{fact}. Take the gradients at late.forward_params(params, state).")
        batch, cuts, changes, stages = state.batch + 1, profile.cuts(params), [], []
        pieces = zip(state.stages, profile.split(updates, cuts), profile.split(params, cuts), strict=True)
        for i, (stage, grads, weights) in enumerate(pieces):
            at, keeps = progress(stage, weights), rules[i].correction.gradient or measure
            new = Gradient(grads, at.updates, forward_of(rules[i], weights, stage) if keeps else ())
            used = delay_line.use(lines, i, at, stage.line, new, batch, **extra)
            changes.append(used.changes)
            stages.append(kept(used.at, used.line, measured(stage, used, grads, weights)))
        return profile.join(changes, updates, cuts), dataclasses.replace(state, batch=batch, stages=tuple(stages))

    return optax.GradientTransformationExtraArgs(init, update)


def checked_delay(delay: Any, K: int | None, method: Any, options: Mapping[str, Any]) -> int:
    """The number of stages that a list of delays implies. Raises BadInput if `delay` is no such list, or if `K`, the
    method or an option contradicts it."""
    if not isinstance(delay, list | tuple | np.ndarray):
        raise BadInput(f"delay={delay!r}. Give a list with one number for each stage, such as [3, 1, 0].")
    if wrong := [D for D in delay if isinstance(D, bool) or not isinstance(D, int | np.integer) or D < 0]:
        raise BadInput(f"delay has {wrong[0]!r}. Give a whole number of batches, 0 or more, for each stage.")
    if K not in (None, len(delay)):
        raise BadInput(f"K={K}, and delay has {len(delay)} numbers. Give one for each stage, or leave K out.")
    name = methods.find(method).name
    if "order" in options or name != "fdg":
        other = f"order={options['order']!r}" if "order" in options else f"method {name}"
        raise BadInput(f"{other} and delay both say how late the stages are. Leave one of them out.")
    return len(delay)


def dtype_of(asked: Any) -> Any:
    """The dtype of gradients in the queues; None keeps their own. Raises BadInput if it is no floating-point dtype."""
    try:
        dtype = None if asked is None else jnp.dtype(asked)
    except TypeError:
        dtype = jnp.dtype(bool)
    if dtype is not None and not jnp.issubdtype(dtype, jnp.floating):
        raise BadInput(f"dtype={asked!r} cannot hold gradients. Use 'bfloat16', 'float16', 'float32' or None.")
    return dtype


def progress(stage: StageLine, params: Tree) -> delay_line.Progress:
    """A stage's state in the form that the delay line uses."""
    state = StageState(params, {}, stage.opt_state, (), stage.correction)
    return delay_line.Progress(state, stage.sum or None, stage.updates, stage.staleness)


def kept(at: delay_line.Progress, line: Any, measured: tuple[Any, Any]) -> StageLine:
    """The inverse of `progress`: the state of a stage without its parameters."""
    total = () if at.sum is None else at.sum
    return StageLine(at.state.opt_state, at.state.correction, line, total, at.updates, at.staleness, *measured)


def measured(stage: StageLine, used: delay_line.Used, grads: Tree, weights: Tree) -> tuple[Any, Any]:
    """(cosine, distance) of a stage, if they are measured."""
    if isinstance(stage.cosine, tuple):
        return (), ()

    def dot(a: Tree, b: Tree) -> jax.Array:
        pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
        return sum((jnp.sum(x.astype(jnp.float32) * y.astype(jnp.float32)) for x, y in pairs), jnp.float32(0))

    late, then = used.late.grads, used.late.then
    cosine = dot(late, grads) / jnp.sqrt(dot(late, late) * dot(grads, grads))
    apart = jax.tree.map(jnp.subtract, weights, then)
    distance = jnp.sqrt(dot(apart, apart) / dot(weights, weights))
    return jnp.where(used.due, cosine, stage.cosine), jnp.where(used.due, distance, stage.distance)


def forward_of(rule: UpdateRule, params: Tree, stage: StageLine) -> Tree:
    """The weights with which a stage goes forward."""
    return rule.correction.forward(params, stage.correction) if rule.correction.forward else params


def forward_params(params: Tree, state: Any) -> Tree:
    """The weights at which to compute the gradients: the weights that a correction predicts. If no correction predicts
    weights, these are the parameters themselves.

    Arguments:
        params: the parameters.
        state: the optimizer's state, or a state that contains it, such as that of an optax chain.
    """
    found = own(state)
    found.profile.asked_forward = True
    if not any(rule.correction.forward for rule in found.profile.lines.rules):
        return params
    refuse_behind(state)
    return changed(found, params, forward_of)


def evaluated_params(params: Tree, state: Any) -> Tree:
    """The weights to evaluate: with optax.contrib.schedule_free its evaluation weights, with other optimizers the
    parameters themselves.

    Arguments: as for `forward_params`.
    """
    return changed(own(state), params, lambda rule, weights, stage: evaluated(weights, stage.opt_state))


def changed(state: State, params: Tree, change: Callable[[UpdateRule, Tree, StageLine], Tree]) -> Tree:
    """Applies `change` to the parameters of each stage, and returns all parameters."""
    profile, seen = state.profile, state.seen(params)
    cuts = profile.cuts(seen)
    pieces = zip(profile.lines.rules, profile.split(seen, cuts), state.stages, strict=True)
    return state.whole(profile.join([change(*piece) for piece in pieces], seen, cuts), params)


def drain(params: Tree, state: Any) -> tuple[Tree, Any]:
    """Applies the gradients that wait in the queues, oldest first, as a pipeline does at its end.

    Arguments:
        params: the parameters.
        state: as for `forward_params`.

    Returns: (parameters, state), with empty queues.
    """
    found = own(state)
    refuse_behind(state)
    profile, seen, moved = found.profile, found.seen(params), []
    cuts = profile.cuts(seen)
    for i, (stage, weights) in enumerate(zip(found.stages, profile.split(seen, cuts), strict=True)):
        moved.append(delay_line.drain_stage(profile.lines, i, progress(stage, weights), stage.line, found.batch))
    stages = [kept(at, old.line, (old.cosine, old.distance)) for at, old in zip(moved, found.stages, strict=True)]
    emptied = dataclasses.replace(found, batch=jnp.zeros_like(found.batch), stages=tuple(stages))
    state = jax.tree.map(lambda each: emptied if is_state(each) else each, state, is_leaf=is_state)
    return found.whole(profile.join([at.state.params for at in moved], seen, cuts), params), state


def refuse_behind(state: Any) -> None:
    """Raises BadInput if a transformation follows the late optimizer in an optax chain. That transformation would not
    see the updates that `drain` makes, and predictions ignore it."""
    if stands_behind(state):
        fact = "in the optax.chain a transformation comes after late.optimizer and would change the finished updates"
        raise BadInput(f"{fact}. Put it into the chain that you give to late.optimizer.")


def stands_behind(state: Any) -> bool:
    """Whether the state of an optax.chain, a plain tuple, has members after the one with the late optimizer."""
    if type(state) is tuple:
        at = next((i for i, part in enumerate(state) if states_of(part, State)), None)
        return at is not None and (at < len(state) - 1 or stands_behind(state[at]))
    inner = jax.tree.leaves(state, is_leaf=lambda each: type(each) is tuple or is_state(each))
    return any(stands_behind(each) for each in inner if type(each) is tuple)


class StageReport(NamedTuple):
    """What `report` returns for a stage.

    k: the stage's number, from 1.
    delay: the number of batches by which its gradients are late.
    staleness: the most updates between a gradient's forward pass and its use, as measured so far.
    updates: the number of its updates so far.
    queue_bytes: the bytes of its delay line.
    cosine: between the newest late gradient that was used and the gradient of the same step; None if not measured.
    distance: |weights - weights of that gradient's forward pass| / |weights|; None if not measured.
    """

    k: int
    delay: int
    staleness: int | None
    updates: int | None
    queue_bytes: int
    cosine: float | None
    distance: float | None


def report(state: Any) -> list[StageReport]:
    """Reports delay, staleness and their measured effects for each stage k = 1..K. It waits for the state's arrays.

    Arguments:
        state: as for `forward_params`. The shapes from `jax.eval_shape(optimizer.init, params)` are enough to get the
            bytes of the queues; measured values are then None.
    """
    state, told = own(state), []
    for k, (stage, delay) in enumerate(zip(state.stages, state.profile.lines.delays, strict=True), 1):
        size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(stage.line))
        measured = stage.staleness, stage.updates, stage.cosine, stage.distance
        numbers = [None if isinstance(each, jax.ShapeDtypeStruct | tuple) else number(each) for each in measured]
        staleness, updates, cosine, distance = numbers
        told.append(StageReport(k, delay, staleness, updates, size, cosine, distance))
    return told


def number(array: Any) -> Any:
    """A scalar as a Python number. Under jax.vmap over trainings, a NumPy array with one number for each."""
    return np.asarray(array) if array.ndim else array.item()


def is_state(value: Any) -> bool:
    """Whether this is the state of an optimizer that `optimizer` made."""
    return isinstance(value, State)


def own(state: Any) -> State:
    """The one `State` within the state of an optimizer. Raises BadInput if there is none or more than one."""
    found = states_of(state, State)
    if len(found) != 1:
        fact = f"the state contains {len(found)} states of late.optimizer, not 1"
        raise BadInput(f"{fact}. Give the state of the optimizer that late.optimizer made.")
    return found[0]


def check_state(state: Any, profile: Profile) -> None:
    """Raises BadInput for a state that another optimizer has made."""
    if not is_state(state):
        raise BadInput("the state is not one of late.optimizer. Make it with this optimizer's init.")
    if state.profile.settings != profile.settings:
        pairs = zip(state.profile.settings, profile.settings, strict=True)
        name, there, here = next((name, a, b) for (name, a), (_, b) in pairs if a != b)
        fact = f"the state is of an optimizer with {name} {there}, but this one has {here}"
        raise BadInput(f"{fact}. Make the state with the init of this optimizer.")
    for k, (stage, D) in enumerate(zip(state.stages, profile.lines.delays, strict=True), 1):
        n = stage.line.version.shape[-1] - 1 if stage.line else 0
        if n != D:  # possible if the arrays were read from a file
            raise BadInput(f"the queue of stage k={k} holds {n} gradients, not {D}: the state is of other delays.")
