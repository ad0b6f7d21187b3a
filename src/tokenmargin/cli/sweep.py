"""`tokenmargin sweep`: an experiment on a grid of settings, on the cores of this machine or on a cluster."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tokenmargin.cli._common import Address, Jobs, RunsFolder, choose_engine, emit_json, needs_extra, say, usage_errors
from tokenmargin.cli.reproduce import experiments_named, field_names

if TYPE_CHECKING:
    from tokenmargin.experiments.sweeps import Progress

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
            waiting=lambda: say(f"another process is at this sweep in {out}; waiting"),
            found_damaged=lambda what: say(f"damaged, done again: {', '.join(what)}"),
        )
    if not run.finished:
        say(f"stopped at the first failure; see {run.folder / 'failed'}; the same command goes on")
        return 1
    details = run.details()
    if json:
        emit_json(details)
    say(f"{details['cells']} cells, {details['failed']} failed, {details['timing']['seconds']:.1f} s")
    say(f"The table: {run.table_path(table)}")
    if details["failed"]:
        say(f"The failures, with tracebacks: tokenmargin runs show {run.id} --table failures --out {out}")
    return 1 if details["failed"] else 0


@contextlib.contextmanager
def _progress_lines(total: int) -> Iterator[Callable[[Progress], None]]:
    """A bar for people; for files a line now and then."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    last = time.monotonic()
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)

        def show(progress: Progress) -> None:
            nonlocal last
            failed = f", {progress.failed} failed" if progress.failed else ""
            words = f"{_clock(progress.seconds_left)} left{failed}"
            bar.update(task, completed=progress.done, description=words)
            if not console.is_terminal and time.monotonic() - last >= LINE_SECONDS:
                last = time.monotonic()
                say(f"{progress.done} of {progress.total} cells, {words}")

        yield show


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
