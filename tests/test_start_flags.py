"""`--dry-run`, `--profile`, `--quiet`, and how --help and the lines of a run fit the eye."""

import gzip
import json
from contextlib import nullcontext

import jax
import jax.numpy as jnp
import pytest
from cifar_processes import SHORT, command, finish, read

from fdg_jax import cli
from fdg_jax.experiments import cifar, imagenet, language_model, tiny_imagenet
from fdg_jax.machine import output
from fdg_jax.options import parser
from fdg_jax.runs.progress import Progress
from fdg_jax.training.loop import Profile

PROGRAMS = [cifar.PROGRAM, tiny_imagenet.PROGRAM, imagenet.PROGRAM, language_model.PROGRAM]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.command.rpartition(".")[2])
@pytest.mark.parametrize("columns", [80])
def test_help_is_no_wider_than_the_terminal_or_100_columns_and_ends_with_commands(program, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    text = cli.parser(program).format_help()
    prose, _, examples = text.partition("\nExamples:\n")
    assert max(map(len, prose.splitlines())) <= min(columns, parser.WIDEST)
    assert max(map(len, examples.splitlines())) <= 80
    whole = examples.replace(" \\\n", "")
    commands = [line.split() for line in whole.splitlines() if not line.startswith("  #")]
    assert len(commands) == 4
    for words in commands:
        assert " ".join(words[:3]) == program.command
        if "--config" not in words:
            cli.parse(words[3:], program)


# --quiet


def test_a_quiet_run_prints_warnings_and_its_last_line_only(capsys):
    with output.quiet(True):
        print("method     fdg")
        with Progress(10, 0, 1) as progress:
            progress.say("epoch 1: test error 5.00%")
            progress.say("WARNING: the run goes back to the checkpoint after batch 3.")
        print("done: test error 5.00%", file=output.loud())
    print("after it")
    assert capsys.readouterr().out.splitlines() == [
        "WARNING: the run goes back to the checkpoint after batch 3.", "done: test error 5.00%", "after it"
    ]  # fmt: skip


# --profile


def work():
    return jax.jit(lambda x: x + 1)(jnp.zeros(4)).block_until_ready()


@pytest.mark.slow
def test_a_profile_traces_so_many_batches_once_nothing_compiles(tmp_path):
    said = []
    profile = Profile(2, tmp_path, nullcontext, said.append)
    for may_compile in (True, False, False, False):
        profile.before_dispatch(1, may_compile)
        assert profile.on is (not may_compile and profile.traced <= 2 and not said)
        work()
        profile.after_dispatch()
    profile.close()
    assert profile.traced == 2 and len(said) == 1 and said[0].startswith("profile of 2 batches: open ")
    (trace,) = (tmp_path / "profile").rglob("perfetto_trace.json.gz")
    assert json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]  # the format that ui.perfetto.dev opens
    assert list((tmp_path / "profile").rglob("*.xplane.pb"))  # XProf's


@pytest.mark.slow
def test_a_traced_run_computes_the_same_bits(tmp_path):
    for name, words in (("plain", []), ("traced", ["--profile", "2"])):
        code, out, err = finish(command(*SHORT.split(), "--epochs", "3", "--run-dir", str(tmp_path / name), *words))
        assert (code, err) == (0, ""), out
    assert "profile of 2 batches" in out and list((tmp_path / "traced" / "profile").rglob("perfetto_trace.json.gz"))
    plain, traced = (read(tmp_path / name / "summary.json") for name in ("plain", "traced"))
    assert plain["final_state_sha256"] == traced["final_state_sha256"]


# --dry-run


@pytest.mark.slow
def test_a_dry_run_says_what_a_run_would_be_and_cost_and_writes_nothing(tmp_path):
    code, out, err = finish(command(*SHORT.split(), "--dry-run", "--run-dir", str(tmp_path / "run"), cwd=tmp_path))
    assert (code, err) == (0, "") and list(tmp_path.iterdir()) == []
    for begin in ("stage k=2  ", "split      balanced", "memory     cpu:0 ", "time  ", "total  ", "cost  ", "disk  "):
        assert [line for line in out.splitlines() if line.startswith(begin)], begin
    assert ": 8 batches " in out and "2 evaluations " in out and " device-hours on 2 devices" in out
    assert out.splitlines()[-1] == "dry run    nothing was trained, nothing was written"
