"""The examples of the documentation run, and the site's pages say what they should."""

import importlib.util
import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

import tokenmargin as tm

DOCS = Path(__file__).parents[1] / "docs"
PACKAGE = DOCS.parent / "src" / "tokenmargin"


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("script", sorted((DOCS / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_examples_run(script: Path, capsys) -> None:
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out


@pytest.fixture(scope="module")
def site():
    pytest.importorskip("mkdocs", reason="mkdocs is not installed (pip install 'tokenmargin[docs]')")
    specification = importlib.util.spec_from_file_location("site_pages", DOCS / "site.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_there_is_a_page_for_every_experiment(site) -> None:
    cards = site.gallery_text()
    for experiment in site.EXPERIMENTS:
        text = site.figure_text(experiment)
        assert experiment.title in text
        assert f"tokenmargin reproduce {experiment.figure}" in text
        assert experiment.shows in text
        assert "p^mm |" not in text
        assert f">{experiment.figure}<" in cards


def test_every_public_name_has_one_place_in_the_reference(site) -> None:
    named = [name for task in site.TASKS for name in task.names]
    assert len(set(named)) == len(named)
    assert set(tm.__all__) <= {*named, "__version__"}
    page = site.task_text(next(task for task in site.TASKS if "max_margin_batch" in task.names))
    assert "    keys, selected, *, queries=None, norm='l2', threads=None, progress=None,\n" in page
    assert "| `keys` | `floats (#B, n, T, d)` |" in page
    assert ">>> batch = max_margin_batch" in page


def test_cells_run_as_in_a_notebook(site, tmp_path) -> None:
    script = tmp_path / "examples" / "little.py"
    script.parent.mkdir()
    script.write_text(
        "# %% [markdown]\n# # Little\n#\n# Words.\n\n# %%\nx = 2\nprint('said')\nx + 1\n\n# %%\nassert x == 2\n"
    )
    page, pictures = site.example_text(script)
    assert page.startswith("# Little\n\nWords.")
    assert "said\n3" in page
    assert not pictures
    script.write_text("# %%\nraise ValueError('no')\n")
    with pytest.raises(ValueError, match="no"):
        site.example_text(script)


def test_examples_of_docstrings_are_code_on_the_site() -> None:
    """Markdown would take `>>>` for a quotation, and `[0]` after `[x]` for a link to nowhere."""
    griffe = pytest.importorskip("griffe", reason="griffe is not installed (pip install 'tokenmargin[docs]')")
    path = str(DOCS / "site_doctests.py")
    package = griffe.load("tokenmargin", search_paths=[PACKAGE.parent], extensions=griffe.load_extensions(path))
    told = package["problem.names.input_name"].docstring.value
    assert "```pycon\n>>> [" in told
    assert told.count("```") == 2


def test_mathematics_is_written_while_the_site_is_built(site) -> None:
    page = SimpleNamespace()
    text = site.on_page_markdown("so $a_1 < b$ and `$x$`\n\n$$c^2$$\n\n```sh\necho $HOME $PATH\n```\n", page=page)
    assert "`$x$`" in text
    assert "echo $HOME $PATH" in text
    assert site.on_page_content("<p>of <E, p> and <E_s,v></p>", page=page) == (
        "<p>of &lang;E, p&rang; and &lang;E_s, v&rang;</p>"
    )
    html = site.on_page_content("<p>so FORMULA1INLINE</p><p>FORMULA0BLOCK</p>", page=page)
    assert html.count("<math") == 2
    assert 'display="block"' in html
    assert "<p><math" not in html


def test_every_module_is_told_in_a_line(site) -> None:
    lines = site.modules_text().splitlines()
    named = [line for line in lines if line.startswith("- `")]
    assert len(named) == sum(path.name not in ("__init__.py", "_version.py") for path in PACKAGE.rglob("*.py"))
    assert not [line for line in named if line.endswith("`: ")], "a module without a docstring"


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
