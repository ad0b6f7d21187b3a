"""Settings from text and back, axes, and grids."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmargin.experiments import AbstractExperiment, Axis, Grid, Result, command, parse_axis
from tokenmargin.experiments.figures.overparameterisation import Figure9a
from tokenmargin.experiments.settings import parse_setting, with_settings


@dataclass(frozen=True)
class Everything(AbstractExperiment):
    """One setting of every type."""

    figure: ClassVar[str] = "everything"
    source: ClassVar[str] = "a test"
    title: ClassVar[str] = "Settings of every type"

    whole: int = 3
    number: float = 0.5
    flag: bool = False
    word: str = "a"
    choice: Literal["plain", "normalised"] = "plain"
    several: tuple[float, ...] = (1.0, 2.0)
    maybe: float | None = None
    seed: int = 5
    offset: int = -4
    pairs: tuple[tuple[int, int], ...] = ((1, 2),)

    def run(self, progress: Callable[[float], None] | None = None) -> Result:
        return Result(self, {}, ())


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("whole", "7", 7),
        ("whole", "1e6", 1_000_000),
        ("number", "-2", -2.0),
        ("flag", "true", True),
        ("flag", "no", False),
        ("word", "b c", "b c"),
        ("choice", "normalised", "normalised"),
        ("several", "3", (3.0,)),
        ("several", "1,2.5", (1.0, 2.5)),
        ("maybe", "none", None),
        ("maybe", "4", 4.0),
        ("several", "", ()),
        ("seed", "0", 0),
        ("offset", "-4", -4),
        ("pairs", "3:4,5:6", ((3, 4), (5, 6))),
    ],
)
def test_settings_from_text(name: str, text: str, value: object) -> None:
    parsed = parse_setting(Everything, name, text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("whole", "1.5", "whole must be a whole number, got '1.5'"),
        ("number", "much", "number must be a number"),
        ("flag", "perhaps", "flag must be true or false"),
        ("choice", "other", "one of plain, normalised"),
        ("several", "1,x", "a number, or several separated by commas"),
        ("maybe", "x", "a number or none"),
        ("pairs", "3", "a whole number : a whole number, or several"),
        ("whole", "-1", "everything: whole must be 0 or more, got '-1'"),
        ("seed", "-1", "everything: seed must be 0 or more, got '-1'"),
        ("offset", "-5", "everything: offset must be -4 or more"),
        ("pairs", "3:-4", "everything: pairs must be 0 or more"),
        ("number", "nan", "everything: number must be finite, got 'nan'"),
        ("several", "1,inf", "everything: several must be finite"),
        ("nothing", "1", "everything has no setting 'nothing'; it has whole, number"),
    ],
)
def test_what_cannot_be_a_setting_is_named(name: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        parse_setting(Everything, name, text)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("trials", "0", "fig9: trials must be 1 or more, got '0'"),
        ("seed", "-1", "fig9: seed must be 0 or more, got '-1'"),
        ("dimensions", "", "fig9: dimensions must not be empty; give a whole number, or several"),
        ("step", "inf", "fig9: step must be finite"),
    ],
)
def test_our_figures_count_from_one(name: str, text: str, message: str) -> None:
    assert parse_setting(Figure9a, "seed", "0") == 0
    with pytest.raises(ValueError, match=message):
        parse_setting(Figure9a, name, text)


@given(
    st.integers(0, 1000),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.lists(st.floats(-9, 9), min_size=1, max_size=3),
)
def test_the_command_of_an_experiment_gives_it_again(
    whole: int, number: float, flag: bool, several: list[float]
) -> None:
    pairs = ((whole, 2), (3, whole))
    experiment = Everything(whole=whole, number=number, flag=flag, several=tuple(several), pairs=pairs)
    words = command(experiment).split(" ")
    assert words[:3] == ["tokenmargin", "reproduce", "everything"]
    flags = {name.removeprefix("--"): text for name, text in zip(words[3::2], words[4::2], strict=True)}
    assert with_settings(Everything.quick(), flags) == experiment


def test_axes_from_text() -> None:
    assert parse_axis(Everything, "whole=2,5,10") == Axis("whole", (2, 5, 10))
    assert parse_axis(Everything, "whole=0..999") == Axis("whole", range(1000))
    assert parse_axis(Everything, "several=1,2;3") == Axis("several", ((1.0, 2.0), (3.0,)))
    for text in ("whole=2,5,10", "whole=0..999", "several=1.0,2.0;3.0", "choice=plain,normalised"):
        assert parse_axis(Everything, text).text == text
    for wrong in ("whole", "whole=", "whole=5..1", "whole=1,1"):
        with pytest.raises(ValueError, match=r"axis|empty|repeat"):
            parse_axis(Everything, wrong)


def test_a_grid_holds_every_combination_once() -> None:
    grid = Grid(Everything(), (Axis("whole", range(3)), Axis("number", (0.1, 0.2)), Axis("flag", (False, True))))
    cells = [grid[cell] for cell in range(len(grid))]
    assert len(set(cells)) == len(grid) == 12
    assert cells[0] == replace(Everything(), whole=0, number=0.1)
    assert cells[-1] == replace(Everything(), whole=2, number=0.2, flag=True)
    with pytest.raises(IndexError, match="12 cells"):
        grid[12]
    with pytest.raises(ValueError, match="one axis"):
        Grid(Everything(), (Axis("whole", (1,)), Axis("whole", (2,))))


def test_a_million_cells_take_no_memory() -> None:
    grid = Grid(Everything(), (Axis("whole", range(1_000_000)), Axis("number", (0.1, 0.2))))
    assert grid.settings(1_999_999) == {"whole": 999_999, "number": 0.2}
