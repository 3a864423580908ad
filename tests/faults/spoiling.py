"""What is done to files that somebody might make up or damage."""

import json
import os
import random
from pathlib import Path

from fdg_jax.runs.run_files import METRICS

RAW = {  # JSON that Python's writer would not write
    "endless": "1e999", "digits": "1" * 5000, "-digits": "-" + "9" * 400, "nan": "NaN", "infinity": "-Infinity",
    "deep": "[" * 100_000, "nested": "[" * 500 + "]" * 500, "objects": '{"a":' * 60 + "1" + "}" * 60, "broken": "{",
    "half": '"\\ud800"', "exponent": "1e308", "tiny": "1e-320", "minus": "-0.0",
}  # fmt: skip
HOSTILE = [
    None, True, False, 0, 1, -1, 7, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 0.5, -1.5, 1e20, 1e39, 1e300, [], {}, [[]],
    [None], ["<u>"], {"<u>": "<u>"}, "", "x", "auto", "none", "1", "paper", "measured", "sgd", "cifar10", " ", "\n\n",
    "\0", "\x1b[31m", "\u202e", "é" * 50, "a" * 100_000, "<script>open('/ran','w')</script>", "</title><u>",
    "<img src=x onerror=y>", '" onload="y', "' onload='y", "]]></svg><u>", "&lt;u&gt;<u>", "$\\frac{$", "$x$",
    "{title}", "{0.__class__}", "%s%n", "__import__('os').system('touch ran')", "../../ran", "file:///etc/passwd",
    "`touch ran`", "$(touch ran)", "; touch ran",
]  # fmt: skip


def places(value, path=()):
    """The paths of everything in a JSON value."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from places(each, (*path, key))


def spoilt_value(rng: random.Random, content: dict) -> str:
    """The JSON of an object in which one to three values are others, gone or under another name."""
    content = json.loads(json.dumps(content))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        path = rng.choice([path for path in places(content) if path] or [("x",)])
        holder = content
        for key in path[:-1]:
            holder = holder[key]
        how, hostile = rng.random(), rng.choice([*HOSTILE, *(f"@{name}@" for name in RAW)])
        if path == ("x",):  # nothing is left to spoil
            holder["x"] = hostile
        elif how < 0.1:
            del holder[path[-1]]
        elif how < 0.2 and isinstance(holder, dict):
            holder[hostile if isinstance(hostile, str) else "<u>"] = holder.pop(path[-1])
        else:
            holder[path[-1]] = hostile
    text = json.dumps(content)
    for name, raw in RAW.items():
        text = text.replace(f'"@{name}@"', raw)
    return text


def spoilt_bytes(rng: random.Random, content: bytes) -> bytes:
    at = rng.randrange(len(content) + 1)
    flipped = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 20)) if content else 0):
        flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
    return rng.choice([
        content[:at], bytes(flipped), bytes(flipped), bytes(flipped), b"", bytes(len(content)), content + content[at:],
        content[:at] + rng.randbytes(9) + content[at:], b"\xef\xbb\xbf" + content,
        content.decode(errors="replace").encode("utf-16"),
        b"null", b"[]", b"3", b'"text"', b"{}", RAW["deep"].encode(), rng.randbytes(99), content.replace(b"\n", b"\r"),
    ])  # fmt: skip


def spoil(rng: random.Random, file: Path) -> str:
    """Does something to a file; what it was."""
    if not file.is_file() or file.is_symlink():
        return "nothing"
    content, how = file.read_bytes(), rng.random()
    if how < 0.65:
        lines = content.splitlines(keepends=True) if file.name == METRICS else [content]
        n = rng.randrange(len(lines)) if lines else 0
        try:
            lines[n : n + 1] = [spoilt_value(rng, json.loads(lines[n])).encode() + b"\n"]
        except (ValueError, TypeError, IndexError, RecursionError):  # it has been spoilt before
            return "nothing"
        file.write_bytes(b"".join(lines))
        return "values"
    if how < 0.9:
        file.write_bytes(spoilt_bytes(rng, content))
        return "bytes"
    file.unlink()
    kind = rng.choice(["gone", "folder", "pipe", "dangling", "loop", "device", "unreadable"])
    if kind == "folder":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind in ("dangling", "loop", "device"):
        file.symlink_to({"dangling": "nowhere", "loop": file.name, "device": "/dev/zero"}[kind])
    elif kind == "unreadable":
        file.symlink_to("/proc/self/mem")  # also for root
    return kind
