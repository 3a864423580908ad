"""The whole network that a run has trained, with weights on the host, as `fdg_jax.load_run` and `--init-from` read it.

`Trained` has no stages and no training state, so it works on any number of devices and without the run's data. It
predicts, evaluates, writes a file, or gives its weights to a new run.
"""

import dataclasses
import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from fdg_jax import gpt2, models, own_files, split, strict_json
from fdg_jax.arrays import shown
from fdg_jax.checkpoint import run_checkpoints
from fdg_jax.checkpoint import state as states
from fdg_jax.checkpoint.weights import HASH, Weights, is_ours, load_weights, save_weights
from fdg_jax.config import FIELDS, OF_DATA, Config, model_options
from fdg_jax.data import augment
from fdg_jax.data.dataset import Dataset
from fdg_jax.data.text import Text
from fdg_jax.engine.evaluate import Evaluation, evaluate, tally
from fdg_jax.errors import BadInput, first_line, reason
from fdg_jax.machine import programs
from fdg_jax.options.fields import spelled
from fdg_jax.runs import reading
from fdg_jax.runs.run_files import CHECKPOINTS, CONFIG, SUMMARY, there
from fdg_jax.stages.functions import ComputeOptions, init_variables, make_apply, make_outputs, split_variables
from fdg_jax.stages.precision import precision
from fdg_jax.training import job, loop
from fdg_jax.training.job import Partition

Variables = Mapping[str, Any]
AnyPath = str | os.PathLike[str]
Which = int | str | None
# A stage's array in a state of either engine; in DGL, [0] is the network and the rest its auxiliary network.
OF_BLOCK = re.compile(r"(?:stage\d+/state/|run/\.stages\[\d+\])\.(params|extra)(.*?)(?:\[0\])?(\['block\d+'\].*)", re.S)
OF_A_RUN = re.compile(r"(.+)@(\d+|best)", re.S)  # of --init-from: RUN@STEP or RUN@best


class Inputs(NamedTuple):
    """The inputs and outputs of a run's network.

    shape: [H, W, C] of an image, [T] of a block of text. data_dtype: the dtype in the data set.
    classes: the number of the network's outputs.
    mean, std: [C], of pixels scaled to 0..1, for normalising images; empty for text.
    """

    shape: tuple[int, ...]
    data_dtype: str
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def example(self, n: int) -> jax.ShapeDtypeStruct:
        """The shape and dtype of n examples as the network takes them: normalised images, or tokens."""
        return jax.ShapeDtypeStruct((n, *self.shape), np.float32 if self.mean else np.int32)

    def zeros(self, name: str, examples: int) -> Dataset | Text:
        """A data set with this number of training examples: black images or zero bytes, which take no memory."""
        zero, labels = np.zeros((), self.data_dtype), np.zeros(examples, np.int32)
        pixels = np.broadcast_to(zero, (examples, *self.shape))
        if not self.mean:
            return Text(name, pixels, pixels, pixels, pixels, sha256="", files=(), classes=self.classes)
        shape = pixels, labels, pixels, labels
        return Dataset(name, *shape, self.classes, self.mean, self.std, pad=0, flip=False)


def inputs_of(source: Any) -> Inputs:
    """The inputs of a network that is trained on this data set (fdg_jax.data.dataset)."""
    mean, std = (tuple(float(each) for each in getattr(source, name, ())) for name in ("mean", "std"))
    return Inputs(tuple(source.shape), np.dtype(source.dtype).name, int(source.classes), mean, std)


def read_inputs(found: Any, where: str) -> Inputs:
    """Reads `Inputs` from a file's JSON. where: the file's name in messages. Raises BadInput if a value is
    impossible."""
    try:
        shape, dtype, classes, mean, std = (found[name] for name in Inputs._fields)
        whole, real = [*shape, classes], [*mean, *std]
        fits = len(mean) == len(std) and len(mean) in (0, shape[-1]) and all(type(each) is float for each in real)
        fits = fits and all(type(each) is int and each > 0 for each in whole) and min(std, default=1.0) > 0
        fits = fits and np.dtype(dtype).kind in "iu"
    except (TypeError, KeyError, IndexError):
        fits = False
    if not fits:
        raise BadInput(f"{where} is damaged: it does not say what the network takes ({str(found)[:80]}).")
    return Inputs(tuple(shape), dtype, classes, tuple(mean), tuple(std))


