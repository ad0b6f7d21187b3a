"""Examples in docstrings as blocks of code: to markdown `>>>` is a quotation, and `[0][1]` a link."""

from __future__ import annotations

from typing import Any

import griffe


class Doctests(griffe.Extension):
    """Called by mkdocstrings for every object of the reference."""

    def on_object(self, *, obj: Any, **kwargs: Any) -> None:
        """Fence the examples of its docstring."""
        if obj.docstring is not None:
            obj.docstring.value = fence_examples(obj.docstring.value)


def fence_examples(text: str) -> str:
    r"""Examples, from `>>>` to an empty line, between fences.

    >>> fence_examples("One.\n\n>>> [1]\n[1]").replace("`", "~")
    'One.\n\n~~~pycon\n>>> [1]\n[1]\n~~~'
    """
    parts = text.split("\n\n")
    return "\n\n".join(_fenced(part) if part.lstrip().startswith(">>> ") else part for part in parts)


def _fenced(example: str) -> str:
    indent = example[: len(example) - len(example.lstrip())].rpartition("\n")[2]
    return f"{indent}```pycon\n{example.rstrip()}\n{indent}```"
