"""Pages and figures: self-contained, escaped, reproducible, and no change of anybody's matplotlib settings."""

import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib import pyplot as plt
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from tokenmargin.experiments import EXPERIMENTS
from tokenmargin.experiments.experiment import Curves
from tokenmargin.experiments.figures.prompt_paths import Figure1b, Figure8
from tokenmargin.problem.instances import figure1b
from tokenmargin.report.figures import DRAWINGS, draw, draw_curves, draw_figures, draw_gap_distribution, save_figure
from tokenmargin.report.page import PageTable, Section, inline_svg, write_page
from tokenmargin.report.style import LIMIT_COLOURS, NAME

pytestmark = pytest.mark.usefixtures("unchecked_shapes")


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


def test_data_that_stand_in_are_named_in_the_picture_and_in_its_files(tmp_path: Path) -> None:
    """Whoever takes a file away takes the words with it."""
    result = replace(Figure1b(steps=10).run(), stand_in="tokens standing in for others")
    draw_figures(result, tmp_path)
    texts = [text.get_text().replace("\n", " ") for text in draw(result).findobj(Text)]
    assert any("(tokens standing in for others)" in text for text in texts)
    assert "stand-in data" in texts
    title = f"{Figure1b.title} (tokens standing in for others)"
    svg = ElementTree.parse(tmp_path / "fig1b.svg")
    assert title in [element.text for element in svg.iter("{http://purl.org/dc/elements/1.1/}title")]
    assert Image.open(tmp_path / "fig1b.png").text["Title"] == title
    assert b"(tokens standing in for others)" in (tmp_path / "fig1b.pdf").read_bytes().replace(b"\\", b"")


def test_figures_are_made_for_a_page_of_two_columns(tmp_path: Path) -> None:
    """Widths of a column or of both, no title inside, and in the PDF fonts that can be read and searched."""
    result = Figure1b(steps=10).run()
    figure = draw(result)
    assert figure.get_size_inches()[0] in (3.25, 6.75)
    assert figure.get_suptitle() == ""
    assert all(ax.get_title() == "" for ax in figure.axes)
    draw_figures(result, tmp_path)
    written = (tmp_path / "fig1b.pdf").read_bytes()
    assert b"/FontFile2" in written  # TrueType, embedded
    assert b"/Type3" not in written
    assert {path.suffix for path in tmp_path.iterdir()} == {".svg", ".pdf", ".png"}


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


WITH_STEPS = [e for e in EXPERIMENTS if e.figure in DRAWINGS and isinstance(getattr(e, "steps", None), int)]


@pytest.mark.parametrize("experiment", WITH_STEPS, ids=lambda experiment: experiment.figure)
def test_drawings_have_axes_that_are_named(experiment) -> None:
    small = {"steps": 20} | ({"randoms": 0} if hasattr(experiment, "randoms") else {})
    figure = draw(replace(experiment.quick(), **small).run())
    for axes in figure.axes:
        assert axes.get_xlabel()
        assert axes.get_ylabel()


def test_names_of_tokens_stay_within_the_frame_of_a_plot() -> None:
    axes = figure1b().plot()
    axes.figure.draw_without_rendering()
    frame, names = axes.get_window_extent(), [text for text in axes.texts if text.get_gid() == NAME]
    assert [name.get_text()[:2] for name in names] == ["A1", "A2", "A3"]
    for box in (name.get_window_extent() for name in names):
        assert frame.x0 <= box.x0 <= box.x1 <= frame.x1
    plt.close(axes.figure)


def test_names_of_tokens_stay_within_the_frame_and_off_each_other() -> None:
    figure = draw(replace(Figure8.quick(), steps=20).run())
    assert figure is not None
    figure.draw_without_rendering()
    frame, names = figure.axes[0].get_window_extent(), [text for text in figure.axes[0].texts if text.get_gid() == NAME]
    assert len(names) == 3  # A2 and B2 lie at one place and have one name
    boxes = [name.get_window_extent() for name in names]
    for k, box in enumerate(boxes):
        assert frame.x0 <= box.x0
        assert box.x1 <= frame.x1
        assert not any(box.overlaps(other) for other in boxes[:k])


def test_few_whole_values_along_an_axis_are_its_ticks() -> None:
    table = {"d": np.array([4, 6]), "error": np.array([0.1, 0.01])}
    named = SimpleNamespace(curves=Curves("dimensions", "d", ("error",), log="y"))
    axes = Figure().add_subplot()
    draw_curves(SimpleNamespace(experiment=named, table=lambda _: table), axes)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["4", "6"]


def test_dimensions_are_told_apart_by_shades_that_mean_no_direction() -> None:
    runs = {"d": np.repeat([2, 5, 10, 100, 300, 500, 700], 3), "gap": np.linspace(-0.1, 1.0, 21)}
    axes = Figure().add_subplot()
    draw_gap_distribution(SimpleNamespace(tables={"runs": runs}), axes)
    shades = [to_hex(line.get_color()) for line in axes.lines if line.get_label().startswith("$d=")]
    assert len(set(shades)) == 7
    assert not {shade.upper() for shade in shades} & set(LIMIT_COLOURS)


def test_pages_raise_what_is_raised(tmp_path: Path) -> None:
    """`p^mm` and `<E,p>` are typed in findings; what looks like markup stays text."""
    table = PageTable(("what",), [("<E,p> of p^mm",)])
    section = Section("v^mm & more", ("cosine with p^relax <b>",), tables=(table,))
    path = write_page(tmp_path / "page.html", title="t", lead="l", sections=[section], command="c")
    page = path.read_text(encoding="utf-8")
    assert "v<sup>mm</sup> &amp; more" in page
    assert "p<sup>relax</sup> &lt;b&gt;" in page
    assert "&lang;E,p&rang; of p<sup>mm</sup>" in page
