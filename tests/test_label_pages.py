"""The programs of the pages on classes, labels and attention maps print what the pages say."""

import contextlib
import io
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("page", ["classes-and-labels.md", "attention-maps.md"])
def test_the_program_prints_what_the_page_says(page: str) -> None:
    found = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    assert found is not None
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(found[1], {})
    assert out.getvalue() == found[2]
