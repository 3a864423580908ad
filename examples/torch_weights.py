"""Reads weights of a PyTorch network, and writes the trained weights for PyTorch, both as safetensors files. PyTorch is
not needed.

    .venv/bin/python examples/torch_weights.py [FILE.safetensors] [--to FILE.safetensors]

The network is PyTorch's Conv2d, BatchNorm2d, ReLU, Conv2d, ReLU, mean over pixels, Linear. In PyTorch a convolution's
weight is [out, in, height, width] (here [height, width, in, out]), a Linear's is [out, in] (here [in, out]), and images
are [n, channels, height, width] (here channels are last). A network that flattens an image before a Linear also has the
rows of that matrix in another order; the mean over pixels avoids this. In PyTorch:

    safetensors.torch.save_file(network.state_dict(), FILE)
    network.load_state_dict(safetensors.torch.load_file(FILE))  # PyTorch itself sets num_batches_tracked to 0
"""

import argparse

import flax.linen as nn
import jax
import numpy as np
import optax
from flax.traverse_util import flatten_dict, unflatten_dict
from safetensors.numpy import load_file, save_file
from sklearn.datasets import load_digits

import fdg_jax


class First(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        x = nn.Conv(16, (3, 3), padding=1, name="conv")(x)
        return nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9, epsilon=1e-5, name="norm")(x))


class Second(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(32, (3, 3), padding=1, name="conv")(x))
        return nn.Dense(10, name="scores")(x.mean((1, 2)))


BLOCKS = [First(), Second()]  # in the network's variables: block000, block001
NAMES = {  # PyTorch's name: the path here
    "conv1.weight": "params/block000/conv/kernel",
    "conv1.bias": "params/block000/conv/bias",
    "bn1.weight": "params/block000/norm/scale",
    "bn1.bias": "params/block000/norm/bias",
    "bn1.running_mean": "batch_stats/block000/norm/mean",
    "bn1.running_var": "batch_stats/block000/norm/var",
    "conv2.weight": "params/block001/conv/kernel",
    "conv2.bias": "params/block001/conv/bias",
    "fc.weight": "params/block001/scores/kernel",
    "fc.bias": "params/block001/scores/bias",
}
HERE = {4: (2, 3, 1, 0), 2: (1, 0), 1: (0,)}  # number of axes: the order of PyTorch's axes here
THERE = {4: (3, 2, 0, 1), 2: (1, 0), 1: (0,)}  # the inverse


def from_torch(tensors):
    """PyTorch's state_dict, as NumPy arrays -> the Flax dictionary of the whole network."""
    moved = {path: np.array(tensors[name].transpose(HERE[tensors[name].ndim])) for name, path in NAMES.items()}
    return unflatten_dict(moved, sep="/")


def to_torch(variables):
    """The inverse."""
    flat = {path: np.asarray(array) for path, array in flatten_dict(variables, sep="/").items()}
    return {name: np.array(flat[path].transpose(THERE[flat[path].ndim]), order="C") for name, path in NAMES.items()}


def loss(outputs, labels):
    return optax.softmax_cross_entropy_with_integer_labels(outputs, labels).mean()


def main():
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    flags.add_argument("file", nargs="?", help="such a state_dict; without it the training begins with random weights")
    flags.add_argument("--to", help="where the trained weights go, under PyTorch's names")
    given = flags.parse_args()
    fdg_jax.emulate_cpu(2)
    images, labels = load_digits(return_X_y=True)
    images, labels = (images / 16).astype(np.float32).reshape(-1, 8, 8, 1), labels.astype(np.int32)
    variables = from_torch(load_file(given.file)) if given.file else None
    pipeline = fdg_jax.Pipeline(BLOCKS, loss, optax.adam(0.01), beta=0.5, split=[1])
    pipeline.init(jax.random.key(0), (images[:50], labels[:50]), variables)
    testing = [(images[1500:], labels[1500:])]
    print(f"{given.file or 'random weights'}: test error {pipeline.evaluate(testing).error_percent:.1f}%")
    for start in 6 * [*range(0, 1500, 50)]:
        pipeline.step((images[start : start + 50], labels[start : start + 50]))
    pipeline.drain()
    print(f"after 6 epochs in two stages: test error {pipeline.evaluate(testing).error_percent:.1f}%")
    tensors = to_torch(pipeline.export(whole=True))
    print("\n".join(f"  {name:16} {list(array.shape)}" for name, array in tensors.items()))
    if given.to:
        save_file(tensors, given.to)


if __name__ == "__main__":
    main()
