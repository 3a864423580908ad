"""What leaves a pipeline and comes back: outputs, weights for plain Flax, and a file of the exact state."""

import json
import os
import tracemalloc
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import safetensors.numpy
from flax import struct
from flax.core import freeze
from small import CLASSES, Part, batches, close, cross_entropy, pipeline, recipe

import fdg_jax
from fdg_jax import split
from fdg_jax.checkpoint import folder
from fdg_jax.checkpoint import weights as weight_files
from fdg_jax.errors import BadInput

DATA = batches(6)
X, Y = DATA[0]
BLOCKS = [Part(12), Part(12), Part(12), Part(CLASSES)]
KEY, KEY_OF_TODAY = jax.random.PRNGKey(0), jax.random.key(0)


def cut(K, variables=None, asked="even", **options):
    made = fdg_jax.Pipeline(BLOCKS, cross_entropy, recipe(), split=asked, K=K, **options)
    return made.init(KEY, DATA[0], variables)


@pytest.fixture(scope="module")
def trained():
    """A network of four blocks in two stages, after five batches; one is in flight."""
    ours = cut(2)
    for batch in DATA[:5]:
        ours.step(batch)
    return ours


def plain(module, variables, x):
    """The network in plain Flax, as one program."""
    return np.asarray(jax.jit(lambda variables, x: module.apply(variables, x, False))(variables, x))


@pytest.mark.slow
def test_exported_weights_give_the_same_logits_in_the_uncut_network_bit_for_bit(trained):
    whole = trained.export(whole=True)
    assert {type(leaf) for leaf in jax.tree.leaves(whole)} == {np.ndarray}
    assert set(whole["params"]) == {"block000", "block001", "block002", "block003"}
    np.testing.assert_array_equal(plain(split.whole(BLOCKS), whole, X), trained.predict(X))
    x = X
    for module, variables in zip(trained.modules, trained.export(), strict=True):
        x = plain(module, variables, x)
    np.testing.assert_array_equal(x, trained.predict(X))


@pytest.mark.slow
def test_outputs_are_host_arrays_of_the_newest_weights_in_evaluation_mode(trained):
    before = trained.state_sha256()
    found = trained.predict(X)
    assert type(found) is np.ndarray and found.shape == (16, CLASSES)
    assert cross_entropy(found, Y) == pytest.approx(trained.evaluate([(X, Y)]).loss, rel=1e-6)
    one = trained.predict(X[:1])  # a batch norm in training mode would make all its outputs 0
    np.testing.assert_allclose(one, found[:1], rtol=1e-6, atol=1e-6)  # another program, for another size
    pixels = np.round(100 * X).astype(np.int16)
    transformed = trained.predict(pixels, lambda x: x.astype(jnp.float32) / 100)
    np.testing.assert_allclose(transformed, found, atol=0.1)  # rounded to a 200th
    assert trained.state_sha256() == before


def halved(variables):
    return jax.tree.map(lambda leaf: leaf / 2, variables)


@pytest.mark.slow
def test_other_weights_are_evaluated_by_the_same_programs_and_the_training_stays_as_it_is(trained):
    before, mine = trained.state_sha256(), (trained.predict(X), trained.evaluate(DATA[:2]))
    stages, whole = halved(trained.export()), halved(trained.export(whole=True))
    compiled = [stage._outputs._cache_size() for stage in trained.engine.stages.values()]
    found = trained.predict(X, variables=stages)
    assert np.abs(found - mine[0]).max() > 0.01
    np.testing.assert_array_equal(found, plain(split.whole(BLOCKS), whole, X))
    np.testing.assert_array_equal(found, trained.predict(X, variables=whole))
    assert trained.evaluate([(X, Y)], variables=whole).loss == pytest.approx(float(cross_entropy(found, Y)), rel=1e-6)
    np.testing.assert_array_equal(mine[0], trained.predict(X, variables=trained.params))
    assert (trained.evaluate(DATA[:2]), trained.state_sha256()) == (mine[1], before)
    assert compiled == [stage._outputs._cache_size() for stage in trained.engine.stages.values()]


def test_weights_that_do_not_fit_are_not_evaluated(trained):
    stages, whole = trained.export(), trained.export(whole=True)
    for match, variables in {
        "2 stages but 1 sets of variables were given": stages[:1],
        r"stage k=1 takes .*, but nothing was given": [{"params": {}}, stages[1]],
        "the variables have params/block004, but the 4 blocks are block000 to block003": {
            "params": {**whole["params"], "block004": {}}
        },
    }.items():
        with pytest.raises(BadInput, match=match):
            trained.evaluate(DATA[:1], variables=variables)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"engine": "scan"}, {"method": "data_parallel"}, {"method": "dgl"}], ids=str)
