"""Checks the arguments of `fdg_jax.Pipeline` and `init` before anything is traced, and cuts blocks into stages.

Tracing finds shapes that do not fit (fdg_jax.stages.own_modules). fdg_jax.checks.batches checks batches.
"""

import inspect
import numbers
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from fdg_jax import block_times, split
from fdg_jax.config import FIELDS
from fdg_jax.errors import BadInput
from fdg_jax.options.fields import Option, checked
from fdg_jax.stages.preprocessing import Preprocess, preprocess_of
from fdg_jax.stages.shapes import with_examples
from fdg_jax.transport.devices import Place, all_here, stage_devices

Tree = Any
# Arguments of Pipeline that are no options of a command.
OF_PIPELINE = {
    "guard": Option("guard", bool, False, ""),
    "gradient_norms": Option("gradient_norms", bool, False, ""),
    "ema": Option("ema", float | None, None, "", inside="(0, 1)", use="0.999, say, or leave ema out"),
    "read_behind": Option("read_behind", int, 16, "", inside="[1, inf)"),
}
CUTS = ("balanced", "measured", "even")
WAYS = "Use split='balanced' (FLOPs), 'measured' (times on this device), 'even', or K-1 block numbers, such as [3, 7]."


def kind(value: Any) -> str:
    """Describes a value for an error message: "the class Dense", "float32[8, 3]", "a list of 2"."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if inspect.isroutine(value):
        return f"the function {value.__name__}"
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    if value is None or isinstance(value, str | bytes | numbers.Number):
        return repr(value)
    where = "flax.nnx " if any(base.__module__.startswith("flax.nnx") for base in type(value).__mro__) else ""
    return f"a {where}{type(value).__name__}"


def whole(value: Any) -> bool:
    """Whether a value is a whole number (True and False are not)."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def check_problem(stages: Any, loss: Any, of: str = "stage") -> list[nn.Module]:
    """Checks and returns the stages, or blocks, of a pipeline.

    Arguments:
        stages: a list of Flax linen modules, one for each stage or block.
        loss: loss(outputs, labels) -> scalar.
        of: what the list holds: "stage", or "block" if it is still to be cut into stages.

    Raises:
        BadInput: the stages or the loss are something else.
    """
    if not isinstance(stages, list | tuple):
        raise BadInput(f"stages is {kind(stages)}, not a list. Write stages=[module, ...], one linen module a stage.")
    if not stages:
        raise BadInput("0 stages: a pipeline has at least one. Give stages=[module, ...].")
    for k, stage in enumerate(stages, 1):
        if not isinstance(stage, nn.Module):
            who = f"stage k={k}" if of == "stage" else f"block {k - 1}"
            raise BadInput(
                f"{who} is {kind(stage)}, not a Flax linen module. Give a flax.linen.Module. Put functions into "
                "flax.linen.Sequential([...]), and flax.nnx modules into fdg_jax.from_nnx(...)."
            )
    if not callable(loss):
        raise BadInput(f"loss is {kind(loss)}, not a function. Give loss(outputs, labels) -> scalar.")
    return list(stages)


