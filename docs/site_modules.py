"""Every module of the package in one line, the first of its docstring, room by room: `python docs/site_modules.py`."""

from __future__ import annotations

import ast
from pathlib import Path

__all__ = ["modules_text"]

PACKAGE = Path(__file__).parents[1] / "src" / "tokenmargin"
ORDER = ("", "problem", "objective", "margin", "dynamics", "limits", "theory", "data", "training", "classifier",
         "experiments", "report", "cli")  # fmt: skip


def modules_text() -> str:
    """The page: a section a room, in the order in which they build on each other."""
    folders = {place.parent for place in PACKAGE.rglob("__init__.py")}
    rooms = sorted(folders, key=lambda room: (ORDER.index((*room.relative_to(PACKAGE).parts, "")[0]), str(room)))
    return "# Every module in one line\n\n" + "\n".join(map(_room_text, rooms))


def _room_text(room: Path) -> str:
    modules = sorted(path for path in room.glob("*.py") if path.name not in ("__init__.py", "_version.py"))
    head = f"## {room.relative_to(PACKAGE.parent).as_posix()}/\n\n{_line(room / '__init__.py')}\n"
    return "\n".join([head, *(f"- `{path.name}`: {_line(path)}" for path in modules), ""])


def _line(path: Path) -> str:
    found = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(found.partition("\n\n")[0].split())


if __name__ == "__main__":
    print(modules_text())
