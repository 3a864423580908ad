"""The command as a person meets it: real processes, their exit codes, messages and files.

The frozen lists at the top are contracts with scripts outside this repository.
"""

import json
import os
import re

import pytest
from cifar_processes import SHORT, command, finish, started

from fdg_jax import cli
from fdg_jax.checks import options as checks
from fdg_jax.config import FIELDS
from fdg_jax.experiments.cifar import PROGRAM
from fdg_jax.machine import huge_pages
from fdg_jax.options.fields import spelled

FLAGS = {
    "--K": 2, "--replicas": 1, "--beta": 1.0, "--method": "fdg", "--model": "resnet20", "--dataset": "auto",
    "--tensor": 1, "--fsdp": False,
    "--data-dir": None, "--epochs": 300, "--batch-size": 128, "--learning-rate": 0.1, "--weight-decay": 5e-4,
    "--momentum": 0.9, "--seed": 0, "--steps": None, "--train-size": None, "--engine": "auto", "--weights": "stashed",
    "--order": "backward-first", "--accumulate": 1, "--accumulation": "sum", "--aux": "mlp-sr", "--conditional": True,
    "--micro-batches": 4, "--batch-norm": "local", "--scale": 1.0, "--split": None, "--dtype": "float32",
    "--precision": "auto",
    "--run-dir": None, "--resume": False, "--checkpoint-every": None, "--remat": "none", "--init-from": None,
    "--tokens": None, "--validation": None, "--vocabulary": None, "--token-dtype": "uint16",
    "--blocks": "consecutive", "--final-rate": 0.0, "--sample": None, "--temperature": 1.0, "--top-k": None,
    "--stall-seconds": 600.0,
}  # fmt: skip


def test_no_flag_of_the_interface_disappears_or_changes_its_default():
    assert {flag: FIELDS[flag[2:].replace("-", "_")].default for flag in FLAGS} == FLAGS
    # a number, as older runs have it in config.json
    assert [cli.parse(["--replicas", word], PROGRAM)[0].replicas for word in ("2", "4,2", "8/K")] == [2, "4,2", "8/K"]


# Have no effect on a training with images.
FOR_TEXT = {
    *("text", "tokens", "validation", "vocabulary", "token_dtype", "block_size", "blocks", "heads", "kv_heads"),
    *("norm", "biases", "mlp", "qk_norm", "tied", "positions", "dropout"), *("sample", "temperature", "top_k"),
}


@pytest.mark.parametrize(("flag", "names"), [
    ("--help", cli.EVERYDAY), ("--help-all", [name for name in FIELDS if name not in FOR_TEXT]),
])  # fmt: skip
def test_help_names_the_flags_that_most_people_need_or_all(flag, names, capsys):
    from fdg_jax.experiments.cifar import main

    with pytest.raises(SystemExit) as leaving:
        main(["--K", "two", flag])  # whatever else is wrong
    out, err = capsys.readouterr()
    assert (leaving.value.code or 0, err) == (0, "")
    told = out.partition("Examples:")[0]
    shown = {name for name in FIELDS if re.search(rf"^  {spelled(name)}[ ,\n]", told, re.M)}
    assert shown == {*names} & {*FIELDS} and "Eq. 15" in " ".join(out.split()) and "--help-all" in out


@pytest.mark.parametrize(("words", "resume"), [
    ("", False), ("--resume", True), ("--resume=auto", "auto"), ("--resume auto --K 3", "auto"),
    ("--resume auto --no-resume", False), ("--resume --K 3", True),
])  # fmt: skip
def test_resume_is_a_switch_that_also_takes_auto(words, resume):
    options, given = cli.parse(words.split(), "command")
    assert options.resume == resume
    assert ("resume" in given) is bool(words)
    assert (3 if "3" in words else 2) == options.K


