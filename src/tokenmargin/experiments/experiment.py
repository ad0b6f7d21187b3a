"""What an experiment is: a frozen config, and a run that returns tables and findings (expected beside measured)."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self, TypeAlias, TypeVar

import numpy as np
from numpy import ndarray as Array

Item = TypeVar("Item")
Table = Mapping[str, Array]
"""Columns of equal length, by name."""

Verdict = Literal["as expected", "explained", "stand-in", "measured", "not as expected"]
"""What is said of a number or a figure.

- *as expected*, or *not as expected*: inside its bounds, or outside.
- *explained*: outside, and why is known and named.
- *measured*: a number without bounds, which is not judged.
- *stand-in*: a figure drawn from data that stand in for the paper's, which judges nothing.
"""

Basis = Literal["printed", "figure", "theorem", "ours"]
"""Where bounds come from: a number or sentence printed in the paper, its figure, a theorem, or a choice of our own."""
BASES = {"printed": "printed", "figure": "read off the figure", "theorem": "a theorem", "ours": "ours"}

FINDINGS = "findings"
"""Name of the table of expected against measured."""
FINDING_COLUMNS = ("what", "measured", "low", "high", "verdict", "basis", "source", "explanation")


@dataclass(frozen=True)
class Finding:
    """One claim of a figure: what was measured, what was expected, and whether it is so.

    **Attributes**
    - `what`: the quantity, in words.
    - `measured`: its value.
    - `low`, `high`: the range it was expected in; a finding without either is a number that is not judged.
    - `source`: what the expectation rests on, in words.
    - `explanation`: why the value may lie outside the range, where that is known: what the experiment that looked into
      the difference found. Without one, a value outside the range is a failure.
    - `basis`: where the bounds come from; ours, unless the paper or a theorem gives them.
    """

    what: str
    measured: float
    low: float = -np.inf
    high: float = np.inf
    source: str = ""
    explanation: str = ""
    basis: Basis = "ours"

    @property
    def has_bounds(self) -> bool:
        """Whether there are bounds to judge it by."""
        return self.low > -np.inf or self.high < np.inf

    @property
    def holds(self) -> bool:
        """Whether the measured value lies in the expected range, if there is one."""
        return not self.has_bounds or bool(self.low <= self.measured <= self.high)

    @property
    def verdict(self) -> Verdict:
        """The verdict on this number, as `Verdict` explains."""
        if not self.has_bounds:
            return "measured"
        return "as expected" if self.holds else "explained" if self.explanation else "not as expected"

    @property
    def bounds_from(self) -> str:
        """Where the bounds come from, in words; nothing for a finding without any."""
        return BASES[self.basis] if self.has_bounds else ""

    def without_bounds(self) -> Finding:
        """The finding without bounds, which are for the paper's data, not for other data; `source` still names them."""
        return replace(self, low=-np.inf, high=np.inf, source=f"on the paper's data: {self.expected}", explanation="")

    @property
    def expected(self) -> str:
        """The expected range in words."""
        if not self.has_bounds:
            return "not judged"
        if self.low == self.high:
            return f"{self.low:g}"
        if self.high == np.inf:
            return f"at least {self.low:g}"
        if self.low == -np.inf:
            return f"at most {self.high:g}"
        return f"{self.low:g} to {self.high:g}"


def verdict_of(findings: Iterable[Finding]) -> Verdict:
    """The worst verdict among findings; numbers that are not judged do not count."""
    verdicts = {finding.verdict for finding in findings}
    order: tuple[Verdict, ...] = ("not as expected", "explained")
    return next((verdict for verdict in order if verdict in verdicts), "as expected")


def findings_table(findings: Sequence[Finding]) -> Table:
    """Findings as a table with a row for each."""
    numbers = ("measured", "low", "high")
    return {
        name: np.array([getattr(finding, name) for finding in findings], dtype=float if name in numbers else object)
        for name in FINDING_COLUMNS
    }


