"""The command as a person meets it: real processes, their exit codes, messages and files.

The frozen lists at the top are contracts with scripts outside this repository.
"""

import dataclasses
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

import pytest

from fdg_jax import methods
from fdg_jax.errors import BadInput
from fdg_jax.machine import huge_pages
from fdg_jax.runs import option_checks
from fdg_jax.runs.options import FIELDS, GROUPS, Options, spelled
from fdg_jax.runs.run_files import read_metrics
from fdg_jax.training import command_line

FLAGS = {
    "--K": 2,
    "--beta": 1.0,
    "--method": "fdg",
    "--model": "resnet20",
    "--dataset": "auto",
    "--data-dir": None,
    "--epochs": 300,
    "--batch-size": 128,
    "--learning-rate": 0.1,
    "--weight-decay": 5e-4,
    "--momentum": 0.9,
    "--seed": 0,
    "--steps": None,
    "--train-size": None,
    "--engine": "auto",
    "--weights": "stashed",
    "--order": "backward-first",
    "--accumulate": 1,
    "--accumulation": "sum",
    "--aux": "mlp-sr",
    "--conditional": True,
    "--micro-batches": 4,
    "--batch-norm": "local",
    "--split": None,
    "--dtype": "float32",
    "--run-dir": None,
    "--resume": False,
    "--checkpoint-every": None,
    "--remat": "none",
    "--resume-into": None,
    "--stall-seconds": 600.0,
    "--replay-check": 0,
}
SUMMARY = """
    method model dataset K beta engine weights order split parameters steps epochs seconds images_per_second
    train_loss test_error_percent staleness final_parameters_sha256 final_state_sha256
"""
Device = namedtuple("Device", "platform id device_kind")
ROOT = Path(__file__).parents[1]
SHORT = (
    "--model resnet8 --dataset digits --train-size 112 --batch-size 32 --epochs 2 --learning-rate 0.05 --log-every 2"
)