def test_every_engine_and_method_predicts_and_exports(options):
    ours = cut(2, ema=0.5, **options)
    for batch in DATA[:3]:
        ours.step(batch)
    whole = split.whole(BLOCKS)
    for x in (X, X[:1]):
        found = plain(whole, ours.export(whole=True), x)
        np.testing.assert_allclose(found, ours.predict(x), rtol=1e-6, atol=1e-6)  # other programs than the host loop's
        for other in (halved(ours.export(whole=True)), ours.export(whole=True, ema=True)):
            found = plain(whole, other, x)
            np.testing.assert_allclose(found, ours.predict(x, variables=other), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("inputs", "match"), [
    (X[:, :7], r"predict cannot take inputs float32\[16, 7\]: .* stage 1 takes float32\[16, 8\]\. .* with transform="),
    (X.astype(np.int32), r"the inputs are int32\[16, 8\], but at init"),
    (X[:0], r"^the inputs are float32\[0, 8\]: they hold no example. Give predict at least one example.$"),
    (X.tolist(), "numpy.asarray"),
])  # fmt: skip
def test_inputs_that_do_not_fit_are_refused(inputs, match, trained):
    with pytest.raises(BadInput, match=match):
        trained.predict(inputs)


def test_stages_of_their_own_have_no_uncut_network():
    ours = pipeline(2, DATA[0])
    assert ours.cuts is None and len(ours.export()) == 2
    with pytest.raises(BadInput, match=r"export\(whole=True\): the pipeline was made of K stages.*split="):
        ours.export(whole=True)
    with pytest.raises(BadInput, match="variables is one dictionary, but the stages were not cut from one network"):
        pipeline(2, DATA[0], variables={"params": {}})


@pytest.mark.slow
def test_first_weights_of_blocks_depend_on_the_key_and_not_on_the_cut(trained):
    whole = split.init_whole(BLOCKS, KEY, X)
    two, three = cut(2), cut(3)
    assert (two.cuts, three.cuts) == ((2,), (1, 2))
    for ours in (two, three):
        jax.tree.map(np.testing.assert_array_equal, ours.export(whole=True), jax.device_get(whole))
    assert two.parameters_sha256() == three.parameters_sha256()


@pytest.mark.slow
def test_weights_go_to_a_file_and_into_another_cut(trained, tmp_path):
    file = tmp_path / "weights.safetensors"
    fdg_jax.save_weights(file, trained.export(whole=True), {"classes": CLASSES, "note": "small"})
    variables, about = fdg_jax.load_weights(file)
    assert about["parameters_sha256"] == trained.parameters_sha256()
    assert (about["classes"], about["note"]) == ("5", "small")
    again = cut(1, variables)
    assert again.parameters_sha256() == trained.parameters_sha256()
    np.testing.assert_array_equal(again.predict(X), trained.predict(X))


@pytest.mark.slow
def test_a_saved_pipeline_goes_on_exactly(trained, tmp_path):
    file = tmp_path / "pipeline"
    trained.save(file)
    state, variables, about = fdg_jax.load(file)
    assert (about["method"], about["K"], about["cuts"]) == ("fdg", "2", "[2]")
    close(variables, trained.export(), rtol=0)
    again = cut(2)
    again.restore(state)
    assert again.state_sha256() == trained.state_sha256()
    again.step(DATA[5])
    again.drain()
    theirs = cut(2)
    theirs.restore(trained.state())
    theirs.step(DATA[5])
    theirs.drain()
    assert again.parameters_sha256() == theirs.parameters_sha256()


def test_a_save_that_fails_leaves_the_file_that_was_there(trained, tmp_path):
    file = tmp_path / "pipeline"
    trained.save(file)
    before = file.read_bytes()
    (tmp_path / "pipeline.part").mkdir()  # where it is written first: opening that fails
    with pytest.raises(OSError, match=r"pipeline\.part"):
        trained.save(file)
    assert file.read_bytes() == before
    with pytest.raises(BadInput, match="lies in a folder that does not exist"):
        trained.save(tmp_path / "none" / "pipeline")
    with pytest.raises(BadInput, match="is a folder"):
        trained.save(tmp_path)


