"""Long waits that leave nothing half done, such as a download, and that a signal may therefore end at once.

Loading data knows nothing of signals. A command that does says here, by a context manager, how such a wait is ended:
by an exception, raised in the middle of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

Section = Callable[[], contextlib.AbstractContextManager[None]]
_section: ContextVar[Section] = ContextVar("section", default=contextlib.nullcontext)


@contextlib.contextmanager
def by(section: Section) -> Iterator[None]:
    """Within it, every long wait is made in `section()`."""
    token = _section.set(section)
    try:
        yield
    finally:
        _section.reset(token)


def long_wait() -> contextlib.AbstractContextManager[None]:
    """For who waits long: as a context around the wait."""
    return _section.get()()
