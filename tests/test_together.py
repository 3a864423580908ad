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
    return [Part(12), Part(12), Part(classes)]
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


@pytest.mark.slow
def test_runs_of_several_betas_and_learning_rates_are_the_runs_alone(tmp_path, monkeypatch, capsys):
    (tmp_path / "tiny.py").write_text(NET)
    monkeypatch.chdir(tmp_path)

    def train(more, code=0):
        words = WORDS.replace("--beta 0.5 ", "--K 3 ").replace(" --learning-rate 0.05", "")
        assert cifar.main(f"{words} {more}".split()) == code

    together = "--sweep beta=1,0.2 learning_rate=0.1,0.02 --together --run-dir"
    train(f"{together} whole")
    train(f"{together} parts --steps 7")
    train(f"{together} parts --steps 12")
    names = {(beta, rate): f"beta-{beta}_learning-rate-{rate}" for beta in ("1", "0.2") for rate in ("0.1", "0.02")}
    found = [losses(tmp_path / "whole" / name) for name in names.values()]
    assert len({each[-1] for each in found}) == 4
    for ((beta, rate), name), whole in zip(names.items(), found, strict=True):
        assert losses(tmp_path / "parts" / name) == whole[:12]  # bit for bit: stopped and resumed together
        if (beta == "1") == (rate == "0.1"):
            continue  # two of the four are enough
        again = ["--resume", "--run-dir", f"parts/{name}", "--trust-code", "--steps", "18"]
        assert cifar.main(again) == 0  # each goes on alone
        train(f"--run-dir alone-{name} --beta {beta} --learning-rate {rate} --engine scan")
        for other in (tmp_path / "parts" / name, tmp_path / f"alone-{name}"):  # sums may be taken in another order
            np.testing.assert_allclose(losses(other), whole, rtol=1e-4)
        assert of(tmp_path / "whole" / name, "test_error_percent") == pytest.approx(
            of(tmp_path / f"alone-{name}", "test_error_percent"), abs=1.0
        )
    train(f"--correct anticipate {together} refused", code=2)
    assert "the state of a run with beta 1 has another layout" in capsys.readouterr().err
