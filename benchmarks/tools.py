"""What several benchmarks need: flags, tables in markdown, times, slopes."""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from cyclopts import App, Parameter

__all__ = ["best_times", "by_cvxopt", "header", "line", "print_table", "run_main", "slope", "write_csv"]


def run_main(main: Callable[..., int | None], about: str | None) -> None:
    """Call `main` with the flags of the command line, which are its arguments; what it returns is the exit code."""
    app = App(help=about, help_format="plaintext", default_parameter=Parameter(negative=(), consume_multiple=True))
    app.default(main)
    sys.exit(app(result_action="return_value"))


def line(*cells: object) -> str:
    """A row of a table in markdown."""
    return f"| {' | '.join(map(str, cells))} |"


def header(*names: str, numbers: int = 0) -> str:
    """The first two lines of a table; the last so many columns hold numbers, which stand at the right."""
    sides = ["---"] * (len(names) - numbers) + ["---:"] * numbers
    return f"{line(*names)}\n|{'|'.join(sides)}|"


def print_table(names: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: int = 0) -> None:
    """Print a table, each row as soon as it is known."""
    print(header(*names, numbers=numbers))
    for row in rows:
        print(line(*row), flush=True)


def write_csv(path: Path, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a table with five digits, making its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(names)
        table.writerows([f"{value:.5g}" if isinstance(value, float) else value for value in row] for row in rows)


def best_times(
    *works: Callable[[], object], seconds: float = 6.0, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Best time of each work by a clock, over interleaved rounds, at least two: what disturbs one disturbs all."""
    times, rounds, end = [np.inf] * len(works), 0, time.perf_counter() + seconds
    while rounds < 2 or time.perf_counter() < end:
        for j, work in enumerate(works):
            began = clock()
            work()
            times[j] = min(times[j], clock() - began)
        rounds += 1
    return times


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The exponent of a power law through the points, by least squares of the logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def by_cvxopt(rows: np.ndarray) -> np.ndarray:
    """The dense quadratic programme `min p'p/2, rows p >= 1`, as cvxopt solves it with its default settings."""
    import cvxopt

    cvxopt.solvers.options["show_progress"] = False
    k, d = rows.shape
    solution = cvxopt.solvers.qp(
        cvxopt.matrix(np.eye(d)), cvxopt.matrix(np.zeros(d)), cvxopt.matrix(-rows), cvxopt.matrix(-np.ones(k))
    )
    return np.array(solution["x"])[:, 0]