def blocks_of(options: Config, inputs: Inputs) -> list[nn.Module]:
    """The blocks of a run's network."""
    own = model_options(options)
    return models.blocks(options.model, inputs.classes, **own)


def cuts_of(options: Config, blocks: Sequence[nn.Module]) -> tuple[int, ...]:
    """The first blocks of the stages 2..K of a run with settled options. Raises BadInput."""
    return split.parse(options.split or "", options.model, options.K, len(blocks)) if options.K > 1 else ()


def taken(about: Mapping[str, Any]) -> str:
    """A phrase for when the weights of a run were taken."""
    return f"after batch {about['step']:,}, {'including' if about['drained'] else 'without'} batches in flight"


class Trained:
    """A trained network.

    network: the uncut network, a linen module: `network.apply(variables, preprocess(images), train=False)`.
    variables: the network's Flax dictionary {"params": ..., "batch_stats": ...}, NumPy arrays.
    blocks: the network's blocks.
    options: the run's options; for an exported file, the options in the file.
    inputs: what the network takes.
    cuts: the first blocks of the run's stages 2..K.
    about: facts on the weights: `step` (the batches after which they were taken), `drained` (whether the batches in
        flight had been used), `parameters_sha256`, and `data` (the fingerprint of the data set).
    """

    def __init__(self, options: Config, inputs: Inputs, variables: Variables, about: Mapping[str, Any]):
        self.options, self.inputs, self.variables, self.about = options, inputs, dict(variables), dict(about)
        self.blocks = blocks_of(options, inputs)
        self.network: nn.Module = split.whole(self.blocks)
        self.cuts = cuts_of(options, self.blocks)

    def __repr__(self) -> str:
        return f"Trained(model={self.options.model!r}, dataset={self.options.dataset!r}, {self.which})"

    @property
    def which(self) -> str:
        """A phrase that says which weights these are."""
        return taken(self.about)

    @cached_property
    def preprocess(self) -> Callable[[Any], jax.Array]:
        """The function from the data set's examples to the network's inputs: images [n, H, W, C] uint8 -> float32,
        tokens -> int32."""
        if not self.inputs.mean:
            return lambda tokens: jnp.asarray(tokens).astype(jnp.int32)
        return augment.test_transform(self.inputs)  # type: ignore[arg-type]  # it reads mean and std only

    @cached_property
    def outputs(self) -> Callable[[Any], jax.Array]:
        """The function images [n, H, W, C] uint8 -> logits [n, classes], which may still be unfinished arrays.

        A program for each of the run's stages computes the logits, compiled as in the run. On a CPU this gives the bits
        of the run's own evaluation. One program for the whole network would round differently.
        """
        device, programs_of_stages = jax.local_devices()[0], []
        modules, variables = split.stages(self.blocks, self.cuts), split.split_variables(self.variables, self.cuts)
        for module, own in zip(modules, variables, strict=True):
            compute = ComputeOptions(precision(self.options.dtype, last=module is modules[-1]))
            run = programs.jit(make_outputs(make_apply(module, compute), compute))
            programs_of_stages.append(partial(run, *jax.device_put(split_variables(own), device)))
        normalise = programs.jit(self.preprocess)

        def outputs(images: Any) -> jax.Array:
            x = normalise(jax.device_put(images, device))
            for run in programs_of_stages:
                x = run(x)
            return x

        return outputs

    def predict(self, images: Any) -> np.ndarray:
        """The logits of images (or blocks of text), in evaluation mode.

        Arguments:
            images: [n, H, W, C] uint8 (text: [n, T]), as in the data set, for any n from 1.

        Returns: [n, classes] float32 (text: [n, T, classes]).

        Raises:
            BadInput: the images are something else.
        """
        images, shape = np.asarray(images), self.inputs.shape
        if images.dtype != self.inputs.data_dtype or images.shape[1:] != shape or not len(images):
            fact = f"the inputs are {images.dtype}{list(images.shape)}"
            takes = f"{self.inputs.data_dtype} [n, {', '.join(map(str, shape))}], with n >= 1"
            raise BadInput(f"{fact}, but the network takes {takes}.")
        return np.asarray(self.outputs(images))

    def evaluate(
        self,
        batches: Iterable | None = None,
        data_dir: AnyPath | None = None,
        text: Sequence[AnyPath] | None = None,
        tokens: Sequence[AnyPath] | None = None,
        validation: Sequence[AnyPath] | None = None,
    ) -> Evaluation:
        """Test loss and top-1 error.

        Arguments:
            batches: an iterable of (images, labels); by default the test images of the run's own data set.
            data_dir: the folder of that data set; by default the run's.
            text: for a run on text, its files; by default the run's. An exported file does not name its text files.
            tokens, validation: likewise, for a run on tokens.

        Raises:
            BadInput: the data set is missing, or the run was trained on other data.
        """
        run = programs.jit(partial(tally, job.cross_entropy))
        places = {"data_dir": data_dir, "text": text, "tokens": tokens, "validation": validation}
        found = self.test_batches(**places) if batches is None else batches
        return evaluate(lambda images, labels: run(self.outputs(images), np.asarray(labels)), found)

    def test_batches(self, **places: Any) -> Iterable:
        """The test images of the run's data set, in the same batches as in the run's evaluations. places: as for
        `evaluate`."""
        given, kind = {name: place for name, place in places.items() if place}, self.options.dataset
        kind = "images" if self.inputs.mean else kind
        for name, place in given.items():
            if kind not in OF_DATA[name]:
                ours = "--data-dir" if self.inputs.mean else f"--{kind}"
                fact = f"{spelled(name)} {place}: {self.options.dataset} has no such option"
                raise BadInput(f"{fact}. Use {ours}, or leave {spelled(name)} out.")
            given[name] = place if name == "data_dir" else os.pathsep.join(map(str, place))
        source = job.load_data(at(self.options, **given), "")
        job.check_data(source, self.about, "evaluating")
        return loop.feed(source, self.options, 0).test()

    def save(self, path: AnyPath) -> None:
        """Writes the weights, and all facts needed to use them, into a safetensors file (fdg_jax.save_weights).

        The header has model, dataset, K, step, drained, input_shape, input_dtype, classes, mean, std, data, and the
        options that decide the run's result. It has no paths of this machine.

        Raises:
            BadInput: the file's folder does not exist.
            OSError: the file cannot be written, for example on a full disk.
        """
        o, inputs = self.options, self.inputs
        fixed = {name: getattr(o, name) for name, field in FIELDS.items() if not field.free}
        del fixed["init_from"]  # a path
        about = {"model": o.model, "dataset": o.dataset, "K": o.K, "options": fixed}
        about |= {"input_shape": inputs.shape, "input_dtype": inputs.example(1).dtype.name, **inputs._asdict()}
        about |= {own_files.CODE: own_files.facts(vars(o))}
        del about["shape"]
        save_weights(path, self.variables, {**about, **self.about})


