"""The peers of the benchmark train the same network by the same recipe as we do, or are left out with a sentence.

What needs PyTorch is skipped without it: `make test REQUIREMENTS=requirements-peers.txt` runs it.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import jax
import numpy as np
import optax
import pytest

from benchmarks import images_per_second
from benchmarks.peers import sides as peers
from fdg_jax import models, split
from fdg_jax.data.sets import synthetic
from fdg_jax.errors import BadInput
from fdg_jax.recipe import paper_sgd
from fdg_jax.training.job import cross_entropy

ROOT = Path(__file__).resolve().parent.parent
COMMON = {"K": 2, "model": "resnet8", "batch_size": 8}
pins_cores = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no pinning on this system")


def parse(text, **changes):
    return peers.parse(text, COMMON | changes, "--a", "balanced")


def test_a_peer_has_its_processes_its_cores_and_its_options():
    torch, ddp, pipeline, jax_peer = map(parse, ("torch", "torch-ddp", "torch-pipeline", "jax-shard-map"))
    assert [(side.K, side.cores) for side in (torch, ddp, pipeline, jax_peer)] == [(1, 1), (2, 2), (2, 2), (2, 2)]
    assert [side.xla for side in (torch, jax_peer)] == ["", "--a"]
    assert (pipeline.split, torch.split) == ("balanced", None)
    two = parse("torch:threads=2:layout=contiguous")
    assert (two.K, two.cores) == (1, 2)
    assert two.options == {"threads": 2, "layout": "contiguous"}
    gpipe = parse("torch-pipeline:schedule=gpipe:micro_batches=8:split=2")
    assert (gpipe.split, gpipe.options["schedule"], gpipe.options["micro_batches"]) == ("2", "gpipe", 8)
    assert parse("fdg").worker not in (torch.worker, jax_peer.worker)  # and what is no peer is a side of ours


@pytest.mark.parametrize(
    ("side", "changes", "word"),
    [
        ("torch:schedule=gpipe", {}, "no option of this peer. It has threads, layout"),
        ("torch-pipeline:micro_batches=3", {}, "3 micro-batches do not divide 8 images"),
        ("torch", {"model": "mobilenet_v2"}, "resnet<6n[+]2>"),
    ],
)
def test_a_peer_that_cannot_be_had_is_refused_with_the_way_out(side, changes, word):
    with pytest.raises(BadInput, match=word):
        parse(side, **changes)


def test_a_peer_without_pytorch_is_skipped_with_a_sentence_and_the_others_stay():
    asked = [parse("bp"), parse("torch"), parse("jax-shard-map")]
    with mock.patch.object(peers, "has", return_value=False):
        kept, missing = peers.available(asked, "")
    assert [side.name for side in kept] == ["bp", "jax-shard-map"]
    (sentence,) = missing
    assert "torch is skipped" in sentence and "requirements-peers.txt" in sentence and "--python" in sentence


def test_the_peers_interpreter_is_the_one_named_and_ours_stays_ours():
    assert not peers.has(sys.executable, "a_package_that_is_not_there")
    with mock.patch.object(peers, "has", lambda python, package: (python, package) == ("other", "torch")):
        kept, missing = peers.available([parse("bp"), parse("torch"), parse("jax-shard-map")], "other")
    assert [side.interpreter for side in kept] == ["", "other", ""]
    assert not missing
    with pytest.raises(BadInput, match="cannot be run"):
        peers.available([parse("bp"), parse("torch")], "/nowhere/python")


@pins_cores
@pytest.mark.slow
def test_plain_jax_data_parallel_is_compared_with_bp_and_pytorch_is_skipped_where_it_is_missing():
    sides = ["bp", "jax-shard-map", *([] if peers.has(sys.executable, "torch") else ["torch"])]
    short = ["--model", "resnet8", "--batch-size", "8", "--windows", "2", "--seconds", "0.1", "--json"]
    command = [sys.executable, "-m", "benchmarks.images_per_second", *short, "--sides", *sides]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["side"] for row in rows] == ["bp", "jax-shard-map"]
    assert ("Side torch is skipped" in done.stderr) == ("torch" in sides)


# From here on with PyTorch.


def torch_modules():
    pytest.importorskip("torch", reason="no PyTorch: make test REQUIREMENTS=requirements-peers.txt")
    from benchmarks.peers import torch_net, torch_recipe

    return torch_net, torch_recipe


def flat(variables):
    """PyTorch's name -> array of our variables of the whole network."""
    names = {"scale": "weight", "kernel": "weight", "mean": "running_mean", "var": "running_var"}
    found = {}
    for collection in ("params", "batch_stats"):
        for path, leaf in jax.tree_util.tree_flatten_with_path(variables[collection])[0]:
            block, *inner, last = [key.key for key in path if key.key != "head"]  # a wide net's head has an inner one
            axes = {4: (3, 2, 0, 1), 2: (1, 0)}.get(leaf.ndim, (0,))
            name = ".".join([str(int(block.removeprefix("block"))), *inner, names.get(last, last)])
            found[name] = np.transpose(leaf, axes)
    return found


