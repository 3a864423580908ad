"""A run that goes on meets the images and the settings of JAX that it began with, or it says so."""

import os
import subprocess
import sys

import numpy as np
import pytest
from toys import WORDS, small_command

from fdg_jax import data
from fdg_jax.data import fingerprint
from fdg_jax.errors import BadInput
from fdg_jax.experiments import cifar
from fdg_jax.machine import jax_settings
from fdg_jax.training.job import check_data


def one_image_more(images):
    return np.concatenate([images, images[:1]])


def small():
    digits = data.load("digits").first(20)
    return digits._replace(fingerprint=fingerprint.of(digits))


def test_other_data_are_refused_and_a_checkpoint_that_does_not_know_its_data_is_told(capsys):
    now = small()
    check_data(now, {"data": now.fingerprint}, "--resume")
    assert capsys.readouterr().err == ""
    other = fingerprint.of(now._replace(train_labels=now.train_labels[::-1]))
    with pytest.raises(BadInput, match=r"--resume: digits is not the data set .*: other labels or another order"):
        check_data(now, {"data": other}, "--resume")
    for about in ({}, {"data": {**other, "format": 0}}):
        check_data(now, about, "--resume")
        err = capsys.readouterr().err
        assert err.startswith("warning: another version wrote the newest checkpoint") and err.count("\n") == 1


@pytest.mark.slow
def test_a_run_whose_checkpoints_are_away_does_not_begin_anew(tmp_path, monkeypatch, capsys):
    small_command(monkeypatch)
    run = tmp_path / "run"
    words = ["--run-dir", str(run), "--checkpoint-every", "2"]
    assert cifar.main([*WORDS.split(), "--steps", "5", *words]) == 0
    (run / "checkpoints").rename(tmp_path / "elsewhere")
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}

    def refused(said):
        capsys.readouterr()
        assert cifar.main([*words, "--resume", "--steps", "8"]) == 2
        err = capsys.readouterr().err
        assert said in err and err.count("\n") == 1
        assert {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()} == before

    refused("has results up to batch 5, but no checkpoint")
    (run / "checkpoints").symlink_to("/nowhere/at/all")
    refused("cannot be listed: No such file or directory")
    (run / "checkpoints").unlink()
    (run / "summary.json").unlink()  # as if it had been killed: two checkpoints were due, so one was there
    del before["summary.json"]
    refused("has results up to batch 5, but no checkpoint")
    (tmp_path / "elsewhere").rename(run / "checkpoints")
    assert cifar.main([*words, "--resume", "--steps", "8"]) == 0


@pytest.mark.slow
def test_the_command_goes_on_with_the_same_images_only(tmp_path, monkeypatch, capsys):
    small_command(monkeypatch)
    run = ["--run-dir", str(tmp_path / "run")]
    assert cifar.main([*WORDS.split(), "--steps", "5", *run]) == 0
    capsys.readouterr()
    before = data.load("digits")
    more = {name: one_image_more(getattr(before, name)) for name in ("train_images", "train_labels")}
    mirrored = {"train_images": before.train_images[:, :, ::-1]}
    changes = [(more, "65 training images now, 64 before"), (mirrored, "other pixels in the training images")]
    for change, said in changes:
        monkeypatch.setattr(data, "load", lambda *_, change=change: before._replace(**change))
        assert cifar.main([*run, "--resume", "--steps", "8"]) == 2
        err = capsys.readouterr().err
        assert err.startswith("error: --resume: digits is not the data set") and f"newest checkpoint: {said}." in err
        assert err.count("\n") == 1
    monkeypatch.setattr(data, "load", lambda *_: before)
    assert cifar.main([*run, "--resume", "--steps", "8"]) == 0
    assert capsys.readouterr().err == ""


def test_settings_that_change_what_is_trained_are_told_in_a_new_run_and_refused_in_one_that_goes_on(
    monkeypatch, capsys
):
    monkeypatch.delenv("JAX_NUM_CPU_DEVICES", raising=False)
    usual = jax_settings.DEFAULTS
    jax_settings.check_new()
    jax_settings.check_resumed({"jax_settings": usual})
    jax_settings.check_resumed({})  # of a version that did not record them
    assert capsys.readouterr().err == ""
    unusual = {**usual, "jax_threefry_partitionable": False, "jax_default_prng_impl": "rbg"}
    with pytest.raises(
        BadInput, match="jax_threefry_partitionable is True and was False; jax_default_prng_impl is"
    ) as told:
        jax_settings.check_resumed({"jax_settings": unusual})
    ways = "Set JAX_THREEFRY_PARTITIONABLE to False and set JAX_DEFAULT_PRNG_IMPL to 'rbg', or begin another run"
    assert ways in str(told.value)
    monkeypatch.setattr(jax_settings, "current", lambda: unusual)
    with pytest.raises(
        BadInput, match=r"\. Unset JAX_THREEFRY_PARTITIONABLE and unset JAX_DEFAULT_PRNG_IMPL, or begin another run"
    ):
        jax_settings.check_resumed({"jax_settings": usual})
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "4")
    jax_settings.check_new()
    err = capsys.readouterr().err
    assert "JAX_THREEFRY_PARTITIONABLE (False instead of True)" in err and "JAX_NUM_CPU_DEVICES (4 instead" in err
    assert err.startswith("warning: ") and err.count("\n") == 1


@pytest.mark.slow
def test_a_run_that_goes_on_has_the_devices_it_began_with_whatever_the_environment_asks_for():
    code = (
        "import jax; from fdg_jax.training import job as jobs\n"
        "jobs.prepare_cpu({'cpu_devices': 3}); print(jax.device_count())"
    )
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "5"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == "3\n"
