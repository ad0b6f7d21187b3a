"""What results offer in a notebook: one line, a small table, a data frame, a picture.

The modules of the results import neither matplotlib nor pandas; these are imported when somebody calls `plot` or
`to_frame`. The drawings themselves live in `tokenmargin.report.objects`, the only room that draws.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import html
import itertools
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import numpy as np
from numpy import ndarray as Array

SHOWN = 10  # rows of a table in a notebook
_STYLE = "font-variant-numeric: tabular-nums; text-align: right; padding: 0 .6em"


class Tabular(abc.ABC):
    """A result that is a table: rows for a data frame, the first of them for a notebook."""

    @abc.abstractmethod
    def _columns(self) -> Mapping[str, Array]:
        """The table, column by column."""

    def to_frame(self) -> Any:
        """The table as a pandas data frame, or as a polars one where only polars is installed."""
        return frame(self._columns())

    def _repr_html_(self) -> str:
        return _html(repr(self), self._columns())


class Drawable:
    """A result that can draw itself."""

    def plot(self, ax: Any = None, **settings: Any) -> Any:
        """Draw into matplotlib axes, new ones by default, and return them (needs `tokenmargin[report]`)."""
        try:
            drawings = import_module("tokenmargin.report.objects")
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"plot needs {error.name}: install it with pip install 'tokenmargin[report]'", name=error.name
            ) from error
        return drawings.plot(self, ax, **settings)


def frame(columns: Mapping[str, Array]) -> Any:
    """Columns as a pandas data frame, or a polars one where there is no pandas."""
    for name in ("pandas", "polars"):
        try:
            library = import_module(name)
        except ModuleNotFoundError:
            continue
        return library.DataFrame({name: np.asarray(column) for name, column in columns.items()})
    raise ModuleNotFoundError("to_frame needs pandas or polars: install one with pip install pandas")


def select_columns(**columns: Any) -> dict[str, Array]:
    """Columns of one table; a single value is repeated in every row."""
    arrays = {name: np.atleast_1d(np.asarray(column)) for name, column in columns.items()}
    rows = max(len(array) for array in arrays.values())
    return {name: array if len(array) == rows else np.repeat(array, rows) for name, array in arrays.items()}


def one_line(item: Any) -> str:
    """A frozen dataclass in one line: arrays by their shape, functions by their name, nothing that is at its default.

    >>> @dataclasses.dataclass
    ... class Box:
    ...     side: float
    ...     corners: Array
    ...     empty: bool = True
    >>> one_line(Box(2.0, np.zeros((4, 2))))
    'Box(side=2.0, corners=array(4, 2))'
    """
    told = []
    for field in dataclasses.fields(item):
        value = getattr(item, field.name)
        if field.repr and not (field.default is not dataclasses.MISSING and value is field.default):
            told.append(f"{field.name}={_short_repr(value)}")
    return f"{type(item).__name__}({', '.join(told)})"


def _short_repr(value: Any) -> str:
    match value:
        case np.ndarray():
            return f"array{value.shape}" if value.ndim != 1 else f"array({len(value)})"
        case functools.partial():
            return _short_repr(value.func)
        case type() | str() | None:
            return value.__name__ if isinstance(value, type) else repr(value)
        case list() | tuple() | Mapping() if len(value) > 3:
            return f"{len(value)} of {_short_repr(next(iter(value)))}"
        case Callable() if not dataclasses.is_dataclass(value):
            return str(getattr(value, "__name__", type(value).__name__))
        case _:
            return repr(value)


def _html(title: str, columns: Mapping[str, Array]) -> str:
    """A title and the first rows, in the colours of whatever page shows them."""
    rows = len(next(iter(columns.values()), ()))
    head = "".join(f"<th style='{_STYLE}'>{html.escape(name)}</th>" for name in columns)
    shown = itertools.islice(zip(*(np.asarray(column).tolist() for column in columns.values()), strict=True), SHOWN)
    body = "".join(
        "<tr>" + "".join(f"<td style='{_STYLE}'>{html.escape(table_cell(value))}</td>" for value in row) + "</tr>"
        for row in shown
    )
    more = f"<div>... {rows - SHOWN} more rows: to_frame()</div>" if rows > SHOWN else ""
    return f"<div><code>{html.escape(title)}</code><table><tr>{head}</tr>{body}</table>{more}</div>"


def table_cell(value: object) -> str:
    """A value as a table shows it."""
    match value:
        case bool():
            return "yes" if value else ""
        case float():
            return f"{value + 0.0:.4g}"
        case _:
            return str(value)
