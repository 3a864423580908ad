"""The peers of the benchmark train the same network by the same recipe as we do, or are left out with a sentence.

What needs PyTorch is skipped without it: `make test REQUIREMENTS=requirements-peers.txt` runs it.
"""

from unittest import mock

import jax
import numpy as np
import optax
import pytest

from benchmarks.peers import sides as peers
from fdg_jax import models, split
from fdg_jax.errors import BadInput
from fdg_jax.recipe import paper_sgd
from fdg_jax.training.job import cross_entropy

COMMON = {"K": 2, "model": "resnet8", "batch_size": 8}


def parse(text, **changes):
    return peers.parse(text, COMMON | changes, "--a", "balanced")


@pytest.mark.parametrize(("side", "changes", "word"), [
    ("torch:schedule=gpipe", {}, "not an option of this peer. It has threads, layout"),
    ("torch-pipeline:micro_batches=3", {}, "3 micro-batches do not divide 8 images"),
    ("torch", {"model": "mobilenet_v2"}, "resnet<6n[+]2>"),
])  # fmt: skip
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
