"""The table of docs/figures.md from records of `tokenmargin reproduce`: `python -m benchmarks.figure_table RUNS`.

A row a finding: figure, what was measured, its value, the range it was expected in, and where that comes from. A test
computes the quick ones again and compares.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.tools import header, line, run_main
from tokenmargin.experiments import runs_in


def row(figure: str, finding: dict[str, Any]) -> str:
    """One line of the table; `finding` as in run.json."""
    what = finding["what"].replace("|", "\\|")
    expected = "" if finding["verdict"] == "measured" else finding["expected"]
    return line(figure, what, f"{finding['measured']:.6g}", expected, finding["bounds_from"])


def read(text: str) -> dict[tuple[str, str], tuple[float, str]]:
    """The rows of a page: value and expectation by figure and quantity."""
    rows = {}
    for written in text.splitlines():
        cells = [cell.strip() for cell in written.replace("\\|", "\0").split("|")[1:-1]]
        if len(cells) == 5 and cells[2] not in ("value", "---"):
            figure, what, value, expected, _ = (cell.replace("\0", "|") for cell in cells)
            rows[figure, what] = float(value), expected
    return rows


def main(*folders: Path) -> None:
    """The table of these folders of runs, written by `tokenmargin reproduce --out`."""
    print(header("figure", "what was measured", "value", "expected", "bounds from"))
    for folder in folders:
        details = {one.details()["experiment"]: one.details() for one in runs_in(folder) if one.finished}
        for figure in (name for name in details if name.startswith(("fig", "svm", "kq", "ntp"))):
            print("\n".join(row(figure, finding) for finding in details[figure]["findings"]))


if __name__ == "__main__":
    run_main(main, __doc__)