def test_arrays_of_every_dtype_come_back_from_a_file(tmp_path):
    others = ["int2", "int4", "uint4", "float4_e2m1fn", "float8_e4m3b11fnuz", "complex128"]
    names = [*weight_files.DTYPES.values(), *others]
    variables: dict = {"params": {name: np.ones((2, 3)).astype(name) for name in names}}
    variables["params"] |= {"float64": np.full((), 0.1), "int64": np.zeros((0, 2), np.int64)}
    variables["params"] |= {"uint4": np.asarray(3, "uint4"), "int4": np.zeros((0, 2), "int4")}
    variables["params"]["turned"] = np.arange(6.0).reshape(2, 3).T
    others = {"big endian": np.arange(6, dtype=">f8").reshape(2, 3)[:, ::2], "key": jax.random.key(3, impl="rbg")}
    file = tmp_path / "w"
    fdg_jax.save_weights(file, {**variables, "others": {**others, "keys": jax.random.split(KEY_OF_TODAY, 2)}})
    found = fdg_jax.load_weights(file).variables
    assert found["params"].keys() == variables["params"].keys()
    for name, value in variables["params"].items():
        assert found["params"][name].dtype == value.dtype
        np.testing.assert_array_equal(found["params"][name], np.asarray(value))
    found["params"]["turned"][:] = 0  # it may be written to
    np.testing.assert_array_equal(found["others"]["big endian"], others["big endian"])
    assert jnp.array_equal(found["others"]["key"], others["key"])
    assert jnp.array_equal(found["others"]["keys"], jax.random.split(KEY_OF_TODAY, 2))
    with pytest.raises(BadInput, match=r"params/name is <U3\[1\]: a file holds numbers, bools and random keys only"):
        fdg_jax.save_weights(file, {"params": {"name": np.asarray(["abc"])}})


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    file = tmp_path_factory.mktemp("weights") / "w.safetensors"
    fdg_jax.save_weights(file, {"params": {"kernel": X}}, {"step": 7})
    return file


@pytest.mark.parametrize(("spoil", "match"), [
    (lambda content: content[:-1], "is damaged or is no safetensors file"),
    (lambda content: content[:-1] + bytes([content[-1] ^ 1]), "damaged: its content does not match its sha256"),
    (lambda content: content.replace(b'"7"', b'"8"'), "damaged: its content does not match its sha256"),
    (lambda content: content.replace(b"weights 1", b"weights 9"), r"not written by this version .*'fdg_jax weights 9'"),
    (lambda content: b"PK\x03\x04 something else altogether", "is damaged or is no safetensors file"),
], ids=["cut off", "a bit", "header", "version", "foreign"])  # fmt: skip
def test_a_damaged_or_foreign_file_is_refused_in_a_sentence(spoil, match, weights, tmp_path):
    file = tmp_path / "spoilt"
    file.write_bytes(spoil(weights.read_bytes()))
    with pytest.raises(BadInput, match=match) as found:
        fdg_jax.load_weights(file)
    assert "\n" not in str(found.value) and str(file) in str(found.value)


@pytest.mark.parametrize(("names", "texts", "said"), [
    (["a/b", "a/b/c"], {"format": weight_files.WEIGHTS}, "names of its arrays do not form a tree"),
    (["a/b"], {"format": weight_files.WEIGHTS, "containers": '{"a": "tuple"}'}, "do not form a tree"),
    *((["a"], {"format": weight_files.WEIGHTS, "dtypes": f'{{"a": {dtype}}}'}, "does not fit its arrays")
      for dtype in ("3", '"O"', '"key none"')),
    (["a"], {"format": weight_files.WEIGHTS, "containers": "[]"}, "does not fit its arrays"),
    (["a"], {"format": weight_files.WEIGHTS, "containers": '{"a": []}'}, "names of its arrays do not form a tree"),
    *((["stage/1/a"], {"format": weight_files.PIPELINE, **K}, "which is no number of stages")
      for K in ({}, {"K": "0"}, {"K": "1000000000"})),
    *(([name], {"format": weight_files.PIPELINE, "K": "1"}, "which no pipeline of 1 stages has")
      for name in ("stage/2/a", "state", "else/a")),
])  # fmt: skip
def test_a_file_that_somebody_made_up_is_refused_although_its_hash_is_right(names, texts, said, tmp_path):
    arrays = {name: np.zeros(2, np.float32) for name in names}
    file = tmp_path / "made up"
    file.write_bytes(safetensors.numpy.save(arrays, {**texts, "sha256": weight_files.seal(arrays, texts)}))
    with pytest.raises(BadInput, match=said):
        (fdg_jax.load if texts["format"] == weight_files.PIPELINE else fdg_jax.load_weights)(file)


