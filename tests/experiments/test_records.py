"""Records: everything is kept, finished or absent, found again, the same bit for bit, and safe against company."""

import contextlib
import json
import multiprocessing
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.experiments.studies import Study

from tokenmargin._files import atomic_path, read_table, write_table
from tokenmargin.dynamics import NormalizedGradientDescent
from tokenmargin.experiments import Finding, Result, Run, find_runs, record, runs_in
from tokenmargin.experiments.experiment import verdict_of
from tokenmargin.experiments.figures.prompt_paths import Figure1b
from tokenmargin.experiments.records import compare_runs, locked_run, run_id


def test_a_record_keeps_everything(tmp_path: Path) -> None:
    def draw(result, folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "a.svg").write_text("<svg/>")

    run = record(Study(seed=7), tmp_path, draw=draw)
    details = run.details()
    assert run.finished
    assert details["config"]["seed"] == details["seeds"]["seed"] == 7
    assert details["command"] == "tokenmargin reproduce study --seed 7"
    assert details["code"]["digest"]
    assert {"numpy", "scipy", "daqp", "pyarrow"} <= set(details["environment"]["packages"])
    assert {"python", "processor", "cores", "memory_gib"} <= set(details["environment"])
    assert details["timing"]["seconds"] >= 0
    assert details["figures"] == ["a.svg"]
    assert details["tables"]["draws"]["rows"] == 3
    assert details["findings"][0]["verdict"] == details["verdict"] == "as expected"
    assert run.damage() == []


def test_a_result_comes_back_as_it_was(tmp_path: Path) -> None:
    experiment = Study(seed=7)
    kept, direct = record(experiment, tmp_path).result(experiment), experiment.run()
    assert kept.findings == direct.findings
    assert kept.notes == direct.notes
    for name, column in direct.tables["draws"].items():
        np.testing.assert_array_equal(kept.tables["draws"][name], column)
        assert kept.tables["draws"][name].dtype.kind == column.dtype.kind


def test_what_is_there_is_not_run_again(tmp_path: Path) -> None:
    log = tmp_path / "log"
    experiment = Study(log=str(log))
    for _ in range(3):
        record(experiment, tmp_path / "runs")
    assert log.read_text() == "0\n"
    record(experiment, tmp_path / "runs", again=True)
    assert log.read_text() == "0\n0\n"


def test_the_same_settings_give_the_same_bytes(tmp_path: Path) -> None:
    first, second = (record(Study(seed=3), tmp_path / name) for name in "ab")
    assert first.id == second.id
    assert first.details()["tables"] == second.details()["tables"]
    assert run_id(Study(seed=4)) != first.id


