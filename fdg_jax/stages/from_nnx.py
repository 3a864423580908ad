"""Turns a flax.nnx module into a linen module, so that it can be a stage or a block. Also has the checks that need nnx.

`flax.nnx.bridge.ToLinen` does the same for a single call. In training it has two silent faults. It does not switch
between training and evaluation, so dropout stays on in evaluation. Without a random key, it drops the same units in
every step. `from_nnx` passes `train` on and gives every random stream of the module a key.
"""

import dataclasses
import inspect
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache, wraps
from typing import Any
from unittest import mock

import flax.linen as nn
import jax
from flax import nnx
from flax.traverse_util import unflatten_dict

from fdg_jax.errors import BadInput, sentence
from fdg_jax.stages.sharded import unboxed
from fdg_jax.stages.switches import LOSSES, SWITCHES, Around, Path, found, refusal, switch_of, switches

Tree = Any
STREAMS = ("params", "dropout", "default")  # of the nnx.Rngs that makes a module; "default" stands in for all others
WAY_OUT = "Use fdg_jax.from_nnx(class, arguments), which calls module.train() and module.eval()."


def from_nnx(make: Any, *args: Any, **kwargs: Any) -> nn.Module:
    """Makes a stage, or a block, of a flax.nnx module.

    In training the module is as after `module.train()`. In evaluation it is as after `module.eval()`: `nnx.Dropout` is
    off, and `nnx.BatchNorm` uses running averages. Switches that `__call__` takes, such as `train`, are set, too. Every
    random stream gets a new key in every step. `nnx.Param` and its subclasses are trained; they are "params" in
    `Pipeline.params`. `nnx.BatchStat` variables are "batch_stats". Variables of any other type form a collection of
    their own, which is kept from step to step. What the module sows as "losses" is minimised; other sown values are
    dropped.

    Arguments:
        make: the module's class, or a function that makes the module. It is called with args, kwargs and `rngs`, an
            `nnx.Rngs`, so that the initial weights depend on the key of `Pipeline.init`. Or an existing module, whose
            weights become the initial weights.
        args, kwargs: the arguments of `make`.

    Returns: a linen module with `__call__(x, train)`.

    Raises:
        BadInput: `make` is something else. `Pipeline.init` raises it for a module whose `__call__` needs `rngs`, or
            that changes its batch statistics in evaluation.

    Example: `from_nnx(nnx.Linear, 8, 64)`
    """
    if isinstance(make, nnx.Module):
        if args or kwargs:
            raise BadInput(f"from_nnx got arguments for a {type(make).__name__} that exists already. Leave them out.")
        return FromNNX(Given(make))
    if not callable(make):
        fact = f"from_nnx takes a class of flax.nnx.Module, a function or a module, not {make!r}"
        raise BadInput(f"{fact}. Use from_nnx(nnx.Linear, 8, 64), say.")
    if "rngs" in kwargs:
        raise BadInput("from_nnx makes the rngs itself, from the key of Pipeline.init. Leave rngs out.")
    return FromNNX(Made(make, args, kwargs))


class Made:
    """Makes a module. make, args, kwargs: as those of `from_nnx`."""

    def __init__(self, make: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]):
        self.make, self.args, self.kwargs = make, args, kwargs

    def __call__(self, rngs: nnx.Rngs) -> Any:
        called = self.make.__init__ if isinstance(self.make, type) else self.make
        kinds = {} if called is object.__init__ else inspect.signature(called).parameters
        takes = "rngs" in kinds or any(each.kind is each.VAR_KEYWORD for each in kinds.values())
        try:
            return self.make(*self.args, **self.kwargs, **({"rngs": rngs} if takes else {}))
        except BadInput:
            raise
        except Exception as error:  # whatever the user's code raises
            name = getattr(self.make, "__qualname__", self.make)
            raise BadInput(f"the nnx module {name} cannot be made: {sentence(error)} Change its arguments.") from error


class Given:
    """An existing module. It is not changed."""

    def __init__(self, module: nnx.Module):
        self.module, (self.graph, self.state) = module, nnx.split(module)

    def __call__(self, rngs: nnx.Rngs) -> Any:
        del rngs
        return nnx.merge(self.graph, jax.tree.map(lambda leaf: leaf, self.state))  # a copy, for the module to change