BAD = {
    "--resume auto": "add --run-dir",
    "--run-dir run --resume auto --beta 0.5": "contradicts",
    "--K 0": "it must lie in [1, 10000]. Use 1 (plain BP)",
    "--K 99": "resnet20 has 11 blocks",
    "--K 2 --fsdp": "--fsdp: it divides a stage's weights over its replicas, but each stage has only one",
    "--K 2 --tensor 2": "--tensor 2: the weights of resnet20 lack axis names",
    "--K 2 --replicas 3": "--replicas 3: a batch of 128 cannot be divided among so many devices",
    "--K 2 --replicas 4,2,1": "--replicas 4,2,1 does not give each of the K=2 stages 1 to 1000 devices. Use one",
    "--bta 0.5": "Did you mean --beta?",
    "--K": "--K needs a value",
    "--method fgd": "Did you mean fdg",
    "--method bp --beta 0.5": "error: --beta 0.5: method bp has no such option",
    "--accumulate 0": "error: --accumulate 0: it must be 1 or more",
    "--method gpipe --micro-batches 129": "a batch of 128 examples cannot make so many",
    "--model ResNet-110": "'ResNet-110' is not known. Did you mean resnet110?",
    "--batch-size 64 --train-size 32": "--train-size leaves only 32 training examples",
    "--checkpoint-every -1": "0 for only at the end",
    "--seed -1": "it must lie in [0, 2147483647]",
    "--stall-seconds nan": "0 for never",
    "--live": "TensorBoard and --track NAME show",
    "--tokens train.bin": "--dataset tokens: this command trains on auto",
    "--final-rate 0.1": "the schedule paper has no final rate",
    "--precision tf32 --dtype bfloat16": "the network computes in bfloat16",
    "--precision bfloat16 --dtype float32": "--precision bfloat16: it means --dtype bfloat16",
    "--together": "--together: its runs may differ only in seed, beta, learning_rate",
    "--run-dir new --sweep beta=0.5,1 K=2,4 --together": "its runs may differ only in seed, beta, learning_rate",
    "--run-dir new --seeds 0-1 --together --jobs 2": "with --together all runs are one program",
    "--run-dir new --seeds 0-1 --together --on-nan rollback": "no run of --together can go back",
    "--run-dir new --seeds 3-1": "Write the smaller number first",
    "--epochs 0 --steps 5": "the paper's schedule counts epochs",
    "--replay_check 5": "compare final_state_sha256",
    "--run-dir run --resume-into new": "--init-from RUN begins a new run",
    "--resume": "add --run-dir",
    "--run-dir /proc/nowhere/run": "cannot be written",
    "--run-dir there --resume": "holds no run",
    "--run-dir run": "already holds a run",
    "--dataset cifar10 --data-dir empty": "empty",
}
@pytest.fixture
def place(tmp_path):
    """A directory to work in, with a run, a data directory that is empty, and nothing else."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "run").mkdir()
    values = {name: field.default for name, field in FIELDS.items() if name != "resume"}
    rest = {"asked": values, "note": "", "devices": ["cpu:0"], "versions": {}}
    (tmp_path / "run" / "config.json").write_text(json.dumps({**values, **rest}))
    return tmp_path


def test_wrong_input_is_answered_by_one_message_and_exit_code_2(place, monkeypatch, capsys):
    from fdg_jax.experiments.cifar import main

    monkeypatch.chdir(place)
    for words, said in BAD.items():
        assert main(words.split()) == 2
        out, err = capsys.readouterr()
        assert out == "", words
        assert err.startswith("error: ") and err.count("\n") == 1 and said in err, (words, err)
        assert sorted(os.listdir(place)) == ["empty", "run"], words  # no run directory is left behind


@pytest.mark.slow
@pytest.mark.skipif(huge_pages.gpu_visible({}), reason="there is a GPU")
def test_a_platform_that_is_not_there_is_one_sentence(tmp_path):
    words = [*SHORT.split(), "--run-dir", str(tmp_path / "run")]
    code, out, err = finish(command(*words, environment={"JAX_PLATFORMS": "cuda"}))
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("error: ")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_help_and_refusals_start_no_backend(place):
    """XLA reads its settings when a backend starts, and these follow from the flags. Here none could start."""
    code = "import sys; from fdg_jax.experiments.cifar import main\nfor words in sys.argv[1:]: "
    code += "print(main(words.split()))"
    lines = ["--K 0", "--bta 0.5", "--method fgd", "--run-dir run", "--model resnet8 --K 99", "--K 2 --split 99"]
    process = started("-c", f"{code}\nmain(['--help'])", *lines, cwd=place, environment={"JAX_PLATFORMS": "none"})
    returned, out, err = finish(process)
    assert out.split("usage")[0].split() == ["2"] * len(lines), err
    assert returned == 0 and "none" not in err


def test_a_defect_is_no_bad_input(monkeypatch, tmp_path):
    from fdg_jax.experiments import cifar

    def broken(*_):
        raise RuntimeError("a defect")

    monkeypatch.setattr(checks, "check_names", broken)
    with pytest.raises(RuntimeError, match="a defect"):  # which ends a process with a traceback and exit code 1
        cifar.main(["--run-dir", str(tmp_path / "x")])
    assert not (tmp_path / "x").exists()