@pytest.mark.parametrize("moment", ["tables", "figures", "mark"])
def test_a_run_that_was_cut_off_is_no_run_and_is_done_again(tmp_path: Path, monkeypatch, moment: str) -> None:
    def cut(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if moment == "tables":
            patch.setattr("tokenmargin.experiments.records.write_table", cut)
        elif moment == "mark":
            patch.setattr(Run, "finish", cut)
        with pytest.raises(KeyboardInterrupt):
            record(Study(), tmp_path, draw=cut if moment == "figures" else None)
    (run,) = runs_in(tmp_path) or [Run(tmp_path / run_id(Study()))]
    assert not run.finished
    assert record(Study(), tmp_path).finished


def test_an_interrupt_inside_a_run_is_not_taken_for_its_end(tmp_path: Path, monkeypatch) -> None:
    """`evolve` returns what it has after Ctrl-C; a record of that would be found as finished for ever."""
    experiment = replace(Figure1b.quick(), steps=2000)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(NormalizedGradientDescent, "step_lengths", interrupt)
        with pytest.raises(KeyboardInterrupt):
            record(experiment, tmp_path)
    assert not Run(tmp_path / run_id(experiment)).finished


def test_a_file_is_whole_or_absent(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    write_table(path, {"x": np.arange(3)})
    before = path.read_bytes()
    with pytest.raises(ValueError, match="one dimension"):
        write_table(path, {"x": np.zeros((2, 2))})
    with contextlib.suppress(ZeroDivisionError), atomic_path(path) as beside:
        beside.write_text("half")
        raise ZeroDivisionError
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["table.parquet"]


def test_tables_keep_their_types(tmp_path: Path) -> None:
    table = {
        "whole": np.array([1, 2]),
        "number": np.array([np.nan, np.inf]),
        "flag": np.array([True, False]),
        "text": np.array(["a", "ü"]),
    }
    write_table(tmp_path / "t.parquet", table)
    for name, column in read_table(tmp_path / "t.parquet").items():
        np.testing.assert_array_equal(column, table[name])
        assert column.dtype.kind == table[name].dtype.kind


def _record_slowly(root: Path) -> None:
    record(Study(pause=0.3, log=str(root / "log")), root / "runs")


def test_two_processes_at_one_run_do_it_once(tmp_path: Path) -> None:
    workers = [multiprocessing.get_context("fork").Process(target=_record_slowly, args=(tmp_path,)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert (tmp_path / "log").read_text() == "0\n"
    (run,) = runs_in(tmp_path / "runs")
    assert run.finished
    assert run.damage() == []


def test_who_waits_is_told(tmp_path: Path) -> None:
    run, told = Run(tmp_path / "study-1"), []

    def waiting() -> None:
        told.append("waiting")
        holder.__exit__(None, None, None)

    holder = locked_run(run)
    holder.__enter__()
    with locked_run(run, waiting=waiting):
        assert told == ["waiting"]


def test_runs_are_found_by_a_beginning_and_removed(tmp_path: Path) -> None:
    first, second = (record(Study(seed=seed), tmp_path) for seed in (1, 2))
    assert find_runs(tmp_path, [first.id[:9]]) == [first]
    with pytest.raises(ValueError, match="names 2 runs"):
        find_runs(tmp_path, ["study"])
    first.remove()
    assert runs_in(tmp_path) == [second]


def test_damage_is_seen(tmp_path: Path) -> None:
    run = record(Study(), tmp_path)
    write_table(run.table_path("draws"), {"place": np.arange(3)})
    assert run.damage() == ["draws"]
    run.table_path("findings").unlink()
    assert run.damage() == ["draws", "findings"]


def test_comparing_runs_names_what_differs(tmp_path: Path) -> None:
    first, second = record(Study(seed=1), tmp_path), record(Study(seed=2), tmp_path)
    comparison = compare_runs(first, second)
    assert comparison["settings"] == {"seed": (1, 2)}
    assert comparison["code"] == {}
    assert [row["what"] for row in comparison["findings"]] == ["the mean"]
    assert "value differs in 3 rows by up to" in comparison["tables"]["draws"]
    assert not comparison["same_tables"]
    assert compare_runs(first, first)["same_tables"]
    longer = record(replace(Study(seed=1), size=4), tmp_path)
    assert compare_runs(first, longer)["tables"]["draws"] == "3 rows | 4 rows"


def test_verdicts() -> None:
    good, known, bad = Finding("x", 1.0, 1, 1), Finding("x", 2.0, 1, 1, explanation="why"), Finding("x", 2.0, 1, 1)
    assert [finding.verdict for finding in (good, known, bad)] == ["as expected", "explained", "not as expected"]
    assert verdict_of([]) == verdict_of([good]) == "as expected"
    assert verdict_of([good, known]) == "explained"
    assert verdict_of([good, known, bad]) == "not as expected"


def test_a_number_without_bounds_is_measured_and_counts_for_nothing() -> None:
    number = Finding("x", np.nan)
    assert (number.verdict, number.expected, number.bounds_from) == ("measured", "not judged", "")
    assert verdict_of([number]) == "as expected"
    judged = Finding("x", 2.0, low=3.0, basis="printed")
    assert (judged.verdict, judged.bounds_from) == ("not as expected", "printed")
    assert (judged.without_bounds().verdict, judged.without_bounds().source) == (
        "measured",
        "on the paper's data: at least 3",
    )


def test_a_record_keeps_what_stands_in_and_where_bounds_come_from(tmp_path) -> None:
    class Borrowed(Study):
        def run(self, progress=None):
            finding = Finding("x", 1.0, 1.0, 1.0, basis="theorem")
            return Result(self, {}, (finding,), ("note",), stand_in="numbers of our own")

    run = record(Borrowed(), tmp_path)
    again = run.result(Borrowed())
    assert again.verdict == run.details()["verdict"] == "stand-in"
    assert run.details()["title"] == again.title == f"{Borrowed.title} (numbers of our own)"
    assert again.findings[0].basis == "theorem"
    assert run.details()["findings"][0]["bounds_from"] == "a theorem"


def test_run_json_is_strict_json(tmp_path: Path) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    run = record(Study(size=1), tmp_path)
    json.loads((run.folder / "run.json").read_text(), parse_constant=refuse)
