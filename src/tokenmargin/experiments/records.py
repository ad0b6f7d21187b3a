"""Records of runs: a folder for each, named by experiment, settings and code, that is whole or absent.

    runs/fig1a-5f0c2a9be1d3/
      run.json           settings, seeds, code, packages, machine, timing, findings, digests of the tables
      tables/*.parquet   the result tables; `findings` is the table of expected against measured
      figures/*          the drawings

The folder's name ends with a digest of the experiment, its settings and the code. So a run is found again as long as
none of these has changed. `run.json` is written last: a folder without it is unfinished, and the next run with the same
settings begins anew (a sweep goes on where it stopped).
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from tokenmargin._files import (
    file_digest,
    json_digest,
    open_sealed,
    plain,
    read_plain,
    read_table,
    seal_record,
    write_json,
    write_table,
)
from tokenmargin.dynamics import whole_runs
from tokenmargin.experiments.experiment import FINDINGS, AbstractExperiment, Finding, Result, Table
from tokenmargin.experiments.provenance import code_digest, code_version, environment
from tokenmargin.experiments.settings import command

MARK = "run.json"
FORMAT = 2
LOCKS = ".locks"
SAME = "the same, bit for bit"  # of two tables


class RecordError(ValueError):
    """A record that cannot be read, with the file and what is wrong in the message."""


@dataclass(frozen=True)
class Run:
    """The folder of one run."""

    folder: Path

    @property
    def id(self) -> str:
        """Name and digest, such as `fig1a-5f0c2a9be1d3`."""
        return self.folder.name

    @property
    def finished(self) -> bool:
        """Whether the run has finished, so that everything was written."""
        return (self.folder / MARK).exists()

    @property
    def whole(self) -> bool:
        """Whether the run has finished and nothing is damaged."""
        return self.finished and not self.damage()

    def details(self) -> dict[str, Any]:
        """The contents of `run.json`."""
        try:
            return open_sealed(json.loads(read_plain(self.folder / MARK)))
        except (ValueError, RecursionError) as error:
            raise RecordError(
                f"{self.folder / MARK}: damaged, or of an earlier version ({error}); run its command again"
            ) from error

    def table_path(self, name: str) -> Path:
        """Where a table is kept."""
        return self.folder / "tables" / f"{name}.parquet"

    def table(self, name: str) -> Table:
        """A table of the run."""
        if not self.table_path(name).exists():
            known = sorted(path.stem for path in (self.folder / "tables").glob("*.parquet"))
            raise KeyError(f"{self.id} has no table {name!r}; it has {', '.join(known)}")
        try:
            return read_table(self.table_path(name))
        except (ValueError, OSError) as error:  # those of pyarrow are of these kinds too
            raise RecordError(f"{self.table_path(name)}: damaged ({error}); run its command again") from error

    def result(self, experiment: AbstractExperiment) -> Result:
        """The result as `experiment.run()` gave it."""
        details = self.details()
        tables = {name: self.table(name) for name in details["tables"] if name != FINDINGS}
        found = self.table(FINDINGS)
        names = [field.name for field in fields(Finding)]
        rows = zip(*(found[name].tolist() for name in names), strict=True)
        findings = tuple(Finding(*row) for row in rows)
        return Result(experiment, tables, findings, tuple(details["notes"]), details["stand_in"])

    def damage(self) -> list[str]:
        """The names of what is damaged: the record itself, or tables whose checksums differ."""
        try:
            tables = self.details()["tables"]
        except RecordError:
            return [MARK]
        paths = {name: self.table_path(name) for name in tables}
        return [
            name for name, path in paths.items() if not path.is_file() or file_digest(path) != tables[name]["sha256"]
        ]

    def remove(self) -> None:
        """Remove the folder once no process writes to it; `run.json` goes first, so that what is left is no run."""
        with locked_run(self):
            (self.folder / MARK).unlink(missing_ok=True)
            shutil.rmtree(self.folder, ignore_errors=True)

    def finish(self, details: dict[str, Any]) -> None:
        """Write `run.json`, with a digest of every table."""
        tables = {path.stem: _table_facts(path) for path in sorted((self.folder / "tables").glob("*.parquet"))}
        figures = sorted(path.name for path in (self.folder / "figures").glob("*"))
        record = {"format": FORMAT, "id": self.id, **details, "tables": tables, "figures": figures}
        write_json(self.folder / MARK, seal_record(plain(record)))


def run_id(experiment: AbstractExperiment, extra: dict[str, Any] | None = None, *, prefix: str = "") -> str:
    """The name of a run's folder: the same for the same experiment, settings and code."""
    identity = {
        "experiment": experiment.figure,
        "config": asdict(experiment),
        "inputs": dict(experiment.inputs()),
        "code": code_digest(type(experiment)),
        **(extra or {}),
    }
    digest = json_digest(identity)[:12]
    return f"{prefix}{experiment.figure}-{digest}"


