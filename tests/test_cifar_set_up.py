"""What the command makes of its options and of the machine before it trains."""

import dataclasses
import os
import subprocess
import sys
from collections import namedtuple

import pytest

from fdg_jax.errors import BadInput
from fdg_jax.machine import huge_pages
from fdg_jax.runs.options import Options

Device = namedtuple("Device", "platform id device_kind")


def test_the_engine_that_auto_chooses_is_as_fast_a_one_for_the_baseline(monkeypatch):
    from fdg_jax import methods
    from fdg_jax.training import setup

    def chosen(platform, found, **options):
        devices = [Device(platform, n, platform) for n in range(found)]
        shared = [devices[k * found // options["K"]] for k in range(options["K"])]
        remark = "stages share" if found < options["K"] else ""
        monkeypatch.setattr(setup.devices, "stage_devices", lambda K, **_: (shared, remark))
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


def test_one_epoch_is_not_epochs():
    from fdg_jax.training.opening import schedule_sentence

    assert schedule_sentence(Options(epochs=1, warmup="off"), 1).startswith("1 epoch of 1 batch; ")
    assert schedule_sentence(Options(warmup="on"), 391).startswith("300 epochs of 391 batches; ")


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


def test_a_title_has_the_options_of_the_method_that_were_chosen():
    from fdg_jax.report.options_part import title

    def of(**options):
        return title(dataclasses.asdict(Options(model="m", dataset="d", **options)))

    assert of(beta=0.5) == "m on d: FDG with K=2, β=0.5"
    assert of(accumulate=2) == "m on d: FDG with K=2, β=1, accumulate 2"
    assert of(method="dgl", aux="linear", K=4) == "m on d: DGL with K=4, aux linear"
    assert of(method="bp", K=1) == "m on d: BP with K=1"
    assert of(correct="rate, anticipate", prediction="last").endswith(", correct rate, anticipate, prediction last")


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
