"""The program of docs/matrix-attention.md prints what the page says."""

import contextlib
import io
import re
from pathlib import Path

import numpy as np
import pytest

PAGE = (Path(__file__).parents[1] / "docs" / "matrix-attention.md").read_text(encoding="utf-8")


@pytest.mark.usefixtures("unchecked_shapes")
def test_the_program_prints_what_the_page_says():
    program, printed = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL).groups()
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(program, {})
    limits, *rows = (text.strip().splitlines() for text in (out.getvalue(), printed))
    for found, said in zip(limits, rows[0], strict=True):
        assert found.split("angle")[0] == said.split("angle")[0] or said[0] == "["
        if said[0] == "[":  # three digits are printed
            numbers = (np.array(line.strip("[]").split(), dtype=float) for line in (found, said))
            np.testing.assert_allclose(*numbers, atol=1.5e-3)
