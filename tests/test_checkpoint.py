"""What is written is what is read, or it is refused."""

import json
import os
import shutil
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest
import small
import tensorstore
from small import batches, mostly_slow, pipeline

from fdg_jax.checkpoint import folder, manifest
from fdg_jax.checkpoint import state as states
from fdg_jax.errors import BadInput

DATA = batches(6)
stepped = partial(small.stepped, DATA)


@pytest.fixture(scope="module")
def on_the_way():
    """(a pipeline after five batches, its state after two, its state now), for tests that only look at them."""
    ours = stepped(n=2)
    two = ours.state()
    for batch in DATA[2:5]:
        ours.step(batch)
    return ours, two, ours.state()


@pytest.mark.parametrize("engine", mostly_slow(["pipeline", "delay-line"], "pipeline"))
def test_the_disk_changes_nothing(tmp_path, engine):
    ours = stepped(engine=engine)
    state = ours.state()
    folder.save(tmp_path / "c", state)
    read, _ = folder.load(tmp_path / "c")
    assert read.keys() == state.keys()
    for name, value in state.items():
        assert read[name].dtype == np.asarray(value).dtype and read[name].shape == np.shape(value), name
        np.testing.assert_array_equal(read[name], value)
    assert states.sha256(read) == ours.state_sha256()
    again = pipeline(2, DATA[0], engine=engine)
    again.restore(read)
    again.step(DATA[5])
    ours.step(DATA[5])
    assert again.state_sha256() == ours.state_sha256()


def test_empty_arrays_survive(tmp_path):
    folder.save(tmp_path / "c", {"none": np.zeros((0, 3), np.int16), "one": np.float32(1)})
    read, _ = folder.load(tmp_path / "c")
    assert read["none"].shape == (0, 3) and read["none"].dtype == np.int16 and read["one"] == 1


@pytest.mark.parametrize("other", [{"K": 1}, {"engine": "delay-line"}])
def test_a_state_of_another_run_is_refused(other, on_the_way):
    options = {"K": 2, **other}
    K = options.pop("K")
    target = pipeline(K, DATA[0], **options)
    with pytest.raises(BadInput, match="the checkpoint"):
        target.restore(on_the_way[2])


