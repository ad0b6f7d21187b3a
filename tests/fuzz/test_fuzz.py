"""Every way in, fuzzed for some seconds; `python -m benchmarks.fuzz` goes on for as long as one likes.

`FUZZ=10 make test` gives ten times as many inputs.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from benchmarks.fuzz import SURFACES
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzz.calls import WITHOUT, called
from tests.fuzz.harness import fuzz
from tests.fuzz.samples import Samples

import tokenmargin
from tokenmargin._files import open_sealed, seal_record
from tokenmargin.data.sources import read_labelled
from tokenmargin.data.table_files import SourceError
from tokenmargin.problem.problem_files import ProblemFileError, parse_problem

pytestmark = pytest.mark.usefixtures("unchecked_shapes")
BUDGET = float(os.environ.get("FUZZ", "1"))
COUNTS = {
    "problem files": 60, "degenerate problems": 20, "tables of texts": 60, "model folders": 60, "prepared ids": 40,
    "shards": 40, "checkpoints": 40, "resumed training": 3, "kept runs": 15, "records": 10, "flags": 60, "calls": 150,
    "requests": 60,
}  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
PROBLEMS = st.fixed_dictionaries(
    {"keys": JSON, "labels": JSON}, optional={"scores": JSON, "head": JSON, "mask": JSON, "queries": JSON}
)


@pytest.fixture(scope="module")
def samples(tmp_path_factory) -> Samples:
    return Samples(tmp_path_factory.mktemp("fuzz"))


@pytest.fixture(autouse=True)
def here(samples, monkeypatch) -> None:
    """What is written to a relative path lands among the samples."""
    monkeypatch.chdir(samples.folder)


def test_every_surface_is_tried() -> None:
    assert COUNTS.keys() == SURFACES.keys()


def test_every_public_name_is_called() -> None:
    public = {name for name in dir(tokenmargin) if not name.startswith("_")}
    public -= {name for name in public if isinstance(getattr(tokenmargin, name), ModuleType)}
    assert public - called() == WITHOUT


@pytest.mark.parametrize("name", SURFACES)
def test_hostile_inputs(name: str, samples: Samples, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(samples.folder / "cache"))
    tally = fuzz(SURFACES[name][0], samples, seed=1, count=max(int(COUNTS[name] * BUDGET), 1))
    assert not tally.failures, "\n".join(f"{where}: {what}" for where, what in tally.examples.items())
    assert tally.accepted + tally.refused == tally.inputs


@settings(max_examples=int(100 * BUDGET), derandomize=True)
@given(JSON | PROBLEMS)
def test_any_json_is_a_problem_or_refused(content) -> None:
    try:
        problem = parse_problem(json.dumps(content))
    except ProblemFileError:  # any other error ends the test
        return
    assert np.isfinite(problem.scores).all()


@settings(max_examples=int(60 * BUDGET), derandomize=True)
@given(content=st.text() | st.lists(st.text()).map("\n".join), kind=st.sampled_from(["csv", "tsv", "jsonl"]))
def test_any_text_is_a_table_or_refused(content, kind, tmp_path_factory) -> None:
    path = tmp_path_factory.getbasetemp() / f"any.{kind}"
    path.write_bytes(("text,label\n" + content).encode("utf-8", "surrogatepass"))
    try:
        found = read_labelled(path)
    except SourceError:
        return
    assert len(found.texts) == len(found.labels) > 0


@settings(max_examples=int(60 * BUDGET), derandomize=True)
@given(st.dictionaries(st.text().filter(lambda name: name != "seal"), JSON), st.data())
def test_a_seal_is_whole_or_refused(record, data) -> None:
    written = json.dumps(seal_record(record))
    assert json.dumps(open_sealed(json.loads(written)), sort_keys=True) == json.dumps(record, sort_keys=True)
    at = data.draw(st.integers(0, len(written) - 1))
    changed = written[:at] + data.draw(st.characters()) + written[at + 1 :]
    try:
        found = open_sealed(json.loads(changed))
    except (ValueError, RecursionError):
        return
    assert json.dumps(found, sort_keys=True) == json.dumps(json.loads(json.dumps(record)), sort_keys=True)


BOMBS = """
import resource, sys, zipfile, io, json
import numpy as np
from pathlib import Path
from tokenmargin.cli import main
size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (1 << 30), resource.RLIM_INFINITY))
header = io.BytesIO()
np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (1 << 33,)})
for name in ("keys", "settings", "point"):
    with zipfile.ZipFile("bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open(name + ".npy", "w") as file:
            file.write(header.getvalue())
            for _ in range(64):
                file.write(bytes(1 << 22))
    for command in (["solve", "bomb.npz"], ["evolve", "fig1b", "--steps", "3", "--resume", "bomb.npz"],
                    ["basins", "fig8", "--starts", "2", "--resume", "bomb.npz"]):
        print(main(command))
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the limit on memory is set by the size in /proc")
def test_bombs_are_refused_within_a_gigabyte(tmp_path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", BOMBS], cwd=tmp_path, env=environment, capture_output=True, text=True,
                          check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2"] * 9
    assert "not enough memory" not in done.stderr
    assert "Traceback" not in done.stderr
