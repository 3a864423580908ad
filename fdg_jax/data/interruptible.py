"""Long waits that a signal may end at once, as they leave nothing half done, such as downloads.

The data room knows nothing of signals. A command that handles signals gives a context manager here, in which such waits
are made and which ends them by an exception.
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
