"""Pages and figures: self-contained, escaped, reproducible, and no change of anybody's matplotlib settings."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import matplotlib as mpl
import pytest

from tokenmargin.experiments import EXPERIMENTS
from tokenmargin.experiments.prompt_paths import Figure1b
from tokenmargin.report.figures import DRAWINGS, draw, save_figure
from tokenmargin.report.page import PageTable, Section, inline_svg, write_page


def test_every_experiment_has_a_drawing() -> None:
    for experiment in EXPERIMENTS:
        assert experiment.figure in DRAWINGS or experiment.curves or experiment.shown_tables, experiment


def test_a_figure_is_drawn_in_three_formats_and_leaves_matplotlib_alone(tmp_path: Path) -> None:
    before = dict(mpl.rcParams)
    result = Figure1b(steps=100).run()
    first, second = (save_figure(draw(result), tmp_path / name, "fig") for name in "ab")
    assert [path.suffix for path in first] == [".svg", ".pdf", ".png"]
    assert dict(mpl.rcParams) == before
    # The same data gives the same picture.
    assert first[2].read_bytes() == second[2].read_bytes()


def test_inline_pictures_do_not_share_ids() -> None:
    figure = draw(Figure1b(steps=10).run())
    ids = [
        {element.get("id") for element in ElementTree.fromstring(inline_svg(figure, name)).iter() if element.get("id")}
        for name in ("one", "two")
    ]
    assert ids[0]
    assert not ids[0] & ids[1]


def test_pages_escape_what_they_show_and_load_nothing(tmp_path: Path) -> None:
    nasty = "<script>alert(1)</script>"
    path = write_page(
        tmp_path / "deep" / "page.html",
        title=nasty,
        lead=nasty,
        sections=[Section(nasty, (nasty,), tables=(PageTable((nasty,), [(nasty,)]),), code=nasty)],
        command=nasty,
    )
    text = path.read_text()
    assert "<script" not in text
    for loading in ("src=", "<link", "@import", "http://", "https://"):
        assert loading not in text


@pytest.mark.parametrize("name", sorted(DRAWINGS))
def test_drawings_have_axes_that_are_named(name: str) -> None:
    experiment = {experiment.figure: experiment for experiment in EXPERIMENTS}.get(name)
    if experiment is None or name == "fig8" or not isinstance(getattr(experiment, "steps", None), int):
        return
    figure = draw(experiment(steps=20).run())
    assert figure.axes[0].get_xlabel()
    assert figure.axes[0].get_ylabel()
