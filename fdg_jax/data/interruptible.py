"""Long waits, such as downloads, that a signal may end at once, since an interruption leaves nothing half done.

The data room does not handle signals. A command that does registers a context manager here. Long waits are made inside
this context, which ends them by an exception.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

Section = Callable[[], contextlib.AbstractContextManager[None]]
_section: ContextVar[Section] = ContextVar("section", default=contextlib.nullcontext)


@contextlib.contextmanager
def by(section: Section) -> Iterator[None]:
    """A context in which every long wait is made inside `section()`, which returns a context manager."""
    token = _section.set(section)
    try:
        yield
    finally:
        _section.reset(token)


def long_wait() -> contextlib.AbstractContextManager[None]:
    """The context in which to wait."""
    return _section.get()()
