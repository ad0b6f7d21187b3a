"""The playground as people start it: the command, in a process of its own."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent.parent / "src"


@pytest.fixture(scope="session")
def playground() -> Iterator[str]:
    """The address of a running playground."""
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "tokenmargin", "playground", "--no-browser"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        found = None
        for line in process.stderr:
            found = re.search(r"http://[^ ]+/", line)
            if found:
                break
        assert found, "the playground did not start"
        yield found.group()
        process.terminate()
        rest = process.stderr.read()
    assert "Traceback" not in rest, rest
