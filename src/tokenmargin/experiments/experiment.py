"""What an experiment is: a frozen config, a run that returns tables, and what was expected beside what was measured."""

from __future__ import annotations

import abc
import csv
import json
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy import ndarray as Array

from tokenmargin._version import __version__

__all__ = ["AbstractExperiment", "Finding", "Result", "Table"]

Table = Mapping[str, Array]
"""Columns of equal length, by name."""


@dataclass(frozen=True)
class Finding:
    """One claim of a figure: what was measured, what was expected, and whether it is so.

    **Attributes**
    - `what`: the quantity, in words.
    - `measured`: its value.
    - `low`, `high`: the range it was expected in.
    - `source`: where the expectation comes from (a theorem, a number printed in the paper, a design target).
    """

    what: str
    measured: float
    low: float = -np.inf
    high: float = np.inf
    source: str = ""

    @property
    def holds(self) -> bool:
        """Whether the measured value lies in the expected range."""
        return bool(self.low <= self.measured <= self.high)

    @property
    def expected(self) -> str:
        """The expected range in words."""
        if self.low == self.high:
            return f"{self.low:g}"
        if self.high == np.inf:
            return f"at least {self.low:g}"
        if self.low == -np.inf:
            return f"at most {self.high:g}"
        return f"{self.low:g} to {self.high:g}"


@dataclass(frozen=True, eq=False)
class Result:
    """What a run found: tables (data first), and findings."""

    experiment: AbstractExperiment
    tables: Mapping[str, Table]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def holds(self) -> bool:
        """Whether every finding is as expected."""
        return all(finding.holds for finding in self.findings)

    def save(self, folder: Path) -> None:
        """Write `result.json` and one CSV file per table."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, table in self.tables.items():
            with (folder / f"{name}.csv").open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(table)
                writer.writerows(zip(*(column.tolist() for column in table.values()), strict=True))
        (folder / "result.json").write_text(json.dumps(self.summary(), indent=2) + "\n")

    def summary(self) -> dict[str, Any]:
        """Everything but the tables, in plain types."""
        return {
            "figure": self.experiment.figure,
            "title": self.experiment.title,
            "config": asdict(self.experiment),
            "holds": self.holds,
            "findings": [
                {"what": f.what, "measured": f.measured, "expected": f.expected, "holds": f.holds, "source": f.source}
                for f in self.findings
            ],
            "notes": list(self.notes),
            "versions": {"tokenmargin": __version__, "python": platform.python_version(), "numpy": np.__version__},
        }


@dataclass(frozen=True)
class AbstractExperiment(abc.ABC):
    """A figure of a paper, or a study of our own. Its fields are its settings.

    **Class attributes**
    - `figure`: short name, as on the command line.
    - `source`: the paper it comes from.
    - `title`: what it shows, in one line.
    """

    figure: ClassVar[str]
    source: ClassVar[str]
    title: ClassVar[str]

    @classmethod
    @abc.abstractmethod
    def quick(cls) -> Self:
        """Settings that take seconds on a laptop."""

    @classmethod
    @abc.abstractmethod
    def paper(cls) -> Self:
        """The paper's own settings."""

    @classmethod
    def tuned(cls) -> Self:
        """Settings that show what the figure claims, where the paper's own do not; else the paper's."""
        return cls.paper()

    @abc.abstractmethod
    def run(self, progress: Callable[[float], None] | None = None) -> Result:
        """Run and return the tables and findings; `progress` is called with the share done, from 0 to 1."""