def required(function: Any) -> int | None:
    """The number of positional arguments that a function requires; None if its signature does not show that number."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a callable without a signature
        return None
    if any(each.kind is each.VAR_POSITIONAL for each in parameters):
        return None
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.kind in positional and each.default is each.empty for each in parameters)


def takes_two(function: Any) -> bool:
    """Whether a function can be called with two arguments."""
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        return False
    return True


def check_preprocess(function: Any) -> Preprocess | None:
    """The functions of `preprocess`; None if there is none.

    Raises:
        BadInput: it is neither (inputs, step) -> inputs nor (inputs, labels, step) -> (inputs, labels).
    """
    if function is None:
        return None
    takes = required(function)
    if takes is None or takes > 3 or (takes < 3 and not takes_two(function)):
        found = kind(function) if takes is None else f"a function of {takes} arguments"
        raise BadInput(f"preprocess is {found}, not preprocess(inputs, step) or preprocess(inputs, labels, step).")
    return preprocess_of(function, with_labels=takes == 3)


def is_optimizer(value: Any) -> bool:
    """Whether a value is an optax optimizer (which is a tuple, too)."""
    return callable(getattr(value, "init", None)) and callable(getattr(value, "update", None))


def of_stages(value: Any, K: int) -> list[Any]:
    """The optimizer of each stage from a list or a function k -> optimizer; [] for any other value, such as optax.sgd
    itself."""
    try:
        function = callable(value) and len(inspect.signature(value).parameters) == 1
    except (TypeError, ValueError):  # a callable without a signature
        function = False
    return [value(k) for k in range(1, K + 1)] if function else list(value) if isinstance(value, list | tuple) else []


def stage_optimizers(optimizer: Any, K: int) -> list[optax.GradientTransformation]:
    """The optimizer of each stage k = 1..K.

    Arguments:
        optimizer: one for all stages, a list of K, or a function k -> optimizer.
        K: number of stages.

    Raises:
        BadInput: `optimizer` is something else.
    """
    if is_optimizer(optimizer):
        return [optimizer] * K
    way_out = "Give one optax optimizer, a list with one for each stage, or a function of k = 1..K that returns one."
    found = of_stages(optimizer, K)
    if not found:
        raise BadInput(f"optimizer is {kind(optimizer)}, not an optax optimizer. Give optax.sgd(0.1), say.")
    if len(found) != K:
        raise BadInput(f"optimizer is a list of {len(found)}, but there are K={K} stages. {way_out}")
    for k, each in enumerate(found, 1):
        if not is_optimizer(each):
            raise BadInput(f"the optimizer of stage k={k} is {kind(each)}, not an optax optimizer. {way_out}")
    return found


def rate_of(learning_rate: Any) -> Any:
    """The learning rate as a function of the number of updates; None if none was given. Raises BadInput."""
    if learning_rate is None or callable(learning_rate):
        return learning_rate
    rate = checked(FIELDS["learning_rate"], learning_rate)
    return lambda _: jnp.asarray(rate)


def check_devices(devices: Any, K: int, alone: bool = False) -> list[Any]:
    """The devices of the stages.

    Arguments:
        devices: for each of K stages a JAX device, a list of devices or a mesh; None for JAX's devices.
        K: number of stages.
        alone: whether one device computes all stages (the delay line), so that a list of one is enough.

    Returns: a device, or a mesh, for each stage k = 1..K; if `alone`, K times the first device. Warns if stages must
        share devices.

    Raises:
        BadInput: `devices` is not a list of K devices, lists or meshes.
    """
    if devices is None:
        found, remark = stage_devices(K)
        if alone and jax.process_count() == 1:
            return found[:1] * K
        if remark:
            warnings.warn(remark, stacklevel=4)
        return found
    way_out = f"Give each stage a device or a list of devices, as devices=jax.devices()[:{K}], or leave devices out."
    if alone:
        way_out = "One device computes all stages: give devices=jax.devices()[:1], or leave devices out."
    if isinstance(devices, str) or not hasattr(devices, "__len__"):
        raise BadInput(f"devices={devices!r} is not a list of JAX devices. {way_out}")
    if len(devices) != K and not (alone and len(devices) == 1):
        raise BadInput(f"K={K} stages need {K} devices, but {len(devices)} were given. {way_out}")
    found = [Mesh(np.array(each), ("data",)) if isinstance(each, list | tuple) and each else each for each in devices]
    for k, device in enumerate(found, 1):
        if not isinstance(device, jax.Device | Mesh):
            raise BadInput(f"the device of stage k={k} is {kind(device)}, not a JAX device. {way_out}")
    found = [each.devices.flat[0] if isinstance(each, Mesh) and each.size == 1 else each for each in found]
    return [found[0]] * K if alone else found


def check_rules(rules: Any) -> tuple[tuple[str, Any], ...]:
    """The value of `axis_rules=`. Raises BadInput unless it consists of pairs of names."""
    listed = isinstance(rules, list | tuple) and all(isinstance(pair, list | tuple) for pair in rules)
    if not listed or not all(len(pair) == 2 and isinstance(pair[0], str) for pair in rules):
        raise BadInput(f"axis_rules={rules!r}: each rule is a pair of names. Write (('hidden', 'tensor'),), say.")
    return tuple(map(tuple, rules))


def check_key(key: Any, fact: str, use: str) -> None:
    """Raises BadInput if key is not a JAX random key, new style (`jax.random.key`) or old (`jax.random.PRNGKey`).

    fact, use: how the message begins, and the correct call.
    """
    array = isinstance(key, jax.Array | np.ndarray)
    new = array and jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.ndim == 0
    if not new and not (array and key.dtype == np.uint32 and key.ndim == 1):
        raise BadInput(f"{fact}; the key given is {kind(key)}. Use {use}.")


def number_of_stages(asked: Any, K: Any, devices: Any, alone: bool = False) -> int:
    """The number of stages: K if it is given, else the number of devices, else len(split) + 1.

    alone: whether one device computes all stages, so that a list of one device does not set K.

    Raises:
        BadInput: none of these gives K, or K is not a whole number of 1 or more.
    """
    if K is None and hasattr(devices, "__len__") and not (alone and len(devices) == 1):
        K = len(devices)
    if K is None and not isinstance(asked, str) and hasattr(asked, "__len__"):
        K = len(asked) + 1
    if K is None:
        raise BadInput(f"split={asked!r} does not set the number of stages. Give K=2, say, or devices=[...].")
    return checked(FIELDS["K"], K)


def first_cut(asked: Any, K: int, blocks: Sequence[nn.Module]) -> split.Split:
    """The cut at the given block numbers. For a name such as "balanced", returns an even cut, until shapes are known.

    Raises:
        BadInput: `split` is something else, or the blocks cannot be cut that way.
    """
    if isinstance(asked, list | tuple) and all(map(whole, asked)):
        return split.check([int(cut) for cut in asked], K, len(blocks))
    if asked not in CUTS:
        fact = "is not known" if isinstance(asked, str) else f"is {kind(asked)}, which is not a split"
        raise BadInput(f"split={asked!r} {fact}. {WAYS}")
    if len(blocks) < K:
        raise BadInput(f"K={K} stages are more than the {len(blocks)} blocks. Use K=1..{len(blocks)}.")
    return split.even(len(blocks), K)


def cut(asked: Any, K: int, blocks: Sequence[nn.Module], x: Tree, places: Sequence[Place]) -> split.Split:
    """The first blocks of stages 2..K.

    Arguments:
        asked: the value of `split=`.
        x: the shape and dtype of block 0's input, [batch, ...].
        places: the stages' places. A stage with more devices gets more work; `measured` measures on the first place.

    Raises:
        BadInput: a block cannot take the output of the block before it; or `asked` is "measured" and the stages lie in
            several processes, which would measure different times.
    """
    if K == 1 or asked not in ("measured", "balanced"):
        return first_cut(asked, K, blocks)
    R = [len(place.devices) for place in places]
    if asked == "measured":
        if not all_here(places):
            fact = "split='measured': each process would measure its own times and could cut elsewhere"
            raise BadInput(f"{fact}. Measure in one process, and give the block numbers of that pipeline's `cuts`.")
        return split.balanced(block_times.seconds(blocks, x, places[0].device), K, R)
    try:
        costs = split.costs(blocks, with_examples(x, 1))
    except BadInput as refused:
        try:
            costs = split.costs(blocks, x)  # some blocks need several examples
        except BadInput:
            raise refused from None
    return split.balanced(costs, K, R)


def cut_variables(variables: Mapping[str, Any], stages: Sequence[nn.Module]) -> list[dict[str, Any]]:
    """Cuts the dictionary of a network's variables into a dictionary for each stage.

    Raises:
        BadInput: the stages were not cut from one network, or the dictionary's names are not those of its blocks.
    """
    cuts = split.cuts_of(stages)
    if cuts is None:
        fact = "variables is one dictionary, but the stages were not cut from one network"
        raise BadInput(f"{fact}. Give a list with one dictionary for each of the {len(stages)} stages.")
    n = sum(len(stage.blocks) for stage in stages if isinstance(stage, split.Stage))
    known = {split.block_name(number) for number in range(n)}
    for collection, by_block in variables.items():
        if not isinstance(by_block, Mapping):
            raise BadInput(f"the variables have {kind(by_block)} as {collection!r}, but a dictionary is needed.")
        if unknown := sorted(map(str, by_block.keys() - known)):
            fact = f"the variables have {collection}/{unknown[0]}, but the {n} blocks are {split.block_name(0)} to"
            raise BadInput(f"{fact} {split.block_name(n - 1)}. Give the result of `export(whole=True)`.")
    return split.split_variables(variables, cuts)
