"""Experiments for the tests of records and sweeps; in a module of its own, so that worker processes can import it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from tokenmargin.experiments import AbstractExperiment, Curves, Finding, Result


@dataclass(frozen=True)
class Study(AbstractExperiment):
    """Numbers from a seed; can be slow, fail, or take its process down; notes every run in a file when asked."""

    figure: ClassVar[str] = "study"
    source: ClassVar[str] = "a test"
    title: ClassVar[str] = "Numbers from a seed"
    curves: ClassVar[Curves | None] = Curves("draws", "place", ("value",))

    seed: int = 0
    size: int = 3
    pause: float = 0.0
    fail_at: int = -1
    die_at: int = -1
    log: str = ""

    def run(self, progress: Callable[[float], None] | None = None) -> Result:
        if self.log:
            with Path(self.log).open("a") as file:
                file.write(f"{self.seed}\n")
        time.sleep(self.pause)
        if self.seed == self.fail_at:
            raise ArithmeticError(f"seed {self.seed} does not work")
        if self.seed == self.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        draws = np.random.default_rng(self.seed).normal(size=self.size)
        table = {"place": np.arange(self.size), "value": draws, "sign": np.where(draws > 0, "plus", "minus")}
        findings = (
            Finding("the mean", float(draws.mean()), -10, 10),
            Finding("the size", self.size, self.size, self.size),
        )
        return Result(self, {"draws": table}, findings, ("a note",))
