"""fdg_jax's CIFAR ResNets and wide ResNets in PyTorch: the same blocks, with the same number and names of parameters.

fdg_jax.models.resnet_cifar and .wrn describe the networks; tests/test_peers.py copies weights and compares. Rectifiers
and sums work in place, as is usual in PyTorch.
"""

# pyright: reportMissingImports=false

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.peers.sides import network


def conv(taken: int, given: int, size: int = 3, stride: int = 1) -> nn.Conv2d:
    made = nn.Conv2d(taken, given, size, stride, padding=size // 2, bias=False)
    nn.init.kaiming_normal_(made.weight, mode="fan_out", nonlinearity="relu")
    return made


def relu(x: torch.Tensor) -> torch.Tensor:
    return F.relu(x, inplace=True)


class Stem(nn.Module):
    """[b, 3, h, w] -> [b, 16, h, w]. Only the ResNets have `norm`."""

    def __init__(self, norm: bool):
        super().__init__()
        self.conv = conv(3, 16)
        self.norm = nn.BatchNorm2d(16) if norm else None

    def forward(self, x):
        x = self.conv(x)
        return x if self.norm is None else relu(self.norm(x))


class Residual(nn.Module):
    """A block of a CIFAR ResNet, shortcut of option A (no parameters)."""

    def __init__(self, taken: int, channels: int, stride: int):
        super().__init__()
        self.stride, self.missing = stride, channels - taken
        self.conv1, self.norm1 = conv(taken, channels, stride=stride), nn.BatchNorm2d(channels)
        self.conv2, self.norm2 = conv(channels, channels), nn.BatchNorm2d(channels)

    def forward(self, x):
        y = self.norm2(self.conv2(relu(self.norm1(self.conv1(x)))))
        if self.stride > 1:
            x = x[:, :, :: self.stride, :: self.stride]
        if self.missing:
            x = F.pad(x, (0, 0, 0, 0, self.missing // 2, self.missing - self.missing // 2))
        return relu(y.add_(x))


class WideResidual(nn.Module):
    """A block of a wide ResNet: norm and relu first, a 1 x 1 convolution as shortcut where the shape changes."""

    def __init__(self, taken: int, channels: int, stride: int):
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(taken), conv(taken, channels, stride=stride)
        self.norm2, self.conv2 = nn.BatchNorm2d(channels), conv(channels, channels)
        self.shortcut = None if stride == 1 and taken == channels else conv(taken, channels, 1, stride)

    def forward(self, x):
        active = relu(self.norm1(x))
        y = self.conv2(relu(self.norm2(self.conv1(active))))
        return y.add_(x if self.shortcut is None else self.shortcut(active))


class Head(nn.Module):
    """Global average pooling and a linear layer, [b, c, h, w] -> [b, classes]; first norm and relu in a wide net."""

    def __init__(self, taken: int, classes: int, norm: bool):
        super().__init__()
        self.norm = nn.BatchNorm2d(taken) if norm else None
        self.dense = nn.Linear(taken, classes)
        nn.init.zeros_(self.dense.bias)

    def forward(self, x):
        x = x if self.norm is None else relu(self.norm(x))
        return self.dense(x.mean((2, 3)))


def blocks(model: str, classes: int) -> list[nn.Module]:
    """The network as blocks 0, 1, ..., the same as in fdg_jax.models."""
    family, n, k = network(model)
    wide = family == "wrn"
    made: list[nn.Module] = [Stem(norm=not wide)]
    taken = 16
    for layer, channels in enumerate((16 * k, 32 * k, 64 * k)):
        for block in range(n):
            stride = 2 if layer > 0 and block == 0 else 1
            made.append((WideResidual if wide else Residual)(taken, channels, stride))
            taken = channels
    return [*made, Head(taken, classes, norm=wide)]
