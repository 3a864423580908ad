"""`python -m fdg_jax.data encode`: makes files of tokens from text, with a tokenizer of the package tokenizers."""

import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from fdg_jax.data.texts.tokens import COUNTS, HEADER, KINDS, TOKENIZER, tokenizer_of
from fdg_jax.errors import BadInput, first_line, reason
from fdg_jax.machine import output
from fdg_jax.options.parser import Parser

PIECE = 2**24  # characters that are encoded at once, which bounds the memory


def pieces(path: Path) -> Iterator[str]:
    """Yields the text of a file. A long text comes in parts that end with a line. Raises BadInput if the file is not
    UTF-8."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            while part := file.read(PIECE):
                yield part + file.readline()
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not text in UTF-8: {first_line(error)}. Convert it, or leave it out.") from None
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {reason(error)}. Name files of text.") from None


class Shard:
    """A file of tokens with llm.c's header. The header gets the number of tokens when the file is complete."""

    def __init__(self, path: Path, magic: int):
        self.magic, (self.version, self.dtype) = magic, KINDS[magic]
        self.count, self.file = 0, path.open("xb")
        self.file.write(bytes(4 * HEADER))

    def write(self, tokens: Sequence[int]) -> None:
        self.file.write(np.asarray(tokens, self.dtype).tobytes())
        self.count += len(tokens)

    def close(self) -> None:
        self.file.seek(0)
        self.file.write(np.asarray([self.magic, self.version, self.count], "<i4").tobytes())
        self.file.close()


def encode(files: Sequence[str], tokenizer: str, out: Path, most: int, end: str | None) -> str:
    """Writes the shards OUT/tokens_000000.bin, ..., a copy of the tokenizer, and the numbers of tokens and bytes.
    Returns a line on what was written.

    most: tokens in a full shard. end: the text of a token that is put after each file. Raises BadInput; OSError if a
        shard cannot be written.
    """
    made = tokenizer_of(tokenizer)
    last = [] if end is None else [made.token_to_id(end)]
    if last == [None]:
        raise BadInput(f"--end {end}: the tokenizer has no such token. Name a token that it has, or leave --end out.")
    for path in map(Path, files):
        for _ in pieces(path):  # a file that cannot be read is refused before anything is written
            pass
    out.mkdir(parents=True, exist_ok=True)
    if there := sorted(out.glob("*.bin")):
        raise BadInput(f"--out {out} holds {there[0].name} already. Name an empty folder.")
    vocabulary, shards, total = max(made.get_vocab().values(), default=0) + 1, [], 0
    magic = next(magic for magic, (_, dtype) in KINDS.items() if vocabulary <= 2 ** (8 * np.dtype(dtype).itemsize))
    if Path(tokenizer).resolve() != (out / TOKENIZER).resolve():
        shutil.copyfile(tokenizer, out / TOKENIZER)
    for path in map(Path, files):
        parts = (made.encode(text, add_special_tokens=False).ids for text in pieces(path))
        for ids in (*parts, last) if last else parts:
            total += len(ids)
            while ids:
                if not shards or shards[-1].count == most:
                    if shards:
                        shards[-1].close()
                    shards.append(Shard(out / f"tokens_{len(shards):06d}.bin", magic))
                room = most - shards[-1].count
                shards[-1].write(ids[:room])
                ids = ids[room:]
    if not shards:
        raise BadInput(f"{', '.join(files)}: these files hold no text. Name other files.")
    shards[-1].close()
    counts = {"tokens": total, "bytes": sum(Path(path).stat().st_size for path in files)}
    (out / COUNTS).write_text(json.dumps(counts), encoding="utf-8")
    pattern = os.path.join(out, "tokens_*.bin")
    return f"{total:,} tokens in {len(shards)} files. Train: --tokens '{pattern}' --vocabulary {vocabulary}"


@output.command
def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code: 0, or 2 for bad input."""
    parser = Parser(prog="python -m fdg_jax.data", description="Makes files of tokens from text.")
    made = parser.add_subparsers(dest="command", required=True, metavar="encode").add_parser(
        "encode",
        help="make files of tokens from text",
        description="Writes token files with llm.c's header, for --tokens, and a copy of the tokenizer. A text of more "
        " than 16 million characters is encoded in parts, cut at ends of lines.",
    )
    made.add_argument("files", metavar="FILE", nargs="+", help="Texts in UTF-8.")
    made.add_argument("--tokenizer", required=True, metavar="FILE", help="A tokenizer.json of the package tokenizers.")
    made.add_argument("--out", required=True, metavar="DIR", type=Path, help="A new folder for the shards.")
    made.add_argument("--end", metavar="TOKEN", help="Token to add after each file, as <|endoftext|>. Default: none.")
    about = "The largest number of tokens in a file. Default: 100,000,000."
    made.add_argument("--shard-size", metavar="N", type=int, default=10**8, help=about)
    given = parser.parse_args(arguments)
    if given.shard_size < 1:
        raise BadInput(f"--shard-size {given.shard_size}: it must be 1 or more. Leave it out for 100,000,000.")
    try:
        print(encode(given.files, given.tokenizer, given.out, given.shard_size, given.end))
    except OSError as error:
        raise BadInput(f"--out {given.out} cannot be written: {reason(error)}. Name another folder.") from None
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