def load_run(
    run: AnyPath, checkpoint: Which = None, data_dir: AnyPath | None = None, trust_code: bool = False
) -> Trained:
    """The network that a run has trained, uncut, for predicting, evaluating and plain Flax.

    Without `checkpoint`, the weights of a finished run are its final weights, as in summary.json. To get them, the
    batches in flight of the last checkpoint are used first, as at the end of the run (unless --no-drain). For an
    unfinished run, or with `checkpoint`, the batches in flight are not used. The weights are then those of the run's
    evaluation at that batch.

    Call this function before JAX computes anything. It then requests as many CPU devices as the run had, so that
    programs give the run's bits. It warns if this is impossible. The data set is not needed.

    Arguments:
        run: the run directory; or a file that `python -m fdg_jax.export` wrote.
        checkpoint: the number of batches after which the checkpoint was written; or "best" for the checkpoint with the
            lowest test error, which --keep-best keeps.
        data_dir: the folder of the data set, for runs of earlier versions, whose config.json lacks the network's
            inputs; by default the run's.
        trust_code: whether to execute copies of users' own .py files in the run directory. Look at them first.

    Raises:
        BadInput: there is no run, no such checkpoint, or a file is damaged.

    Example: `fdg_jax.load_run("runs/mine").predict(images)`
    """
    own_files.TRUSTED.set(trust_code)
    trained, remark = read(Path(run), checkpoint, data_dir)
    if remark:
        warnings.warn(remark, stacklevel=2)
    return trained


