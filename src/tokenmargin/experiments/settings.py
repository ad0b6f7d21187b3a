"""The fields of an experiment as flags: parse their texts, write them as a command, and span grids of settings."""

from __future__ import annotations

import json
import math
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, TypeVar, Union

from tokenmargin.experiments.experiment import AbstractExperiment

Experiment = TypeVar("Experiment", bound=AbstractExperiment)


def setting_kinds(experiment: type[AbstractExperiment]) -> dict[str, Any]:
    """The settings of an experiment and their types."""
    hints = typing.get_type_hints(experiment)
    return {field.name: hints[field.name] for field in fields(experiment)}


def parse_setting(experiment: type[AbstractExperiment], name: str, text: str) -> Any:
    """The value of one setting from its text: a tuple's items are separated by commas, a pair is written `2:3`.

    Whole numbers are counts and seeds, 0 or more unless a scale sets a smaller one. Other numbers are finite. Our own
    figures count from 1 on, and need an item in every tuple, unless a scale of theirs says otherwise.
    """
    kind = _kind(experiment, name)
    try:
        value = _convert(kind, text.strip())
    except (ValueError, KeyError):
        raise ValueError(f"{experiment.figure}: {name} must be {_in_words(kind)}, got {text!r}") from None
    known = [
        getattr(scale(), name) for scale in (experiment.quick, experiment.paper, experiment.tuned, experiment.short)
    ]
    ours = experiment.__module__.startswith("tokenmargin.")
    least = 1 if ours and "seed" not in name else 0
    least = min([least, *(number for number in _numbers(tuple(known)) if isinstance(number, int))])
    if ours and value == () and () not in known:
        raise ValueError(f"{experiment.figure}: {name} must not be empty; give {_in_words(kind)}")
    for number in _numbers(value):
        if isinstance(number, float) and not math.isfinite(number):
            raise ValueError(f"{experiment.figure}: {name} must be finite, got {text!r}")
        if isinstance(number, int) and number < least:
            raise ValueError(f"{experiment.figure}: {name} must be {least} or more, got {text!r}")
    return value


def _numbers(value: Any) -> list[int | float]:
    """The numbers in a setting; truth values are none."""
    if isinstance(value, tuple):
        return [number for item in value for number in _numbers(item)]
    return [value] if isinstance(value, int | float) and not isinstance(value, bool) else []


def with_settings(experiment: Experiment, settings: Mapping[str, str]) -> Experiment:
    """The experiment with some settings replaced, each given as text."""
    values = {name: parse_setting(type(experiment), name, text) for name, text in settings.items()}
    return replace(experiment, **values)


def command(experiment: AbstractExperiment, *, verb: str = "reproduce") -> str:
    """The command that runs exactly this experiment.

    >>> from dataclasses import replace
    >>> from tokenmargin.experiments.figures.prompt_paths import Figure1a
    >>> command(replace(Figure1a.quick(), steps=50))
    'tokenmargin reproduce fig1a --steps 50'
    """
    kind = type(experiment)
    scales = {"quick": kind.quick(), "paper": kind.paper(), "tuned": kind.tuned(), "short": kind.short()}
    changed = {scale: _changes(experiment, base) for scale, base in scales.items()}
    scale = min(scales, key=lambda name: len(changed[name]))  # the first of the nearest
    words = [f"tokenmargin {verb}", kind.figure] + ([f"--scale {scale}"] if scale != "quick" else [])
    words += [f"--{name.replace('_', '-')} {_as_text(value)}" for name, value in changed[scale].items()]
    return " ".join(words)


@dataclass(frozen=True)
class Axis:
    """One setting and its values; a range stays a range, so that a million seeds take no memory."""

    name: str
    values: Sequence[Any]

    @property
    def text(self) -> str:
        """As written on the command line."""
        if isinstance(self.values, range):
            return f"{self.name}={self.values.start}..{self.values.stop - 1}"
        separator = ";" if any(isinstance(value, tuple) for value in self.values) else ","
        return f"{self.name}={separator.join(map(_as_text, self.values))}"


