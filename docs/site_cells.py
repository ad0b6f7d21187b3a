"""Scripts with cells (`# %% [markdown]` and `# %%`), run as a notebook runs them."""

from __future__ import annotations

import ast
import contextlib
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Shown", "cells_of", "notebook_of", "run_cells"]

Kind = Literal["markdown", "code"]


@dataclass(frozen=True)
class Shown:
    """What a cell printed, the HTML of its last value, and the pictures it drew."""

    printed: str = ""
    html: str = ""
    pictures: tuple[bytes, ...] = ()


def cells_of(script: str) -> list[tuple[Kind, str]]:
    """The cells, markdown without its comment signs."""
    cells: list[tuple[Kind, str]] = []
    for cell in re.split(r"^# %%", script, flags=re.M)[1:]:
        kind, _, body = cell.partition("\n")
        if "[markdown]" in kind:
            lines = (line.removeprefix("#").removeprefix(" ") for line in body.strip().splitlines())
            cells.append(("markdown", "\n".join(lines)))
        elif body.strip():
            cells.append(("code", body.strip()))
    return cells


def run_cells(cells: list[tuple[Kind, str]]) -> Iterator[tuple[Kind, str, Shown]]:
    """Run the code cells one after the other in one namespace; an error ends the build."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    plt.close("all")
    names: dict[str, Any] = {"__name__": "__main__"}
    for kind, body in cells:
        yield kind, body, Shown() if kind == "markdown" else _run(body, names)


def _run(body: str, names: dict[str, Any]) -> Shown:
    from matplotlib import pyplot as plt

    tree, printed, value = ast.parse(body), io.StringIO(), None
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "<cell>", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    pictures = []
    for number in plt.get_fignums():
        buffer = io.BytesIO()
        plt.figure(number).savefig(buffer, format="svg", metadata={"Date": None})
        pictures.append(buffer.getvalue())
    plt.close("all")
    text = printed.getvalue().rstrip()
    if value is None or pictures:
        return Shown(text, "", tuple(pictures))
    if hasattr(value, "_repr_html_"):
        return Shown(text, re.sub(r"\s*\n\s*", " ", value._repr_html_()))
    return Shown(f"{text}\n{value!r}".strip())


def notebook_of(script: str) -> dict[str, Any]:
    """The same cells as a notebook without outputs."""
    cells = []
    for kind, body in cells_of(script):
        cell: dict[str, Any] = {"cell_type": kind, "id": f"cell-{len(cells)}", "metadata": {}, "source": body}
        cells.append(cell if kind == "markdown" else cell | {"execution_count": None, "outputs": []})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
