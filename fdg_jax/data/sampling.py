"""Samples of a language model: tokens drawn one after another, each from the scores after those before it.

Each token costs a forward pass over a whole block, as nothing of the one before is kept. So a network needs no other
form for sampling, and every model, split and device that evaluates also samples.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

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


def codec_of(options: Any, tokenizer: str | None = None, sha256: str | None = None) -> Codec:
    """How text becomes the tokens of a run: by bytes, by a tokenizer, or as their numbers, with spaces between.

    Arguments:
        options: those of the run (fdg_jax.config.Config).
        tokenizer: its file; None: the one beside the run's tokens, if it is there.
        sha256: of the one that the run was made with, if it is known.

    Raises:
        BadInput: it is another tokenizer, or cannot be read.
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
        fact = "there is no tokenizer beside the tokens, so a sample begins with their numbers"
        raise BadInput(f"{said('sample', text)}: {fact}. Write them with spaces, such as '5 17 3'.") from None


def start_of(text: str, codec: Codec, classes: int) -> list[int]:
    """The tokens of the text that a sample begins with. Raises BadInput if there are none, or one is not known."""
    tokens = codec.encode(text)
    if not tokens or not all(0 <= each < classes for each in tokens):
        fact = f"{said('sample', text)} has {len(tokens)} tokens; the network knows the tokens from 0 to {classes - 1}"
        raise BadInput(f"{fact}. Begin a sample with at least one token, and with known tokens only.")
    return tokens


def sampled(options: Any, classes: int) -> tuple[Codec, list[int]] | None:
    """(how text becomes tokens, the tokens that samples begin with) of --sample; None without it. Raises BadInput."""
    if options.sample is None:
        return None
    codec = codec_of(options)
    return codec, start_of(options.sample, codec, classes)


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
        scores: [T] tokens -> [T, classes], the logits after each of them, which must not depend on later ones.
        start: at least one token.
        T: tokens of a block; the network sees the last T.
        temperature: divides the logits; 0 takes the largest.
        top_k: draws from so many tokens, those of the largest logits; None: from all.
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