def parse_axis(experiment: type[AbstractExperiment], text: str) -> Axis:
    """`d=2,5,10`, `seed=0..999` (both ends included), or `scores=1,2;1,3` for settings that are tuples.

    >>> from tokenmargin.experiments.figures.prompt_paths import Figure1a
    >>> parse_axis(Figure1a, "steps=10,20").values
    (10, 20)
    >>> parse_axis(Figure1a, "steps=1..999").values
    range(1, 1000)
    """
    name, equals, written = text.partition("=")
    name = name.strip().replace("-", "_")
    if not equals or not written.strip():
        raise ValueError(f"an axis is NAME=VALUE,VALUE or NAME=FIRST..LAST, got {text!r}")
    kind = _kind(experiment, name)
    first, dots, last = written.partition("..")
    if dots and kind is int:
        low, high = (parse_setting(experiment, name, end) for end in (first, last))
        if high < low:
            raise ValueError(f"the range of {name} is empty: {written!r}")
        return Axis(name, range(low, high + 1))
    parts = written.split(";" if typing.get_origin(kind) is tuple else ",")
    values = tuple(parse_setting(experiment, name, part) for part in parts)
    if len(set(values)) < len(values):
        raise ValueError(f"the values of {name} repeat: {written!r}")
    return Axis(name, values)


@dataclass(frozen=True)
class Grid:
    """All combinations of the axes' values, as experiments by cell number; the last axis varies fastest.

    >>> from tokenmargin.experiments.figures.prompt_paths import Figure1a
    >>> grid = Grid(Figure1a.quick(), (Axis("step", (0.1, 0.2)), Axis("steps", range(10, 13))))
    >>> len(grid), grid.settings(4)
    (6, {'step': 0.2, 'steps': 11})
    """

    base: AbstractExperiment
    axes: tuple[Axis, ...]

    def __post_init__(self) -> None:
        names = [axis.name for axis in self.axes]
        if len(set(names)) < len(names):
            raise ValueError(f"each setting has one axis, got {', '.join(names)}")

    def __len__(self) -> int:
        return math.prod(len(axis.values) for axis in self.axes)

    def settings(self, cell: int) -> dict[str, Any]:
        """What this cell sets, by name."""
        chosen = {}
        for axis in reversed(self.axes):
            cell, place = divmod(cell, len(axis.values))
            chosen[axis.name] = axis.values[place]
        return {axis.name: chosen[axis.name] for axis in self.axes}

    def __getitem__(self, cell: int) -> AbstractExperiment:
        if not 0 <= cell < len(self):
            raise IndexError(f"the grid has {len(self)} cells, got {cell}")
        return replace(self.base, **self.settings(cell))


def _kind(experiment: type[AbstractExperiment], name: str) -> Any:
    kinds = setting_kinds(experiment)
    if name not in kinds:
        raise ValueError(f"{experiment.figure} has no setting {name!r}; it has {', '.join(kinds) or 'none'}")
    return kinds[name]


def _convert(kind: Any, text: str) -> Any:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is bool:
        return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[text.lower()]
    if kind is int:
        return _whole(text)
    if kind is float:
        return float(text)
    if kind is str:
        return text
    if origin is Literal:
        return {str(choice): choice for choice in inner}[text]
    if origin is tuple and inner[-1] is Ellipsis:
        return tuple(_convert(inner[0], part.strip()) for part in text.split(",") if part.strip())
    if origin is tuple:
        parts = text.split(":")
        if len(parts) != len(inner):
            raise ValueError(text)
        return tuple(_convert(kind, part) for kind, part in zip(inner, parts, strict=True))
    if origin in (Union, types.UnionType):
        if types.NoneType in inner and text.lower() == "none":
            return None
        return _first_that_fits([choice for choice in inner if choice is not types.NoneType], text)
    raise TypeError(f"a setting of type {kind} cannot be given as text")


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        number = float(text)  # 1e6
        if not number.is_integer():
            raise ValueError(text) from None
        return int(number)


def _first_that_fits(kinds: Iterable[Any], text: str) -> Any:
    for kind in kinds:
        try:
            return _convert(kind, text)
        except (ValueError, KeyError):
            continue
    raise ValueError(text)


def _in_words(kind: Any) -> str:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return f"one of {', '.join(map(str, inner))}"
    if origin is tuple and inner[-1] is Ellipsis:
        return f"{_in_words(inner[0])}, or several separated by commas"
    if origin is tuple:
        return " : ".join(map(_in_words, inner))
    if origin in (Union, types.UnionType):
        return " or ".join("none" if choice is types.NoneType else _in_words(choice) for choice in inner)
    return {bool: "true or false", int: "a whole number", float: "a number", str: "text"}.get(kind, str(kind))


def _changes(experiment: AbstractExperiment, base: AbstractExperiment) -> dict[str, Any]:
    default = asdict(base)
    return {name: value for name, value in asdict(experiment).items() if value != default[name]}


def _as_text(value: Any, *, inside: bool = False) -> str:
    if isinstance(value, tuple | list):
        return (":" if inside else ",").join(_as_text(item, inside=True) for item in value)
    return value if isinstance(value, str) else json.dumps(value).replace("null", "none")
