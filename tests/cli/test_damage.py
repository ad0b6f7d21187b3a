"""A sample of `python -m benchmarks.faults`, and what the fuzzers found, one by one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenmargin as tm
from tokenmargin._files import atomic_path
from tokenmargin.cli import main
from tokenmargin.data.sources import read_labelled, read_text_rows
from tokenmargin.data.table_files import SourceError
from tokenmargin.dynamics import cone_path, ridge_path
from tokenmargin.experiments.sweep_rows import PartFolder
from tokenmargin.margin import selected_pairs
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.next_token import next_token_windows
from tokenmargin.selection import saturation, select

STRICT = {"PYTHONIOENCODING": "utf-8:strict"}  # as in most locales
ROWS = ("damaged record", "full", "readonly")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forked children")
def test_a_sample_of_the_faults() -> None:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.faults", "--count", "1", "--what", *ROWS]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(["src", "."])}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\n| ") == len(ROWS)


def test_a_damaged_part_of_a_sweep_is_dropped(tmp_path) -> None:
    parts = PartFolder(tmp_path)
    for cell in range(3):
        parts.append([{"cell": np.array([cell]), "row": np.array([0]), "x": np.array([0.5])}], [cell])
    assert parts.drop_damaged() == []
    first, second, _ = parts.paths()
    content = bytearray(first.read_bytes())
    content[len(content) // 3] ^= 4
    first.write_bytes(content)
    assert parts.drop_damaged() == [f"{tmp_path.name}/{first.name}"]
    assert parts.done(3).tolist() == [False, True, True]
    second.write_bytes(parts.paths()[1].read_bytes())
    assert len(parts.drop_damaged()) == 1


@pytest.mark.parametrize(
    "said",
    [
        "Error while serializing: I/O error: No space left on device (os error 28)",
        'Error while serializing: IoError(Os { code: 28, kind: StorageFull, message: "No space left on device" })',
    ],
)
def test_what_other_languages_say_of_the_disk_is_an_error_of_the_disk(tmp_path, said) -> None:
    with pytest.raises(OSError, match="No space left on device"), atomic_path(tmp_path / "x.safetensors"):
        raise RuntimeError(said)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("delimiter", ["", "ab", '"', "\n"])
def test_a_delimiter_is_one_character(tmp_path, capsys, delimiter) -> None:
    (tmp_path / "s.csv").write_text("text,label\ngood,1\n")
    code = main(["fit", str(tmp_path / "s.csv"), "--out", str(tmp_path / "m"), f"--delimiter={delimiter}"])
    assert code == 2 or not delimiter  # an empty one is none
    assert "Traceback" not in capsys.readouterr().err


def test_halves_of_characters_are_kept_as_escapes(tmp_path, capsys) -> None:
    main(["fit", "sentences", "--out", str(tmp_path / "m")])
    (tmp_path / "s.jsonl").write_text(json.dumps({"text": "a dreadful ferry", "note": "\ud800"}))
    assert main(["predict", str(tmp_path / "m"), str(tmp_path / "s.jsonl"), "--out", str(tmp_path / "o.csv")]) == 0
    assert "\\ud800" in (tmp_path / "o.csv").read_text()


@pytest.mark.parametrize("eta", ["-1", "0", "nan", "inf"])
def test_a_first_step_has_a_length(capsys, eta) -> None:
    assert main(["verify", "A.lemma2", "--n", "8", "--T", "4", f"--eta={eta}"]) == 2
    assert "eta_0 is the length of a step: it must be positive and finite" in capsys.readouterr().err


@pytest.mark.parametrize("delta", ["-1", "2", "0"])
def test_a_probability_is_one(capsys, delta) -> None:
    assert main(["verify", "A.lemma2", "--n", "8", "--T", "4", "--d", "100", f"--delta={delta}"]) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.usefixtures("unchecked_shapes")
def test_refusals_are_sentences() -> None:
    problem = tm.figure1b()
    objective = tm.PromptObjective(problem)
    rng = np.random.default_rng(0)
    joint = tm.JointObjective(tm.random_problem(2, 3, 2, rng=rng))
    products = tm.FactoredObjective(problem.with_matrix(np.ones((1, 1))), rank=1)
    pairs = selected_pairs(tm.TokenCorpus.of([["a", "b"]], [1]), np.array([0]))
    first = np.array([1.0, 1.0, 1.0])
    calls = {
        "in its last axis": lambda: select(problem.keys, np.zeros(5)),
        "in its last axis, got": lambda: tm.angle(problem.keys, np.zeros(3), np.zeros(2)),
        "scores must have shape": lambda: saturation(problem.keys, np.zeros(3), np.zeros((9, 9))),
        "must be a rectangular array": lambda: tm.TokenProblem.of([[[1.0], [2.0]]], [1], head=[[1.0], 2.0]),
        "start must be one point|start must be a rect": lambda: tm.flow(objective, start=[[1.0], 2.0]),
        "starts must have shape": lambda: tm.basins(problem, np.zeros((2, 3, 1))),
        "count must be at least 1": lambda: tm.random_starts(problem, 0, rng=rng),
        "resolution must be at least 2": lambda: tm.basin_map(problem, resolution=1),
        "radii must be at least 1e-12": lambda: tm.regularisation_path(objective, [1e-300, 1.0], rng=rng),
        "starts must be at least 0": lambda: tm.regularisation_path(objective, [1.0], rng=rng, starts=-1),
        "radii must be pairs": lambda: ridge_path(joint, [], rng=rng),
        "starts must be at least 1": lambda: ridge_path(joint, [(1.0, 1.0)], starts=0, rng=rng),
        "max_tokens must be": lambda: tm.TrainingConfig(max_tokens=2**63),
        "n, T, irrelevant": lambda: tm.k_level_corpus(-1, rng=rng),
        "lengths must be": lambda: next_token_windows(np.array([0, 1]), np.array([-1]), "ab"),
        "radii must be positive and growing": lambda: cone_path(objective, first, [[1.0]], width=0.5, rng=rng),
        "direction must be finite": lambda: cone_path(objective, first * np.inf, [1.0], width=0.5, rng=rng),
        "starts must be at least 0, got -1": lambda: cone_path(objective, first, [1.0], width=0.5, starts=-1, rng=rng),
        "width must lie between 0 and 1": lambda: cone_path(objective, first, [1.0], width=1e-17, rng=rng),
        "irrelevant must be at most": lambda: tm.selective_corpus(4, 3, irrelevant=2**31, rng=rng),
        "rank must be at least 1 and at most": lambda: tm.FactoredObjective(products.problem, rank=2**63),
        "gap must be a positive number": lambda: tm.corpus_margin(np.eye(2), pairs, gap=np.nan),
        "vectors must have a row for each of the 2": lambda: tm.corpus_margin(np.eye(1), pairs),
        "start must be numbers of shape": lambda: tm.corpus_margin(np.eye(2), pairs, start=np.ones((2, 1))),
        "random_state must be None": lambda: tm.TokenSelectionClassifier(random_state=-2).fit(
            ["a", "b"] * 4, [0, 1] * 4
        ),
        "a path that moves": lambda: tm.rates(tm.flow(objective, until_norm=1e-300)),
        "tokens must be numbers": lambda: tm.self_attention(np.array([[["a"]]]), [1], head=[1.0]),
    }
    for words, call in calls.items():
        with pytest.raises(ValueError, match=words):
            call()
    with pytest.raises(TypeError, match="vectors must hold real numbers"):
        Coordinates.of(np.array([[["0.5"]]]), mask=np.array([[True]]))


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
def test_a_run_that_leaves_the_doubles_is_no_answer() -> None:
    products = tm.FactoredObjective(tm.figure1b().with_matrix(np.ones((1, 1))), rank=1)
    with pytest.raises(ValueError, match="the point is no longer finite"):
        tm.evolve(products, tm.GradientDescent(0.1), steps=3, start=np.full(products.dimension, 1e300))


@pytest.mark.parametrize("encoding", ["no-such", "\udcff", "\0"])
def test_an_encoding_has_a_name(tmp_path, encoding) -> None:
    (tmp_path / "t.csv").write_text("text,label\na,b\n")
    with pytest.raises(SourceError, match="encodings are named like utf-8"):
        read_labelled(tmp_path / "t.csv", encoding=encoding)


def test_bytes_that_are_not_utf8_inside_parquet_are_named(tmp_path) -> None:
    text = pa.array([b"good", b"\xff\xfe"]).view(pa.string())  # a view: nobody looks whether it is text
    pq.write_table(pa.table({"text": text, "label": ["pos", "neg"]}), tmp_path / "t.parquet")
    for read in (read_labelled, read_text_rows):  # as `prepare` reads, and as `predict` does
        with pytest.raises(SourceError, match="not a readable parquet file"):
            read(tmp_path / "t.parquet")


def test_a_rate_that_is_not_known_is_a_dash(tmp_path, capsys) -> None:
    """Polyak's steps on keys of 1e-300: the fitted slopes are no numbers."""
    keys = [[[1e-300, 0.0], [0.0, 1e-300]], [[0.0, 0.0], [1e-300, 1e-300]]]
    (tmp_path / "p.json").write_text(json.dumps({"keys": keys, "labels": [1, 1], "scores": [[1, 0], [0, 1]]}))
    assert main(["evolve", str(tmp_path / "p.json"), "--steps", "20", "--method", "polyak", "--rates"]) in (0, 1)
    assert "nan" not in capsys.readouterr().out


