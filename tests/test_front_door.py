"""What `import tokenmargin as tm` gives: every name twice, the stub for type checkers, and the printed programs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tokenmargin as tm

ROOT = Path(__file__).parent.parent
STUB = Path(tm.__file__).with_suffix(".pyi")
PROGRAMS = [
    (page, number)
    for page in ("README.md", "docs/guide.md")
    for number, _ in enumerate(re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL))
]


@pytest.mark.parametrize("name", tm.__all__)
def test_every_name_is_there_twice(name):
    """The second look matters: a submodule of the same name would have taken the place of the function."""
    first = getattr(tm, name)
    assert getattr(tm, name) is first
    assert not isinstance(first, type(tm)), f"tm.{name} is a module"


def test_the_stub_is_the_list_of_names():
    names = [
        alias.asname
        for line in ast.parse(STUB.read_text()).body
        if isinstance(line, ast.ImportFrom)
        for alias in line.names
    ]
    assert sorted(names) == sorted(tm.__all__)
    assert dir(tm) == sorted(tm.__all__)


def test_what_is_one_room_further_in_is_not_here():
    with pytest.raises(AttributeError, match="no attribute 'Adam'"):
        getattr(tm, "Adam")  # noqa: B009  # a type checker knows that it is not there


def test_importing_loads_no_dependency():
    code = "import sys, tokenmargin; print(*sorted({'numpy', 'scipy', 'numba', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_a_margin_needs_little_of_scipy():
    """Half a second of CPU is what the first answer may cost; loading scipy.optimize alone takes as long."""
    code = "import sys, tokenmargin as tm; tm.max_margin(tm.figure1b(), [0]); print('scipy.optimize' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_basins_can_be_asked_for_again():
    starts = tm.random_starts(tm.figure1b(), 4, radius=1.0, rng=np.random.default_rng(0))
    first, second = (tm.basins(tm.figure1b(), starts) for _ in range(2))
    assert repr(first) == repr(second)


def test_printed_programs_pass_the_type_checker(tmp_path):
    mypy = pytest.importorskip("mypy.api", reason="mypy is not installed; it is in the extra lint")
    for page, number in PROGRAMS:
        text = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)[number]
        (tmp_path / f"{Path(page).stem.lower()}_{number}.py").write_text(text)
    assert PROGRAMS
    out, err, status = mypy.run(
        [
            "--strict",
            "--config-file",
            str(ROOT / "pyproject.toml"),
            "--cache-dir",
            str(tmp_path / "cache"),
            "--follow-imports=silent",
            *map(str, tmp_path.glob("*.py")),
        ]
    )
    assert status == 0, out + err
