"""Decoder-only transformers: each token sees those before it, and the network predicts the next one.

Pre-norm blocks (x + attention(norm(x)), then x + mlp(norm(x))), root-mean-square norms, GELU, no biases, heads of 32
channels. Weights start as in GPT-2: normal with deviation 0.02, divided by sqrt(2 layers) where a residual branch ends.
The paper trains no transformers, so the authors give no split. Elsewhere, pipelines are often used for them.
`transformer<layers>x<width>` gives any size.
Block numbers: 0 embedding, 1..layers the layers, layers+1 head (norm first).

Tied embeddings: the head's matrix is the embedding's. It belongs to stage 1, which passes it on beside the activations,
through all stages; its gradient comes back the same way. So the head uses the same version of the table as the
embedding of its batch, and the gradient is complete. This costs a message of vocabulary x width numbers between stages.
"""

import dataclasses
import re
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from fdg_jax.layers.sequence import CausalAttention, Dense, RMSNorm
from fdg_jax.options.fields import option

NAMES = {
    "transformer4x64": {"layers": 4, "width": 64},
    "transformer8x64": {"layers": 8, "width": 64},
    "transformer8x256": {"layers": 8, "width": 256},
}
PATTERNS = ("transformer<layers>x<width> (width a multiple of 32)",)
TAKES = "tokens"
HEAD = 32  # channels of an attention head
DEVIATION = 0.02


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of transformers."""

    dropout: float = option(
        0.0,
        "Transformers: the share of activations that dropout drops, after the embedding and in every branch.",
        inside="[0, 1)",
    )
    positions: Literal["rotary", "learned"] = option(
        "rotary",
        "Transformers: how tokens know their positions. rotary turns queries and keys; learned adds a vector for each "
        "place in a block.",
    )
    tied: bool = option(
        False, "Transformers: use the embedding's table in the head as well. It then passes through all stages."
    )


def arguments(name: str) -> dict[str, Any] | None:
    """The arguments of `blocks` for transformer<layers>x<width>, width a multiple of 32; None for any other name."""
    match = re.fullmatch(r"transformer([1-9]\d{0,2})x([1-9]\d{1,4})", name)
    layers, width = (int(match[1]), int(match[2])) if match else (0, 1)
    return {"layers": layers, "width": width} if width % HEAD == 0 else None


class Embedding(nn.Module):
    """Tokens [b, T] int32 -> [b, T, width], with the table [vocabulary, width] beside it if `tied`."""

    vocabulary: int
    width: int
    dropout: float
    learned: bool
    tied: bool

    @nn.compact
    def __call__(self, tokens: jax.Array, train: bool) -> Any:
        normal = nn.initializers.normal(DEVIATION)
        table = self.param("table", normal, (self.vocabulary, self.width), jnp.float32)
        x = jnp.take(table, tokens, axis=0)
        if self.learned:
            x = x + self.param("positions", normal, (tokens.shape[1], self.width), jnp.float32)
        x = nn.Dropout(self.dropout, deterministic=not train)(x)
        return (x, table) if self.tied else x


class Layer(nn.Module):
    """x + attention(norm(x)), and then x + mlp(norm(x)): [b, T, width] -> the same. A table beside x passes through.

    shrink: the initial values of the last matrix of each branch are divided by this.
    """

    heads: int
    dropout: float
    rotary: bool
    shrink: float

    @nn.compact
    def __call__(self, x: Any, train: bool) -> Any:
        x, *table = x if isinstance(x, tuple) else (x,)
        normal = nn.initializers.normal(DEVIATION)
        ending = nn.initializers.normal(DEVIATION / self.shrink)

        def dropped(y):
            return nn.Dropout(self.dropout, deterministic=not train)(y)

        attention = CausalAttention(self.heads, self.rotary, normal, ending, name="attention")
        x = x + dropped(attention(RMSNorm(name="attention_norm")(x)))
        y = RMSNorm(name="mlp_norm")(x)
        y = jax.nn.gelu(Dense(4 * x.shape[-1], normal, name="wide")(y))
        y = Dense(x.shape[-1], ending, name="narrow")(y)
        x = x + dropped(y)
        return (x, *table) if table else x


class Head(nn.Module):
    """The last norm and a matrix: [b, T, width] -> logits [b, T, vocabulary]. A table beside x is the matrix."""

    vocabulary: int

    @nn.compact
    def __call__(self, x: Any) -> jax.Array:
        x, *table = x if isinstance(x, tuple) else (x,)
        x = RMSNorm(name="norm")(x)
        if table:
            return x @ table[0].astype(x.dtype).T
        normal = nn.initializers.normal(DEVIATION)
        return Dense(self.vocabulary, normal, name="scores")(x)


def blocks(
    classes: int, *, layers: int, width: int, dropout: float = 0.0, positions: str = "rotary", tied: bool = False
) -> list[nn.Module]:
    """The layers + 2 blocks. classes: the vocabulary."""
    rotary, shrink = positions == "rotary", (2 * layers) ** 0.5
    inner = [Layer(width // HEAD, dropout, rotary, shrink) for _ in range(layers)]
    return [Embedding(classes, width, dropout, not rotary, tied), *inner, Head(classes)]
