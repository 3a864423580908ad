"""The state of one pipeline as another one's: what belongs to blocks is taken over, whatever the stages are.

A checkpoint belongs to its stages: what is in flight between them means nothing to others. So the old pipeline is built
once more and every batch in flight is used. What is left belongs to blocks and not to stages, and is split again.
"""

import re
from collections.abc import Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fdg_jax.corrections import answers_to
from fdg_jax.errors import BadInput
from fdg_jax.runs.progress import count

if TYPE_CHECKING:
    from fdg_jax.training.setup import Job

Flat = Mapping[str, Any]
LEAF = re.compile(r"(?:stage(\d+)/state/|run/\.stages\[(\d+)\])\.(params|extra|opt_state|own)(.*)", re.S)
OF_BLOCK = re.compile(r"(.*?)(?:\[0\])?(\['block\d+'\].*)", re.S)  # DGL's [0]: the network, beside its auxiliary one
ADDED = "what the method adds (auxiliary networks, feedback)"
DRAWN = "the random key of a stage (dropout)"
OF_KEY = re.compile(r"(?:stage\d+/state/|run/\.stages\[\d+\])\.extra\['rng'\]", re.S)
OF_CORRECTION = re.compile(r"(?:stage\d+/state/|run/\.stages\[\d+\])\.correction.*", re.S)
REMEMBERED = "what the correction of late gradients remembers"
WORDS = {"params": "parameters", "extra": "statistics", "opt_state": "optimizer state", "own": "method's own arrays"}


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
    paces = old.options.accumulate, new.options.accumulate
    cut, given_up = repartitioned(pipeline.state(), template, old.partition.cuts, new.partition.cuts, paces)
    network = "parameters, running statistics and optimizer state of every block are unchanged"
    return Moved(cut, pipeline.losses(wait=True), [*said, network, *given_up])


def same(pipeline: Any, state: Flat) -> bool:
    """Whether a state fits a pipeline without anything left over."""
    try:
        pipeline.restore(state, finite=False)
    except BadInput:
        return False
    return pipeline.state().keys() == state.keys()


def repartitioned(
    old: Flat, template: Flat, old_cuts: tuple[int, ...], cuts: tuple[int, ...], accumulate: tuple[int, int] = (1, 1)
) -> tuple[dict[str, Any], list[str]]:
    """(the state of a fresh pipeline that goes on where a drained one stands, what had to be given up).

    old: state() of the drained one; template: of the fresh one; accumulate: of both, in backward passes per update.
    Whatever belongs to a block is taken over as it is. Counters of a stage are those of the old stage that had its
    first block; a schedule that counts other updates than before goes on at the same batch. Raises BadInput where the
    network is another one.
    """
    there = {key: value for name, value in old.items() if (key := block_key(name))}
    anew = {key[1] for name in template if (key := block_key(name)) and key[0] == "opt_state" and key not in there}
    owner = {k: 1 + sum(a <= first for a in old_cuts) for k, first in enumerate((0, *cuts), 1)}
    entered = int(old["entered"] if "entered" in old else old["run/.entered"])
    result, given_up = dict(template), []
    for name, like in template.items():
        place, key = LEAF.fullmatch(name), block_key(name)
        if key:
            value = fitted(there.pop(key, None), like, key[0])
            if value is None and key[0] == "params":
                raise BadInput(f"--resume-into: the checkpoint has no {key[2]} {like.shape}: it is of another model.")
            result[name] = like if value is None else value
            given_up += [f"new: {WORDS[key[0]]}"] if value is None else []
        elif place and np.ndim(like) == 0 and place[3] == "opt_state":
            k = int(place[1] or int(place[2] or 0) + 1)
            # What counts the updates that moments were averaged over starts again with them.
            of_new = any(where.startswith(f"{place[4].rpartition('.')[0]}.") for where in anew)
            result[name] = like if of_new else counter(old, owner[k], place[4], like, entered, accumulate)
    if lost := [name for part, _, name in there if part == "params"]:
        raise BadInput(f"--resume-into: the network has no {lost[0]}, as the checkpoint has: it is of another model.")
    given_up += [f"new: {ADDED}" for name, value in template.items() if added(name, value)]
    given_up += [f"dropped: {ADDED}" for name, value in old.items() if added(name, value)]
    given_up += [f"dropped: {WORDS[part]}" for part, *_ in there]
    given_up += [f"new: {DRAWN}" for name in template if OF_KEY.fullmatch(name)]
    given_up += [f"new: {REMEMBERED}" for name in template if OF_CORRECTION.fullmatch(name)]
    given_up += [f"dropped: {REMEMBERED}" for name in old if OF_CORRECTION.fullmatch(name)]
    for k, of in owner.items():
        made = old[f"stage{of}/updates"] if f"stage{of}/updates" in old else old[f"run/.updates[{of - 1}]"]
        result |= put(result, (f"stage{k}/updates", f"run/.updates[{k - 1}]"), made)
    result |= put(result, ("entered", "run/.entered"), entered)
    return result, [f"{line} ({count(len(list(of)), 'array')})" for line, of in groupby(sorted(given_up))]


def block_key(name: str) -> tuple[str, str, str] | None:
    """(part, where in it, path from the block on) of a leaf that belongs to a block, the same for every split, method
    and engine; None for any other."""
    place = LEAF.fullmatch(name)
    found = OF_BLOCK.fullmatch(place[4]) if place else None
    return (place[3], found[1], found[2]) if place and found else None


def added(name: str, value: Any) -> bool:
    """Whether it is an array of a stage that belongs to no block; numbers are counters."""
    own = LEAF.fullmatch(name) is not None and block_key(name) is None and np.ndim(value) > 0
    return own and not OF_KEY.fullmatch(name)


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


def counter(old: Flat, k: int, rest: str, like: Any, entered: int, accumulate: tuple[int, int]) -> Any:
    """A counter of an optimizer: refused gradients start at 0, updates go on from those of the old stage k."""
    if rest in (".bad", ".refused"):
        return like
    before = old.get(f"stage{k}/state/.opt_state{rest}", old.get(f"run/.stages[{k - 1}].opt_state{rest}"))
    if before is None or accumulate[0] != accumulate[1]:
        before = entered // accumulate[1]
    return np.asarray(before, like.dtype)


def put(result: Flat, names: tuple[str, ...], value: Any) -> dict[str, Any]:
    """The entry of those names that there is, as a number of its own dtype."""
    return {name: np.asarray(value, np.asarray(result[name]).dtype) for name in names if name in result}