@dataclass(frozen=True, eq=False)
class Result:
    """What a run found: tables and findings.

    `stand_in` says which data stand in for the paper's, when they do; then every face of the result says so.
    """

    experiment: AbstractExperiment
    tables: Mapping[str, Table]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = field(default=())
    stand_in: str = ""

    @property
    def title(self) -> str:
        """The experiment's title; where other data stood in for the paper's, it names those that were used."""
        title, named = self.experiment.title, self.stand_in.rpartition(" standing in for ")[2]
        if not self.stand_in:
            return title
        return title.replace(named, self.stand_in, 1) if named in title else f"{title} ({self.stand_in})"

    @property
    def holds(self) -> bool:
        """Whether every finding is as expected."""
        return all(finding.holds for finding in self.findings)

    @property
    def verdict(self) -> Verdict:
        """The worst verdict among the findings; data that stand in for the paper's judge nothing."""
        return "stand-in" if self.stand_in else verdict_of(self.findings)

    def table(self, name: str) -> Table:
        """A table by name; `findings` is the table of expected against measured."""
        if name == FINDINGS:
            return findings_table(self.findings)
        if name not in self.tables:
            raise KeyError(f"{self.experiment.figure} has no table {name!r}; it has {', '.join(self.table_names)}")
        return self.tables[name]

    @property
    def table_names(self) -> tuple[str, ...]:
        """All tables, the findings first."""
        return (FINDINGS, *self.tables)


@dataclass(frozen=True)
class Curves:
    """How to draw a table without writing a drawing: one curve per column of `y`, or per value of `by`."""

    table: str
    x: str
    y: tuple[str, ...]
    by: str | None = None
    x_label: str = ""
    y_label: str = ""
    log: Literal["", "x", "y", "xy"] = ""


Progress: TypeAlias = Callable[[float], None] | None
"""Called with the share done, from 0 to 1."""


def track(items: Sequence[Item], progress: Progress) -> Iterator[Item]:
    """The items one after another; after each, `progress` is called with the share done."""
    for done, item in enumerate(items, 1):
        yield item
        if progress is not None:
            progress(done / len(items))


@dataclass(frozen=True)
class Scales:
    """Settings that differ from the fields' defaults; `tuned` and `short` are the paper's unless they are given."""

    quick: Mapping[str, Any] = field(default_factory=dict)
    paper: Mapping[str, Any] = field(default_factory=dict)
    tuned: Mapping[str, Any] | None = None
    short: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class AbstractExperiment(abc.ABC):
    """A figure of a paper, or a study of our own. Its fields are its settings, and each is a flag of the command line.

    **Class attributes**
    - `figure`: short name, as on the command line.
    - `source`: the paper it comes from.
    - `title`: what it shows, in one line.
    - `shows`: what the paper shows there, in words and numbers.
    - `differences`: where ours differs from the paper's, and why.
    - `seconds`: how long `quick()` and `paper()` took on two cores, None where nobody has measured it.
    - `needs`: extras of the package that must be installed, such as `train`.
    - `curves`: how to draw it, for experiments without a drawing of their own in `report.figures`.
    - `shown_tables`: tables that the reproduction report prints.
    - `scales`: the settings of `quick()`, `paper()`, `tuned()` and `short()` that differ from the fields' defaults.
    """

    figure: ClassVar[str]
    source: ClassVar[str]
    title: ClassVar[str]
    shows: ClassVar[str] = ""
    differences: ClassVar[tuple[str, ...]] = ()
    seconds: ClassVar[tuple[float | None, float | None]] = (None, None)
    needs: ClassVar[tuple[str, ...]] = ()
    curves: ClassVar[Curves | None] = None
    shown_tables: ClassVar[tuple[str, ...]] = ()
    scales: ClassVar[Scales] = Scales()

    @classmethod
    def quick(cls) -> Self:
        """Settings for a laptop, seconds to minutes."""
        return cls(**cls.scales.quick)

    @classmethod
    def paper(cls) -> Self:
        """The paper's own settings."""
        return cls(**cls.scales.paper)

    @classmethod
    def tuned(cls) -> Self:
        """Settings that show what the figure claims, where the paper's own do not; else the paper's."""
        return cls.paper() if cls.scales.tuned is None else cls(**cls.scales.tuned)

    @classmethod
    def short(cls) -> Self:
        """Settings for half an hour of one GPU, where the paper's own take days; else the paper's."""
        return cls.paper() if cls.scales.short is None else cls(**cls.scales.short)

    def inputs(self) -> Mapping[str, str]:
        """What the result depends on beside settings and code, such as data files: a digest of each, or "absent"."""
        return {}

    @abc.abstractmethod
    def run(self, progress: Progress = None) -> Result:
        """Run and return the tables and findings; `progress` is called with the share done, from 0 to 1."""
