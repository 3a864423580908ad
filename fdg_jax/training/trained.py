"""The network that a run has trained, uncut, with its weights on the host: it predicts, evaluates and goes to a file.

It has no stages and no state of training. So it works on any number of devices, and without the run's data.
"""

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from fdg_jax import models, split, strict_json
from fdg_jax.arrays import shown
from fdg_jax.checkpoint.weights import HASH, Weights, save_weights
from fdg_jax.config import FIELDS, Config, model_options
from fdg_jax.data import augment
from fdg_jax.data.dataset import Dataset
from fdg_jax.data.text import Text
from fdg_jax.engine.evaluate import Evaluation, evaluate, tally
from fdg_jax.errors import BadInput, first_line
from fdg_jax.machine import programs
from fdg_jax.runs import reading
from fdg_jax.stage.functions import ComputeOptions, init_variables, make_apply, make_outputs, split_variables
from fdg_jax.stage.precision import precision
from fdg_jax.training import job, loop, session

Tree = Any


class Inputs(NamedTuple):
    """What the network of a run takes.

    shape: [H, W, C] of an image, [T] of a block of text. data_dtype: as the data set has it.
    classes: of the network's outputs.
    mean, std: [C] of the pixels scaled to 0..1, by which images are normalised; empty for text.
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
        """A data set of so many training examples, black images or zero bytes, which take no memory."""
        pixels, labels = np.broadcast_to(np.uint8(0), (examples, *self.shape)), np.zeros(examples, np.int32)
        if not self.mean:
            return Text(name, pixels, pixels, pixels, pixels, sha256="", files=(), classes=self.classes)
        shape = pixels, labels, pixels, labels
        return Dataset(name, *shape, self.classes, self.mean, self.std, pad=0, flip=False)


def inputs_of(source: Any) -> Inputs:
    """What the network takes that is trained on a data set (fdg_jax.data.source)."""
    mean, std = (tuple(float(each) for each in getattr(source, name, ())) for name in ("mean", "std"))
    return Inputs(tuple(source.shape), np.dtype(source.dtype).name, int(source.classes), mean, std)


def read_inputs(found: Any, where: str) -> Inputs:
    """The inputs in a file. where: for the message. Raises BadInput where a value cannot be."""
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
    """The first blocks of the stages 2..K of a run, whose options are settled. Raises BadInput."""
    return split.parse(options.split or "", options.model, options.K, len(blocks)) if options.K > 1 else ()


def with_data(options: Config, data_dir: str | os.PathLike[str] | None) -> Config:
    """The options with another place of the data set, if one is given."""
    return options if data_dir is None else dataclasses.replace(options, data_dir=str(data_dir))


class Trained:
    """A trained network.

    network: the uncut network, a linen module: `network.apply(variables, preprocess(images), train=False)`.
    variables: its Flax dictionary {"params": ..., "batch_stats": ...}, NumPy arrays.
    blocks: of which it consists.
    options: of the run; from an exported file, those that the file has.
    inputs: what the network takes.
    cuts: the first blocks of the run's stages 2..K.
    about: which weights these are: step (batches after which they were taken), drained (whether the batches in flight
        were used before), parameters_sha256, data (the fingerprint of the data set).
    """

    def __init__(self, options: Config, inputs: Inputs, variables: Mapping[str, Tree], about: Mapping[str, Any]):
        self.options, self.inputs, self.variables, self.about = options, inputs, dict(variables), dict(about)
        self.blocks = blocks_of(options, inputs)
        self.network: nn.Module = split.whole(self.blocks)
        self.cuts = cuts_of(options, self.blocks)

    def __repr__(self) -> str:
        return f"Trained(model={self.options.model!r}, dataset={self.options.dataset!r}, {self.which})"

    @property
    def which(self) -> str:
        """Which weights these are, in words."""
        drained = "every batch used" if self.about["drained"] else "batches in flight not used"
        return f"after batch {self.about['step']:,}, {drained}"

    @cached_property
    def preprocess(self) -> Callable[[Any], jax.Array]:
        """What the data set has -> what the network takes: images [n, H, W, C] uint8 -> float32, tokens -> int32."""
        if not self.inputs.mean:
            return lambda tokens: jnp.asarray(tokens).astype(jnp.int32)
        return augment.test_transform(self.inputs)  # type: ignore[arg-type]  # it looks at mean and std only

    @cached_property
    def outputs(self) -> Callable[[Any], jax.Array]:
        """images [n, H, W, C] uint8 -> logits [n, classes], which may be under way.

        They are computed by a program for each of the run's stages, compiled as in the run: on a CPU this gives the
        bits of the run's own evaluation. One program for the whole network would round differently.
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
            images: [n, H, W, C] uint8 (text: [n, T]), as the data set has them, for any n from 1.

        Returns: [n, classes] float32 (text: [n, T, classes]).

        Raises:
            BadInput: the images are something else.
        """
        images, shape = np.asarray(images), self.inputs.shape
        if images.dtype != self.inputs.data_dtype or images.shape[1:] != shape or not len(images):
            fact = f"the inputs are {images.dtype}{list(images.shape)}"
            takes = f"{self.inputs.data_dtype} [n, {', '.join(map(str, shape))}], n from 1 on"
            raise BadInput(f"{fact}, the network takes {takes}.")
        return np.asarray(self.outputs(images))

    def evaluate(
        self,
        batches: Iterable | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        text: Sequence[str | os.PathLike[str]] | None = None,
    ) -> Evaluation:
        """Test loss and top-1 error.

        Arguments:
            batches: of (images, labels); by default the test images of the run's own data set.
            data_dir: where that is; by default as the run was told.
            text: the same for a run on text: its files. An exported file does not name them.

        Raises:
            BadInput: the data set is not there, or it is not the one that the run was trained on.
        """
        run = programs.jit(partial(tally, job.cross_entropy))
        found = self.test_batches(data_dir, text) if batches is None else batches
        return evaluate(lambda images, labels: run(self.outputs(images), np.asarray(labels)), found)

    def test_batches(
        self, data_dir: str | os.PathLike[str] | None = None, text: Sequence[str | os.PathLike[str]] | None = None
    ) -> Iterable:
        """The test images of the run's data set, in the batches in which the run evaluates."""
        if wrong := text if self.inputs.mean else data_dir:
            ours, theirs = ("--data-dir", "--text") if self.inputs.mean else ("--text", "--data-dir")
            raise BadInput(f"{theirs} {wrong}: {self.options.dataset} has no such option. Use {ours}, or leave it out.")
        options = with_data(self.options, data_dir)
        if text is not None:
            options = dataclasses.replace(options, text=os.pathsep.join(map(str, text)))
        source = job.load_data(options, "")
        session.check_data(source, self.about, "evaluating")
        return loop.feed(source, self.options, 0).test()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the weights into a safetensors file (fdg_jax.save_weights), with what is needed to use them.

        The header has model, dataset, K, step, drained, input_shape, input_dtype, classes, mean, std, data, and the
        options that make the run what it is. Paths of this machine are not among them.

        Raises:
            BadInput: there is no such folder.
            OSError: the disk is full, or the like.
        """
        o, inputs = self.options, self.inputs
        fixed = {name: getattr(o, name) for name, field in FIELDS.items() if not field.free}
        del fixed["init_from"]  # a path
        about = {"model": o.model, "dataset": o.dataset, "K": o.K, "options": fixed}
        about |= {"input_shape": inputs.shape, "input_dtype": inputs.example(1).dtype.name, **inputs._asdict()}
        del about["shape"]
        save_weights(path, self.variables, {**about, **self.about})


def from_file(path: str, weights: Weights) -> Trained:
    """The network in a file that `Trained.save` wrote. Raises BadInput if the file does not name one."""
    needed = ("options", "input_shape", "data_dtype", "classes", "mean", "std", "step", "drained", "data", HASH)
    if missing := [name for name in needed if name not in weights.about]:
        fact = f"{path} holds weights, but its header has no {missing[0]!r}, so the network is not known"
        raise BadInput(f"{fact}. Read it with fdg_jax.load_weights, or export it anew from the run.")
    try:
        about: dict[str, Any] = {"data_dtype": weights.about["data_dtype"], HASH: weights.about[HASH]}
        about |= {name: strict_json.parse(weights.about[name].encode()) for name in needed if name not in about}
    except ValueError as error:
        raise BadInput(f"{path}: the header is not what this version writes ({error}). Export it anew.") from None
    reading.check(path, about, {"options": dict, "step": int, "drained": bool, "data": dict | None}, "Export it anew.")
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


def network_shapes(blocks: Sequence[nn.Module], inputs: Inputs, where: object) -> Tree:
    """The shapes and dtypes of the uncut network's variables. where: the file that says what it takes, for the message.

    Raises BadInput where the network cannot take that.
    """
    try:
        return dict(jax.eval_shape(partial(init_variables, split.whole(blocks)), jax.random.key(0), inputs.example(1)))
    except Exception as error:  # whatever a layer raises
        fact = f"{where} is damaged: the network cannot take inputs of {list(inputs.shape)}"
        raise BadInput(f"{fact} ({first_line(error)}).") from None
