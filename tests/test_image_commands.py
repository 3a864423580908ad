"""The commands for Tiny-ImageNet and ImageNet: defaults, exit codes, and streamed runs that go on exactly."""

import json
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from fdg_jax import cli, data
from fdg_jax.config import FIELDS, Config
from fdg_jax.data import stream
from fdg_jax.data.streams import imagenet as imagenet_stream
from fdg_jax.experiments import cifar, imagenet, tiny_imagenet
from fdg_jax.machine import jax_settings
from tests.image_files import imagenet as write_imagenet

RECIPE = {"batch_size": 128, "learning_rate": 0.1, "weight_decay": 5e-4, "momentum": 0.9, "K": 2}
DEFAULTS = {
    cifar: {"dataset": "auto", "model": "resnet20", "epochs": 300},
    tiny_imagenet: {"dataset": "tiny_imagenet", "model": "resnet18", "epochs": 300},
    imagenet: {"dataset": "imagenet", "model": "resnet101_imagenet", "epochs": 90},
}


@pytest.fixture(autouse=True)
def _quiet(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "default"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FDG_JAX_COMPILE_CACHE", "0")
    monkeypatch.setenv(stream.WORKERS, "0")  # that their number changes nothing is tested in test_stream
    monkeypatch.setattr(imagenet_stream, "SIDE", 32)  # 224 takes a CPU long


def test_the_commands_differ_in_their_defaults_and_in_nothing_else():
    for module in DEFAULTS:
        options, given = cli.parse([], module.PROGRAM)
        used = {**RECIPE, **DEFAULTS[module]}
        assert {name: getattr(options, name) for name in used} == used
        rest = {name for name in FIELDS if name not in used}
        assert {name: getattr(options, name) for name in rest} == {name: getattr(Config(), name) for name in rest}
        assert not given
        assert module.PROGRAM.command == f"python -m {module.__name__}"
        assert set(module.PROGRAM.datasets) <= {*data.names(), *data.stream_names()}


@pytest.mark.slow
def test_precision_is_kept_by_a_run_and_decides_how_products_are_computed(tmp_path):
    with mock.patch.object(jax_settings, "PRODUCTS", {"float32": "highest", "tf32": None}):  # None: back at the end
        for name, setting in (("float32", "highest"), ("bfloat16", "highest"), ("tf32", None)):
            words = f"{DIGITS} --precision {name} --steps 1 --run-dir {tmp_path / name}"
            assert cifar.main(words.split()) == 0
            config = json.loads((tmp_path / name / "config.json").read_text())
            assert (config["precision"], config["matmul_precision"]) == (name, setting)
            assert config["dtype"] == ("bfloat16" if name == "bfloat16" else "float32")
        assert cifar.main(["--resume", "--steps", "2", "--run-dir", str(tmp_path / "float32")]) == 0
        assert jax_settings.current()["jax_default_matmul_precision"] == "highest"
        assert cifar.main(f"{DIGITS} --precision tf32 --steps 1 --run-dir {tmp_path / 'last'}".split()) == 0


DIGITS = "--dataset digits --model resnet8 --train-size 32 --batch-size 16 --epochs 1 --no-tensorboard"
COMMON = "--model resnet8 --K 2 --beta 0.5 --batch-size 5 --epochs 2 --learning-rate 0.01 --checkpoint-every 0"


def train(run: Path, data_dir: Path, more: str = "") -> int:
    return imagenet.main([*COMMON.split(), "--data-dir", str(data_dir), "--run-dir", str(run), *more.split()])


def hashes(run: Path) -> tuple:
    summary = json.loads((run / "summary.json").read_text())
    return summary["steps"], summary["final_state_sha256"], summary["final_parameters_sha256"], summary["test_loss"]


@pytest.fixture
def whole(tmp_path):
    """A run of 2 epochs of 3 batches (the last of 2 images) that nothing disturbed; (its directory, the images')."""
    write_imagenet(tmp_path / "images")
    assert train(tmp_path / "whole", tmp_path / "images") == 0
    return tmp_path / "whole", tmp_path / "images"


@pytest.mark.slow
def test_a_streamed_run_goes_on_exactly_from_the_middle_of_an_epoch_and_past_a_damaged_image(
    whole, tmp_path, monkeypatch, capsys
):
    run, images = whole
    parts = tmp_path / "parts"
    monkeypatch.setattr(stream, "SAMPLE", 1)
    assert train(parts, images, "--steps 2") == 0
    assert hashes(parts)[0] == 2
    # The image that batch 6 has, and batches 3 to 5 do not, is lost after the run began; only six are sampled.
    batches = stream.TrainBatches(data.load("imagenet", images), 5, seed=0)
    seen = [row(batches, g) for g in range(6)]
    lost = next(i for i in seen[5] if i not in {*seen[2], *seen[3], *seen[4]})
    victim = Path(batches.images.path(lost))  # type: ignore[attr-defined]
    content = victim.read_bytes()
    victim.write_bytes(bytes(len(content)))  # of another size it would be refused before the work
    capsys.readouterr()
    assert train(parts, images, "--resume --steps 6") == 1
    err = capsys.readouterr().err
    assert f"error: {victim} can't be decoded ({len(content):,} bytes; " in err
    assert "-m fdg_jax.experiments.imagenet --run-dir" in err and "Traceback" not in err
    assert not (parts / "summary.json").exists()
    assert [path.name for path in sorted((parts / "checkpoints").iterdir())] == ["step-000000002", "step-000000005"]
    victim.write_bytes(content + bytes(10))  # the same pixels in a file of another size: it was repaired
    assert train(parts, images, "--resume --steps 6") == 0
    assert hashes(parts) == hashes(run)


def row(batches: stream.TrainBatches, g: int) -> list[int]:
    """The numbers of the images in batch g."""
    epoch, batch = divmod(g, -(-len(batches.images) // 5))
    order = np.random.RandomState([0, epoch]).permutation(len(batches.images))
    return order[batch * 5 :][:5].tolist()
