"""Files of tokens that somebody has made before: `--tokens train.bin --validation val.bin`.

A file has raw numbers, as nanoGPT's prepare.py writes them, or is a shard of llm.c and modded-nanogpt. A shard has a
header of 256 int32 (magic, version, number of tokens, then zeros), then the tokens. Several files are one text. They
stay where they are and are read block by block, so memory does not grow with them. They are read once at the beginning,
for their hash and largest token. In their folder two more files are opened: `tokenizer.json`, for its hash, and
`encoded.json`, for the number of bytes that were encoded.
"""

import glob
import hashlib
import importlib
import os
import stat
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from fdg_jax import strict_json
from fdg_jax.data.text import CHUNK, Blocks, OpenFile, Text, without_last_tenth
from fdg_jax.errors import BadInput, Damaged, first_line, reason

HEADER = 256  # int32 numbers
KINDS = {20240520: (1, "<u2"), 20240801: (7, "<u4")}  # magic -> (version, dtype); the second one is llm.c's of Llama 3
MOST = 2**20  # the largest vocabulary
OTHERS = (".pkl", ".npy", ".npz", ".pt", ".json", ".jsonl", ".txt", ".gz", ".zip", ".zst", ".parquet", ".arrow")
TOKENIZER, COUNTS = "tokenizer.json", "encoded.json"  # the latter: {"tokens": N, "bytes": of the text}


