"""Ctrl-C: a run asked for by itself ends early and keeps what it reached; inside something larger it does not.

A figure, a claim or a record made of many runs would take a run that ended early for a whole one. Within `whole_runs`
the interrupt is therefore raised again, through everything that is being made.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_WHOLE: ContextVar[bool] = ContextVar("whole_runs", default=False)


@contextmanager
def whole_runs() -> Iterator[None]:
    """Within it, Ctrl-C ends everything: `evolve`, `flow` and the other runs raise it instead of returning early."""
    token = _WHOLE.set(True)
    try:
        yield
    finally:
        _WHOLE.reset(token)


def interrupted_run() -> bool:
    """True, for a run that was interrupted and returns what it has; within `whole_runs`, raise the interrupt again."""
    if _WHOLE.get():
        raise KeyboardInterrupt
    return True
