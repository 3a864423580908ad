"""Samples of a language model. Tokens are drawn one after another, each from the logits after the tokens before it.

Each token costs a forward pass over a whole block, since nothing is cached between tokens. So sampling needs no other
form of the network: every model, split and device that can evaluate can also sample.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fdg_jax.config import Config
from fdg_jax.data.source import Source
from fdg_jax.data.texts.tokens import TOKENIZER, tokenizer_of, tokenizer_sha256
from fdg_jax.errors import BadInput
from fdg_jax.options.fields import said

LENGTH = 100  # tokens of a sample in a run


class Codec(NamedTuple):
    """encode: a text -> its tokens. decode: tokens -> their text."""

    encode: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]


def bytes_codec() -> Codec:
    """A token is a byte of UTF-8."""
    return Codec(lambda text: [*text.encode()], lambda tokens: bytes(tokens).decode(errors="replace"))


def codec_of(options: Config, tokenizer: str | None = None, sha256: str | None = None) -> Codec:
    """How text becomes the tokens of a run: by bytes, by a tokenizer, or as token numbers separated by spaces.

    Arguments:
        tokenizer: the tokenizer's file; None: the file beside the run's tokens, if there is one.
        sha256: the hash of the tokenizer that the run was made with, if it is known.

    Raises:
        BadInput: the tokenizer is not the run's, or cannot be read.
    """
    if options.dataset != "tokens":
        return bytes_codec()
    if tokenizer is None:
        beside = Path((options.tokens or "").split(os.pathsep)[0]).expanduser().parent / TOKENIZER
        if not beside.is_file():
            return Codec(numbers, lambda tokens: " ".join(map(str, tokens)))
        tokenizer = str(beside)
    made = tokenizer_of(tokenizer)
    if sha256 and tokenizer_sha256(Path(tokenizer)) != sha256:
        raise BadInput(f"{tokenizer} is not the run's tokenizer: its sha256 does not begin with {sha256[:16]}.")
    return Codec(lambda text: made.encode(text, add_special_tokens=False).ids, lambda tokens: made.decode([*tokens]))


def numbers(text: str) -> list[int]:
    """The tokens in a text such as "5 17 3". Raises BadInput for anything else."""
    try:
        return [int(word) for word in text.split()]
    except ValueError:
        fact = "there is no tokenizer beside the tokens, so the text must be given as numbers of tokens"
        raise BadInput(f"{said('sample', text)}: {fact}. Separate them by spaces, as in '5 17 3'.") from None


def start_of(text: str, codec: Codec, classes: int) -> list[int]:
    """The tokens of the text that a sample begins with. Raises BadInput if there are none, or the network has no such
    token."""
    tokens = codec.encode(text)
    if not tokens or not all(0 <= each < classes for each in tokens):
        fact = f"{said('sample', text)} makes {len(tokens)} tokens, but needs at least one, all from 0 to"
        raise BadInput(f"{fact} {classes - 1}. Give a text that the network's tokens can express.")
    return tokens


def sampled(options: Config, dataset: Source) -> tuple[Codec, list[int]] | None:
    """(the codec, the tokens that samples begin with) for --sample; None without --sample. Raises BadInput."""
    if options.sample is None:
        return None
    codec = codec_of(options)
    return codec, start_of(options.sample, codec, dataset.classes)


def continued(
    scores: Callable[[np.ndarray], Any],
    start: Sequence[int],
    length: int,
    T: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    seed: int = 0,
) -> list[int]:
    """`start`, and `length` tokens after it. The same seed gives the same tokens.

    Arguments:
        scores: [T] tokens -> [T, classes], the logits after each token, which must not depend on later tokens.
        start: at least one token.
        T: tokens of a block; the network sees the last T.
        temperature: divides the logits; 0 takes the largest.
        top_k: draws from the top_k tokens with the largest logits only; None: from all.
        seed: of NumPy's RandomState, whose stream never changes.
    """
    random, tokens = np.random.RandomState(seed), list(start)
    for _ in range(length):
        seen, block = tokens[-T:], np.zeros(T, np.int32)
        block[: len(seen)] = seen
        found = np.asarray(scores(block), np.float64)[len(seen) - 1]
        if top_k and top_k < len(found):
            found = np.where(found < np.sort(found)[-top_k], -np.inf, found)
        noise = random.gumbel(size=len(found))  # the largest of logits + noise is a draw from their softmax
        tokens.append(int(np.argmax(found / temperature + noise if temperature else found)))
    return tokens
