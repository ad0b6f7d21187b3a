"""Sweeps: every cell once, failures recorded, interruptions survived, one table that depends on the results alone."""

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.experiments.studies import Study

from tokenmargin._files import file_digest
from tokenmargin.experiments import AbstractEngine, Axis, Grid, LocalEngine, sweep
from tokenmargin.experiments.sweep_rows import PartFolder
from tokenmargin.experiments.sweeps import SweepProgress

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class InOrder(AbstractEngine):
    """Runs pieces in this process; stops like a killed process after `stop_after` pieces."""

    stop_after: float = np.inf
    backwards: bool = False

    @property
    def workers(self) -> int:
        return 3

    def map(self, task: Callable[[range], Any], pieces: Iterator[range]) -> Iterator[tuple[range, Any]]:
        work = reversed(list(pieces)) if self.backwards else pieces
        for done, piece in enumerate(work):
            if done >= self.stop_after:
                raise KeyboardInterrupt
            yield piece, task(piece)


def grid(cells: int = 20, **settings: Any) -> Grid:
    return Grid(Study(**settings), (Axis("seed", range(cells)), Axis("size", (2, 4))))


def test_the_table_holds_every_cell_with_its_settings(tmp_path: Path) -> None:
    run = sweep(grid(), tmp_path, engine=InOrder(), table="draws")
    table = run.table("draws")
    assert list(table) == ["cell", "seed", "size", "row", "place", "sign", "value"]
    assert len(table["cell"]) == 20 * (2 + 4)
    for cell in (0, 17, 39):
        here, study = table["cell"] == cell, grid()[cell]
        np.testing.assert_array_equal(table["value"][here], study.run().tables["draws"]["value"])
        assert set(table["seed"][here]) == {study.seed}
        assert set(table["size"][here]) == {study.size}
    assert not (run.folder / "parts").exists()


def test_findings_are_kept_by_default(tmp_path: Path) -> None:
    table = sweep(grid(3), tmp_path, engine=InOrder()).table("findings")
    assert list(table)[:6] == ["cell", "seed", "size", "row", "what", "measured"]
    assert Counter(table["what"].tolist()) == {"the mean": 6, "the size": 6}


def test_the_table_depends_on_the_results_alone(tmp_path: Path, monkeypatch) -> None:
    """Not on the engine, the order in which cells end, the pieces, nor interruptions."""
    monkeypatch.setattr("tokenmargin.experiments.sweep_rows.WINDOW_ROWS", 25)  # several windows
    digests = {file_digest(sweep(grid(), tmp_path / "whole", engine=InOrder(), table="draws").table_path("draws"))}
    backwards = InOrder(backwards=True)
    digests.add(file_digest(sweep(grid(), tmp_path / "back", engine=backwards, table="draws").table_path("draws")))
    digests.add(
        file_digest(sweep(grid(), tmp_path / "local", engine=LocalEngine(2), table="draws").table_path("draws"))
    )
    monkeypatch.setattr("tokenmargin.experiments.sweeps.PIECE_SECONDS", 1e-6)
    for stop in (0, 1, 5, 7):
        with pytest.raises(KeyboardInterrupt):
            sweep(grid(), tmp_path / "cut", engine=InOrder(stop_after=stop), table="draws")
    run = sweep(grid(), tmp_path / "cut", engine=InOrder(), table="draws")
    digests.add(file_digest(run.table_path("draws")))
    assert len(digests) == 1


