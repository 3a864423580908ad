"""The state of one pipeline as another one's: what belongs to blocks is taken over, whatever the stages are.

A checkpoint belongs to its stages: what is in flight between them means nothing to others. So the old pipeline is built
once more and every batch in flight is used. What is left belongs to blocks and not to stages, and is split again.
"""

import re
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fdg_jax.corrections import answers_to
from fdg_jax.corrections.interface import OF_OPTIMIZER
from fdg_jax.errors import BadInput
from fdg_jax.runs.progress import count

if TYPE_CHECKING:
    from fdg_jax.training.setup import Job

Flat = Mapping[str, Any]
LEAF = re.compile(r"(?:stage(\d+)/state/|run/\.stages\[(\d+)\])\.(params|extra|opt_state|own|correction)(.*)", re.S)
OF_BLOCK = re.compile(r"(.*?)(?:\[0\])?(\['block\d+'\].*)", re.S)  # DGL's [0]: the network, beside its auxiliary one
ADDED = "what the method adds (auxiliary networks, feedback)"
DRAWN = "the random key of a stage (dropout)"
MARK = f"['{OF_OPTIMIZER}']"
REMEMBERED = "what the correction of late gradients remembers"
WORDS = {
    "params": "parameters", "extra": "statistics", "opt_state": "optimizer state", "own": "method's own arrays",
}  # fmt: skip


class Moved(NamedTuple):
    """The state for the new pipeline, losses that became known on the way, and what there is to say."""

    state: Flat
    losses: list[Any]
    said: list[str]


def move(old: "Job", new: "Job", state: Flat) -> Moved:
    """Stages that are the same go on as they are, batches in flight included. Else the old ones are drained."""
    template = new.pipeline.state()
    both = old.options, new.options
    corrected = [[getattr(o, name) for name in ("correct", *answers_to(o.correct))] for o in both]
    if old.partition.cuts == new.partition.cuts and corrected[0] == corrected[1] and same(new.pipeline, state):
        return Moved(state, [], ["the stages are the same and go on exactly, batches in flight included"])
    pipeline = old.pipeline
    pipeline.restore(state, finite=False)  # its checkpoints are judged when they are written
    before = pipeline.updates
    pipeline.drain()
    made = [after - first for after, first in zip(pipeline.updates, before, strict=True)]
    said = [f"batches in flight were used first: stages 1 to {old.options.K} made {made} more updates"]
    said = said if any(made) else ["nothing was in flight"]
    cuts, paces = (old.partition.cuts, new.partition.cuts), (old.options.accumulate, new.options.accumulate)
    cut, given_up = repartitioned(pipeline.state(), template, *cuts, paces)
    all_of_it = not any(WORDS["opt_state"] in line for line in given_up)
    network = "parameters, running statistics and optimizer state" if all_of_it else "parameters and running statistics"
    return Moved(cut, pipeline.losses(wait=True), [*said, f"{network} of every block are unchanged", *given_up])


def same(pipeline: Any, state: Flat) -> bool:
    """Whether a state fits a pipeline without anything left over."""
    try:
        pipeline.restore(state, finite=False)
    except BadInput:
        return False
    return pipeline.state().keys() == state.keys()


class Leaf(NamedTuple):
    """Where an array or number of a stage belongs.

    part: "params", "extra", "opt_state", "own" (of the method) or "correction".
    path: within that; of params, extra and opt_state the same for every split, method, engine and correction.
    """

    k: int
    part: str
    path: str

    @property
    def key(self) -> tuple[str, str, str] | None:
        """(part, where in it, path from the block on) of what belongs to a block; None for all else."""
        found = OF_BLOCK.fullmatch(self.path)
        return (self.part, found[1], found[2]) if found else None

    @property
    def within(self) -> tuple[int, str, str]:
        """The named tuple that a number is in."""
        return self.k, self.part, self.path.rpartition(".")[0]


def leaves(names: Iterable[str]) -> dict[str, Leaf]:
    """The leaf of each name; names that are no stage's are left out."""
    found = {name: place for name in names if (place := LEAF.fullmatch(name))}
    made = {name: Leaf(int(place[1] or int(place[2] or 0) + 1), place[3], place[4]) for name, place in found.items()}
    corrected = {leaf.k for name, leaf in made.items() if MARK in name}
    for name, (k, part, path) in made.items():
        if part == "opt_state" and MARK in path:  # what a correction is around, as [1], the place without one
            made[name] = Leaf(k, part, f"[1]{path.rpartition(MARK)[2]}")
        elif part == "opt_state":  # a guard and measured norms are around the optax chain
            path = re.sub(r"^(\.inner(?=[.\[]))*", "", path)
            made[name] = Leaf(k, "correction" if k in corrected and path.startswith("[") else part, path)
    return made


def with_arrays(of: Iterable[Leaf]) -> set[tuple[int, str, str]]:
    """The named tuples with arrays of blocks in them. A number in one, such as Adam's count, is about these arrays."""
    places = ((leaf, leaf.key[1]) for leaf in of if leaf.key)
    return {(leaf.k, leaf.part, where[:i]) for leaf, where in places for i, sign in enumerate(where) if sign == "."}