def command(*words: str, cwd: Path | None = None, environment: dict[str, str] | None = None) -> subprocess.Popen:
    """The command in a process of its own. PYTHONPATH, because a test may run in another directory."""
    settings = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", **(environment or {})}
    return subprocess.Popen(
        [sys.executable, "-m", "fdg_jax.experiments.cifar", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd or ROOT,
        env=settings,
    )


def finish(process: subprocess.Popen) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def read(path: Path) -> dict:
    return json.loads(path.read_text())


def test_no_flag_of_the_interface_disappears_or_changes_its_default():
    assert {flag: FIELDS[flag[2:].replace("-", "_")].default for flag in FLAGS} == FLAGS


def test_every_flag_is_explained_and_in_a_group():
    for name, field in FIELDS.items():
        assert field.metadata["group"] in GROUPS, name
        assert len(field.metadata["help"]) > 20, name


def test_help_names_every_flag_and_exits_with_0():
    code, out, err = finish(command("--help"))
    assert (code, err) == (0, "")
    for name in FIELDS:
        assert f"{spelled(name)} " in out or f"{spelled(name)}," in out, name
    assert "Eq. 15" in out


@pytest.mark.parametrize(("words", "resume"), [
    ("", False), ("--resume", True), ("--resume auto", "auto"), ("--resume=auto", "auto"), ("--no-resume", False),
    ("--resume auto --K 3", "auto"), ("--resume auto --no-resume", False), ("--resume auto --resume", True),
    ("--no-resume --resume auto", "auto"), ("--resume --K 3", True),
])  # fmt: skip
def test_resume_is_a_switch_that_also_takes_auto(words, resume):
    options, given = command_line.parse(words.split(), "command")
    assert options.resume == resume
    assert ("resume" in given) is bool(words)
    assert (3 if "3" in words else 2) == options.K


BAD = {
    "--resume auto": "add --run-dir",
    "--run-dir there --resume auto --resume-into new": "leave --resume out",
    "--run-dir run --resume auto --beta 0.5": "contradicts",
    "--run-dir fresh --resume auto --method bp --beta 0.5": "method bp has no such option",
    "--run-dir run --resume yes": "'yes' belongs to no flag",
    "--K 0": "at least one stage",
    "--K 99": "resnet20 has 11 blocks",
    "--K 1000000000": "no model has so many blocks",
    "--dataset digits --model resnet8 --epochs 1000000000000": "12,000,000,000,000 batches are more than 100,000,000",
    "--K two": "'two' is not a whole number",
    "--beta 0": "(0, 1]",
    "--beta 1.5": "(0, 1]",
    "--beta nan": "(0, 1]",
    "--bta 0.5": "Did you mean --beta?",
    "-K 3": "Did you mean --K?",
    "--K": "--K needs a value",
    "--resume=yes": "takes no value",
    "fdg": "belongs to no flag",
    "--method fgd": "Did you mean fdg",
    "--method bp --beta 0.5": "method bp has no such option",
    "--aux linear": "method fdg has no such option",
    "--method dgl --aux mlp": "'mlp' is none of 'mlp-sr', 'linear', 'predsim'",
    "--method fr --weights current": "method fr has no such option",
    "--method ddg --engine delay-line --weights current": "--weights stashed",
    "--accumulate 0": "Use 1 or more",
    "--method gpipe --micro-batches 0": "Use 1 (plain BP) or more",
    "--method gpipe --micro-batches 129": "a batch of 128 has fewer images",
    "--method fr --engine delay-line": "method fr is not BP with delays",
    "--method FDG": "Did you mean fdg?",
    "--model resnet21": "Did you mean resnet20",
    "--model ResNet-110": "'ResNet-110' is not known. Did you mean resnet110?",
    "--dataset CIFAR-10": "Did you mean cifar10?",
    "--dataset cifar11": "Did you mean cifar10",
    "--engine fast": "'fast' is none of 'auto', 'pipeline', 'delay-line'",
    "--engine delay-line --weights current": "--weights stashed",
    "--dtype float16": "'float16' is none of 'float32', 'bfloat16'",
    "--remat 3": "there is no stage k=3",
    "--remat some": "neither none, all nor stage numbers",
    "--remat 1 --weights current": "cannot compute the activations of stage k=1 again: with weights=current",
    "--epochs 0": "use 1 or more",
    "--batch-size 0": "use 1 or more",
    "--batch-size 64 --train-size 32": "more than the 32 training images",
    "--learning-rate -0.1": "positive",
    "--momentum 1": "[0, 1)",
    "--weight-decay nan": "0 or a positive",
    "--checkpoint-every -1": "0 for only at the end",
    "--seed -1": "whole number",
    "--stall-seconds -1": "0 for never",
    "--stall-seconds nan": "0 for never",
    "--replay-check -1": "0 for never",
    "--resume-into there": "goes on with the run in --run-dir OLD",
    "--run-dir there --resume-into here": "holds no run",
    "--resume": "add --run-dir",
    "--run-dir /proc/nowhere/run": "cannot be written",
    "--run-dir there --resume": "holds no run",
    "--run-dir run": "already holds a run",
    "--run-dir run --resume --beta 0.5": "contradicts",
    "--dataset digits --train-size 5000": "1438 training images",
    "--dataset digits --model resnet8 --K 3 --split 2,2": "stage k=2 is empty",
    "--dataset cifar10 --data-dir empty": "empty",
}
PROCESSES = ["--bta 0.5", "--K 99", "--run-dir run", "--dataset cifar10 --data-dir empty"]


@pytest.fixture
def place(tmp_path):
    """A directory to work in, with a run, a data directory that is empty, and nothing else."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "run").mkdir()
    values = {name: field.default for name, field in FIELDS.items() if name != "resume"}
    rest = {"asked": values, "note": "", "devices": ["cpu:0"], "versions": {}}
    (tmp_path / "run" / "config.json").write_text(json.dumps({**values, **rest}))
    return tmp_path


@pytest.mark.parametrize("words", BAD)
def test_wrong_input_is_answered_by_one_message_and_exit_code_2(words, place, monkeypatch, capsys):
    from fdg_jax.experiments.cifar import main

    monkeypatch.chdir(place)
    assert main(words.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert BAD[words] in err
    assert sorted(os.listdir(place)) == ["empty", "run"]  # no run directory is left behind


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("summary.json", "{}", "summary.json lacks 'steps': it is damaged or of another version. Delete it and resume"),
        ("summary.json", "{", "summary.json cannot be read"),
        ("summary.json", '{"steps": "all"}', "steps is 'all', which is no whole number"),
        ("config.json", '{"K": "two"}', "config.json lacks 'method'"),
        ("metrics.jsonl", '{"step": 1}\nrubbish\n{"step": 3}\n', "metrics.jsonl, line 2 is damaged"),
    ],
)
def test_resuming_a_damaged_run_is_answered_before_any_work(file, content, message, place, monkeypatch, capsys):
    from fdg_jax.experiments import cifar
    from fdg_jax.training import launch

    monkeypatch.setattr(launch, "prepare_and_run", lambda *_: pytest.fail("work was begun"))
    (place / "run" / file).write_text(content)
    assert cifar.main(["--run-dir", str(place / "run"), "--resume"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert message in err


def test_a_split_is_judged_before_the_data_are_loaded(monkeypatch, tmp_path, capsys):
    from fdg_jax import data
    from fdg_jax.experiments import cifar

    monkeypatch.setattr(data, "load", lambda *_: pytest.fail("the data were loaded"))
    for split, said in (("2,2", "stage k=2 is empty"), ("paper", "the authors give no split"), ("x", "neither paper")):
        assert cifar.main(f"--model resnet8 --K 3 --split {split} --run-dir {tmp_path}/x".split()) == 2
        assert said in capsys.readouterr().err
    option_checks.check_names(Options(model="resnet8", K=3, split="balanced"))


@pytest.mark.skipif(huge_pages.gpu_visible({}), reason="there is a GPU")
def test_a_platform_that_is_not_there_is_one_sentence(tmp_path):
    words = [*SHORT.split(), "--run-dir", str(tmp_path / "run")]
    code, out, err = finish(command(*words, environment={"JAX_PLATFORMS": "cuda"}))
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("error: ")
    assert not (tmp_path / "run").exists()


def test_the_engine_that_auto_chooses_is_as_fast_a_one_for_the_baseline(monkeypatch):
    from fdg_jax import methods
    from fdg_jax.training import setup

    def chosen(platform, found, **options):
        devices = [Device(platform, n, platform) for n in range(found)]
        shared = [devices[k * found // options["K"]] for k in range(options["K"])]
        remark = "stages share" if found < options["K"] else ""
        monkeypatch.setattr(setup.devices, "stage_devices", lambda K: (shared, remark))
        used, places, said = setup.choose_engine(Options(**options), methods.find(options["method"]))
        assert len(places) == options["K"]
        return used.engine, said

    engine, said = chosen("gpu", 1, method="bp", K=1)
    assert (engine, "auto chose delay-line" in said) == ("delay-line", True)
    engine, said = chosen("gpu", 1, method="fdg", K=2)
    assert (engine, "there are 1 for K=2 stages" in said) == ("delay-line", True)
    assert chosen("cpu", 1, method="bp", K=1) == ("pipeline", "")
    assert chosen("gpu", 2, method="fdg", K=2) == ("pipeline", "")
    assert chosen("gpu", 1, method="fdg", K=1, weights="current") == ("pipeline", "")
    assert chosen("gpu", 1, method="fdg", K=2, weights="current") == ("pipeline", "stages share")
    assert chosen("gpu", 1, method="bp", K=1, engine="pipeline") == ("pipeline", "")
    assert chosen("gpu", 1, method="bp", K=1, engine="delay-line") == ("delay-line", "")  # asked for: nothing to tell


@pytest.mark.parametrize(
    ("cores", "given", "then"),
    [
        (1, None, "--xla_cpu_multi_thread_eigen=false"),
        (1, "--xla_dump_to=x", "--xla_dump_to=x --xla_cpu_multi_thread_eigen=false"),
        (1, "--xla_cpu_multi_thread_eigen=true", "--xla_cpu_multi_thread_eigen=true"),
        (2, None, None),
        (1, {"xla_flags": None}, None),
        (2, {"xla_flags": "--xla_cpu_multi_thread_eigen=false"}, "--xla_cpu_multi_thread_eigen=false"),
    ],
)
def test_on_one_core_xla_splits_nothing_and_a_resumed_run_stays_as_it_was(cores, given, then, monkeypatch):
    from fdg_jax.training import setup

    monkeypatch.setattr(setup.facts, "usable_cores", lambda: cores)
    environment = {"XLA_FLAGS": given} if isinstance(given, str) else {}
    monkeypatch.setattr(setup.os, "environ", environment)
    setup.prepare_cpu(given if isinstance(given, dict) else None)
    assert environment.get("XLA_FLAGS") == then


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no pinning on this system")
@pytest.mark.parametrize(("before", "then"), [(None, 1), ({"cpu_devices": 3, "xla_flags": None}, 3)])
def test_on_one_core_one_device_is_emulated_and_a_resumed_run_has_those_it_had(before, then):
    code = f"""
import os
os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})
from fdg_jax.transport import devices
from fdg_jax.training import setup
setup.prepare_cpu({before!r})
found, remark = devices.stage_devices(4)
print(len(set(found)), remark)
"""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.startswith(f"{then} K=4 stages share {then} CPU device")


def test_the_command_to_go_on_with_names_the_interpreter_that_ran(monkeypatch, tmp_path):
    from fdg_jax.machine.interpreter import python_command

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(tmp_path / ".venv" / "bin" / "python"))
    assert python_command() == ".venv/bin/python"
    monkeypatch.setattr(sys, "executable", "/elsewhere/python")
    assert python_command() == "/elsewhere/python"


@pytest.mark.parametrize("words", PROCESSES)
def test_a_process_says_it_on_stderr_without_a_traceback(words, place):
    code, out, err = finish(command(*words.split(), cwd=place))
    assert (code, out) == (2, "")
    assert BAD[words] in err
    assert err.count("\n") == 1
    assert "Traceback" not in err


@pytest.mark.parametrize("words", ["--K 0", "--beta 1.5", "--bta 0.5", "--method fgd", "--run-dir run", "--help"])
def test_what_can_be_judged_alone_is_judged_before_jax_is_imported(words, place):
    code = (
        "import sys; from fdg_jax.experiments.cifar import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print('jax' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words.split()],
        capture_output=True, text=True, cwd=place, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "False", done.stderr


def test_the_last_of_two_values_counts_and_underscores_are_dashes():
    options, given = command_line.parse(["--K", "2", "--train_size=7", "--K", "3", "--no-drain"], "x")
    assert (options.K, options.train_size, options.drain) == (3, 7, False)
    assert given == {"K", "train_size", "drain"}


def test_one_epoch_is_not_epochs():
    from fdg_jax.training.opening import schedule_sentence

    assert schedule_sentence(Options(epochs=1, warmup="off"), 1).startswith("1 epoch of 1 batch; ")
    assert schedule_sentence(Options(warmup="on"), 391).startswith("300 epochs of 391 batches; ")


def test_a_defect_is_no_bad_input(monkeypatch, tmp_path):
    from fdg_jax.experiments import cifar

    def broken(*_):
        raise RuntimeError("a defect")

    monkeypatch.setattr(option_checks, "check_names", broken)
    with pytest.raises(RuntimeError, match="a defect"):  # which ends a process with a traceback and exit code 1
        cifar.main(["--run-dir", str(tmp_path / "x")])
    assert not (tmp_path / "x").exists()


def test_huge_pages_are_asked_for_once_and_only_where_they_help(monkeypatch):
    monkeypatch.setattr(huge_pages, "glibc_has_huge_pages", lambda: True)
    monkeypatch.setattr(huge_pages, "gpu_visible", lambda environment: False)
    first = huge_pages.wanted_environment({"GLIBC_TUNABLES": "glibc.malloc.check=1"})
    assert first is not None
    assert first["GLIBC_TUNABLES"] == f"glibc.malloc.check=1:glibc.malloc.hugetlb=1:{huge_pages.KEPT}"
    assert huge_pages.wanted_environment(first) is None
    assert huge_pages.wanted_environment({"FDG_JAX_HUGE_PAGES": "0"}) is None
    monkeypatch.setattr(huge_pages, "gpu_visible", lambda environment: True)
    assert huge_pages.wanted_environment({}) is None


@pytest.fixture(scope="module")
def short_run(tmp_path_factory):
    """A run of 2 epochs of 4 batches, the last of 16 images; (directory, its output)."""
    path = tmp_path_factory.mktemp("short") / "run"
    code, out, err = finish(command(*SHORT.split(), "--beta", "0.5", "--run-dir", str(path)))
    assert code == 0, err
    assert err == ""
    return path, out


def test_a_run_leaves_everything_the_interface_promises(short_run):
    path, _ = short_run
    files = "config.json metrics.jsonl summary.json report.html curves.png checkpoints tensorboard"
    for name in files.split():
        assert (path / name).exists(), name
    summary, config = read(path / "summary.json"), read(path / "config.json")
    assert set(summary) >= set(SUMMARY.split())
    assert (summary["steps"], summary["epochs"], summary["parameters"]) == (8, 2, 75_290)
    assert (summary["K"], summary["beta"], summary["engine"], summary["dataset"]) == (
        2,
        0.5,
        "pipeline",
        "digits",
    )
    assert summary["staleness"] == [1, 0]  # measured; backward-first: 2(K-k)-1
    assert summary["updates"] == [8, 8]  # drained: every batch has updated every stage
    assert 0 <= summary["test_error_percent"] <= 100
    assert summary["images_per_second"] > 0
    assert len(summary["final_parameters_sha256"]) == len(summary["final_state_sha256"]) == 64
    assert (config["epochs"], config["train_size"], config["warmup"]) == (2, 112, "off")
    assert config["versions"]["jax"]
    assert config["devices"] == ["cpu:0", "cpu:1"]


def test_every_batch_is_in_the_metrics_and_the_ragged_one_too(short_run):
    events = read_metrics(short_run[0] / "metrics.jsonl")
    train = [event for event in events if "train_loss" in event]
    assert [event["step"] for event in train] == [2, 4, 6, 8]
    assert [event["epoch"] for event in train] == [0.5, 1, 1.5, 2]
    assert [event["learning_rate"] for event in train] == [0.05, 0.05, 0.005, 5e-05]
    assert [event["step"] for event in events if "test_loss" in event] == [4, 8]


def test_the_start_says_what_will_be_done(short_run):
    out = short_run[1]
    assert "112 training and 359 test images" in out
    assert "75,290 parameters" in out
    assert "staleness 1 update" in out
    assert "the paper's 150, 225 and 275 of 300, scaled" in out
    assert "\x1b" not in out  # plain lines, because nobody sits at this terminal


def test_the_start_says_what_each_stage_costs_holds_and_sends_and_so_does_the_config(short_run):
    path, out = short_run
    first, last = read(path / "config.json")["stages"]
    assert (first["first_block"], last["last_block"]) == (0, 4)
    assert first["last_block"] + 1 == last["first_block"]
    assert first["share_of"] == last["share_of"] == "FLOPs"
    assert first["share_percent"] + last["share_percent"] == pytest.approx(100, abs=0.11)  # each is rounded to a tenth
    assert first["parameters"] + last["parameters"] == 75_290
    assert [stage["memory_bytes"]["kept"] for stage in (first, last)] == [2, 1]
    assert first["memory_bytes"]["weights"] == 4 * first["parameters"]
    assert first["memory_bytes"]["old_weights"] == first["memory_bytes"]["weights"]
    shape = [int(n) for n in re.findall(r"\d+", first["sends"].removeprefix("float32"))]
    assert shape[0] == 32
    assert first["sends_bytes"] == 4 * math.prod(shape)
    assert last["sends_bytes"] == 0
    assert f"{first['share_percent']:.0f}% of the FLOPs" in out
    assert f"{first['memory_bytes']['total'] / 1e6:.1f} MB + XLA's buffers: weights" in out
    assert f"2 memos of {first['memory_bytes']['memo'] / 1e6:.1f}" in out
    assert f"sends {first['sends']}" in out


def test_a_finished_run_is_not_run_again_unless_more_is_asked_for(short_run):
    path, _ = short_run
    before, page = (path / "summary.json").read_text(), (path / "report.html").read_text()
    (path / "report.html").unlink()  # as by a kill just before it is written
    code, out, err = finish(command("--run-dir", str(path), "--resume"))
    assert (code, err) == (0, "")
    assert "is finished: 8 batches" in out
    assert (path / "summary.json").read_text() == before and (path / "report.html").read_text() == page


@pytest.mark.slow
def test_auto_without_cifar_is_digits_and_says_so_first_and_last(tmp_path):
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    words = SHORT.replace("digits", "auto").split()
    offline = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    offline |= {"no_proxy": "", "NO_PROXY": ""}
    offline["TFDS_DATA_DIR"] = str(nothing)
    process = command(*words, "--steps", "2", "--run-dir", str(tmp_path / "run"), environment=offline)
    code, out, err = finish(process)
    assert code == 0, err
    assert err.count("NOT CIFAR-10") == 1
    assert out.count("!!! ") == 1 and out.rstrip().splitlines()[-1].startswith("!!! NOT CIFAR-10")
    assert "- images/s" in out  # both batches may have compiled something
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert {event["images_per_second"] for event in lines if "train_loss" in event} == {None}
    summary = read(tmp_path / "run" / "summary.json")
    assert (summary["dataset"], summary["images_per_second"]) == ("digits", None)
    assert "digits" in summary["note"]


def stop_when(process: subprocess.Popen, path: Path, step: int, number: int = signal.SIGTERM) -> None:
    """Sends the signal once a line of at least that step is in the metrics."""
    deadline = time.monotonic() + 200
    while not any(event["step"] >= step for event in read_metrics(path / "metrics.jsonl")):
        assert process.poll() is None, finish(process)
        assert time.monotonic() < deadline, "the run does not get on"
        time.sleep(0.02)
    process.send_signal(number)


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "number"), [("pipeline", signal.SIGTERM), ("delay-line", signal.SIGINT)])
def test_a_run_that_was_stopped_ends_exactly_as_one_that_was_not(engine, number, tmp_path):
    words = f"{SHORT} --epochs 20 --K 3 --engine {engine} --checkpoint-every 7 --no-tensorboard".split()
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    code, _, err = finish(command(*words, "--run-dir", str(whole)))
    assert code == 0, err
    process = command(*words, "--run-dir", str(stopped))
    stop_when(process, stopped, 30, number)
    code, out, err = finish(process)
    assert code == 128 + number, err
    assert f"{sys.executable} -m fdg_jax.experiments.cifar --run-dir {stopped} --resume" in out.replace(
        "\n  .venv", f"\n  {ROOT}/.venv"
    )
    assert not (stopped / "summary.json").exists()
    assert (stopped / "report.html").exists()
    code, out, err = finish(command("--run-dir", str(stopped), "--resume"))
    assert code == 0, err
    assert "going on after batch " in out
    a, b = read(whole / "summary.json"), read(stopped / "summary.json")
    for name in (
        "final_parameters_sha256",
        "final_state_sha256",
        "train_loss",
        "test_error_percent",
        "staleness",
    ):
        assert a[name] == b[name], name
    assert b["sessions"] == 2

    def lines(path):
        return [
            {name: value for name, value in event.items() if name != "images_per_second"}
            for event in read_metrics(path / "metrics.jsonl")
        ]

    assert lines(whole) == lines(stopped)


@pytest.mark.slow
def test_more_steps_go_on_exactly_where_fewer_ended_and_a_damaged_checkpoint_is_passed_over(tmp_path):
    words = f"{SHORT} --epochs 5 --checkpoint-every 3 --no-tensorboard".split()
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert finish(command(*words, "--steps", "13", "--run-dir", str(whole)))[0] == 0
    assert finish(command(*words, "--steps", "7", "--run-dir", str(parts)))[0] == 0
    newest = sorted((parts / "checkpoints").iterdir())[-1]
    assert newest.name == "step-000000007"
    for file in newest.rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    leftover = parts / "checkpoints" / ".step-000000009.tmp"  # of a process that was killed while saving
    leftover.mkdir()
    code, _, err = finish(command("--run-dir", str(parts), "--resume", "--steps", "13"))
    assert code == 0, err
    assert not leftover.exists()
    assert "trying the one before" in err
    a, b = read(whole / "summary.json"), read(parts / "summary.json")
    assert (a["steps"], a["final_state_sha256"]) == (13, b["final_state_sha256"])
    assert a["final_parameters_sha256"] == b["final_parameters_sha256"]
    code, _, err = finish(command("--run-dir", str(parts), "--resume", "--steps", "13"))
    assert code == 0, err  # it is finished: nothing to do
    code, _, err = finish(command("--run-dir", str(parts), "--resume", "--steps", "5"))
    assert code == 2 and "--steps 5: the run stands at batch 13 already" in err


@pytest.mark.slow
@pytest.mark.parametrize("method", methods.names())
def test_every_method_runs_from_the_command_and_reports_itself(method, tmp_path, capsys):
    from fdg_jax.experiments.cifar import main

    words = f"{SHORT} --epochs 1 --method {method} --no-tensorboard --run-dir {tmp_path / 'run'}"
    assert main(words.split()) == 0
    out, summary = capsys.readouterr().out, read(tmp_path / "run" / "summary.json")
    schedule = methods.find(method).schedule(2)
    assert summary["staleness"] == list(schedule.staleness) and summary["updates"] == [4, 4]
    assert (summary["auxiliary_parameters"] > 0) is (method in ("dgl", "dni"))
    assert ("auxiliary  " in out) is (method in ("dgl", "dni"))
    every = "cpu:0 and cpu:1"
    assert read(tmp_path / "run" / "config.json")["devices"] == (
        [every, every] if method == "data_parallel" else ["cpu:0", "cpu:1"]
    )
    page = (tmp_path / "run" / "report.html").read_text()
    assert f"{method.upper()} with K=2{', β=1' if method == 'fdg' else ''}<" in page


def test_a_title_has_the_options_of_the_method_that_were_chosen():
    from fdg_jax.report.curves import title

    def of(**options):
        return title(dataclasses.asdict(Options(model="m", dataset="d", **options)))

    assert of(beta=0.5) == "m on d: FDG with K=2, β=0.5"
    assert of(accumulate=2) == "m on d: FDG with K=2, β=1, accumulate 2"
    assert of(method="dgl", aux="linear", K=4) == "m on d: DGL with K=4, aux linear"
    assert of(method="bp", K=1) == "m on d: BP with K=1"


@pytest.mark.slow
def test_a_bfloat16_run_that_computes_again_says_so_and_goes_on_exactly(tmp_path):
    words = f"{SHORT} --dtype bfloat16 --remat 1 --no-tensorboard".split()
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    code, out, err = finish(command(*words, "--run-dir", str(whole)))
    assert (code, err) == (0, "")
    assert "75,290 parameters in 5 blocks, bfloat16\n" in out
    assert "remat      1: the backward pass computes the activations again\n" in out
    config = read(whole / "config.json")
    assert (config["dtype"], config["remat"]) == ("bfloat16", "1")
    assert finish(command(*words, "--steps", "5", "--run-dir", str(parts)))[0] == 0
    code, _, err = finish(command("--run-dir", str(parts), "--resume", "--dtype", "float32"))
    assert code == 2
    assert "--dtype float32 contradicts" in err
    code, _, err = finish(command("--run-dir", str(parts), "--resume", "--steps", "8"))
    assert code == 0, err
    a, b = read(whole / "summary.json"), read(parts / "summary.json")
    assert a["final_state_sha256"] == b["final_state_sha256"]


@pytest.mark.slow
def test_the_initial_network_does_not_depend_on_the_method_or_K():
    from fdg_jax.training import setup

    def initial(**options):
        common = {"model": "resnet8", "dataset": "digits", "train_size": 64, "batch_size": 32}
        return setup.prepare(Options(**common, **options)).pipeline.parameters_sha256()

    one = initial(method="bp", K=1)
    assert initial(method="fdg", K=3, beta=0.5) == one
    assert initial(method="bp", K=1, seed=1) != one


def test_with_auto_the_number_of_images_is_an_upper_bound(monkeypatch):
    from fdg_jax import data
    from fdg_jax.training.setup import load_data

    digits = data.load("digits")
    monkeypatch.setattr(data, "load", lambda *_: digits)
    assert len(load_data(Options(dataset="auto", train_size=3000), "").train_images) == 1438
    with pytest.raises(BadInput, match="1438 training images"):
        load_data(Options(dataset="digits", train_size=3000), "")


def test_warm_up_is_the_papers_rule_and_bp_knows_no_K():
    from fdg_jax import methods
    from fdg_jax.training import setup

    def wants_warmup(options: Options) -> bool:
        return setup.wants_warmup(options, methods.find(options.method))

    assert not wants_warmup(Options(K=2))
    assert wants_warmup(Options(K=3))
    assert wants_warmup(Options(K=2, model="resnet110"))
    assert not wants_warmup(Options(K=4, method="bp"))
    assert not wants_warmup(Options(K=4, warmup="off"))
    assert wants_warmup(Options(K=1, warmup="on"))


def test_windows_lie_on_a_grid_that_divides_an_epoch():
    from fdg_jax.training.setup import default_window

    assert default_window(Options(engine="delay-line"), "gpu", 50_000) == 39  # 390 full batches of 128
    assert default_window(Options(engine="delay-line"), "gpu", 128 * 397) == 50  # 397 is prime
    assert default_window(Options(engine="delay-line"), "cpu", 50_000) == 1
    assert default_window(Options(engine="pipeline"), "gpu", 50_000) == 1


def test_bad_input_from_deep_inside_is_one_message_too(monkeypatch, capsys, tmp_path):
    from fdg_jax.experiments import cifar

    def refuse(*_):
        raise BadInput("stage k=2 cannot take that.")

    monkeypatch.setattr(option_checks, "check_names", refuse)
    assert cifar.main(["--run-dir", str(tmp_path / "x")]) == 2
    assert capsys.readouterr().err == "error: stage k=2 cannot take that.\n"
