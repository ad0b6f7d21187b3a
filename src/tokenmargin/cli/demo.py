"""`tokenmargin demo`: a guided run of a minute at most."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tokenmargin.cli._common import emit_json, needs_extra, progress_bar, say

if TYPE_CHECKING:
    from tokenmargin.experiments import Table

__all__ = ["demo"]


def demo(*, out: Path = Path("out/demo"), json: bool = False) -> int:
    """A guided run: one problem, all its limits, and which start reaches which.

    Writes a page, a figure and tables.

    Example:

        tokenmargin demo --out out/demo

    Parameters
    ----------
    out:
        Folder for the page, the figure and the tables.
    json:
        Write the findings as one JSON object to standard output.
    """
    from tokenmargin.dynamics import whole_runs
    from tokenmargin.experiments.figures.demo import Demo
    from tokenmargin.experiments.records import describe_findings, write_result

    with needs_extra("report"):
        from tokenmargin.report.demo_page import NEXT, write_demo_page
        from tokenmargin.report.figures import draw_figures

    experiment = Demo.quick()
    counts = experiment.selection_counts(experiment.problem())
    say(f"[bold]{experiment.title}[/bold]", markup=True)
    say(
        f"\nOf {counts['all']} ways to pick one token per input, no direction can pick {counts['infeasible']} "
        f"(each with a Farkas certificate), and {counts['limits']} are limits of training:\n"
    )
    with progress_bar(f"descent from {experiment.circle} starts", 100) as progress, whole_runs():
        result = experiment.run(lambda share: progress(round(100 * share)))
    _tell(result.tables)
    write_result(result, out)
    draw_figures(result, out / "figures")
    page = write_demo_page(result, out / "index.html", counts=counts)
    if json:
        emit_json(describe_findings(result))
    say(f"\n{'All as the theory says.' if result.holds else 'NOT as expected: see the page.'}")
    say(f"The page: {page} (figure and tables beside it). What to try next:\n\n{NEXT}")
    return 0 if result.holds else 1


def _tell(tables: Mapping[str, Table]) -> None:
    from rich.console import Console
    from rich.table import Table as Grid

    directions, limits = tables["directions"], tables["limits"]
    console = Console(stderr=True)
    known = Grid("limit", "tokens", "direction", "margin", "certificate residual", box=None)
    for kind, alpha, x, y, margin, residual in zip(
        *(directions[name] for name in ("direction", "selected", "x", "y", "margin", "residual")), strict=True
    ):
        known.add_row(str(kind), str(alpha), f"({x:.4f}, {y:.4f})", f"{margin:.4f}", f"{residual:.0e}")
    console.print(known)
    runs = Grid("start", "reached", "tokens", "angle to it", "norm", box=None)
    for x, y, kind, alpha, gap, norm in zip(
        *(limits[name] for name in ("start_x", "start_y", "limit", "selected", "angle", "norm")), strict=True
    ):
        runs.add_row(f"({x:+.2f}, {y:+.2f})", str(kind), str(alpha), f"{gap:.4f} rad", f"{norm:.1f}")
    console.print()
    console.print(runs)
