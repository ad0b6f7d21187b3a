"""Which tokens softmax attention selects, and with what margin.

The stub beside this file, `__init__.pyi`, is the one list of public names: type checkers and editors read it, and so
does this module. A name is imported on its first use, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module

from tokenmargin._version import __version__


def _rooms_of_names() -> dict[str, str]:
    """The module that every public name comes from: lines of the stub read `from MODULE import NAME as NAME`."""
    with open(f"{__file__.rpartition('.')[0]}.pyi", encoding="utf-8") as stub:
        lines = [line.split() for line in stub if line.startswith("from ")]
    return {words[3]: words[1] for words in lines}


_ROOMS = _rooms_of_names()

__all__ = ["__version__", *sorted(_ROOMS.keys() - {"__version__"})]  # all of them are strings


def __getattr__(name: str) -> object:
    if name not in _ROOMS:
        raise AttributeError(f"module 'tokenmargin' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_ROOMS[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
