"""`tokenmargin reproduce` and `sweep`: the papers' figures, expected beside measured, and one of them on a grid."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tokenmargin.cli._common import (
    Address,
    Jobs,
    RunsFolder,
    UsageError,
    choose_engine,
    console_for,
    emit_json,
    needs_extra,
    print_message,
    share_bar,
    system_line,
    usage_errors,
)

if TYPE_CHECKING:
    from tokenmargin.experiments import AbstractExperiment, Result, Run
    from tokenmargin.experiments.sweeps import SweepProgress
    from tokenmargin.report.page import NotRun


def reproduce(
    figures: list[str] | None = None,
    /,
    *,
    scale: Literal["quick", "paper", "tuned", "short"] = "quick",
    out: RunsFolder = Path("runs"),
    list_: bool = False,
    again: bool = False,
    json: bool = False,
    **settings: str,
) -> int:
    """Compute figures of the papers, expected beside measured.

    Every figure gets a folder with its tables (parquet), drawings (SVG, PDF, PNG) and `run.json` (settings, seeds,
    code, packages, machine, timing, expected against measured); all together get one page, `reproduction.html`. A
    figure whose run is there, with the same settings and code, is not computed again. Every setting of a figure is a
    flag.
    Exit code 1 when something is not as expected and not explained. A figure from data that stand in for the paper's
    says so, and is not judged.

    Examples:

        tokenmargin reproduce                            # all of them
        tokenmargin reproduce --list                     # what there is
        tokenmargin reproduce fig1b --list               # the settings of one figure
        tokenmargin reproduce fig1b fig3b --scale paper --steps 2000

    Parameters
    ----------
    figures:
        Which figures: those of the papers, experiments that other packages add, or MODULE:CLASS; all by default.
    scale:
        Settings for a laptop (quick), the paper's own, ours at full size (tuned), or what half an hour of one
        GPU allows (short).
    list_:
        List the figures, or the settings of the figures named, and leave.
    again:
        Compute even what is there.
    json:
        Write the findings as one JSON list to standard output.
    settings:
        Any setting of a figure, such as --steps 2000.
    """
    chosen = experiments_named(figures, scale=scale)
    if list_:
        _print_figures(chosen, with_settings=bool(figures))
        return 0
    chosen = _apply_settings(chosen, field_names(settings))
    for experiment in chosen if figures else ():
        if reason := _what_is_missing(experiment):
            raise UsageError(f"{experiment.figure} {reason}")
    with needs_extra("report"):
        from tokenmargin.report.figures import draw_figures
        from tokenmargin.report.page import write_reproduction

    runs, left_out = _run_all(
        chosen, lambda experiment: _record_figure(experiment, out, draw=draw_figures, again=again)
    )
    words = ["tokenmargin reproduce", *(figures or ()), *([f"--scale {scale}"] if scale != "quick" else [])]
    words += [f"--{name.replace('_', '-')} {value}" for name, value in settings.items()]
    page = write_reproduction(out / "reproduction.html", runs, left_out=left_out, command=" ".join(words))
    details = [run.details() for _, run in runs]
    if json:
        emit_json(details)
    count = {verdict: sum(run["verdict"] == verdict for run in details) for verdict in VERDICTS}
    count["not run"] = len(left_out)
    print_message("\n" + ", ".join(f"{number} {verdict}" for verdict, number in count.items() if number))
    print_message(f"The page: {page}")
    return 1 if count["not as expected"] or any(skipped.failed for skipped in left_out) else 0


def _run_all(
    chosen: list[AbstractExperiment], run_one: Callable[[AbstractExperiment], Run]
) -> tuple[list[tuple[AbstractExperiment, Run]], list[NotRun]]:
    """Run the experiments one after the other; one that cannot run or fails is named, and the others still run."""
    from rich.markup import escape

    from tokenmargin.report.page import NotRun

    runs: list[tuple[AbstractExperiment, Run]] = []
    left_out: list[NotRun] = []
    for experiment in chosen:
        reason, failed = _what_is_missing(experiment), False
        if not reason:
            try:
                run = run_one(experiment)
                runs.append((experiment, run))
                print_message(_findings_as_text(run.result(experiment)), markup=True)
            except OSError as error:
                reason, failed = f"failed: {system_line(error)}", True
            except Exception as error:
                reason, failed = f"failed: {type(error).__name__}: {error}", True
        if reason:
            left_out.append(NotRun(experiment, reason, failed=failed))
            print_message(f"\n[bold]{experiment.figure}[/bold]  not run: {escape(reason)}", markup=True)
    return runs, left_out


VERDICTS = ("as expected", "explained", "stand-in", "not as expected")


def _what_is_missing(experiment: AbstractExperiment) -> str:
    from tokenmargin.experiments.provenance import missing_extras

    missing = missing_extras(experiment.needs)
    return f"needs pip install 'tokenmargin[{','.join(missing)}]'" if missing else ""


def _record_figure(
    experiment: AbstractExperiment, out: Path, *, draw: Callable[[Result, Path], object], again: bool
) -> Run:
    from tokenmargin.experiments import record

    with share_bar(experiment.figure) as progress:
        return record(
            experiment,
            out,
            progress=progress,
            draw=draw,
            again=again,
            waiting=lambda: print_message(f"{experiment.figure}: another process is at it; waiting"),
            found_damaged=lambda what: print_message(f"{experiment.figure}: {', '.join(what)} damaged; computed again"),
        )


def experiments_named(figures: Sequence[str] | None, *, scale: str) -> list[AbstractExperiment]:
    """The experiments with these names, by default all, with the settings of a scale."""
    from tokenmargin import experiments

    with usage_errors():
        chosen = list(map(experiments.experiment_named, figures)) if figures else experiments.EXPERIMENTS
    return [getattr(experiment, scale)() for experiment in chosen]


def field_names(flags: Mapping[str, str]) -> dict[str, str]:
    """The texts of flags by the names of the fields that they set."""
    return {name.replace("-", "_"): text for name, text in flags.items()}


def _apply_settings(chosen: list[AbstractExperiment], settings: dict[str, str]) -> list[AbstractExperiment]:
    """Give each setting to the chosen experiments that have it; UsageError if none of them has."""
    from tokenmargin.experiments.settings import setting_kinds, with_settings

    kinds = {experiment.figure: setting_kinds(type(experiment)) for experiment in chosen}
    for name in settings:
        if not any(name in known for known in kinds.values()):
            choices = sorted({setting for known in kinds.values() for setting in known})
            flags = ", ".join(f"--{choice.replace('_', '-')}" for choice in choices)
            raise UsageError(f"no setting --{name.replace('_', '-')} in {', '.join(kinds)}; there are {flags}")
    with usage_errors():
        return [
            with_settings(
                experiment, {name: text for name, text in settings.items() if name in kinds[experiment.figure]}
            )
            for experiment in chosen
        ]


def _print_figures(chosen: list[AbstractExperiment], *, with_settings: bool) -> None:
    from dataclasses import asdict

    from rich.table import Table as Grid

    console = console_for(sys.stdout)
    for source in dict.fromkeys(experiment.source for experiment in chosen):
        console.print(f"\n[bold]{source}[/bold]")
        grid = Grid(box=None)
        for name in ("figure", "quick", "paper", "needs", "what"):
            grid.add_column(name, no_wrap=name in ("figure", "quick", "paper"))
        for experiment in (experiment for experiment in chosen if experiment.source == source):
            quick, paper = (_duration(seconds) for seconds in experiment.seconds)
            grid.add_row(experiment.figure, quick, paper, ", ".join(experiment.needs), experiment.title)
        console.print(grid)
    for experiment in chosen if with_settings else ():
        quick_settings, paper_settings = asdict(type(experiment).quick()), asdict(type(experiment).paper())
        table = Grid(f"setting of {experiment.figure}", "quick", "paper", box=None)
        for name, value in quick_settings.items():
            table.add_row(f"--{name.replace('_', '-')}", str(value), str(paper_settings[name]))
        console.print()
        console.print(table)


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    if seconds < 90:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.2g} min" if seconds < 5400 else f"{seconds / 3600:.2g} h"


def _findings_as_text(result: Result) -> str:
    from rich.markup import escape

    lines = [f"\n[bold]{result.experiment.figure}[/bold]  {escape(result.title)}"]
    marks = {
        "as expected": "[green]yes[/green]",
        "explained": "[yellow]explained[/yellow]",
        "not as expected": "[red]NO[/red] ",
        "measured": "   ",
    }
    for finding in result.findings:
        mark = marks[finding.verdict]
        bounds = f" (expected {finding.expected}; {finding.bounds_from})" if finding.has_bounds else ""
        lines.append(f"  {mark}  {escape(finding.what)}: {finding.measured:.6g}{bounds}")
    return "\n".join(lines)


LINE_SECONDS = 10.0  # between lines of progress when standard error is a file


def sweep(
    experiment: str,
    /,
    *,
    over: list[str],
    engine: Literal["local", "ray"] = "local",
    jobs: Jobs = -1,
    address: Address = None,
    scale: Literal["quick", "paper", "tuned", "short"] = "quick",
    table: str = "findings",
    out: RunsFolder = Path("runs"),
    fail_fast: bool = False,
    retry_failed: bool = False,
    json: bool = False,
    **settings: str,
) -> int:
    """Run an experiment on every combination of settings and keep one table of all results.

    Results stream to disk; a sweep that was stopped, by whatever means, goes on where it was when the same command is
    given again. A cell that fails is recorded with its traceback and does not stop the others. Exit code 1 when a cell
    failed.

    Examples:

        tokenmargin sweep fig1b --over step=0.05,0.1,0.2 --over steps=100,1000
        tokenmargin sweep fig1a --over steps=1..2000 --table limits
        tokenmargin sweep fig1a --over steps=1..100000 --engine ray --address auto

    Parameters
    ----------
    experiment:
        A figure, as `tokenmargin reproduce --list` names them, or MODULE:CLASS.
    over:
        A setting and its values: NAME=VALUE,VALUE or NAME=FIRST..LAST (both included). Give it once per setting.
    engine:
        Processes on this machine (local), or a ray cluster (ray).
    scale:
        The settings that are not swept: for a laptop (quick), the paper's own, ours at full size (tuned), or
        what half an hour of one GPU allows (short).
    table:
        Which table of each result to keep; by default its findings.
    fail_fast:
        Stop at the first failure.
    retry_failed:
        Run the cells again that failed before.
    json:
        Write what the run's record says as one JSON object to standard output.
    settings:
        Any setting that is not swept, such as --steps 2000.
    """
    from tokenmargin.experiments import Grid, parse_axis, with_settings
    from tokenmargin.experiments import sweep as run_sweep

    (base,) = experiments_named([experiment], scale=scale)
    with usage_errors():
        base = with_settings(base, field_names(settings))
        grid = Grid(base, tuple(parse_axis(type(base), text) for text in over))
        chosen = choose_engine(engine, jobs=jobs, address=address)
    with needs_extra("cluster" if engine == "ray" else "records"), _progress_lines(len(grid)) as progress:
        run = run_sweep(
            grid,
            out,
            engine=chosen,
            table=table,
            fail_fast=fail_fast,
            retry_failed=retry_failed,
            progress=progress,
            waiting=lambda: print_message(f"another process is at this sweep in {out}; waiting"),
            found_damaged=lambda what: print_message(f"damaged, done again: {', '.join(what)}"),
        )
    if not run.finished:
        print_message(f"stopped at the first failure; see {run.folder / 'failed'}; the same command goes on")
        return 1
    details = run.details()
    if json:
        emit_json(details)
    print_message(f"{details['cells']} cells, {details['failed']} failed, {details['timing']['seconds']:.1f} s")
    print_message(f"The table: {run.table_path(table)}")
    if details["failed"]:
        print_message(f"The failures, with tracebacks: tokenmargin runs show {run.id} --table failures --out {out}")
    return 1 if details["failed"] else 0


@contextlib.contextmanager
def _progress_lines(total: int) -> Iterator[Callable[[SweepProgress], None]]:
    """Show progress as a bar on a terminal, else as a line every `LINE_SECONDS`."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    last = time.monotonic()
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)

        def tell(progress: SweepProgress) -> None:
            nonlocal last
            failed = f", {progress.failed} failed" if progress.failed else ""
            words = f"{_as_clock(progress.seconds_left)} left{failed}"
            bar.update(task, completed=progress.done, description=words)
            if not console.is_terminal and time.monotonic() - last >= LINE_SECONDS:
                last = time.monotonic()
                print_message(f"{progress.done} of {progress.total} cells, {words}")

        yield tell


def _as_clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
