"""Files of tokens as nanoGPT and llm.c document them, written without the library, and damaged ones."""

from pathlib import Path
from random import Random

import numpy as np

VOCABULARY = 50257


def tokens(n: int, seed: int = 0, vocabulary: int = VOCABULARY) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, vocabulary, n).astype(np.uint16)


def nanogpt(path: Path, values: np.ndarray) -> Path:
    """As nanoGPT's prepare.py: `np.array(ids, dtype=np.uint16).tofile("train.bin")`."""
    values.tofile(path)
    return path


def llm_c(path: Path, values: np.ndarray) -> Path:
    """As `write_datafile` of llm.c's dev/data/data_common.py, which modded-nanogpt took over."""
    header = np.zeros(256, dtype=np.int32)
    header[:3] = 20240520, 1, len(values)
    path.write_bytes(header.tobytes() + values.astype(np.uint16).tobytes())
    return path


def damaged(path: Path, number: int) -> tuple[str, np.ndarray]:
    """Writes a damaged file. Returns (what was done, the tokens before). Its content shows the damage, unless raw
    numbers are "shorter": those that are left are the first ones."""
    random = Random(number)
    values = tokens(random.randint(100, 3000), number)
    if random.random() < 0.3:  # raw numbers
        content = bytearray(nanogpt(path, values).read_bytes())
        kind = random.choice(("odd", "empty", "beyond", "shorter"))
    else:
        content = bytearray(llm_c(path, values).read_bytes())
        kind = random.choice(("cut", "grown", "magic", "version", "count", "zeros", "beyond", "swapped"))
    if kind in ("odd", "cut"):
        del content[random.randrange(13, len(content)) | 1 if kind == "odd" else random.randrange(70, len(content)) :]
    elif kind == "shorter":
        del content[2 * random.randrange(66, len(values)) :]
    elif kind == "empty":
        content.clear()
    elif kind == "grown":
        content += random.randbytes(random.randint(1, 300))
    elif kind == "beyond":
        at = len(content) - 2 * random.randint(1, len(values))
        content[at : at + 2] = random.randint(VOCABULARY, 65535).to_bytes(2, "little")
    elif kind == "swapped":  # as a machine of the other byte order would write it
        content[:1024] = np.frombuffer(content[:1024], "<i4").astype(">i4").tobytes()
    else:
        start, end = {"magic": (0, 4), "version": (4, 8), "count": (8, 12), "zeros": (12, 1024)}[kind]
        at = random.randrange(start, end)
        content[at] ^= 1 << random.randrange(8)
    path.write_bytes(content)
    return kind, values