class Shards:
    """Files of tokens that are read like one `OpenFile`, one file after another.

    dtype: the dtype of a token. vocabulary: tokens are 0 .. vocabulary-1; reading any other token raises Damaged.
    """

    def __init__(self, flag: str, files: Sequence[Path], dtype: str, vocabulary: int):
        opened = [open_file(flag, path, dtype) for path in files]
        self.flag, self.files, self.vocabulary = flag, [file for file, _, _ in opened], vocabulary
        self.skipped, self.dtype = [skip for _, skip, _ in opened], np.dtype(opened[0][2])
        for file, _, other in opened:
            if np.dtype(other) != self.dtype:
                fact = f"{flag}: {file.path} has {np.dtype(other)} tokens, and {files[0]} has {self.dtype} tokens"
                raise BadInput(f"{fact}. Give files of one dtype.")
        self.ends = list(accumulate(file.size - skip for file, skip in zip(self.files, self.skipped, strict=True)))
        self.size = self.ends[-1]  # bytes of all tokens

    def check(self) -> None:
        """Raises Damaged if a file has been cut short since it was opened."""
        for file in self.files:
            file.check()

    def read(self, start: int, out: np.ndarray) -> None:
        """Fills `out`, whole tokens, with the bytes from `start` on. Raises Damaged where a file ends too early, or a
        token is not in the vocabulary."""
        rest = out.reshape(-1)
        while rest.size:
            number = bisect_right(self.ends, start)
            file, skip = self.files[number], self.skipped[number]
            before = self.ends[number] - (file.size - skip)
            part = rest[: (self.ends[number] - start) // self.dtype.itemsize]
            file.read(skip + start - before, part)
            if part.max() >= self.vocabulary:
                self.refuse(file, (start - before) // self.dtype.itemsize, part)
            start, rest = start + part.nbytes, rest[part.size :]

    def refuse(self, file: OpenFile, first: int, part: np.ndarray) -> None:
        """Raises Damaged for the first token of `part` beyond the vocabulary. first: its number in the file."""
        at = int(np.argmax(part >= self.vocabulary))
        fact = f"{self.flag}: {file.path}: token number {first + at:,} is {part[at]:,}"
        if self.vocabulary == MOST:
            raise Damaged(f"{fact}, and a vocabulary has at most {MOST:,} tokens. The file is damaged or not uint32.")
        raise Damaged(f"{fact}, but --vocabulary {self.vocabulary} ends at {self.vocabulary - 1}. Correct one of them.")

    def digest(self, into: Any) -> int:
        """Adds all tokens to a hash. Returns the largest token. Raises Damaged as `read`."""
        largest, step = 0, CHUNK // self.dtype.itemsize
        for start in range(0, self.size // self.dtype.itemsize, step):
            tokens = np.empty(min(step, self.size // self.dtype.itemsize - start), self.dtype)
            self.read(start * self.dtype.itemsize, tokens)
            into.update(tokens.data)
            largest = max(largest, int(tokens.max()))
        return largest

    def blocks(self, block_size: int) -> tuple[Blocks, Blocks]:
        """Inputs, and labels one token later."""
        n = (self.size // self.dtype.itemsize - 1) // block_size
        inputs, labels = (Blocks(self, shift, n, block_size, self.dtype) for shift in (0, 1))
        return inputs, labels


def load(
    files: Sequence[str],
    block_size: int,
    validation: Sequence[str] = (),
    vocabulary: int | None = None,
    token_dtype: str = "uint16",
) -> Text:
    """Opens files of tokens as a `Text`.

    Arguments:
        files: for training; a pattern such as shards/*.bin stands for all matching files, in the order of their names.
        block_size: tokens of an example.
        validation: for testing; none: the last tenth of the training blocks.
        vocabulary: tokens are 0 .. vocabulary-1; None: the largest token in the files plus 1.
        token_dtype: the dtype of files without a header, uint16 or uint32.

    Raises:
        BadInput: a file cannot be read, is damaged or no file of tokens, has a token beyond the vocabulary, or there
            are too few tokens.
    """
    train, test = listed("--tokens", files), listed("--validation", validation) if validation else []
    if both := [path for path in test if path in train]:
        raise BadInput(f"--validation: {both[0]} is among the training files, too. Leave it out of --tokens.")
    parts, sha256, largest = [], hashlib.sha256(), 0
    for flag, paths in (("--tokens", train), ("--validation", test)):
        if paths:
            parts.append(Shards(flag, paths, np.dtype(token_dtype).newbyteorder("<").str, vocabulary or MOST))
            largest = max(largest, parts[-1].digest(sha256))
    blocks = []
    for part, least in zip(parts, (1 if test else 2, 1), strict=False):
        part.vocabulary = vocabulary or max(2, largest + 1)
        blocks.append(part.blocks(block_size))
        if (n := len(blocks[-1][0])) < least:
            fact = f"{part.flag}: {part.size // part.dtype.itemsize:,} tokens make {n} blocks of --block-size"
            raise BadInput(f"{fact} {block_size}, and {least} are needed. Use more tokens or smaller blocks.")
    if parts[-1].dtype != parts[0].dtype:
        fact = f"--validation has {parts[-1].dtype} tokens, and --tokens has {parts[0].dtype} tokens"
        raise BadInput(f"{fact}. Give files of one dtype.")
    (inputs, labels), tests = blocks[0], blocks[-1]
    four = (inputs, labels, *tests) if test else without_last_tenth(inputs, labels)
    return Text(
        "tokens",
        *four,
        sha256=sha256.hexdigest(),
        files=tuple(path.name for path in (*train, *test)),
        classes=parts[0].vocabulary,
        content=Together(parts),
        tokenizer=tokenizer_sha256(train[0].parent / TOKENIZER),
        bytes_per_token=bytes_per_token((test or train)[0].parent / COUNTS, parts[-1].size // parts[-1].dtype.itemsize),
    )


class Together:
    """The check of several `Shards`."""

    def __init__(self, parts: Sequence[Shards]):
        self.parts = parts

    def check(self) -> None:
        """Raises Damaged if a file has been cut short since it was opened."""
        for part in self.parts:
            part.check()


def listed(flag: str, names: Sequence[str]) -> list[Path]:
    """The files of these names and patterns. Raises BadInput if a pattern matches no file, or a file is listed
    twice."""
    found = []
    for name in map(os.path.expanduser, names):
        there = [name] if os.path.lexists(name) or not glob.has_magic(name) else sorted(glob.glob(name))
        if not there:
            raise BadInput(f"{flag} {name}: no file matches. Name files that exist.")
        found += map(Path, there)
    if not found:
        raise BadInput("--dataset tokens has no data of its own. Name files of tokens with --tokens FILE.")
    if twice := [path for path in found if found.count(path) > 1]:
        raise BadInput(f"{flag}: {twice[0]} is named twice. Name it once.")
    return found


def open_file(flag: str, path: Path, raw: str) -> tuple[OpenFile, int, str]:
    """(the open file, bytes before its first token, dtype). raw: the dtype without a header. Raises BadInput if the
    file's beginning or length shows that it is no file of tokens."""
    way_out = "Name files of tokens (fdg_jax.data encode makes them)"
    if path.suffix in OTHERS:
        raise BadInput(f"{flag}: {path} is not a file of tokens: its name ends in {path.suffix}. {way_out}.")
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a folder, or a pipe, which would wait for a writer
            raise BadInput(f"{flag}: {path} is not a file. {way_out}, or a pattern such as {path}/*.bin.")
        file = OpenFile(path)
    except OSError as error:
        raise BadInput(f"{flag}: {path} cannot be read: {reason(error)}. {way_out}.") from None
    begin = np.empty(min(file.size, CHUNK), np.uint8)
    file.read(0, begin)
    skip, dtype, wrong = header(begin[: 4 * HEADER], file.size) or (0, raw, "")
    if not skip:
        wrong = wrong or without_header(begin, file.size, raw)
    if wrong:
        raise BadInput(f"{flag}: {path} {wrong}.")
    return file, skip, dtype


def header(begin: np.ndarray, size: int) -> tuple[int, str, str] | None:
    """(bytes of the header, dtype of the tokens, what is wrong) if a file begins with a header, even a damaged one;
    else None.

    begin: the first bytes. size: the size of the file in bytes. A header is nearly all zeros, and tokens never are. So
        a header with an unknown or wrong magic number is not taken for tokens.
    """
    magic, version, count = (int(each) for each in begin[:12].view("<i4")) if len(begin) >= 12 else (0, 0, 0)
    if magic not in KINDS:
        zeros = np.mean(begin[12:] == 0) if len(begin) > 64 else 0.0
        again = "begins with a header that is damaged, or neither llm.c's nor modded-nanogpt's. Make the file again"
        return (0, "", again) if zeros > 0.9 else None
    wanted, dtype = KINDS[magic]
    if len(begin) < 4 * HEADER or begin[12:].any():
        return 0, "", "has a damaged header: after magic, version and count 253 zeros must follow. Make the file again"
    if version != wanted:
        return 0, "", f"has a header of version {version}, but must have version {wanted}. Make the file again"
    if count <= 0 or size != 4 * HEADER + count * np.dtype(dtype).itemsize:
        return 0, "", f"has {size:,} bytes, and its header says {count:,} tokens. It is damaged: make the file again"
    return 4 * HEADER, dtype, ""


def without_header(begin: np.ndarray, size: int, dtype: str) -> str:
    """A text on what is wrong with a file of raw numbers; "" if nothing is wrong. Arguments as those of `header`."""
    width = np.dtype(dtype).itemsize
    if not size or size % width:
        fact = f"has {size:,} bytes, which is not a whole number of {np.dtype(dtype)} tokens"
        return f"{fact}. It is damaged: make the file again"
    if len(begin) > 64 and begin.all() and begin.max() < 128:
        return "is text, not tokens. Train on its bytes with --text, or turn it into tokens with fdg_jax.data encode"
    words = begin[: len(begin) // 4 * 4].view("<u2").reshape(-1, 2)
    if width == 2 and len(words) >= 16 and words[:, 1].max() < 16 <= words[:, 0].max():
        return "has uint32 tokens: every second 16-bit number in it is below 16. Add --token-dtype uint32"
    return ""


def bytes_per_token(path: Path, tokens: int) -> float | None:
    """Bytes of text for each token, from the file that `encode` wrote beside its shards; None without this file, or if
    it has another number of tokens."""
    try:
        found = strict_json.parse(path.read_bytes())
        return found["bytes"] / tokens if found["tokens"] == tokens else None
    except (OSError, ValueError, TypeError, KeyError, IndexError):
        return None


def tokenizer_sha256(path: Path) -> str | None:
    """The hash of the tokenizer beside the tokens, if there is one. Raises BadInput if it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
    except OSError as error:
        raise BadInput(f"{path}, the tokens' tokenizer, cannot be read: {reason(error)}. Repair or move it.") from None


def tokenizer_of(path: str) -> Any:
    """The tokenizer in a file. Raises BadInput if the package is missing, or if the file holds no tokenizer."""
    try:
        package = importlib.import_module("tokenizers")
    except ImportError as error:
        raise BadInput(f"a tokenizer needs the package tokenizers ({reason(error)}): pip install tokenizers.") from None
    try:
        return package.Tokenizer.from_file(path)
    except Exception as error:  # the package raises plain ones
        raise BadInput(f"{path} is not a tokenizer: {first_line(error)}. Give a tokenizer.json.") from None
