"""Decoder-only transformers: each token sees the tokens before it, and the network predicts the next token.

Pre-norm blocks: x + attention(norm(x)), then x + mlp(norm(x)). Weights start as in GPT-2 and nanoGPT: normal with
deviation 0.02, divided by sqrt(2 layers) where a residual branch ends; biases are 0. The paper trains no transformers,
so the authors give no split. Other pipelines are often used for transformers. `transformer<layers>x<width>` gives any
size: root-mean-square norms, GELU, no biases, rotary positions, heads of 32 channels. Options change each of these.

Networks that others have published set these options, and the length of a block, by their names (`DEFAULTS`):

- `gpt2`, `gpt2-medium` (Radford et al. 2019). fdg_jax.gpt2 reads and writes their published weights.
- `nanogpt-shakespeare`, `nanogpt-cpu`: nanoGPT's for characters. Its GELU is exact, ours is GPT-2's approximation.
- `asyncpp` (Ajanthan et al. 2025, arXiv 2505.01099), `rotation32` (Jung et al. 2026, arXiv 2602.03515), whose code
  builds on that of asyncpp. In that code queries, keys and values have no bias, and the head has one. Ours have a bias
  for queries, keys and values, and none in the head.

Deviation from all of these: the softmax of the attention has no dropout, and `--dropout` stays 0 unless it is given.

Block numbers: 0 embedding, 1..layers the layers, layers+1 head (norm first).

Tied embeddings: the head's matrix is the embedding's. The matrix belongs to stage 1, which passes it on beside the
activations, through all stages. Its gradient comes back the same way. So for each batch the head and the embedding use
the same version of the table, and the gradient is complete. This costs a message of vocabulary x width numbers between
stages.
"""

import dataclasses
import math
import re
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from fdg_jax.errors import BadInput
from fdg_jax.layers import EMBED, HIDDEN, VOCABULARY, named
from fdg_jax.layers.sequence import CausalAttention, Dense, LayerNorm, RMSNorm
from fdg_jax.options.fields import option, said

