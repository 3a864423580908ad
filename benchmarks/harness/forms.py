"""Replaces functions of the layers by other forms, to measure the gain of a fast path or the accuracy of a program."""

import contextlib
import itertools
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any
from unittest import mock

from fdg_jax import layers, models
from fdg_jax.layers import convolution, sequence


@contextlib.contextmanager
def replaced(forms: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """While tracing inside this context, layers and models use these forms of the named functions."""
    with contextlib.ExitStack() as stack:
        families = [import_module(f"fdg_jax.models.{file.name}") for file in pkgutil.iter_modules(models.__path__)]
        for name, module in itertools.product(forms, [convolution, layers, sequence, *families]):
            if hasattr(module, name):
                stack.enter_context(mock.patch.object(module, name, forms[name]))
        yield