def read(
    path: Path, which: Which = None, data_dir: AnyPath | None = None, as_it_ran: bool = True
) -> tuple[Trained, str]:
    """Returns the network, and a remark if its weights may differ from the run's in the last bits. Arguments as for
    `load_run`.

    as_it_ran: whether to request the run's number of CPU devices, so that programs give the run's bits.
    """
    if path.is_file():
        if which is not None:
            raise BadInput(f"{path} is a file of weights, which has no checkpoints. Give the run directory.")
        return from_file(str(path), load_weights(path)), ""
    if not there(path / CONFIG):
        raise BadInput(f"{path} holds no run ({CONFIG} is missing). Give a run directory, or an exported file.")
    config = reading.with_code(path, {name: field.default for name, field in FIELDS.items() if name != "resume"})
    options = Config(**{name: config[name] for name in FIELDS if name != "resume"})
    step, last = chosen(path, which)
    if as_it_ran:
        job.prepare_cpu(config)  # before JAX starts, which reading a checkpoint does
    state, _, about = run_checkpoints.load(run_checkpoints.path_of(path / CHECKPOINTS, step))
    if "inputs" in config:
        inputs = read_inputs(config["inputs"], f"{path / CONFIG}: inputs")
    else:  # an earlier version made the run
        inputs = inputs_of(job.load_data(at(options, data_dir=data_dir), ""))
    blocks = blocks_of(options, inputs)
    variables = network_variables(state, network_shapes(blocks, inputs, path / CONFIG))
    found = states.parameters_sha256([variables["params"]])
    expected, remark = final_sha256(path, step) if last else None, ""
    drained = expected is not None and options.drain
    if drained and found != expected:
        try:
            variables = drain(state, options, inputs, blocks)
        except BadInput as error:  # the run used an accelerator or another version
            way_out = f"Choose the checkpoint after batch {step}, without its batches in flight"
            raise BadInput(f"{error} {way_out}.") from None
        found = states.parameters_sha256([variables["params"]])
    if expected not in (None, found):
        fact = f"the weights differ from those of {path} in the last bits: this machine rounds the updates of batches"
        remark = f"{fact} in flight differently. In Python, call load_run before JAX starts to avoid this."
    facts = {"step": step, "drained": drained, HASH: found, "data": about.get("data")}
    return Trained(options, inputs, variables, facts), remark


def chosen(path: Path, which: Which) -> tuple[int, bool]:
    """Returns the step of the chosen checkpoint, and whether the caller wants the weights at the end of the run. Raises
    BadInput if the checkpoint does not exist."""
    try:
        steps = [int(folder.name.removeprefix("step-")) for folder in run_checkpoints.listed(path / CHECKPOINTS)]
    except OSError as error:
        raise BadInput(f"the checkpoints of {path} cannot be listed: {reason(error)}.") from None
    if not steps:
        raise BadInput(f"{path} has no checkpoint yet. Continue it with --resume, or give another run.")
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
            raise BadInput(f"{fact}, has no checkpoint any more. --keep-best keeps such checkpoints. {there}")
        return best["step"], False
    if isinstance(which, bool) or not isinstance(which, int):
        raise BadInput(f'checkpoint={which!r} is neither a number of batches nor "best". {there}')
    if which not in steps:
        raise BadInput(f"{path} has no checkpoint after batch {which}. {there}")
    return which, False


def final_sha256(path: Path, step: int) -> str | None:
    """The hash of a run's final weights; None if the run did not end at this batch."""
    if not (path / SUMMARY).is_file():
        return None
    summary = reading.summary(path)
    return summary.get("final_parameters_sha256") if summary["steps"] == step else None