NAMES = {
    "transformer4x64": {"layers": 4, "width": 64},
    "transformer8x64": {"layers": 8, "width": 64},
    "transformer8x256": {"layers": 8, "width": 256},
    "gpt2": {"layers": 12, "width": 768},
    "gpt2-medium": {"layers": 24, "width": 1024},
    "nanogpt-shakespeare": {"layers": 6, "width": 384},
    "nanogpt-cpu": {"layers": 4, "width": 128},
    "asyncpp": {"layers": 8, "width": 768},
    "rotation32": {"layers": 32, "width": 384},
}
GPT2 = {"positions": "learned", "tied": True, "norm": "layer", "biases": True, "block_size": 1024}
NANOGPT = {**GPT2, "biases": False}
GPTN = {**GPT2, "tied": False, "mlp": "relu", "block_size": 512}
DEFAULTS = {
    "gpt2": {**GPT2, "heads": 12},
    "gpt2-medium": {**GPT2, "heads": 16},
    "nanogpt-shakespeare": {**NANOGPT, "heads": 6, "block_size": 256},
    "nanogpt-cpu": {**NANOGPT, "heads": 4, "block_size": 64},
    "asyncpp": {**GPTN, "heads": 12},
    "rotation32": {**GPTN, "heads": 6},
}
PATTERNS = ("transformer<layers>x<width> (width a multiple of 32)",)
TAKES = "tokens"
HEAD = 32  # channels of an attention head, unless --heads says how many there are
DEVIATION = 0.02


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of transformers. Published networks have defaults of their own (DEFAULTS)."""

    dropout: float = option(
        0.0,
        "Transformers: dropout rate, after the embedding and in every residual branch.",
        inside="[0, 1)",
    )
    positions: Literal["rotary", "learned"] = option(
        "rotary",
        "Transformers: how positions are encoded. rotary: queries and keys are rotated; learned: a learned vector for "
        "each position is added.",
    )
    tied: bool = option(
        False, "Transformers: the head uses the embedding's weights, which are then sent through all stages."
    )
    heads: int | None = option(
        None, "Transformers: attention heads.", metavar="N", inside="[1, inf)", shown="of 32 channels each"
    )
    kv_heads: int | None = option(
        None, "Transformers: heads of keys and values, each shared by several query heads.", metavar="N",
        inside="[1, inf)", shown="as many as --heads",
    )  # fmt: skip
    norm: Literal["rms", "layer"] = option("rms", "Transformers: RMSNorm or LayerNorm.")
    biases: bool = option(False, "Transformers: biases in linear layers and LayerNorms.")
    mlp: Literal["gelu", "relu", "swiglu"] = option(
        "gelu", "Transformers: the activation function of the MLP. swiglu has three smaller matrices, so that the "
        "MLP has as many parameters."
    )
    qk_norm: bool = option(False, "Transformers: normalise the queries and keys of every head.")


def arguments(name: str) -> dict[str, Any] | None:
    """The arguments of `blocks` for transformer<layers>x<width>, width a multiple of 32; None for any other name."""
    match = re.fullmatch(r"transformer([1-9]\d{0,2})x([1-9]\d{1,4})", name)
    layers, width = (int(match[1]), int(match[2])) if match else (0, 1)
    return {"layers": layers, "width": width} if width % HEAD == 0 else None


def norm(options: Options, name: str) -> nn.Module:
    """The norm that the options ask for."""
    return LayerNorm(options.biases, name=name) if options.norm == "layer" else RMSNorm(name=name)


class Embedding(nn.Module):
    """Tokens [b, T] int32 -> [b, T, width], with the table [vocabulary, width] beside it if embeddings are tied."""

    vocabulary: int
    width: int
    options: Options

    @nn.compact
    def __call__(self, tokens: jax.Array, train: bool) -> Any:
        normal = nn.initializers.normal(DEVIATION)
        table = self.param("table", named(normal, VOCABULARY, EMBED), (self.vocabulary, self.width), jnp.float32)
        x = jnp.take(table, tokens, axis=0)
        if self.options.positions == "learned":
            x = x + self.param("positions", normal, (tokens.shape[1], self.width), jnp.float32)
        x = nn.Dropout(self.options.dropout, deterministic=not train)(x)
        return (x, table) if self.options.tied else x


class Layer(nn.Module):
    """x + attention(norm(x)), and then x + mlp(norm(x)): [b, T, width] -> the same. A table beside x passes through.

    shrink: the initial values of the last matrix of each branch are divided by this.
    """

    options: Options
    heads: int
    shrink: float

    @nn.compact
    def __call__(self, x: Any, train: bool) -> Any:
        x, *table = x if isinstance(x, tuple) else (x,)
        normal, o = nn.initializers.normal(DEVIATION), self.options
        ending = nn.initializers.normal(DEVIATION / self.shrink)

        def dropped(y):
            return nn.Dropout(o.dropout, deterministic=not train)(y)

        drawn, rotary = (normal, ending), o.positions == "rotary"
        attention = CausalAttention(self.heads, rotary, *drawn, o.kv_heads, o.biases, o.qk_norm, name="attention")
        x = x + dropped(attention(norm(o, "attention_norm")(x)))
        y, gated = norm(o, "mlp_norm")(x), o.mlp == "swiglu"
        inner = HEAD * math.ceil(x.shape[-1] / 12) if gated else 4 * x.shape[-1]  # 8/3 of the width, rounded up
        y = Dense((1 + gated) * inner, normal, o.biases, (EMBED, HIDDEN), name="wide")(y)
        if gated:
            gate, y = jnp.split(y, 2, axis=-1)
            y = jax.nn.silu(gate) * y
        else:
            y = getattr(jax.nn, o.mlp)(y)
        y = Dense(x.shape[-1], ending, o.biases, (HIDDEN, EMBED), name="narrow")(y)
        x = x + dropped(y)
        return (x, *table) if table else x


class Head(nn.Module):
    """The last norm and a matrix: [b, T, width] -> logits [b, T, vocabulary]. A table beside x is the matrix."""

    vocabulary: int
    options: Options

    @nn.compact
    def __call__(self, x: Any) -> jax.Array:
        x, *table = x if isinstance(x, tuple) else (x,)
        x = norm(self.options, "norm")(x)
        if table:
            return x @ table[0].astype(x.dtype).T
        normal = nn.initializers.normal(DEVIATION)
        return Dense(self.vocabulary, normal, axes=(EMBED, VOCABULARY), name="scores")(x)


def blocks(classes: int, *, layers: int, width: int, **options: Any) -> list[nn.Module]:
    """The layers + 2 blocks. classes: the vocabulary. options: those of `Options`. Raises BadInput if the heads do not
    fit the width."""
    o = Options(**options)
    heads = o.heads or width // HEAD
    if width % heads or (o.positions == "rotary" and width // heads % 2):
        fact = f"{said('heads', heads)}: a width of {width} cannot be divided into so many equal heads"
        even = ", each of an even width for rotary positions" if o.positions == "rotary" else ""
        raise BadInput(f"{fact}{even}. Use {width // HEAD}, say.")
    if o.kv_heads and heads % o.kv_heads:
        fact = f"{said('kv_heads', o.kv_heads)}: {heads} query heads cannot share {o.kv_heads} key/value heads evenly"
        raise BadInput(f"{fact}. Use a divisor of {heads}.")
    inner = [Layer(o, heads, (2 * layers) ** 0.5) for _ in range(layers)]
    return [Embedding(classes, width, o), *inner, Head(classes, o)]


def flops(classes: int, parameters: int, T: int, *, layers: int, width: int, **options: Any) -> int:
    """FLOPs of training on a token: 6 N + 12 L C T, as nanoGPT and PaLM's authors (Chowdhery et al. 2022) count.

    N: the parameters that multiply something. Learned positions do not count, nor does the embedding's table unless the
        head uses it. L: layers. C: the width. Attention is counted as if a token saw the whole block of T.
    """
    o = Options(**options)
    unused = (T * width if o.positions == "learned" else 0) + (0 if o.tied else classes * width)
    return 6 * (parameters - unused) + 12 * layers * width * T
