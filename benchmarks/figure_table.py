"""The table of docs/figures.md from records of `tokenmargin reproduce`: `python -m benchmarks.figure_table RUNS`.

A row a finding: figure, what was measured, its value, the range it was expected in, and where that comes from. A test
computes the quick ones again and compares.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenmargin.experiments import runs_in

HEADER = "| figure | what was measured | value | expected | bounds from |\n|---|---|---|---|---|"


def row(figure: str, finding: dict[str, Any]) -> str:
    """One line of the table; `finding` as in run.json."""
    what = finding["what"].replace("|", "\\|")
    expected = "" if finding["verdict"] == "measured" else finding["expected"]
    return f"| {figure} | {what} | {finding['measured']:.6g} | {expected} | {finding['bounds_from']} |"


def read(text: str) -> dict[tuple[str, str], tuple[float, str]]:
    """The rows of a page: value and expectation by figure and quantity."""
    rows = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.replace("\\|", "\0").split("|")[1:-1]]
        if len(cells) == 5 and cells[2] not in ("value", "---"):
            figure, what, value, expected, _ = (cell.replace("\0", "|") for cell in cells)
            rows[figure, what] = float(value), expected
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", type=Path, nargs="+", help="folders of runs, written by tokenmargin reproduce --out")
    print(HEADER)
    for folder in parser.parse_args(arguments).runs:
        details = {run.details()["experiment"]: run.details() for run in runs_in(folder) if run.finished}
        for figure in (name for name in details if name.startswith(("fig", "svm", "kq", "ntp"))):
            print("\n".join(row(figure, finding) for finding in details[figure]["findings"]))


if __name__ == "__main__":
    main()
