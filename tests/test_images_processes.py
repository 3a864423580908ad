"""A streamed run in several processes that meets a damaged image: it ends, and goes on once the image is repaired."""

from pathlib import Path

import pytest
from test_image_commands import row
from training_processes import each_needs_a_core, finish, same, started, trained

from fdg_jax import data
from fdg_jax.data import stream
from tests.image_files import imagenet as write_imagenet

pytestmark = [pytest.mark.slow, each_needs_a_core]
WORDS = "--model resnet8 --K 2 --beta 0.5 --batch-size 5 --epochs 2 --learning-rate 0.01 --checkpoint-every 0"
PROGRAM = """
import sys
from fdg_jax.data import stream
from fdg_jax.data.streams import imagenet as images
from fdg_jax.experiments import imagenet
from fdg_jax.training import command

images.SIDE = 32  # 224 takes a CPU long
stream.SAMPLE = 1  # of the images that are looked at before a run begins
command.leave(imagenet.main(sys.argv[1:]))
"""


def test_a_run_ends_at_a_damaged_image_and_goes_on_when_it_is_repaired(tmp_path, monkeypatch):
    monkeypatch.setenv(stream.WORKERS, "0")
    monkeypatch.setattr(stream, "SAMPLE", 1)
    images, run, program = tmp_path / "images", tmp_path / "run", tmp_path / "program.py"
    write_imagenet(images)
    program.write_text(PROGRAM)
    words = [*WORDS.split(), "--data-dir", str(images)]
    whole = trained(tmp_path / "whole", 1, *words, program=(str(program),))
    trained(run, 2, *words, "--steps", "2", program=(str(program),))

    batches = stream.TrainBatches(data.load("imagenet", images), 5, seed=0)
    seen = [row(batches, g) for g in range(6)]
    victim = Path(batches.images.path(next(i for i in seen[5] if not any(i in each for each in seen[2:5]))))
    content = victim.read_bytes()
    victim.write_bytes(bytes(len(content)))
    again = ("--run-dir", str(run), "--resume", "--steps", "6")
    code, out = finish(started(2, *again, program=(str(program),)))
    assert code == 1 and f"error: {victim} can't be decoded" in out and "Traceback" not in out, out
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-000000002"]
    victim.write_bytes(content + bytes(10))  # the same pixels in a file of another size
    same(trained(run, 2, *again[2:], program=(str(program),)), whole)
