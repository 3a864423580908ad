"""The command with --seeds and --together: runs as one program, each of which is a run like any other."""

import json

import numpy as np
import pytest

from fdg_jax.experiments import cifar

NET = '''"""A network that compiles in a second."""

import flax.linen as nn
import jax.numpy as jnp

from fdg_jax.layers import BatchNorm

NAMES = {"tiny": {}}


class Part(nn.Module):
    width: int

    @nn.compact
    def __call__(self, x, train):
        x = x.reshape(len(x), -1)
        return jnp.tanh(BatchNorm()(nn.Dense(self.width)(x[:, :: max(1, x.shape[1] // 48)]), train))


def blocks(classes):
    return [Part(12), Part(classes)]
'''
WORDS = "--model ./tiny.py --dataset digits --train-size 96 --batch-size 16 --beta 0.5 --epochs 3 --learning-rate 0.05"
WORDS += " --log-every 1 --no-tensorboard --stall-seconds 0"


def of(run, name):
    return json.loads((run / "summary.json").read_text())[name]


def losses(run):
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line["train_loss"] for line in lines if "train_loss" in line]


@pytest.mark.slow
def test_runs_together_stop_and_go_on_together_or_alone_and_are_the_runs_alone(tmp_path, monkeypatch):
    (tmp_path / "tiny.py").write_text(NET)
    monkeypatch.chdir(tmp_path)

    def train(more):
        assert cifar.main(f"{WORDS} {more}".split()) == 0

    train("--seeds 0-1 --together --run-dir whole")
    train("--seeds 0,1 --together --run-dir parts --steps 7")
    assert of(tmp_path / "parts" / "seed-1", "steps") == 7
    train("--seeds 0-1 --together --run-dir parts --steps 12")
    train("--seeds 1 --together --run-dir parts --steps 18")  # one of them goes on by itself
    again = ["--resume", "--run-dir", "parts/seed-0", "--trust-code", "--steps", "18"]
    assert cifar.main(again) == 0  # the other goes on as any run does
    train("--run-dir alone --seed 1 --engine scan")
    for name in ("seed-0", "seed-1"):
        whole, parts = (tmp_path / folder / name for folder in ("whole", "parts"))
        assert len(losses(whole)) == len(losses(parts)) == 18
        # Another number of seeds in the program, or none, may take sums over a batch in another order.
        np.testing.assert_allclose(losses(parts), losses(whole), rtol=1e-4)
        assert losses(parts)[:12] == losses(whole)[:12]  # bit for bit: stopped and resumed together
        assert of(parts, "test_error_percent") == pytest.approx(of(whole, "test_error_percent"), abs=1.0)
    np.testing.assert_allclose(losses(tmp_path / "alone"), losses(tmp_path / "whole" / "seed-1"), rtol=1e-4)
    assert losses(tmp_path / "whole" / "seed-0") != losses(tmp_path / "whole" / "seed-1")
    assert (tmp_path / "whole" / "compared.html").exists()
