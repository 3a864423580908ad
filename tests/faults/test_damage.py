"""No byte of a checkpoint can change unnoticed: the one before is used instead, aloud, and is what it was."""

from random import Random
from typing import NamedTuple

import numpy as np
import pytest
from small import batches, pipeline

from fdg_jax.checkpoint import run_checkpoints
from fdg_jax.checkpoint import state as states

DATA = batches(5)


class Kept(NamedTuple):
    """Checkpoints of a pipeline, one whose batches are in flight; the files of the newest; sha256 of the others."""

    root: object
    newest: object
    files: list
    before: str


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    root, ours, hashes = tmp_path_factory.mktemp("kept"), pipeline(2, DATA[0], guard=True), []
    saver = run_checkpoints.Saver(root, {"jax": "0"}, keep=2)
    for step, batch in enumerate(DATA, 1):
        ours.step(batch)
        saver.save(step, ours.snapshot(), {"step": step, "pending": np.arange(3.0)})
        hashes.append(ours.state_sha256())
    saver.wait()
    newest = run_checkpoints.stored(root)[-1]
    return Kept(root, newest, sorted(file for file in newest.rglob("*") if file.is_file()), hashes[-2])


def ends_in_the_one_before(kept: Kept, file, content: bytes | None, capsys) -> None:
    """Puts other content into a file of the newest checkpoint (None: deletes it), reads, and puts the old one back."""
    good = file.read_bytes()
    file.unlink() if content is None else file.write_bytes(content)
    aside = kept.root / f"damaged-{kept.newest.name}"
    try:
        found = run_checkpoints.load_newest(kept.root)
        assert aside.is_dir() and not kept.newest.exists()
        assert found is not None and int(found[1]["step"]) == len(DATA) - 1
        assert states.sha256(found[0]) == kept.before
        err = capsys.readouterr().err
        assert err.count("\n") == 1 and f"Put aside as {aside.name}" in err
    finally:
        if aside.exists():
            aside.rename(kept.newest)
        file.write_bytes(good)


def flip(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@pytest.fixture(params=[pytest.param(40, id="40"), pytest.param(500, id="500", marks=pytest.mark.slow)])
def flips(request):
    return request.param


@pytest.mark.slow
def test_no_flipped_bit_is_silent(flips, kept, capsys, tell):
    random, seen = Random(f"flip {flips}"), set()
    files = [file for file in kept.files if file.stat().st_size]
    for n in range(flips):
        file = files[n % len(files)]  # every file, also the small ones
        content = file.read_bytes()
        ends_in_the_one_before(kept, file, flip(content, random.randrange(8 * len(content))), capsys)
        seen.add(file)
    tell(f"{flips} bits in {len(seen)} of {len(files)} files: 0 silent")
    found = run_checkpoints.load_newest(kept.root)
    assert found is not None and int(found[1]["step"]) == len(DATA)  # undamaged, the newest is taken