def test_a_file_of_another_kind_names_its_reader(weights, tmp_path):
    from safetensors.numpy import save_file

    with pytest.raises(BadInput, match=r"Read it with fdg_jax\.load_weights"):
        fdg_jax.load(weights)
    with pytest.raises(BadInput, match="there is no file"):
        fdg_jax.load_weights(tmp_path / "none")
    with pytest.raises(BadInput, match="is not a file"):
        fdg_jax.load_weights(tmp_path)
    save_file({"kernel": X}, tmp_path / "theirs")
    with pytest.raises(BadInput, match="its header names no format"):
        fdg_jax.load_weights(tmp_path / "theirs")


def test_other_programs_read_the_file_of_weights(weights):
    from safetensors import safe_open

    with safe_open(weights, "np") as file:
        assert set(file.metadata()) == {"format", "step", "parameters_sha256", "sha256"}
        np.testing.assert_array_equal(file.get_tensor("params/kernel"), X)


@struct.dataclass
class Both:
    mean: jax.Array
    count: jax.Array


class Pair(NamedTuple):
    first: Any
    second: Any


ONE, TWO = jnp.ones(1), jnp.full(2, 2.0)
PLAIN = {
    "tuple": (ONE, TWO), "list": [ONE, {"a": TWO}], "none": None, "empty": {"a": {}, "b": (), "c": [None]},
    "whole numbers": {-1: ONE, 2: {}, 10: [TWO, ()]}, "numbers": {"0": ONE, "1": TWO}, "a/b": {"a%2Fb": ONE},
    "int4": jnp.ones((), jnp.int4), "uint4": jnp.zeros((0, 2), jnp.uint4), "float8": jnp.ones(3, jnp.float8_e5m2fnuz),
}  # fmt: skip
OTHERS = {"frozen": freeze({1: ONE}), "struct": Both(mean=ONE, count=TWO), "named tuple": Pair(ONE, (TWO, None))}


class Everything(nn.Module):
    """Variables of all kinds that Flax allows. Its own SpectralNorm and WeightNorm have slashes in their names."""

    @nn.compact
    def __call__(self, x, train):
        for name, kept in {**PLAIN, **OTHERS}.items():
            self.variable("plain" if name in PLAIN else "others", name, lambda kept=kept: kept)
        x = x * sum(self.param(name, nn.initializers.ones, (8,)) for name in ("a/b", "a%2Fb", "a"))
        for box in (nn.with_partitioning, nn.with_logical_partitioning):
            x = nn.Dense(8, kernel_init=box(nn.initializers.lecun_normal(), (None, "model")))(x)
        return nn.WeightNorm(nn.Dense(CLASSES))(nn.SpectralNorm(nn.Dense(8))(x, update_stats=train))


@pytest.mark.slow
def test_whatever_variables_a_module_has_they_are_saved_and_come_back(tmp_path):
    def new(**given):
        return fdg_jax.Pipeline([Everything()], cross_entropy, optax.adam(0.1)).init(KEY, DATA[0], **given)

    ours = new()
    ours.step(DATA[0])
    ours.save(tmp_path / "pipeline")
    folder.save(tmp_path / "checkpoint", ours.state())
    state, (variables,), about = fdg_jax.load(tmp_path / "pipeline")
    assert about["parameters_sha256"] == ours.parameters_sha256()
    again, (exported,) = new(variables=[variables]), ours.export()
    assert jax.tree.structure(again.export()) == jax.tree.structure([exported])
    for found, saved in zip(jax.tree.leaves(again.export()), jax.tree.leaves(exported), strict=True):
        np.testing.assert_array_equal(found, saved, strict=True)
    for saved in (state, folder.load(tmp_path / "checkpoint")[0]):
        again.restore(saved)
        assert again.state_sha256() == ours.state_sha256()
    assert jax.tree.structure(variables["plain"]) == jax.tree.structure(exported["plain"])  # others have own classes
    assert variables["params"].keys() == exported["params"].keys()


def test_a_file_that_is_not_sealed_takes_no_memory_whatever_it_declares(tmp_path):
    size, file = 2**26, tmp_path / "large"
    array = {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}
    texts = {"format": weight_files.WEIGHTS, "sha256": "0" * 64}
    header = json.dumps({"a": array, "__metadata__": texts}).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(file, 8 + len(header) + size)  # zeros that no disk holds
    tracemalloc.start()
    try:
        with pytest.raises(BadInput, match="does not match its sha256"):
            fdg_jax.load_weights(file)
        assert tracemalloc.get_traced_memory()[1] < size / 8
    finally:
        tracemalloc.stop()
