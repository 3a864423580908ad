"""The layers that the models and the auxiliary networks share, and the convolutions behind them."""

from fdg_jax.layers.basic import (
    EPSILON,
    MOMENTUM,
    BatchNorm,
    Conv,
    Head,
    Initializer,
    batch_norm,
    he_fan_out,
    relu,
    relu6,
    three_layers,
    torch_linear,
)

__all__ = [
    "EPSILON",
    "MOMENTUM",
    "BatchNorm",
    "Conv",
    "Head",
    "Initializer",
    "batch_norm",
    "he_fan_out",
    "relu",
    "relu6",
    "three_layers",
    "torch_linear",
]
