"""`tokenmargin reproduce`: a figure of the papers, with expected beside measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tokenmargin.cli.common import UsageError, emit_json, needs_extra, progress_bar, say

if TYPE_CHECKING:
    from tokenmargin.experiments import AbstractExperiment, Result

__all__ = ["reproduce"]


def reproduce(
    figures: list[str] | None = None,
    /,
    *,
    scale: Literal["quick", "paper", "tuned"] = "quick",
    out: Path = Path("out/reproduce"),
    list_: bool = False,
    json: bool = False,
) -> int:
    """Compute figures of the papers, expected beside measured.

    Writes, per figure, its tables (CSV), the picture (SVG, PDF, PNG) and
    result.json, and one page for all. Exit code 1 when something measured is
    not as expected.

    Examples:

        tokenmargin reproduce --list
        tokenmargin reproduce fig1b fig3b
        tokenmargin reproduce                 # all of them

    Parameters
    ----------
    figures:
        Which figures; all of them by default.
    scale:
        Settings for a laptop (quick), the paper's own, or ours at full size (tuned).
    out:
        Folder to write into.
    list_:
        List the figures and leave.
    json:
        Write the findings as one JSON list to standard output.
    """
    from tokenmargin.experiments import EXPERIMENTS

    known = {experiment.figure: experiment for experiment in EXPERIMENTS}
    if list_:
        for name, experiment in known.items():
            print(f"{name:8} {experiment.title}")
        return 0
    unknown = [name for name in figures or () if name not in known]
    if unknown:
        raise UsageError(f"no figure {unknown[0]!r}; choose from {', '.join(known)}")
    with needs_extra("report"):
        from tokenmargin.report.figures import draw, save_figure
        from tokenmargin.report.page import result_section, write_page

    results: list[Result] = []
    sections = []
    for name in figures or known:
        result = _run(getattr(known[name], scale)())
        figure = draw(result)
        result.save(out / name)
        save_figure(figure, out / name, name)
        sections.append(result_section(result, figure))
        results.append(result)
        say(_verdict(result))
    command = " ".join(["tokenmargin reproduce", *(figures or ()), f"--scale {scale}"])
    page = write_page(
        out / "index.html",
        title="Figures reproduced",
        lead="Every figure with what was measured beside what was expected.",
        sections=sections,
        command=command,
    )
    if json:
        emit_json([result.summary() for result in results])
    say(f"\nThe page: [bold]{page}[/bold]")
    return 0 if all(result.holds for result in results) else 1


def _run(experiment: AbstractExperiment) -> Result:
    with progress_bar(experiment.figure, 100) as progress:
        return experiment.run(lambda share: progress(round(100 * share)))


def _verdict(result: Result) -> str:
    lines = [f"\n[bold]{result.experiment.figure}[/bold]  {result.experiment.title}"]
    for finding in result.findings:
        mark = "[green]yes[/green]" if finding.holds else "[red]NO[/red] "
        lines.append(f"  {mark}  {finding.what}: {finding.measured:.6g} (expected {finding.expected})")
    return "\n".join(lines)
