"""Two runs side by side: where settings, code, machine, findings and tables differ."""

from __future__ import annotations

from typing import Any

import numpy as np

from tokenmargin.experiments.experiment import FINDINGS, Table
from tokenmargin.experiments.records import Run


def compare_runs(first: Run, second: Run) -> dict[str, Any]:
    """Differences of two finished runs, in plain types; tables that differ in bytes are compared column by column."""
    for run in (first, second):
        if not run.finished:
            raise ValueError(f"{run.id} is unfinished; only finished runs can be compared")
    one, other = first.details(), second.details()
    tables = {name: _compare_tables(first, second, name) for name in {**one["tables"], **other["tables"]}}
    return {
        "settings": _differences(one["config"], other["config"]),
        "code": _differences(one["code"], other["code"]),
        "environment": _differences(one["environment"], other["environment"]),
        "findings": _findings(one, other),
        "tables": tables,
        "same_tables": all(words == SAME for words in tables.values()),
    }


SAME = "the same, bit for bit"


def _differences(one: dict[str, Any], other: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    names = {**one, **other}
    return {name: (one.get(name), other.get(name)) for name in names if one.get(name) != other.get(name)}


def _findings(one: dict[str, Any], other: dict[str, Any]) -> list[dict[str, Any]]:
    values = [{f["what"]: f["measured"] for f in details.get(FINDINGS, ())} for details in (one, other)]
    return [
        {"what": what, "first": values[0].get(what), "second": values[1].get(what)}
        for what in {**values[0], **values[1]}
        if values[0].get(what) != values[1].get(what)
    ]


def _compare_tables(first: Run, second: Run, name: str) -> str:
    kept = [run.details()["tables"].get(name) for run in (first, second)]
    if None in kept:
        return "only in the first" if kept[1] is None else "only in the second"
    if kept[0]["sha256"] == kept[1]["sha256"]:
        return SAME
    return _column_differences(first.table(name), second.table(name)) or "same values, different bytes"


def _column_differences(one: Table, other: Table) -> str:
    if list(one) != list(other):
        return f"columns {', '.join(one)} | {', '.join(other)}"
    lengths = [len(next(iter(table.values()), ())) for table in (one, other)]
    if lengths[0] != lengths[1]:
        return f"{lengths[0]} rows | {lengths[1]} rows"
    words = []
    for column in one:
        a, b = one[column], other[column]
        if a.dtype.kind == b.dtype.kind == "f":
            apart = (a != b) & ~(np.isnan(a) & np.isnan(b))
            if apart.any():
                gap = np.abs(a[apart] - b[apart]).max()
                words.append(f"{column} differs in {int(apart.sum())} rows by up to {gap:.3g}")
        elif (a != b).any():
            words.append(f"{column} differs in {int((a != b).sum())} rows")
    return "; ".join(words)