def test_finished_cells_are_not_run_again(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("tokenmargin.experiments.sweeps.PIECE_SECONDS", 1e-6)
    log = tmp_path / "log"
    cells = Grid(Study(log=str(log)), (Axis("seed", range(30)),))
    with pytest.raises(KeyboardInterrupt):
        sweep(cells, tmp_path / "runs", engine=InOrder(stop_after=11))
    sweep(cells, tmp_path / "runs", engine=InOrder())
    sweep(cells, tmp_path / "runs", engine=InOrder())
    assert sorted(map(int, log.read_text().split())) == list(range(30))


def test_a_failure_is_recorded_and_does_not_sink_the_sweep(tmp_path: Path) -> None:
    run = sweep(grid(fail_at=4), tmp_path, engine=InOrder())
    failures = run.table("failures")
    assert run.details()["failed"] == 2
    assert failures["cell"].tolist() == [8, 9]
    assert failures["settings"].tolist() == ["seed=4 size=2", "seed=4 size=4"]
    assert failures["error"][0] == "ArithmeticError: seed 4 does not work"
    assert "studies.py" in failures["traceback"][0]
    assert not {8, 9} & set(run.table("findings")["cell"].tolist())
    assert len(set(run.table("findings")["cell"].tolist())) == 38


def test_fail_fast_stops_and_can_go_on(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("tokenmargin.experiments.sweeps.PIECE_SECONDS", 1e-6)
    run = sweep(grid(fail_at=4), tmp_path, engine=InOrder(), fail_fast=True)
    assert not run.finished
    assert PartFolder(run.folder / "parts").done(40).sum() == 8
    assert sweep(grid(fail_at=4), tmp_path, engine=InOrder()).details()["failed"] == 2


def test_failed_cells_can_be_tried_again(tmp_path: Path, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Study, "run", lambda self, progress=None: 1 / 0)
        assert sweep(grid(3), tmp_path, engine=InOrder()).details()["failed"] == 6
    assert sweep(grid(3), tmp_path, engine=InOrder()).details()["failed"] == 6
    run = sweep(grid(3), tmp_path, engine=InOrder(), retry_failed=True)
    assert run.details()["failed"] == 0
    assert not run.table_path("failures").exists()
    assert len(set(run.table("findings")["cell"].tolist())) == 6


def test_a_cell_that_kills_its_worker_fails_alone(tmp_path: Path) -> None:
    cells = Grid(Study(die_at=5), (Axis("seed", range(12)),))
    run = sweep(cells, tmp_path, engine=LocalEngine(2))
    assert run.table("failures")["cell"].tolist() == [5]
    assert "worker died" in run.table("failures")["error"][0]
    assert Counter(run.table("findings")["cell"].tolist()) == {cell: 2 for cell in range(12) if cell != 5}


def test_cells_with_different_columns_share_a_table(tmp_path: Path, monkeypatch) -> None:
    original = Study.run

    def run(self, progress=None):
        result = original(self, progress)
        extra = {"extra": np.ones(self.size)} if self.seed % 2 else {}
        return type(result)(self, {"draws": {**result.tables["draws"], **extra}}, result.findings)

    monkeypatch.setattr(Study, "run", run)
    table = sweep(grid(4), tmp_path, engine=InOrder(), table="draws").table("draws")
    np.testing.assert_array_equal(np.isnan(table["extra"]), table["seed"] % 2 == 0)


def test_an_empty_table_counts_as_done(tmp_path: Path) -> None:
    cells = Grid(Study(size=0), (Axis("seed", range(3)),))
    with np.errstate(all="ignore"), pytest.warns(RuntimeWarning):
        run = sweep(cells, tmp_path, engine=InOrder(), table="draws")
    assert run.finished
    assert len(run.table("draws")["cell"]) == 0


def test_an_unknown_table_fails_every_cell_with_its_names(tmp_path: Path) -> None:
    failures = sweep(grid(1), tmp_path, engine=InOrder(), table="nothing").table("failures")
    assert "it has findings, draws" in failures["error"][0]


def test_a_part_twice_is_refused(tmp_path: Path) -> None:
    parts = PartFolder(tmp_path)
    for row in range(2):
        parts.append([{"cell": np.array([3]), "row": np.array([row])}], [3])
    with pytest.raises(RuntimeError, match="another part holds too"):
        parts.done(5)


def test_an_interrupt_just_after_a_part_was_written_does_not_write_it_again(tmp_path: Path, monkeypatch) -> None:
    append, cells = PartFolder.append, grid()

    def interrupted(self: PartFolder, *content: Any) -> None:
        append(self, *content)
        monkeypatch.setattr(PartFolder, "append", append)
        raise KeyboardInterrupt

    whole = sweep(cells, tmp_path / "whole", engine=InOrder(), table="draws").table_path("draws")
    monkeypatch.setattr(PartFolder, "append", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sweep(cells, tmp_path / "cut", engine=InOrder(), table="draws")
    assert len(list(tmp_path.glob("cut/*/parts/*.parquet"))) == 1
    run = sweep(cells, tmp_path / "cut", engine=InOrder(), table="draws")
    assert file_digest(run.table_path("draws")) == file_digest(whole)


def test_progress_says_how_far_and_how_long(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("tokenmargin.experiments.sweeps.FLUSH_SECONDS", 0.0)
    seen: list[SweepProgress] = []
    sweep(grid(), tmp_path, engine=InOrder(), progress=seen.append)
    assert [progress.done for progress in seen] == sorted({progress.done for progress in seen})
    assert seen[-1] == SweepProgress(40, 40, 0, 0.0)
    assert all(progress.seconds_left >= 0 for progress in seen)


def test_kill_9_loses_nothing(tmp_path: Path) -> None:
    """The process is killed whenever it has kept something; what is left is a table as if nothing had happened."""
    cells = Grid(Study(pause=0.01), (Axis("seed", range(300)),))
    expected = file_digest(sweep(cells, tmp_path / "whole", engine=LocalEngine(2), table="draws").table_path("draws"))
    script = (
        "from pathlib import Path; from tests.experiments.studies import Study;"
        "import tokenmargin.experiments.sweeps as sweeps; from tokenmargin.experiments import *;"
        "sweeps.FLUSH_SECONDS = 0.1;"
        "sweep(Grid(Study(pause=0.01), (Axis('seed', range(300)),)), Path(__import__('sys').argv[1]),"
        " engine=LocalEngine(2), table='draws')"
    )
    ends = []
    for _ in range(3):
        before = set(tmp_path.glob("cut/*/parts/*.parquet"))
        process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "cut")], cwd=ROOT)
        while process.poll() is None and not set(tmp_path.glob("cut/*/parts/*.parquet")) - before:
            time.sleep(0.005)
        process.kill()
        ends.append(process.wait())
    assert -signal.SIGKILL in ends  # the later ones may have been at their end when the machine is busy
    run = sweep(cells, tmp_path / "cut", engine=LocalEngine(2), table="draws")
    assert file_digest(run.table_path("draws")) == expected
