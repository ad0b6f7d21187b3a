"""The examples of the documentation run, and the site's pages say what they should."""

import importlib.util
import re
import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("script", sorted((DOCS / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_examples_run(script: Path, capsys) -> None:
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out


def test_there_is_a_page_for_every_experiment() -> None:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed (pip install 'tokenmargin[docs]')")
    specification = importlib.util.spec_from_file_location("site_pages", DOCS / "site.py")
    assert specification is not None
    assert specification.loader is not None
    site = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(site)
    for experiment in site.EXPERIMENTS:
        text = site.figure_text(experiment)
        assert experiment.title in text
        assert f"tokenmargin reproduce {experiment.figure}" in text
        assert experiment.shows in text
    page = site.example_text((DOCS / "examples" / "own_problem.py").read_text(), "own_problem.py")
    assert page.startswith("# Your own problem")
    assert "```python" in page


def test_the_map_names_every_room_and_nothing_else() -> None:
    package, text = DOCS.parent / "src" / "tokenmargin", (DOCS / "map.md").read_text()
    tree = re.search(r"```text\n(.*?)```", text, re.DOTALL)
    assert tree is not None
    rooms = {place.parent.name for place in package.rglob("__init__.py")} - {package.name}
    modules = {place.name for place in package.glob("*.py*")} - {"__main__.py", "_version.py"}
    assert set(re.findall(r"\b(\w+)/", tree[1])) == rooms | {"src", package.name}
    assert set(re.findall(r"\b\w+\.pyi?\b", tree[1])) == modules
    named = set(re.findall(r"`([\w/]+\.py)`", text))
    assert named
    known = {place.relative_to(package).as_posix() for place in package.rglob("*.py")}
    assert not {place for place in named if not any(f"/{one}".endswith(f"/{place}") for one in known)}
