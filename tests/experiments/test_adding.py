"""The experiment of the guide is one file: the commands know it by its place, or by the name of an entry point."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the guide's experiment, and what an installer would leave of its entry point."""
    guide = (ROOT / "docs" / "extending.md").read_text()
    example = re.search(r"```python\n(# my_study.py.*?)```", guide, re.DOTALL)
    assert example is not None
    entry = re.search(r"as the entry point `(.*?)`", guide)
    assert entry is not None
    (tmp_path / "my_study.py").write_text(example[1])
    metadata = tmp_path / "site" / "my_study-0.1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-study\nVersion: 0.1\n")
    (metadata / "entry_points.txt").write_text(f"[tokenmargin.experiments]\n{entry[1].replace(chr(34), '')}\n")
    return tmp_path


def run(folder: Path, *arguments: str, path: tuple[Path, ...] = ()) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", *path)))}
    command = [sys.executable, "-m", "tokenmargin", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, check=False)


def test_by_its_place(folder: Path) -> None:
    done = run(folder, "reproduce", "my_study:MyStudy", "--draws", "200", "--out", "runs", "--json")
    assert done.returncode == 0, done.stderr
    (record,) = json.loads(done.stdout)
    assert record["config"] == {"draws": 200, "seed": 0}
    assert record["figures"] == ["my-study.pdf", "my-study.png", "my-study.svg"]
    assert "The mean of draws" in (folder / "runs" / "reproduction.html").read_text()


def test_by_the_name_of_an_entry_point(folder: Path) -> None:
    done = run(folder, "reproduce", "--list", path=(folder, folder / "site"))
    assert done.returncode == 0, done.stderr
    assert "my-study" in done.stdout
    assert done.stderr == ""
