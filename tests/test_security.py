"""Loading executes nothing: the interpreter's own audit events while files of every kind are read."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import tokenmargin as tm
from tokenmargin.classifier.files import save_model
from tokenmargin.data.pipeline import prepare
from tokenmargin.experiments import experiment_named
from tokenmargin.experiments.records import record
from tokenmargin.problem.problem_files import load_problem
from tokenmargin.training.checkpoint import save_checkpoint

HOOK = """
import sys
seen, watching = [], False
# Compiling alone is no execution: numpy reads a header as a literal, whose tree is compiled and never run.
FORBIDDEN = {"pickle.find_class", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "subprocess.Popen", "exec",
             "import", "ctypes.dlopen", "socket.connect", "os.remove", "os.rename"}
def hook(event, arguments):
    if watching and event in FORBIDDEN:
        seen.append((event, repr(arguments)[:120]))
sys.addaudithook(hook)
"""
READ = """
import json
from tokenmargin.classifier.files import load_model
from tokenmargin.data.prepared import load_prepared
from tokenmargin.data.sources import read_labelled
from tokenmargin.experiments.records import Run
from tokenmargin.problem.problem_files import load_problem
from tokenmargin.training.checkpoint import load_checkpoint
from pathlib import Path
readers = {"problem": load_problem, "model": load_model, "prepared": load_prepared, "checkpoint": load_checkpoint,
           "texts": read_labelled, "record": lambda run: (Run(run).damage(), Run(run).table("findings"))}
for watched in (False, True):  # the first time modules are imported, which is execution
    for kind, path in json.loads(sys.argv[1]):
        watching = watched
        readers[kind](Path(path))
        watching = False
print(json.dumps(seen))
"""


@pytest.fixture
def files(tmp_path: Path) -> list[tuple[str, str]]:
    """A file of every kind that is read back."""
    problem = tm.random_problem(2, 3, 2, rng=np.random.default_rng(0))
    problem.save(tmp_path / "problem.npz")
    problem.save(tmp_path / "problem.json")
    texts, labels = ["good film", "bad film", "good fun", "bad fun"] * 4, [1, -1, 1, -1] * 4
    save_model(tm.TokenSelectionClassifier().fit(texts, labels), tmp_path / "model")
    prepare(texts, labels).save(tmp_path / "ids.safetensors")
    (tmp_path / "run").mkdir()
    save_checkpoint(tmp_path / "run", 3, {"x": torch.ones(2)}, {"note": "x"})
    (tmp_path / "texts.csv").write_text("text,label\ngood film,1\nbad film,-1\n", encoding="utf-8")
    run = record(experiment_named("fig1a")(steps=2), tmp_path / "runs")
    names = [("problem", "problem.npz"), ("problem", "problem.json"), ("model", "model"), ("texts", "texts.csv"),
             ("prepared", "ids.safetensors"), ("checkpoint", "run"), ("record", f"runs/{run.id}")]  # fmt: skip
    return [(kind, str(tmp_path / name)) for kind, name in names]


def watched(program: str, *arguments: str) -> list[list[str]]:
    """The forbidden events of a program, which prints them."""
    done = subprocess.run(
        [sys.executable, "-c", HOOK + program, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    events: list[list[str]] = json.loads(done.stdout.splitlines()[-1])
    return events


def test_reading_runs_no_code(files: list[tuple[str, str]]) -> None:
    assert watched(READ, json.dumps(files)) == []


def test_the_watch_sees_a_pickle() -> None:
    """The test above can fail."""
    payload = pickle.dumps(Path("x")).hex()
    program = f"import json, pickle\nwatching = True\npickle.loads(bytes.fromhex('{payload}'))\nwatching = False\n"
    program += "print(json.dumps(seen))"
    assert "pickle.find_class" in {event for event, _ in watched(program)}


class Trap:
    """Unpickling it would leave a mark."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (os.mkdir, ("trapped",))


def test_a_pickled_problem_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("trap.npz", keys=np.array([Trap()], dtype=object), labels=np.ones(1))
    with pytest.raises(ValueError, match=r"trap\.npz"):
        load_problem("trap.npz")
    assert not Path("trapped").exists()
