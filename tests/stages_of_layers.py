"""Stages that an oracle can take apart layer by layer, and how far from it an engine may be."""

import flax.linen as nn
import jax.numpy as jnp

from fdg_jax import layers

ORDERS = ("backward-first", "forward-first")

# The oracle differentiates the whole network in one program, the engines stage by stage: XLA orders and contracts the
# same sums differently. Observed: below 3e-7 after 12 steps of weights of order 1; ten times that is allowed, a wrong
# delay, shrink or statistic is off by more than 1e-3.
ROUNDING = {"rtol": 0, "atol": 3e-6}


class Affine(nn.Module):
    """A layer linear in its weights: what `current` means has one answer only."""

    width: int

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.width)(x)


class Two(nn.Module):
    """A stage of two layers, so that its backward pass goes through a weight matrix of its own."""

    width: int

    @nn.compact
    def __call__(self, x):
        return jnp.tanh(Affine(self.width, name="b")(jnp.tanh(Affine(10, name="a")(x))))


def affine(p, x):
    return x @ p["kernel"] + p["bias"]


def activation(p, x):
    return jnp.tanh(x)


LAYERS_OF_TWO = [affine, activation] * 2


def layered(variables):
    """Variables of stages `Two`, by stage and layer, as an oracle takes and gives them."""
    pairs = [[v["params"][name]["Dense_0"] for name in "ab"] for v in variables]
    return [[first, {}, second, {}] for first, second in pairs]


class Normed(nn.Module):
    """Affine, then the BatchNorm of our networks, whose scale is an argument of its backward pass."""

    width: int

    @nn.compact
    def __call__(self, x, train: bool):
        x = Affine(self.width, name="affine")(x)[:, None, None, :]
        return layers.BatchNorm(name="norm")(x, train)[:, 0, 0, :]


class Dropped(nn.Module):
    width: int

    @nn.compact
    def __call__(self, x, train: bool):
        return nn.Dropout(0.5, deterministic=not train)(nn.Dense(self.width)(x))
