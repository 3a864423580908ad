"""What the command makes of its options and of the machine before it trains."""

from collections import namedtuple
from types import SimpleNamespace

import pytest

from fdg_jax.config import Config
from fdg_jax.errors import BadInput
from fdg_jax.machine import huge_pages
from fdg_jax.models import paper_split
from fdg_jax.training.opening import whose_split

Device = namedtuple("Device", "platform id device_kind")


def test_the_engine_that_auto_chooses_is_as_fast_a_one_for_the_baseline(monkeypatch):
    from fdg_jax import methods
    from fdg_jax.training import job as jobs

    def chosen(platform, found, **options):
        devices = [Device(platform, n, platform) for n in range(found)]
        shared = [devices[k * found // options["K"]] for k in range(options["K"])]
        remark = "stages share" if found < options["K"] else ""
        monkeypatch.setattr(jobs.devices, "stage_devices", lambda K, **_: (shared, remark))
        used, places, said = jobs.choose_engine(Config(**options), methods.find(options["method"]))
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


def test_on_one_core_xla_splits_nothing_and_a_resumed_run_stays_as_it_was(monkeypatch):
    from fdg_jax.training import job as jobs

    plain = "--xla_cpu_multi_thread_eigen=false"
    for cores, before, resumed, then in (
        (1, {}, None, plain),
        (1, {"XLA_FLAGS": "--xla_dump_to=x"}, None, f"--xla_dump_to=x {plain}"),
        (1, {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=true"}, None, "--xla_cpu_multi_thread_eigen=true"),
        (2, {}, None, None),
        (1, {}, {"xla_flags": None}, None),
        (2, {}, {"xla_flags": plain}, plain),
    ):
        environment = dict(before)
        monkeypatch.setattr(jobs.facts, "usable_cores", lambda cores=cores: cores)
        monkeypatch.setattr(jobs.os, "environ", environment)
        jobs.prepare_cpu(resumed)
        assert environment.get("XLA_FLAGS") == then


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


def test_with_auto_the_number_of_images_is_an_upper_bound(monkeypatch):
    from fdg_jax import data
    from fdg_jax.training.job import load_data

    digits = data.load("digits")
    monkeypatch.setattr(data, "load", lambda *_: digits)
    assert len(load_data(Config(dataset="auto", train_size=3000), "").train_images) == 1438
    with pytest.raises(BadInput, match="1438 training images"):
        load_data(Config(dataset="digits", train_size=3000), "")


def test_warm_up_is_the_papers_rule_and_bp_knows_no_K():
    from fdg_jax import methods
    from fdg_jax.training import job as jobs

    def wants_warmup(options: Config) -> bool:
        return jobs.wants_warmup(options, methods.find(options.method))

    assert not wants_warmup(Config(K=2))
    assert wants_warmup(Config(K=3))
    assert wants_warmup(Config(K=2, model="resnet110"))
    assert not wants_warmup(Config(K=4, method="bp"))
    assert not wants_warmup(Config(K=4, warmup="off"))
    assert wants_warmup(Config(K=1, warmup="on"))


def test_windows_lie_on_a_grid_that_divides_an_epoch():
    from fdg_jax.training.job import default_window

    assert default_window(Config(engine="delay-line"), "gpu", 50_000) == 39  # 390 full batches of 128
    assert default_window(Config(engine="delay-line"), "gpu", 128 * 397) == 50  # 397 is prime
    assert default_window(Config(engine="delay-line"), "cpu", 50_000) == 1
    assert default_window(Config(engine="pipeline"), "gpu", 50_000) == 1


def test_a_run_says_whether_the_authors_cut_the_network_so():
    way = "stages share the FLOPs as evenly as whole blocks allow"
    none = f"the authors' code has no split of resnet20 for K=4, so {way}"
    for name, model, K, says in (
        ("paper", "resnet1202", 5, " (as in the authors' code)"),
        ("balanced", "resnet20", 4, f" ({none})"),
        ("balanced", "resnet20", 2, ""),  # asked for, although the authors have one
        ("3,7", "resnet20", 3, ""),
    ):
        has_one = paper_split(model, K) is not None
        partition = SimpleNamespace(name=name, unit="FLOPs", has_paper_split=has_one)
        job = SimpleNamespace(partition=partition, options=SimpleNamespace(model=model, K=K))
        assert whose_split(job) == says  # type: ignore[arg-type]
