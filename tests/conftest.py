"""Eight emulated CPU devices for every test, asked for before JAX wakes up.

The tests make the same small pipelines again and again; JAX's persistent cache compiles each program once.
"""

import os

import jax
import pytest

from fdg_jax.devices import emulate_cpu


def pytest_configure(config):
    # On a machine with accelerators too: the tests are about emulated CPU devices, bit for bit.
    jax.config.update("jax_platforms", os.environ.get("JAX_PLATFORMS", "cpu"))
    emulate_cpu(8)
    cache = getattr(config, "cache", None)  # absent under -p no:cacheprovider
    if cache is None:
        return
    jax.config.update("jax_compilation_cache_dir", str(cache.mkdir("xla")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


ENGINES, METHODS = ("test_engines", "test_pipeline", "test_api"), ("test_methods", "test_data_parallel")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Where a test does little but compile, what compiles most is a long one: four stages of any engine, three of the
    compared methods, and a scan."""
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        module, stages = item.module.__name__, parameters.get("K", 0)
        most = {**dict.fromkeys(ENGINES, 3), **dict.fromkeys(METHODS, 2)}.get(module)
        if most and (stages > most or parameters.get("engine") == "scan"):
            item.add_marker(pytest.mark.slow)