class FromNNX(nn.Module):
    """The linen module that `from_nnx` returns.

    make: nnx.Rngs -> the nnx module.
    """

    make: Callable[[nnx.Rngs], Any]

    @nn.compact
    def __call__(self, *given: Any, train: Any = None, **named: Any) -> Any:
        inputs = list(given)
        if train is None:  # called as (x, train)
            train = inputs.pop()
        graph, shapes = nnx.split(nnx.eval_shape(lambda: made(self.make, nnx.Rngs(**dict.fromkeys(STREAMS, 0)))))
        values, keys = self.values(shapes), cache(lambda stream: self.key(stream, train))
        leaves, before = [], {}
        for at, leaf in nnx.to_flat_state(shapes):
            if isinstance(leaf, nnx.RngKey):
                value = keys_like(leaf, jax.random.fold_in(keys(leaf.tag), zlib.crc32(str(at).encode())))
            elif isinstance(leaf, nnx.RngState):
                value = jax.numpy.zeros(leaf.get_value().shape, leaf.get_value().dtype)
            else:
                value = found(values, place(at, leaf))
            before[at] = value
            leaves.append((at, leaf.replace(value) if isinstance(leaf, nnx.Variable) else value))
        module = nnx.merge(graph, nnx.from_flat_state(leaves))
        y = self.run(module, train, inputs, named)
        if not self.is_initializing():
            self.keep(module, before, train)
        return y

    def values(self, shapes: Any) -> dict[str, dict[str, Any]]:
        """The module's variables as linen keeps them: nested dictionaries by collection. During init, these are the
        initial variables.

        shapes: the state of the module, as shapes.
        """

        @cache
        def first() -> dict[str, Any]:
            module = made(self.make, nnx.Rngs(**{stream: self.make_rng(stream) for stream in STREAMS}))
            return nested((place(at, leaf), boxed(leaf)) for at, leaf in nnx.to_flat_state(nnx.state(module)))

        places = nested((place(at, leaf), None) for at, leaf in nnx.to_flat_state(shapes))

        def variable(kind: str, name: str) -> Any:
            return unboxed(self.variable(kind, name, lambda: first()[kind][name]).value)

        return {kind: {name: variable(kind, name) for name in names} for kind, names in places.items()}

    def key(self, stream: str, train: bool) -> jax.Array:
        """The key of a random stream in this step. If the module may not draw from the stream, the key is arbitrary."""
        if stream == "params" or not (train or self.has_rng(stream)):
            return jax.random.key(0)
        key = self.make_rng(stream)
        return key if jax.numpy.issubdtype(key.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(key)

    def run(self, module: Any, train: bool, given: list[Any], named: dict[str, Any]) -> Any:
        """Calls the module in training or in evaluation mode. Losses that the module sows are sown again in linen."""
        parameters = inspect.signature(type(module).__call__).parameters
        if "rngs" in parameters and parameters["rngs"].default is inspect.Parameter.empty:
            fact = f"{type(module).__name__}.__call__ has an argument `rngs` without a default, which nobody passes"
            raise BadInput(f"{fact}. Pass rngs in __init__ to the parts that draw random numbers.")
        (module.train if train else module.eval)(training=train, is_training=train)
        losses = nnx.variable_type_from_name(LOSSES, allow_register=True)
        named = {**named, **switches(module, train)}
        with all_told(module) if train else nullcontext():
            y, sown = nnx.capture(module, losses)(*given, **named)
        for at, leaf in nnx.to_flat_state(sown):
            self.sow(LOSSES, ".".join(map(str, at)), raw(leaf))
        return y

    def keep(self, module: Any, before: Mapping[Any, Any], train: bool) -> None:
        """Copies the variables that the call has changed into linen's collections. before: the values of the state
        before the call."""
        after, who = [], type(module).__name__
        for at, leaf in nnx.to_flat_state(nnx.state(module)):
            if at not in before:
                raise BadInput(f"{who} creates {'.'.join(map(str, at))} when it is called. Create it in __init__.")
            changed, (kind, *_) = not same(raw(leaf), before[at]), place(at, leaf) or ("",)
            if changed and not train and isinstance(leaf, nnx.RngState):
                if leaf.tag == "carry":  # nnx.RNN asks for a key, and its cells make zeros of it
                    fact = f"{who} draws from the random stream 'carry' for its initial carry, which is zero"
                    raise BadInput(f"{fact}. Give nnx.RNN an initial_carry when you call it.")
                if leaf.tag != "params":
                    self.make_rng(leaf.tag)  # says that it needs a key, in an evaluation without one
            if changed and isinstance(leaf, nnx.RngState) and leaf.tag == "params":
                fact = f"{who} draws from the random stream 'params' when it is called. It is for initial weights"
                raise BadInput(f"{fact} and gives the same numbers in every step. Use rngs.noise(), say.")
            if changed and not train and kind == "batch_stats":
                self.refuse(who, "changes its batch statistics")
            after.append((place(at, leaf), raw(leaf)))
        for kind, names in nested(after).items():
            if kind != "params" and self.is_mutable_collection(kind):
                for name, value in names.items():
                    self.put_variable(kind, name, value)

    def refuse(self, who: str, fact: str) -> None:
        """Raises BadInput. fact: what the module does in evaluation."""
        raise BadInput(
            f"{who} {fact} in evaluation, too. module.eval() sets the fields `deterministic` and `use_running_average` "
            "of its modules: use these fields, or give __call__ an argument `train`."
        )


@contextmanager
def all_told(module: Any) -> Iterator[None]:
    """While a module is trained, refuses calls in which the default of an argument keeps a part in evaluation mode,
    since module.train() sets fields only. `__call__` is patched, as nnx has nothing like
    flax.linen.intercept_methods."""
    looks = True

    def watch(call: Callable) -> Callable:
        @wraps(call)
        def watched(part: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal looks
            before, switch = looks, switch_of(call, None, (part, *args), kwargs) if looks else None
            if switch and not switch.trains:
                if not switch.given:
                    raise BadInput(refusal(type(module).__name__, f"({type(part).__name__})", switch))
                looks = False
            try:
                return call(part, *args, **kwargs)
            finally:
                looks = before

        return watched

    with ExitStack() as patched:
        for kind in {kind for _, part in nnx.iter_modules(module) for kind in type(part).__mro__}:
            call = vars(kind).get("__call__")
            if call and SWITCHES.keys() & inspect.signature(call).parameters.keys():
                patched.enter_context(mock.patch.object(kind, "__call__", watch(call)))
        yield


def place(at: tuple[Any, ...], leaf: Any) -> Path:
    """(collection, names...) of a leaf of an nnx state; () for a random stream, which is no variable in linen."""
    if isinstance(leaf, nnx.RngState):
        return ()
    kind = "params" if isinstance(leaf, nnx.Param) else "batch_stats" if isinstance(leaf, nnx.BatchStat) else "arrays"
    if kind == "arrays" and isinstance(leaf, nnx.Variable):
        kind = nnx.variable_name_from_type(type(leaf), allow_register=True)
    return (kind, str(at[0]), *at[1:])  # integers stay integers, as nnx.update needs them


def nested(leaves: Any) -> dict[str, dict[str, Any]]:
    """Leaves with their places, as nested dictionaries {collection: {name: ...}}."""
    return unflatten_dict({at: value for at, value in leaves if at})


def made(make: Callable[[nnx.Rngs], Any], rngs: nnx.Rngs) -> Any:
    """The nnx module. The names of its arrays' axes are only kept, since the pipeline decides where the arrays lie."""
    with nnx.use_eager_sharding(False):
        return make(rngs)


def boxed(leaf: Any) -> Any:
    """The value of a leaf of an nnx state. If its axes have names, the value is boxed with the names, as in linen."""
    names = leaf.get_metadata().get("out_sharding") if isinstance(leaf, nnx.Variable) else None
    return nn.Partitioned(raw(leaf), tuple(names)) if names else raw(leaf)


def raw(leaf: Any) -> Any:
    """The value of a leaf of an nnx state."""
    return leaf.get_value() if isinstance(leaf, nnx.Variable) else leaf


def same(a: Any, b: Any) -> bool:
    """Whether two values are the same array objects. If they are, the variable was not set in between."""
    one, other = jax.tree.leaves(a), jax.tree.leaves(b)
    return len(one) == len(other) and all(x is y for x, y in zip(one, other, strict=True))


def keys_like(leaf: Any, key: jax.Array) -> jax.Array:
    """As many keys as a stream has: one, or several if the module was made under a vmap."""
    shape = leaf.get_value().shape
    return jax.random.split(key, shape) if shape else key


def refuse_bridges(next_call: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
    """For flax.linen.intercept_methods: raises BadInput for a `flax.nnx.bridge.ToLinen` around a module that differs
    between training and evaluation, unless an argument of the call selects the mode."""
    bridge = context.module
    told = {*SWITCHES, "rngs"} & kwargs.keys()
    if isinstance(bridge, nnx.bridge.ToLinen) and context.method_name == "__call__" and not told:
        made = nnx.eval_shape(lambda: Made(bridge.nnx_class, tuple(bridge.args), bridge.kwargs)(nnx.Rngs(0)))
        draws = any(isinstance(leaf, nnx.RngState) for _, leaf in nnx.to_flat_state(nnx.state(made)))
        names = {"use_running_average", *(["deterministic"] if draws else [])}
        switches = [each for _, each in nnx.iter_modules(made) if names & vars(each).keys()]
        if switches:
            whole, part = (type(each).__name__ for each in (made, switches[0]))
            fact = f"flax.nnx.bridge.ToLinen around {whole} does not switch its {part} between training and evaluation"
            raise BadInput(f"{fact}. {WAY_OUT}")
    return next_call(*args, **kwargs)


def check_shared(
    owners: dict[int, tuple[Any, str]], who: str, module: nn.Module, variables: Mapping[str, Tree]
) -> None:
    """Raises BadInput if two stages share weights. Plain Flax has shared weights once, but here every stage would train
    its own copy. Sharing within a stage is allowed.

    Arguments:
        owners: {id of a module, or of an nnx variable, in earlier stages: (its owner, the stage in words)}. This
            stage's entries are added.
        who: the stage, in words.
        module, variables: the stage's module, and its Flax variables.
    """
    for part, path, given in parts(module):
        if not given and not any(found(tree, path) for tree in variables.values()):  # a module without variables
            continue
        owner = given or (who, path)  # shared within a stage, a module has one path there
        other, there = owners.setdefault(id(part), (owner, who))
        if other != owner:
            where = f"{there} and {who}" if there != who else f"two parts of {who}"
            fact = f"{where} share one object, a {type(part).__name__}"
            raise BadInput(
                f"{fact}, but each would train its own copy of its weights. For separate weights, make an object for "
                "each, as in [nn.Dense(4) for _ in range(3)]. For shared weights, put both uses into one stage "
                "(modules of flax.nnx: into one from_nnx), or, for linen modules, use Pipeline(fdg_jax.tie(stages, "
                "object), ...): one stage then owns the weights and sends them to the others."
            )


def parts(value: Any, path: Path = ()) -> Iterator[tuple[Any, Path, int]]:
    """(part, its path in the variables, 0) for a linen module itself and for the modules in its fields. For an existing
    nnx module: its variables except random streams, with the id of their `Given` instead of 0."""
    if isinstance(value, Given):
        nodes = (node for _, node in nnx.iter_graph(value.module) if isinstance(node, nnx.Variable))
        yield from ((node, path, id(value)) for node in nodes if not isinstance(node, nnx.RngState))
    elif isinstance(value, nn.Module):
        yield value, path, 0
        if isinstance(value, Around):
            yield from parts(value.held.module, path)
        named = getattr(value, "named_blocks", None)
        fields = ((each.name, getattr(value, each.name)) for each in dataclasses.fields(value))
        for name, each in named() if named else fields:
            if name not in ("parent", "name"):
                yield from parts(each, (*path, name))
    elif isinstance(value, list | tuple | Mapping) and path:
        for key, each in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from parts(each, (*path[:-1], f"{path[-1]}_{key}"))
