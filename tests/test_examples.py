"""The examples run as they are shown, and what they say of themselves is so."""

import importlib.util
import json
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cifar_processes import ROOT, printed
from small import batches, fed, pipeline

import fdg_jax
from examples import whole
from fdg_jax.errors import BadInput
from fdg_jax.methods.fdg import fdg
from fdg_jax.schedule.running import validate

FOLDER = ROOT / "examples"
AS_SHOWN = {"MPLBACKEND": "Agg"}
DATA = batches(4)
SHORT = {  # what to give it, and what it then prints
    "digits.py": ("--epochs 12", r"fdg .* test error ([\d.]+)%\n.* at most (\d+e-\d+) apart"),
    "characters.py": ("--steps 40", r"229,952 parameters; [\s\S]*staleness \[5, 3, 1, 0\], test loss ([\d.]+) bits"),
    "slow_link.py": ("--epochs 3", r"link_ticks 0: staleness \[3, 1, 0\], test error ([\d.]+)%\n.* 1: .*7, 3, 0"),
    "trust.py": ("--epochs 2", r"none .* test error [\d.]+%\nbeta=0.5 [\s\S]*distrust=1.0 .* test error ([\d.]+)%"),
    "whole.py": ("--epochs 6", r"FDG +staleness \[3, 1, 0\].*\n.*\n.*ahead +staleness .* test error ([\d.]+)%"),
    "late.py": ("--seeds 2 --batches 300", r"fast  time, slow\n  1  none +0 +(\d+) +1.00 +1.00 +1.00\n  2"),
    "several_processes.py": ("--K 2 --run-dir own", r"error_percent=([\d.]+)"),
    "torch_weights.py": ("--to trained", r"in two stages: test error ([\d.]+)%\n  conv1.weight +\[16, 1, 3, 3\]"),
}
BOUNDS = {"late.py": 290, "whole.py": 30, "digits.py": 20, "several_processes.py": 10}
BOUNDS |= {"characters.py": 6, "slow_link.py": 60, "trust.py": 90, "torch_weights.py": 60}


def example(name):
    """The module."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("name", [file.name for file in sorted(FOLDER.glob("*.py"))])
def test_an_example_runs_and_learns(name, tmp_path):
    words, expected = SHORT[name]
    out = printed(FOLDER / name, *words.split(), cwd=tmp_path, environment=AS_SHOWN)
    found = re.search(expected, out)
    assert found, out
    assert float(found[1]) < BOUNDS[name]
    if name == "digits.py":
        assert float(found[2]) < 1e-4  # other programs, so other last bits
    if name == "torch_weights.py":
        again = printed(FOLDER / name, "trained", cwd=tmp_path, environment=AS_SHOWN)
        assert f"trained: test error {found[1]}%" in again


# The notebook


@pytest.mark.slow
def test_the_cells_of_the_notebook_run_one_after_the_other(tmp_path):
    cells = [cell for cell in json.loads((FOLDER / "delays.ipynb").read_text())["cells"] if cell["cell_type"] == "code"]
    (tmp_path / "cells.py").write_text("\n\n".join("".join(cell["source"]) for cell in cells))
    out = printed("cells.py", cwd=tmp_path, environment=AS_SHOWN)
    assert "staleness for K=3: (3, 1, 0)" in out
    errors = {name: float(error) for name, error in re.findall(r"(K=.*?) +staleness .* test error ([\d.]+)%", out)}
    assert errors.keys() == {"K=1 (BP)", "K=2", "K=4", "K=4, beta=0.5"} and errors["K=1 (BP)"] < 30


# A method and a correction of one's own


def test_a_link_without_ticks_of_its_own_is_fdg_and_every_link_is_a_whole_schedule():
    K, slow_link = 4, example("slow_link").slow_link
    same, theirs = slow_link(K, 0), fdg(K)
    assert [*same.run(9)] == [*theirs.run(9)]
    assert (same.delays, same.ticks(9)) == (theirs.delays, theirs.ticks(9))
    for link_ticks in (1, 3):
        made = slow_link(K, link_ticks)
        validate(made, 2 * max(*made.delays, 0) + 3)
        assert made.staleness[0] == 2 * (K - 1) * (1 + link_ticks) - 1


def trained(**options):
    made = pipeline(2, DATA[0], **options)
    fed(made, DATA)
    return made


@pytest.mark.slow
def test_pipeline_takes_a_method_that_lies_in_no_folder():
    METHOD = example("slow_link").METHOD
    ours = trained(method=METHOD, link_ticks=0)
    assert ours.parameters_sha256() == trained(method="fdg").parameters_sha256()
    with pytest.raises(BadInput, match=r"link_ticks=-1: a message is not early"):
        pipeline(2, DATA[0], method=METHOD, link_ticks=-1)


# The library trains what examples/whole.py trains, which has nothing of the library in it


class Layers(nn.Module):
    """A stage of examples/whole.py."""

    widths: tuple[int, ...]
    last: bool

    @nn.compact
    def __call__(self, x):
        for i, width in enumerate(self.widths):
            x = nn.Dense(width, name=f"layer{i}")(x)
            x = x if self.last and i == len(self.widths) - 1 else jnp.tanh(x)
        return x


def loss(logits, labels):
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1))


@pytest.mark.parametrize(("K", "ours", "theirs"), [
    pytest.param(1, {}, {}, marks=pytest.mark.slow),
    pytest.param(3, {}, {}, marks=pytest.mark.slow),
    pytest.param(3, {"beta": 0.5}, {"beta": 0.5}, marks=pytest.mark.slow),
    pytest.param(4, {"ahead": True}, {"correct": "anticipate", "prediction": "last"}, marks=pytest.mark.slow),
])  # fmt: skip
def test_the_library_computes_the_losses_of_the_idea_in_one_file(K, ours, theirs):
    batches = whole.digits(1)[0]
    first = whole.first_weights(K)
    modules = [Layers(tuple(len(each["bias"]) for each in stage), stage is first[-1]) for stage in first]
    variables = [{"params": {f"layer{i}": each for i, each in enumerate(stage)}} for stage in first]
    made = fdg_jax.Pipeline(modules, loss, optax.sgd(whole.RATE, momentum=whole.MOMENTUM), **theirs)
    made.init(jax.random.key(0), batches[0], variables=variables)
    fed(made, batches)
    stages, losses, staleness = whole.train(first, batches, **ours)
    assert made.staleness == staleness
    # XLA compiles other operations together in the two: 4e-7 apart at most, with beta.
    close = {"rtol": 0, "atol": 1e-6}
    np.testing.assert_allclose([each.loss for each in made.losses(wait=True)], np.asarray(losses), **close)
    for mine, stage in zip(made.params, stages, strict=True):
        for i, layer in enumerate(stage):
            for name, value in layer.items():
                np.testing.assert_allclose(mine["params"][f"layer{i}"][name], value, **close)