@pytest.mark.skipif(os.name != "posix", reason="a shell")
@pytest.mark.parametrize(
    ("command", "closed", "printed"),
    [("solve fig1b", ">&- 2>&- <&-", ""), ("solve fig1b", "2>&-", "optimal"), ("--help", "| true", "")],
)
def test_streams_that_are_closed_lead_nowhere(tmp_path, command, closed, printed) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    line = f"set -o pipefail; '{sys.executable}' -m tokenmargin {command} {closed}"
    done = subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert printed in done.stdout


@pytest.mark.skipif(os.name != "posix", reason="names of files are bytes")
def test_a_folder_whose_name_is_not_utf8(tmp_path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("text,label\n" + "a good film,1\na bad film,0\ngood,1\nbad,0\n" * 4)
    model = Path(os.fsdecode(os.fsencode(tmp_path) + b"/m\xf6del"))
    program = [sys.executable, "-m", "tokenmargin"]
    fit = [*program, "fit", rows, "--out", model, "--min-count", "1"]
    done = subprocess.run(fit, capture_output=True, text=True, check=True, env=os.environ | STRICT)
    assert done.stdout.endswith("m\\udcf6del\n")
    assert main(["report", str(model), str(rows), "--out", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.skipif(os.name != "posix", reason="modes")
def test_what_is_for_the_owner_alone_stays_so(tmp_path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("text,label\n" + "a good film,1\na bad film,0\ngood,1\nbad,0\n" * 4)
    for mask, mode in ((0o077, 0o600), (0o022, 0o644)):
        before = os.umask(mask)
        try:
            assert main(["fit", str(rows), "--out", str(tmp_path / f"{mask}"), "--min-count", "1"]) == 0
            assert main(["prepare", str(rows), "--out", str(tmp_path / f"{mask}.safetensors")]) == 0
        finally:
            os.umask(before)
        files = [*(tmp_path / f"{mask}").iterdir(), tmp_path / f"{mask}.safetensors"]
        assert {path.stat().st_mode & 0o777 for path in files} == {mode}
