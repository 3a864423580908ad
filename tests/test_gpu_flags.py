"""XLA's flags on a GPU: which are chosen, what a version of XLA lacks, and what a run records of them."""

import os
from pathlib import Path
from unittest import mock

import pytest

from fdg_jax.machine import gpu_flags
from fdg_jax.machine.gpu_flags import DUMP, FILE, LOAD, REPEATABLE, UNTUNED


@pytest.fixture
def chosen(monkeypatch, tmp_path):
    """The flags that a run in tmp_path gets on a GPU."""
    monkeypatch.setattr(gpu_flags, "on_gpu", lambda platforms: "cpu" not in platforms)

    def choose(before=None, unknown=(), process=0, **environment):
        monkeypatch.setattr(gpu_flags, "unknown_flags", lambda flags: list(unknown))
        with mock.patch.dict(os.environ, environment):
            for name in {"XLA_FLAGS", "JAX_PLATFORMS"} - environment.keys():
                os.environ.pop(name, None)
            gpu_flags.prepare(tmp_path, before, process)
            return os.environ.get("XLA_FLAGS", "")

    return choose


def test_a_new_run_keeps_its_choice_of_kernels_and_one_that_goes_on_loads_it(chosen, tmp_path):
    file = tmp_path / FILE
    assert chosen() == f"{REPEATABLE} {DUMP}={file}"
    assert chosen(XLA_FLAGS="--xla_a=1") == f"--xla_a=1 {REPEATABLE} {DUMP}={file}"
    assert chosen(process=2) == f"{REPEATABLE} {DUMP}={tmp_path / '2-autotune.textproto'}"
    file.touch()
    assert chosen(before={"xla_flags": REPEATABLE}) == f"{REPEATABLE} {DUMP}={file} {LOAD}={file}"


@pytest.mark.parametrize("flag", [UNTUNED, "--xla_gpu_deterministic_ops=false", f"{LOAD}=/of/another/run"])
def test_the_flags_of_the_user_stay_and_a_cpu_gets_none(chosen, flag):
    assert chosen(XLA_FLAGS=flag) == flag
    assert chosen(JAX_PLATFORMS="cpu") == ""


def test_a_run_that_began_without_the_file_goes_on_as_it_began(chosen):
    assert chosen(before={"xla_flags": None}) == ""
    assert chosen(before={"xla_flags": f"{UNTUNED} --xla_a=1"}) == UNTUNED


def test_where_xla_cannot_keep_its_choices_one_sentence_says_so_and_nothing_is_tuned(chosen, capsys):
    assert chosen(unknown=[DUMP]) == UNTUNED
    said = capsys.readouterr()
    assert f"does not know {DUMP}, so it cannot store its choice of kernels" in said.out + said.err


def test_what_xla_lacks_is_read_from_what_it_says():
    flags = f"{REPEATABLE} {DUMP}=a"
    fatal = "F1129 parse_flags_from_env.cc:234] Unknown flags in XLA_FLAGS: --xla_gpu_dump_autotune_results_to=a\n"
    assert gpu_flags.refused(flags, 0, "") == []
    assert gpu_flags.refused(flags, -6, fatal) == [DUMP]
    assert gpu_flags.refused(flags, 1, "Segmentation fault") == [REPEATABLE.partition("=")[0], DUMP]


@pytest.mark.slow
def test_this_xla_knows_all_that_a_run_gets_and_a_flag_that_it_lacks_is_found(tmp_path):
    assert gpu_flags.unknown_flags(gpu_flags.tuned(tmp_path / FILE, exists=True)) == []
    assert gpu_flags.unknown_flags("--xla_gpu_no_such_flag=1 --xla_gpu_deterministic_ops=true") == [
        "--xla_gpu_no_such_flag"
    ]


def test_the_record_of_a_run_has_the_flags_without_the_paths_of_its_files():
    flags = f"--xla_a=1 {gpu_flags.tuned(Path('/runs/a') / FILE, exists=True)}"
    assert gpu_flags.without_files(flags) == f"--xla_a=1 {REPEATABLE}"
    assert gpu_flags.without_files(None) is None and gpu_flags.without_files("--xla_a=1  --b") == "--xla_a=1  --b"