@pytest.mark.parametrize("model", ["resnet8", "wrn10_2"])
def test_a_step_of_pytorchs_network_from_our_weights_ends_in_our_weights(model):
    torch_net, torch_recipe = torch_modules()
    import torch

    random = np.random.RandomState(0)
    x, labels = random.randn(8, 16, 16, 3).astype(np.float32), random.randint(0, 10, 8)
    blocks = models.blocks(model, 10)
    net, variables = split.stages(blocks, ())[0], split.init_whole(blocks, jax.random.key(0), x)

    def loss_of(params):
        logits, changed = net.apply({**variables, "params": params}, x, True, mutable=["batch_stats"])
        return cross_entropy(logits, labels), (logits, changed)

    (_, (logits, changed)), gradients = jax.jit(jax.value_and_grad(loss_of, has_aux=True))(variables["params"])
    optimizer = paper_sgd(torch_recipe.LEARNING_RATE)
    updates, _ = optimizer.update(gradients, optimizer.init(variables["params"]), variables["params"])
    expected = flat({"params": optax.apply_updates(variables["params"], updates), **changed})

    peer = torch.nn.Sequential(*torch_net.blocks(model, 10)).to(memory_format=torch.channels_last)
    given = {name: torch.tensor(array) for name, array in flat(variables).items()}
    assert not peer.load_state_dict(given, strict=False).unexpected_keys
    assert sum(p.numel() for p in peer.parameters()) == sum(leaf.size for leaf in jax.tree.leaves(variables["params"]))
    sgd, found = torch_recipe.optimizer(peer), peer(torch.tensor(x).permute(0, 3, 1, 2))
    torch_recipe.loss(found, torch.tensor(labels)).backward()
    sgd.step()
    # Convolutions of two libraries: sums of up to 300 products of float32 in other orders, some ten layers deep.
    np.testing.assert_allclose(found.detach().numpy(), logits, rtol=1e-4, atol=1e-4)
    after = {name: value.numpy() for name, value in peer.state_dict().items() if "num_batches" not in name}
    assert after.keys() == expected.keys()
    for name, value in expected.items():
        # PyTorch's running variance follows the unbiased variance, n/(n-1) of ours: of 8 4x4 maps up to 0.1 x 1/127.
        loose = 2e-3 if name.endswith("running_var") else 2e-5
        np.testing.assert_allclose(after[name], value, rtol=loose, atol=loose, err_msg=name)


@pytest.mark.parametrize(("model", "count"), [("resnet20", 269_722), ("wrn16_4", 2_748_890)])
def test_pytorchs_network_has_exactly_as_many_parameters_as_ours(model, count):
    torch_net, _ = torch_modules()
    blocks = models.blocks(model, 10)
    whole = split.init_whole(blocks, jax.random.key(0), jax.ShapeDtypeStruct((2, 32, 32, 3), np.float32))
    ours = sum(leaf.size for leaf in jax.tree.leaves(whole["params"]))
    theirs = sum(p.numel() for block in torch_net.blocks(model, 10) for p in block.parameters())
    assert theirs == ours == count


def test_pytorchs_augmentation_is_ours_for_the_same_random_choices():
    _, torch_recipe = torch_modules()
    import torch

    from fdg_jax.data import augment

    data = synthetic.load()
    images, (down, right, mirrored) = data.train_images[:16], augment.draw(3, 5, 16, data.pad)
    choices = [torch.tensor(np.asarray(choice)) for choice in (down, right, mirrored)]
    found = torch_recipe.augment(torch.from_numpy(images), *choices, data).permute(0, 2, 3, 1)
    # The same difference and product, but 1/std rounded once more: a few last bits of numbers up to 3.
    np.testing.assert_allclose(found.numpy(), augment.train_transform(data, 3)(images, 5), rtol=1e-6, atol=2e-6)


@pins_cores
@pytest.mark.slow
@pytest.mark.skipif(len(getattr(os, "sched_getaffinity", lambda _: [0])(0)) < 2, reason="K = 2 wants two cores")
def test_every_peer_is_compared_with_bp(capfd):
    torch_modules()
    sides = ["bp", "torch", "torch:threads=2", "torch-ddp", "torch-pipeline", "torch-pipeline:schedule=gpipe:split=2"]
    sides += ["torch-pipeline:layout=contiguous", "torch:layout=contiguous"]
    short = ["--model", "resnet8", "--batch-size", "8", "--windows", "2", "--seconds", "0.1", "--json"]
    assert images_per_second.main([*short, "--sides", *sides]) == 0
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [row["side"] for row in rows] == sides
    assert {row["parameters"] for row in rows} == {rows[0]["parameters"]}
    assert [len(row["cuts"]) for row in rows] == [0, 0, 0, 0, 1, 1, 1, 0]
    assert rows[5]["cuts"] == [2]
    assert all(row["images_per_second"] > 0 and row["busy_percent"] > 0 for row in rows)
