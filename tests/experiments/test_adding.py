"""Adding an experiment takes one file and one line of a list: then every command knows it."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "src", tmp_path / "src")
    return tmp_path


def run(package: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(package / "src")}
    command = [sys.executable, "-m", "tokenmargin", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=package, check=False)


def test_one_file_and_one_line(package: Path) -> None:
    rooms = package / "src" / "tokenmargin" / "experiments"
    guide = (ROOT / "docs" / "extending.md").read_text()
    example = re.search(r"```python\n(# src/tokenmargin/experiments/figures/my_study.py.*?)```", guide, re.DOTALL)
    assert example is not None
    (rooms / "figures" / "my_study.py").write_text(example[1])
    listing = rooms / "__init__.py"
    listing.write_text(
        listing.read_text().replace("EXPERIMENT_PLACES = (\n", 'EXPERIMENT_PLACES = (\n    "my_study:MyStudy",\n')
    )

    assert "my-study" in run(package, "reproduce", "--list").stdout
    done = run(package, "reproduce", "my-study", "--draws", "200", "--out", "runs", "--json")
    assert done.returncode == 0, done.stderr
    (record,) = json.loads(done.stdout)
    assert record["config"] == {"draws": 200, "seed": 0}
    assert record["figures"] == ["my-study.pdf", "my-study.png", "my-study.svg"]
    assert "The mean of draws" in (package / "runs" / "reproduction.html").read_text()