@contextlib.contextmanager
def locked_run(run: Run, *, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Lock the run for this process; if another process has it, call `waiting` and wait."""
    from filelock import FileLock, Timeout

    place = run.folder.parent / LOCKS / f"{run.id}.lock"
    place.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(place)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if waiting is not None:
            waiting()
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def record(
    experiment: AbstractExperiment,
    root: Path,
    *,
    progress: Callable[[float], None] | None = None,
    draw: Callable[[Result, Path], object] | None = None,
    again: bool = False,
    waiting: Callable[[], None] | None = None,
    found_damaged: Callable[[list[str]], None] | None = None,
) -> Run:
    """Run an experiment and keep everything about it; nothing is run if a whole record is there already.

    **Arguments**
    - `root`: the folder of all runs.
    - `draw`: called with the result and a folder for figures, before the run counts as finished.
    - `again`: run even when the result is there.
    - `waiting`: called when another process is at the same run; afterwards its result is used.
    - `found_damaged`: called with what is damaged of a run that is there; it is then done again.
    """
    run = Run(root / run_id(experiment))
    with locked_run(run, waiting=waiting):
        if run.finished and not again:
            damaged = run.damage()
            if not damaged:
                return run
            if found_damaged is not None:
                found_damaged(damaged)
        shutil.rmtree(run.folder, ignore_errors=True)
        started, clock = datetime.now(UTC), time.perf_counter()
        with whole_runs():  # Ctrl-C leaves no half of a run that looks finished
            result = experiment.run(progress)
        seconds = time.perf_counter() - clock
        write_result(result, run.folder)
        if draw is not None:
            draw(result, run.folder / "figures")
        run.finish({**describe(experiment, started=started, seconds=seconds), **describe_findings(result)})
    return run


def write_result(result: Result, folder: Path) -> None:
    """Write the tables of a result, the findings among them."""
    for name in result.table_names:
        write_table(folder / "tables" / f"{name}.parquet", result.table(name))


def describe(experiment: AbstractExperiment, *, started: datetime, seconds: float) -> dict[str, Any]:
    """What was run, with what, where, and how long it took."""
    config = asdict(experiment)
    return {
        "experiment": experiment.figure,
        "title": experiment.title,
        "command": command(experiment),
        "config": config,
        "inputs": dict(experiment.inputs()),
        "seeds": {name: value for name, value in config.items() if "seed" in name},
        "code": code_version(type(experiment)),
        "environment": environment(),
        "timing": {"started": started.isoformat(timespec="seconds"), "seconds": round(seconds, 4)},
    }


def runs_in(root: Path) -> list[Run]:
    """All runs in a folder, finished or not, by name."""
    if not root.is_dir():
        return []
    return [Run(path) for path in sorted(root.iterdir()) if path.is_dir() and not path.name.startswith(".")]


def find_runs(root: Path, names: Sequence[str]) -> list[Run]:
    """The runs with the given names; a name is the id of a run, or the beginning of exactly one id."""
    known, found = runs_in(root), []
    for name in names:
        fits = [run for run in known if run.id == name] or [run for run in known if run.id.startswith(name)]
        if len(fits) != 1:
            choices = ", ".join(run.id for run in (fits or known)) or "none"
            raise ValueError(f"{name!r} names {len(fits)} runs in {root}, it must name one; there are: {choices}")
        found.append(fits[0])
    return found


def describe_findings(result: Result) -> dict[str, Any]:
    """The findings of a result in plain types."""
    return {
        "kind": "figure",
        "title": result.title,
        "verdict": result.verdict,
        "findings": [
            {"what": f.what, "measured": f.measured, "expected": f.expected, "verdict": f.verdict,
             "bounds_from": f.bounds_from, "source": f.source, "explanation": f.explanation}
            for f in result.findings
        ],
        "notes": list(result.notes),
        "stand_in": result.stand_in,
    }  # fmt: skip


def _table_facts(path: Path) -> dict[str, Any]:
    import pyarrow.parquet as pq

    return {"rows": pq.read_metadata(path).num_rows, "sha256": file_digest(path)}


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
        "findings": _different_findings(one, other),
        "tables": tables,
        "same_tables": all(words == SAME for words in tables.values()),
    }


def _differences(one: dict[str, Any], other: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    names = {**one, **other}
    return {name: (one.get(name), other.get(name)) for name in names if one.get(name) != other.get(name)}


def _different_findings(one: dict[str, Any], other: dict[str, Any]) -> list[dict[str, Any]]:
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