def at(options: Config, **places: AnyPath | None) -> Config:
    """The options with other paths of data. places: option -> path; None leaves the run's path."""
    return dataclasses.replace(options, **{name: str(place) for name, place in places.items() if place is not None})


def network_variables(state: Mapping[str, Any], shapes: Mapping[str, Any]) -> dict[str, Any]:
    """The Flax variables of the uncut network from a state. The state's batches in flight are not used.

    Arguments:
        state: the state of a pipeline whose stages are made of the network's blocks.
        shapes: the shapes and dtypes of the uncut network's variables (`network_shapes`).

    Returns: {"params": {"block000": ...}, "batch_stats": ...}, NumPy arrays.

    Raises:
        BadInput: the state is of another network.
    """
    found = {place.groups(): value for name, value in state.items() if (place := OF_BLOCK.fullmatch(name))}

    def leaf(path: Any, like: Any) -> Any:
        collection, rest = path[0].key, jax.tree_util.keystr(path[1:])
        part, where = ("params", "") if collection == "params" else ("extra", f"[{collection!r}]")
        value = found.get((part, where, rest))
        if value is not None and value.ndim > like.ndim:  # each replica of data parallelism has its own statistics
            value = value[0]
        if value is None or (value.dtype, value.shape) != (like.dtype, like.shape):
            fact = f"the checkpoint has no {collection}{rest} {like.dtype}{list(like.shape)}"
            raise BadInput(f"{fact}: it is of another network than config.json.")
        return np.asarray(value)

    return dict(jax.tree_util.tree_map_with_path(leaf, shapes))


def drain(state: Mapping[str, Any], options: Config, inputs: Inputs, blocks: Sequence[nn.Module]) -> dict[str, Any]:
    """Uses the batches in flight of a state, in a pipeline like the run's. Returns the weights after all stages are
    updated.

    The state contains these batches, so a data set of zeros will do.
    """
    source = inputs.zeros(options.dataset, options.train_size or options.batch_size)
    cuts, costs = cuts_of(options, blocks), [1.0] * len(blocks)  # the costs are not used
    parts = Partition(list(blocks), options.split or "", cuts, costs, "FLOPs", has_paper_split=False)
    pipeline = job.built(options, source, job.ALONE, parts).pipeline
    pipeline.restore(state, finite=False)  # checkpoints are tested for finite values when they are written
    pipeline.drain()
    return pipeline.export(whole=True)


def from_file(path: str, weights: Weights) -> Trained:
    """The network in a file that `Trained.save` wrote. Raises BadInput if the file names no network."""
    needed = ("options", "input_shape", "data_dtype", "classes", "mean", "std", "step", "drained", "data", HASH)
    if missing := [name for name in needed if name not in weights.about]:
        fact = f"{path} holds weights, but its header has no {missing[0]!r}, so the network is not known"
        raise BadInput(f"{fact}. Read it with fdg_jax.load_weights, or export the run again.")
    try:
        about: dict[str, Any] = {"data_dtype": weights.about["data_dtype"], HASH: weights.about[HASH]}
        texts = {"code": "{}", **weights.about}  # an earlier version wrote no code
        about |= {name: strict_json.parse(texts[name].encode()) for name in ("code", *needed) if name not in about}
    except ValueError as error:
        raise BadInput(f"{path}: the header is not of this version ({error}). Export the run again.") from None
    reading.check(path, about, {"options": dict, "step": int, "drained": bool, "data": dict | None}, "Export it anew.")
    own_files.load_of_run(Path(path), {**about["options"], "code": about["code"]})
    options = {name: value for name, value in about["options"].items() if name in FIELDS and name != "resume"}
    reading.check(path, options, {name: FIELDS[name].kind for name in options}, "Export it anew.")
    reading.check_ranges(path, options)
    about["shape"] = about["input_shape"]
    inputs = read_inputs(about, str(path))
    of_weights = {name: about[name] for name in ("step", "drained", "data", HASH)}
    found = Trained(Config(**options), inputs, weights.variables, of_weights)
    wanted = network_shapes(found.blocks, inputs, path)
    if jax.tree.map(shown, found.variables) != jax.tree.map(shown, wanted):
        raise BadInput(f"{path} is damaged: it holds other arrays than {found.options.model} has. Export it anew.")
    return found


