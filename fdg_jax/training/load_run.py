"""`fdg_jax.load_run`: from a run directory, or an exported file, to the trained network."""

import os
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from fdg_jax.checkpoint import run_checkpoints
from fdg_jax.checkpoint import state as states
from fdg_jax.checkpoint.weights import HASH, load_weights
from fdg_jax.config import FIELDS, Config
from fdg_jax.errors import BadInput, reason
from fdg_jax.runs import reading
from fdg_jax.runs.run_files import CHECKPOINTS, CONFIG, SUMMARY, there
from fdg_jax.training import job
from fdg_jax.training.job import Partition
from fdg_jax.training.trained import (
    Inputs,
    Trained,
    blocks_of,
    cuts_of,
    from_file,
    inputs_of,
    network_shapes,
    read_inputs,
    with_data,
)

Which = int | str | None
# A stage's array in a state of either engine; DGL has a [0] for the network, beside its auxiliary one.
OF_BLOCK = re.compile(r"(?:stage\d+/state/|run/\.stages\[\d+\])\.(params|extra)(.*?)(?:\[0\])?(\['block\d+'\].*)", re.S)


def load_run(
    run: str | os.PathLike[str], checkpoint: Which = None, data_dir: str | os.PathLike[str] | None = None
) -> Trained:
    """The network that a run has trained, uncut, for predicting, evaluating and plain Flax.

    Without `checkpoint`, the weights of a finished run are those of summary.json: the batches that its last checkpoint
    has in flight are used first, as the command does at the end of a run (unless --no-drain). Those of a run that is
    not finished, and of a checkpoint that is asked for, are as they were then, with batches in flight not used: the
    weights that the run's evaluation at that batch had.

    Call it before JAX computes anything: it then asks for as many CPU devices as the run had, by which programs give
    the run's bits. Where they cannot, it warns. The data set is not needed.

    Arguments:
        run: the run directory; or a file that `python -m fdg_jax.export` wrote.
        checkpoint: the number of batches after which the checkpoint was written; or "best", for the lowest test error,
            whose checkpoint --keep-best keeps.
        data_dir: for runs made by versions that did not write into config.json what the network takes: where the data
            set is; by default as the run was told.

    Raises:
        BadInput: there is no run, no such checkpoint, or a file is damaged.

    Example: `fdg_jax.load_run("runs/mine").predict(images)`
    """
    trained, remark = read(Path(run), checkpoint, data_dir)
    if remark:
        warnings.warn(remark, stacklevel=2)
    return trained


def read(
    path: Path, which: Which = None, data_dir: str | os.PathLike[str] | None = None, as_it_ran: bool = True
) -> tuple[Trained, str]:
    """(the network, a remark where its weights are not the run's to the last bit). Arguments as of `load_run`.

    as_it_ran: asks for the CPU devices of the run, so that programs give its bits; else JAX is left as it is.
    """
    if path.is_file():
        if which is not None:
            raise BadInput(f"{path} is a file of weights, which has no checkpoints. Give the run directory.")
        return from_file(str(path), load_weights(path)), ""
    if not there(path / CONFIG):
        raise BadInput(f"{path} holds no run ({CONFIG} is not there). Give a run directory, or an exported file.")
    config = reading.config(path, {name: field.default for name, field in FIELDS.items() if name != "resume"})
    options = Config(**{name: config[name] for name in FIELDS if name != "resume"})
    step, last = chosen(path, which)
    if as_it_ran:
        job.prepare_cpu(config)  # before reading a checkpoint starts JAX
    state, _, about = run_checkpoints.load(run_checkpoints.path_of(path / CHECKPOINTS, step))
    inputs = inputs_of_run(path, config, options, data_dir)
    blocks = blocks_of(options, inputs)
    variables, drained, remark = network_variables(state, network_shapes(blocks, inputs, path / CONFIG)), False, ""
    expected = final_sha256(path, step) if last else None
    if expected:
        drained = options.drain
        if drained and states.parameters_sha256([variables["params"]]) != expected:
            try:
                variables = drain(state, options, inputs, blocks)
            except BadInput as error:  # of an accelerator, or of another version
                way_out = f"Ask for the checkpoint after batch {step}, which leaves the batches in flight out"
                raise BadInput(f"{error} {way_out}.") from None
    found = states.parameters_sha256([variables["params"]])
    if expected not in (None, found):
        fact = f"the weights differ from those of {path} in last bits: this machine computes the batches in flight"
        remark = f"{fact} in another way. From Python, call load_run before anything that makes an array."
    facts = {"step": step, "drained": drained, HASH: found, "data": about.get("data")}
    return Trained(options, inputs, variables, facts), remark


