"""Eight emulated CPU devices for every test, asked for before JAX wakes up.

The tests make the same small pipelines again and again; JAX's persistent cache compiles each program once.
"""

import os
import signal
import time
from pathlib import Path

import jax
import pytest

from fdg_jax.machine.child import hold_port
from fdg_jax.transport.devices import emulate_cpu


def pytest_configure(config):
    # On a machine with accelerators too: the tests are about emulated CPU devices, bit for bit.
    jax.config.update("jax_platforms", os.environ.get("JAX_PLATFORMS", "cpu"))
    emulate_cpu(8)
    if config.option.markexpr == "not slow":
        # LLVM's optimisations are a third of this suite's time. Slow tests, and all commands, compile as users do.
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{flags} --xla_backend_optimization_level=0"
        jax.jit(lambda: 0).lower().compile()  # XLA reads its flags at the first program
        os.environ["XLA_FLAGS"] = flags
    cache = getattr(config, "cache", None)  # absent under -p no:cacheprovider
    if cache is None:
        return
    jax.config.update("jax_compilation_cache_dir", str(cache.mkdir("xla")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def pytest_addoption(parser):
    parser.addoption("--within", type=float, metavar="SECONDS", help="begin no test any more after so many seconds")


BEGAN = time.monotonic()
OUT_OF_TIME = "out of time"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    within = item.config.getoption("--within")
    if within is not None and time.monotonic() - BEGAN > within:
        pytest.skip(f"{OUT_OF_TIME}: {within:g} s are over")


def pytest_terminal_summary(terminalreporter):
    skipped = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", ())]
    left_out = sum(OUT_OF_TIME in reason for reason in skipped)
    if left_out:
        terminalreporter.write_line(f"{left_out} tests were not begun: out of time. `make test-slow` runs them all.")


@pytest.fixture
def own_cache(tmp_path_factory, monkeypatch) -> Path:
    """The folder in which measured times are kept, for one test alone."""
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    return cache / "fdg_jax"


@pytest.fixture
def coordinator():
    """Where process 0 of a run can listen, as HOST:PORT. Nobody else is given this port."""
    place, held = hold_port("127.0.0.1")
    with held:
        yield place


@pytest.fixture
def without_nohup():
    """SIGHUP is not ignored, by this process and those that it starts, though the tests may run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
