"""The plan of a training: method, corrections and their options, resolved and checked for commands and `Pipeline`."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from fdg_jax import corrections, methods
from fdg_jax.config import JOINED, OF_CORRECTIONS, OF_METHODS, Config, values
from fdg_jax.corrections.interface import CorrectionSpec
from fdg_jax.errors import BadInput, ScheduleError, did_you_mean, sentence
from fdg_jax.machine import jax_internals
from fdg_jax.methods.interface import Method
from fdg_jax.options.fields import named, said
from fdg_jax.schedule import Schedule
from fdg_jax.schedule.running import validate

OF_EVERY_RUN = ("beta", "weights")  # a method may take these without declaring them
MOST_STAGES, MOST_OPERATIONS = 8, 600  # of a schedule that is tried; larger ones would take too long


class Plan(NamedTuple):
    """How the stages are trained.

    corrections: the corrections with their options, in the order in which they act. stage_options: the options that the
        method's stages take.
    remat: the stages that recompute activations. other_weights: for each stage, the option that makes its backward pass
        use other weights than its forward pass; "" if no option does.
    """

    method: Method
    corrections: list[tuple[CorrectionSpec, dict[str, Any]]]
    schedule: Schedule
    weights: str
    stage_options: dict[str, Any]
    remat: frozenset[int]
    other_weights: list[str]

    @property
    def staleness(self) -> float:
        """The largest mean staleness of any stage."""
        return max(self.schedule.mean_staleness)

    @property
    def corrected_by(self) -> tuple[str, ...]:
        """The names of the corrections, in order, without beta."""
        return tuple(kind.name for kind, _ in self.corrections if kind.name not in ("none", "shrink"))

    @property
    def declared(self) -> tuple[str, ...]:
        """The names of the options that the files of the method and the corrections declare."""
        return (*self.method.declared, *(name for kind, _ in self.corrections for name in kind.declared))


def of_config(config: Config, given: Collection[str] = ()) -> Plan:
    """The plan of a training command. given: the names of the options that the user set."""
    asked = {name: getattr(config, name) for name in given if name in {*OF_METHODS, *OF_CORRECTIONS, *OF_EVERY_RUN}}
    return plan(
        config.method, config.K, correct=config.correct, beta=config.beta, weights=config.weights,
        engine=config.engine, remat=config.remat, asked=asked, rest=values(config, [*OF_METHODS, *OF_CORRECTIONS]),
    )  # fmt: skip


def plan(
    method: Any, K: int, *, correct: Any, beta: float, weights: str, engine: str, remat: Any, asked: Mapping[str, Any],
    rest: Mapping[str, Any] = {},
) -> Plan:  # fmt: skip
    """Resolves the names, and refuses options that do not go together.

    Arguments:
        method: a name or a `Method`. correct: names of corrections, `CorrectionSpec`s, or a list of both.
        asked: name -> value of the options that the user set; method or corrections must have them.
        rest: name -> value of other options, used if method or corrections have them.

    Raises: BadInput.
    """
    found, kinds = methods.find(method), corrections.parse(correct)
    if isinstance(method, str) and method in methods.ALIASES and weights == "current":
        fact = f"method {method} takes gradients at stashed weights, but {said('weights', weights)} was given"
        raise BadInput(f"{fact}. Use method {found.name} for that, or leave weights out.")
    for kind in kinds:
        if both := kind.declared.keys() & set(found.answers_to):
            fact = f"correction {kind.name} and method {found.name} both have the option {min(both)}"
            raise BadInput(f"{fact}. Rename the option in {corrections.FOLDER.shown(kind.name)}.")
    known = {*found.answers_to, *(name for kind in kinds for name in kind.answers_to)}
    if unknown := [name for name in asked if name not in known]:
        raise lacks(unknown[0], asked[unknown[0]], found, kinds)
    wanted = {**rest, **asked, "beta": float(beta)}
    corrected = [(kind, kind.accepted(wanted)) for kind in kinds]
    if not any("beta" in kind.takes for kind in kinds):
        corrected.insert(0, (corrections.find("shrink"), {"beta": float(beta)}))
    of_schedule, of_stages = found.accepted({name: wanted[name] for name in found.declared if name in wanted})
    schedule = found.schedule(K, **of_schedule)
    check_schedule(found, schedule)
    check_weights(weights, kinds, schedule)
    check_engine(engine, weights, found)
    again, other = recomputing(remat, K), found.other_weights(schedule, weights)
    for k in sorted(again):
        if other[k - 1]:  # recomputing there would be the method FR
            raise BadInput(
                f"remat cannot compute the activations of stage k={k} again: with {other[k - 1]} its backward pass has "
                "other weights than its forward pass. Leave one of the two out."
            )
    return Plan(found, corrected, schedule, weights, of_stages, again, other)


def lacks(name: str, value: Any, method: Method, kinds: Collection[CorrectionSpec]) -> BadInput:
    """The exception for an option that neither the method nor a correction has."""
    own = [name for kind in kinds for name in kind.declared]
    option = JOINED.get(name)
    if name in OF_CORRECTIONS:
        fact = f"correction {','.join(kind.name for kind in kinds)} has no such option (it has: {named(own)})"
        way_out = f"Add {said('correct', OF_CORRECTIONS[name].by[0])}, which has it, or leave it out"
        return BadInput(f"{said(name, value)}: {fact}. {way_out}.")
    if option or not own:
        return method.lacks(name, value, f"use {said('method', option.by[0])}, which has it" if option else "")
    known = [*method.answers_to, *own]
    fact = f"neither method {method.name} nor the correction has such an option (they have: {named(known)})"
    return BadInput(f"{said(name, value)}: {fact}.{did_you_mean(name, known)} Leave it out.")


def check_weights(weights: str, kinds: Sequence[CorrectionSpec], schedule: Schedule) -> None:
    """Raises BadInput if gradients cannot be taken at these weights."""
    corrections.check_weights(kinds, weights)
    if weights == "current" and any(schedule.waits):
        fact = "one_version takes all gradients of an update at one version of the weights, but current weights change"
        raise BadInput(f"{fact} between them. Use {said('weights', 'stashed')}, or leave {named(['one_version'])} out.")
    if weights == "current" and not jax_internals.strippable():
        fact = f"{said('weights', weights)} needs a JAX that can replace the weights in VJP closures"
        raise BadInput(f"{fact}. JAX {jax.__version__} cannot.")


def check_engine(engine: str, weights: str, method: Method) -> None:
    """Raises BadInput if the delay line would train differently from the pipeline."""
    if engine in ("auto", "pipeline"):
        return
    pipeline = f"Use {said('engine', 'pipeline')}"
    if weights == "current":
        fact = "takes each gradient at the weights of its forward pass, not at the current weights"
        raise BadInput(f"{said('engine', engine)} {fact}. {pipeline}, or {said('weights', 'stashed')}.")
    if not method.delay_line:
        fact = f"this engine trains by BP with delays, which method {method.name} is not"
        raise BadInput(f"{said('engine', engine)}: {fact}. {pipeline}.")
    if method.stage is not None:
        fact = f"method {method.name} has its own stage class, which this engine does not tell that a gradient is"
        other = "move the correction into a file of fdg_jax/corrections"
        raise BadInput(f"{said('engine', engine)}: {fact} late. {pipeline}, or {other}.")


def recomputing(remat: str | Sequence[int], K: int) -> frozenset[int]:
    """Reads a value of `--remat`, which names the stages that recompute their activations instead of keeping them.

    The first stages hold the most stashes: stage k holds 2(K-k). A stage that recomputes stashes only its inputs, and
    its backward pass repeats the forward pass.

    Arguments:
        remat: "none", "all", stage numbers as text ("1,2"), or a sequence of numbers.
        K: number of stages.

    Returns: the stages that recompute.

    Raises:
        BadInput: `remat` is none of these, or a number is outside 1..K.
    """
    if remat in ("none", "all"):
        return frozenset(range(1, K + 1) if remat == "all" else ())
    try:
        stages = [int(k) for k in (remat.split(",") if isinstance(remat, str) else remat)]
    except (TypeError, ValueError):
        raise BadInput(f"remat {remat!r} is neither none, all nor stage numbers (1,2). Stages are 1 to {K}.") from None
    wrong = [k for k in stages if not 1 <= k <= K]
    if wrong:
        raise BadInput(f"remat {remat!r}: there is no stage k={wrong[0]}. With K={K} use numbers from 1 to {K}.")
    return frozenset(stages)


def check_schedule(method: Method, schedule: Schedule) -> None:
    """Runs a schedule on integers until the pipeline is full and empty again, which takes a few milliseconds.

    Without this check, a wrong `tick` or `delays` would train with gradients that are used at another time than
    reported. The package's methods are checked as well, since a user's method is a file beside theirs. Schedules of
    more than 8 stages are not checked; `python -m fdg_jax.schedule --method NAME --K K` checks any number.

    Raises: BadInput, which names the method, the stage, and the numbers that disagree.
    """
    fullest = max((*schedule.delays, 0))
    batches = min(2 * fullest + 3, MOST_OPERATIONS // (2 * schedule.K * schedule.micro_batches))
    if schedule.K > MOST_STAGES or batches < 1:
        return
    try:
        validate(schedule, batches)
    except ScheduleError as error:
        fact = sentence(error).removeprefix(f"{schedule.name}: ")
        way_out = f"Correct the schedule in {methods.FOLDER.shown(method.name)}."
        raise BadInput(f"method {method.name}: {fact} {way_out}") from None