def repartitioned(
    old: Flat, template: Flat, old_cuts: tuple[int, ...], cuts: tuple[int, ...], accumulate: tuple[int, int] = (1, 1)
) -> tuple[dict[str, Any], list[str]]:
    """(the state of a fresh pipeline that goes on where a drained one stands, what had to be given up).

    old: state() of the drained one; template: of the fresh one; accumulate: of both, in backward passes per update.
    Whatever belongs to a block is taken over as it is, but for what a correction remembers, which begins anew. Counters
    of a stage are those of the old stage that had its first block; a schedule that counts other updates than before
    goes on at the same batch. Raises BadInput where the network is another one.
    """
    theirs, ours = leaves(old), leaves(template)
    there = {key: old[name] for name, leaf in theirs.items() if leaf.part != "correction" and (key := leaf.key)}
    numbers = {leaf: old[name] for name, leaf in theirs.items() if np.ndim(old[name]) == 0}
    owner = {k: 1 + sum(a <= first for a in old_cuts) for k, first in enumerate((0, *cuts), 1)}
    entered = int(old["entered"] if "entered" in old else old["run/.entered"])
    result, given_up, anew = dict(template), [], []
    for name, leaf in ours.items():
        if (key := leaf.key) and leaf.part != "correction":
            value = fitted(there.pop(key, None), template[name], leaf.part)
            if value is not None:
                result[name] = value
            elif leaf.part == "params":
                fact = f"the checkpoint has no {key[2]} {template[name].shape}"
                raise BadInput(f"--resume-into: {fact}: it is of another model.")
            else:
                anew.append(leaf)
                given_up.append(f"new: {WORDS[leaf.part]}")
    if lost := [path for part, _, path in there if part == "params"]:
        raise BadInput(f"--resume-into: the network has no {lost[0]}, as the checkpoint has: it is of another model.")
    averaged, begun = with_arrays(ours.values()), with_arrays(anew)
    for name, leaf in ours.items():
        # What counts the updates that moments were averaged over starts again with them, and else is left as it is.
        if np.ndim(template[name]) == 0 and goes_on(leaf, template[name], averaged) and leaf.within not in begun:
            before = numbers.get(leaf._replace(k=owner[leaf.k]))
            paces = (1, 1) if leaf.within in averaged else accumulate
            result[name] = number(leaf, before, template[name], entered, paces)
    given_up += [f"dropped: {WORDS[part]}" for part, *_ in there]
    given_up += [f"new: {what}" for name, leaf in ours.items() if (what := of_stage(leaf, template[name], averaged))]
    averaged_before = with_arrays(theirs.values())
    ended = [of_stage(leaf, old[name], averaged_before) for name, leaf in theirs.items()]
    given_up += [f"dropped: {what}" for what in ended if what not in ("", DRAWN)]
    for k, of in owner.items():
        made = old[f"stage{of}/updates"] if f"stage{of}/updates" in old else old[f"run/.updates[{of - 1}]"]
        result |= put(result, (f"stage{k}/updates", f"run/.updates[{k - 1}]"), made)
    result |= put(result, ("entered", "run/.entered"), entered)
    return result, [f"{line} ({count(len(list(of)), 'array')})" for line, of in groupby(sorted(given_up))]


def goes_on(leaf: Leaf, value: Any, averaged: set[tuple[int, str, str]]) -> bool:
    """Whether a number is taken over: any of an optimizer's; of a correction's a `count` of updates, unless it is that
    of a mean."""
    if leaf.part != "correction":
        return leaf.part == "opt_state"
    return leaf.path.endswith(".count") and np.issubdtype(value.dtype, np.integer) and leaf.within not in averaged


def of_stage(leaf: Leaf, value: Any, averaged: set[tuple[int, str, str]]) -> str:
    """What it is that belongs to a stage and to no block, or to a correction; "" of what is taken over otherwise."""
    if leaf.part == "correction":
        return "" if goes_on(leaf, value, averaged) else REMEMBERED
    if (leaf.part, leaf.path) == ("extra", "['rng']"):
        return DRAWN
    return "" if leaf.key or np.ndim(value) == 0 else ADDED


def fitted(value: Any, like: Any, part: str) -> Any:
    """The value if it is of that shape and dtype, else None. Statistics that replicas of data parallelism keep for
    themselves [K, ...] become the first replica's, which evaluation uses, and the other way round."""
    if value is None or value.dtype != like.dtype:
        return None
    if value.shape == like.shape:
        return value
    if part != "extra":
        return None
    one = value if value.ndim < like.ndim or value.ndim == 1 else value[0]
    shape = like.shape[like.ndim - one.ndim :]
    return np.broadcast_to(one, like.shape).copy() if one.shape == shape else None


def number(leaf: Leaf, before: Any, like: Any, entered: int, accumulate: tuple[int, int]) -> Any:
    """A number of an optimizer or a correction: refused gradients start at 0, what counts updates goes on.

    before: the old stage's, None if it had none; like: a fresh stage's.
    """
    counts = np.issubdtype(like.dtype, np.integer)
    if leaf.path in (".bad", ".refused") or (before is None and not counts):
        return like
    if before is None or (counts and accumulate[0] != accumulate[1]):
        before = entered // accumulate[1]
    return np.asarray(before, like.dtype)


def put(result: Flat, names: tuple[str, ...], value: Any) -> dict[str, Any]:
    """The entry of those names that there is, as a number of its own dtype."""
    return {name: np.asarray(value, np.asarray(result[name]).dtype) for name in names if name in result}