def chosen(path: Path, which: Which) -> tuple[int, bool]:
    """(the step of a checkpoint, whether the end of the run is asked for). Raises BadInput if it is not there."""
    try:
        steps = [int(folder.name.removeprefix("step-")) for folder in run_checkpoints.listed(path / CHECKPOINTS)]
    except OSError as error:
        raise BadInput(f"the checkpoints of {path} cannot be listed: {reason(error)}.") from None
    if not steps:
        raise BadInput(f"{path} has no checkpoint yet. Train on with --resume, or give another run.")
    there = f"There are checkpoints after batches {', '.join(map(str, steps))}."
    if which is None:
        return steps[-1], True
    if which == "best":
        tested = [event for event in reading.events(path) if event.get("test_error_percent") is not None]
        if not tested:
            raise BadInput(f"{path} has not been evaluated yet, so there is no best checkpoint. {there}")
        best = min(tested, key=lambda event: event["test_error_percent"])
        if final_sha256(path, best["step"]):
            return steps[-1], True
        if best["step"] not in steps:
            fact = f"the best test error, {best['test_error_percent']:.2f}% after batch {best['step']}"
            raise BadInput(f"{fact}, has no checkpoint any more: train with --keep-best to keep it. {there}")
        return best["step"], False
    if isinstance(which, bool) or not isinstance(which, int):
        raise BadInput(f'checkpoint={which!r} is neither a number of batches nor "best". {there}')
    if which not in steps:
        raise BadInput(f"{path} has no checkpoint after batch {which}. {there}")
    return which, False


def final_sha256(path: Path, step: int) -> str | None:
    """The hash of a run's final weights; None where it did not end at that batch."""
    if not (path / SUMMARY).is_file():
        return None
    summary = reading.summary(path)
    return summary.get("final_parameters_sha256") if summary["steps"] == step else None


def inputs_of_run(
    path: Path, config: Mapping[str, Any], options: Config, data_dir: str | os.PathLike[str] | None
) -> Inputs:
    """What the network takes: from config.json, or from the data set where an earlier version wrote that."""
    if "inputs" in config:
        return read_inputs(config["inputs"], f"{path / CONFIG}: inputs")
    return inputs_of(job.load_data(with_data(options, data_dir), ""))


def network_variables(state: Mapping[str, Any], shapes: Mapping[str, Any]) -> dict[str, Any]:
    """The Flax variables of the uncut network, as they are in a state: without the batches that are in flight.

    Arguments:
        state: of a pipeline that was cut into stages of the network's blocks.
        shapes: the shapes and dtypes of its variables, uncut (`network_shapes`).

    Returns: {"params": {"block000": ...}, "batch_stats": ...}, NumPy arrays.

    Raises:
        BadInput: the state is of another network.
    """
    found = {place.groups(): value for name, value in state.items() if (place := OF_BLOCK.fullmatch(name))}

    def leaf(path: Any, like: Any) -> Any:
        collection, rest = path[0].key, jax.tree_util.keystr(path[1:])
        part, where = ("params", "") if collection == "params" else ("extra", f"[{collection!r}]")
        value = found.get((part, where, rest))
        if value is not None and value.ndim > like.ndim:  # data parallelism's replicas have statistics of their own
            value = value[0]
        if value is None or (value.dtype, value.shape) != (like.dtype, like.shape):
            fact = f"the checkpoint has no {collection}{rest} {like.dtype}{list(like.shape)}"
            raise BadInput(f"{fact}: it is of another network than config.json names.")
        return np.asarray(value)

    return dict(jax.tree_util.tree_map_with_path(leaf, shapes))


def drain(state: Mapping[str, Any], options: Config, inputs: Inputs, blocks: Sequence[nn.Module]) -> dict[str, Any]:
    """The weights once the batches in flight of a state have updated all stages, by a pipeline like the run's.

    The batches in flight are in the state, so the data set may be one of zeros.
    """
    source = inputs.zeros(options.dataset, options.train_size or options.batch_size)
    cuts, costs = cuts_of(options, blocks), [1.0] * len(blocks)  # nobody asks for these
    parts = Partition(list(blocks), options.split or "", cuts, costs, "FLOPs", has_paper_split=False)
    pipeline = job.built(options, source, job.ALONE, parts).pipeline
    pipeline.restore(state, finite=False)  # checkpoints are judged when they are written
    pipeline.drain()
    return pipeline.export(whole=True)