def network_shapes(blocks: Sequence[nn.Module], inputs: Inputs, where: object) -> Variables:
    """The shapes and dtypes of the uncut network's variables. where: the file with `inputs`, for the message.

    Raises BadInput if the network cannot take the inputs.
    """
    try:
        return dict(jax.eval_shape(partial(init_variables, split.whole(blocks)), jax.random.key(0), inputs.example(1)))
    except Exception as error:  # a layer may raise anything
        fact = f"{where} is damaged: the network cannot take inputs of {list(inputs.shape)}"
        raise BadInput(f"{fact} ({first_line(error)}).") from None


class InitialWeights:
    """`--init-from RUN|FILE`: the weights and statistics that a new run begins with.

    Only the network's variables are taken, by the names of its blocks. So the other run may have had any K, split,
    method, optimizer and version. Optimizer, learning rate and the order of the batches begin anew. A file of another
    program has GPT-2's names (fdg_jax.gpt2); if its table of positions is longer than a block of the data, the
    first positions are taken.

    about: the source of the weights and the sha256 of the parameters; for a run also the number of batches before
        (`step`) and whether the batches in flight had been used (`drained`). {} before `read`.

    Arguments:
        given: the value of --init-from: a run directory, RUN@STEP or RUN@best for one of its checkpoints, or a file of
            weights.

    Raises:
        BadInput: there is no such run or file.
    """

    def __init__(self, given: str):
        self.given, self.path, self.which, self.about = given, Path(given), None, {}
        if not os.path.lexists(given) and (found := OF_A_RUN.fullmatch(given)):
            self.path, self.which = Path(found[1]), found[2] if found[2] == "best" else int(found[2])
        if not self.path.is_file() and not there(self.path / CONFIG):
            fact = f"--init-from {given}: {self.path} is neither a file of weights nor a run directory (with {CONFIG})"
            raise BadInput(f"{fact}. Give RUN, RUN@STEP, RUN@best, or a file that fdg_jax.export wrote.")

    def read(self, own: Variables, model: str) -> Variables:
        """The variables of the whole network.

        Arguments:
            own: the network's initial variables, with its shapes and dtypes. model: its name, for the message.

        Raises:
            BadInput: the weights are of another network, there is no such checkpoint, or a file is damaged.
        """
        try:
            if self.path.is_file() and self.which is None:  # the file may name no network
                found = load_weights(self.path).variables if is_ours(self.path) else gpt2.load(self.path, own)
                about = {HASH: states.parameters_sha256([found.get("params", {})])}
            else:
                trained, _ = read(self.path, self.which, as_it_ran=False)
                found, about = trained.variables, {name: trained.about[name] for name in ("step", "drained", HASH)}
        except BadInput as error:
            raise BadInput(f"--init-from {self.given}: {error}") from None
        theirs, ours = shapes(found), shapes(own)
        for name in ours | theirs:
            if ours.get(name) != theirs.get(name):
                fact = f"--init-from {self.given}: it has {size(found)}, but {model} has {size(own)}"
                other = f"{name} is {theirs.get(name, 'absent')} there and {ours.get(name, 'absent')} here"
                raise BadInput(f"{fact}; {other}. Choose the network of these weights.")
        self.about = {"from": self.given, **about}
        return found

    def line(self) -> str:
        """A line for the start of the run, which says where its weights are from."""
        return f"weights    from {self.path} {taken(self.about) if 'step' in self.about else ''}".rstrip()


def shapes(tree: Variables) -> dict[str, str]:
    """The shape and dtype of each array of a tree, by its path."""
    return {jax.tree_util.keystr(path): shown(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(dict(tree))}


def size(tree: Variables) -> str:
    """The size of a network in words."""
    params = tree.get("params", {})
    return f"{sum(leaf.size for leaf in jax.tree.leaves(params)):,} parameters in {len(params)} blocks"