def test_a_missing_or_emptied_checkpoint_is_refused(tmp_path):
    with pytest.raises(BadInput, match="there is no checkpoint"):
        folder.load(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match=r"manifest\.json is missing"):
        folder.load(tmp_path / "empty")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A checkpoint, and the files that it consists of."""
    path = tmp_path_factory.mktemp("written") / "c"
    folder.save(path, {"a": np.arange(300.0), "b": np.int64(3)}, {"step": 7})
    return path, sorted(file for file in path.rglob("*") if file.is_file())


def damages(content, random):
    """What a file may become: a bit flipped, cut off, zeroed, deleted."""
    flipped = bytearray(content)
    if content:
        flipped[random.integers(len(content))] ^= 1 << random.integers(8)
    return [each for each in (flipped, content[: len(content) // 2], bytes(len(content)), None) if each != content]


def test_no_damage_of_any_file_is_read_over(written, tmp_path):
    path, files = written
    random, copy = np.random.default_rng(0), shutil.copytree(path, tmp_path / "c")
    for file in files:
        victim, content = copy / file.relative_to(path), file.read_bytes()
        for damaged in damages(content, random):
            victim.unlink() if damaged is None else victim.write_bytes(damaged)
            with pytest.raises(manifest.Damaged):
                folder.load(copy)
            victim.write_bytes(content)


def test_a_manifest_that_is_none_is_damage(written, tmp_path):
    copy = shutil.copytree(written[0], tmp_path / "c")
    bodies = [[], {}, {"format": 1}, {"format": 1, "files": []}, {"format": 1, "files": {"a": 1}}]
    sealed = [json.dumps({"sha256": manifest.content_sha256(body), "content": body}).encode() for body in bodies]
    for content in (b"[" * 100_000, b"[]", b"{}", b'{"sha256": 1, "content": {"format": 1}}', b"\xff", *sealed):
        (copy / "manifest.json").write_bytes(content)
        with pytest.raises(manifest.Damaged):
            folder.load(copy)


@pytest.mark.parametrize(("name", "kind"), [
    ("arrays/_METADATA", "link"), ("manifest.json", "pipe"), ("arrays/more", "pipe"), ("arrays/more", "empty folder"),
    ("more", "file"),
])  # fmt: skip
def test_what_is_no_ordinary_file_or_not_listed_is_refused_and_nobody_waits_for_it(written, name, kind, tmp_path):
    copy = shutil.copytree(written[0], tmp_path / "c")
    place = copy / name
    if kind == "link":
        place.symlink_to(place.rename(tmp_path / "elsewhere"))
    else:
        place.unlink(missing_ok=True)
        {"pipe": os.mkfifo, "empty folder": os.mkdir, "file": Path.touch}[kind](place)
    with pytest.raises(manifest.Damaged, match=name):
        folder.load(copy)


def made_up(copy, kind):
    """Changes a checkpoint so that what it declares cannot be; all hashes are right."""
    content = json.loads((copy / "manifest.json").read_text())["content"]
    arrays, about, size = content["arrays"], content["about"], 2**39
    if kind in ("bytes", "part"):
        spec = {"driver": "zarr", "kvstore": {"driver": "ocdbt", "base": f"file://{copy}/arrays/", "path": "00000/"}}
        shape, part = ([size], [2**20]) if kind == "bytes" else ([300], [size])
        spec["metadata"] = {"shape": shape, "chunks": part, "dtype": "<f8", "compressor": None, "fill_value": 0.0}
        tensorstore.open(spec, create=True, delete_existing=True).result()
        arrays[0][2] = shape
    elif kind == "header":
        shutil.rmtree(copy / "arrays")
        folder.write_as_npy(copy, {"00000": np.zeros(300), "00001": np.int64(3)})
        file = copy / "npy" / "00000.npy"
        file.write_bytes(file.read_bytes().replace(b"(2400,)", b"(2400000000000,)")[:-9])
    elif kind == "name":
        arrays[0][0] = 3
    (copy / "manifest.json").unlink()
    manifest.seal(copy, {"arrays": arrays, "about": [1] if kind == "about" else about})


@pytest.mark.parametrize(("kind", "said"), [
    ("bytes", "declare 4,398,046,511,112 bytes"), ("part", "chunks larger than the arrays"), ("header", "mmap length"),
    ("name", "manifest.json does not describe its arrays"), ("about", "about is not a JSON object"),
])  # fmt: skip
def test_a_checkpoint_that_declares_what_it_cannot_hold_is_refused_before_it_is_read(written, kind, said, tmp_path):
    copy = shutil.copytree(written[0], tmp_path / "c")
    assert folder.load(copy)[1] == {"step": 7}
    made_up(copy, kind)
    with pytest.raises(BadInput, match=said):
        folder.load(copy)


@pytest.mark.parametrize(("method", "engine"), mostly_slow(
    [("fdg", "pipeline"), ("fdg", "delay-line"), ("fdg", "scan"), ("dni", "pipeline")], ("fdg", "pipeline")
))  # fmt: skip
def test_a_snapshot_stays_what_it_was_while_training_goes_on(method, engine):
    """One after three batches and one after four: a sum of gradients, and one in a delay line, are given away to an
    addition."""
    options = {"accumulate": 2} if method == "fdg" else {}
    ours, taken = stepped(n=2, engine=engine, method=method, **options), []
    for batch in DATA[2:4]:
        ours.step(batch)
        taken.append((ours.state_sha256(), ours.snapshot()))
    for batch in [*DATA[4:], DATA[0]]:
        ours.step(batch)
    after = ours.state_sha256()
    for before, snapshot in taken:
        assert states.sha256(jax.device_get(snapshot)) == before != after


def test_nothing_private_to_jax_is_stored(on_the_way):
    """A stash is its input, its weights and its statistics; nothing of the closure's activations is written."""
    ours, _, state = on_the_way
    stash = ours.engine.stages[1].stashes[0]
    written = [name for name in state if name.startswith(f"stage1/memo/{stash.batch}/")]
    extra = ours.engine.stages[1].layout.extra.unpack_now(stash.extra)
    parts = {"version": np.int64(stash.version), "x": stash.x, "extra": extra}
    assert len(written) == len(jax.tree.leaves(parts))
    assert {np.asarray(value).dtype.kind for value in state.values()} <= set("fiu")
    closure, ours = ({leaf.shape for leaf in jax.tree.leaves(tree)} for tree in (stash.closure, parts))
    assert closure - ours
    assert not (closure - ours) & {np.shape(state[name]) for name in written}
