"""The training curves of *Attention layers provably solve single-location regression*, by its population risk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tokenmargin.experiments.experiment import AbstractExperiment, Curves, Finding, Progress, Result, Scales, Table
from tokenmargin.experiments.tables import columns
from tokenmargin.objective.single_location import Overlaps, SingleLocation, overlaps

SLOWING = 1e-4  # of the steepness, per step: lambda_t = lambda_0 / (1 + 1e-4 t)


class Setting(NamedTuple):
    """One row of panels: does training start on the manifold, the steepness of erf, does it fall, the steps."""

    name: str
    on_manifold: bool
    steepness: float
    falling: bool
    step: float
    steps: int


SETTINGS = (
    Setting("manifold", True, 0.1, False, 4e-3, 20_000),
    Setting("sphere, large", False, 0.9, False, 1e-3, 120_000),
    Setting("sphere, small", False, 0.1, False, 4e-3, 20_000),
    Setting("sphere, falling", False, 1.0, True, 4e-3, 120_000),
)
"""The settings of the public code, by descent on the population risk; its stochastic run is left out."""


@dataclass(frozen=True)
class SingleLocationCurves(AbstractExperiment):
    """`tokenmargin reproduce single-location`: excess risk and alignment along projected descent, d = 400, L = 10."""

    figure = "single-location"
    source = "Attention layers provably solve single-location regression"
    title = "One token decides a real label: training finds where it stands and what it says"
    shows = (
        "projected gradient descent on the population risk, 30 starts each: on the invariant manifold; on the sphere "
        "with a steepness of 0.9 and of 0.1; on the sphere with a steepness that falls from 1. Drawn are the excess "
        "risk, |kappa| and |nu| (alignment with the two directions to be found), and the distance to the manifold. No "
        "numbers are printed."
    )
    differences = (
        "our own random starts: the public code draws its own with jax",
        "any dimension is followed in four coordinates that hold all inner products",
        "the stochastic run of the public code is left out",
    )
    curves = Curves("curves", "step", ("excess_risk",), by="setting", y_label="mean excess risk", log="y")
    scales = Scales(paper={"longest": 120_000})

    d: int = 400
    L: int = 10
    runs: int = 30
    longest: int = 24_000
    """Steps of a setting that are followed, at most."""
    seed: int = 0

    def run(self, progress: Progress = None) -> Result:
        law = SingleLocation(self.d, self.L)
        lengths = [min(setting.steps, self.longest) for setting in SETTINGS]
        rows: list[dict[str, object]] = []
        ends: dict[str, tuple[Overlaps, float]] = {}
        for j, (setting, steps) in enumerate(zip(SETTINGS, lengths, strict=True)):
            done = sum(lengths[:j])

            def tell(step: int, done: int = done) -> None:
                if progress is not None:
                    progress((done + step) / sum(lengths))

            ends[setting.name] = self._follow(law, setting, steps, rows, tell)
        table = columns(rows)
        return Result(self, {"curves": table}, self._findings(law, ends, table))

    def _follow(
        self,
        law: SingleLocation,
        setting: Setting,
        steps: int,
        rows: list[dict[str, object]],
        tell: Callable[[int], None],
    ) -> tuple[Overlaps, float]:
        """Descend, keep about a hundred rows, and return where it ended with the steepness there."""
        k, v = law.start(self.runs, on_manifold=setting.on_manifold, rng=np.random.default_rng(self.seed))
        every, steepness = max(steps // 100, 1), setting.steepness
        for step in range(steps + 1):
            steepness = setting.steepness / (1 + SLOWING * step) if setting.falling else setting.steepness
            if step % every == 0 or step == steps:
                at = overlaps(k, v)
                risk = law.excess_risk(at, steepness)
                low, high = np.quantile(risk, [0.025, 0.975])
                rows.append(
                    {"setting": setting.name, "step": step, "excess_risk": risk.mean(), "risk_low": low,
                     "risk_high": high, "kappa": np.abs(at.kappa).mean(), "nu": np.abs(at.nu).mean(),
                     "off_manifold": at.off_manifold.mean()}
                )  # fmt: skip
                tell(step)
            if step < steps:
                k, v = law.descend(k, v, steepness, setting.step)
        return overlaps(k, v), steepness

    def _findings(
        self, law: SingleLocation, ends: dict[str, tuple[Overlaps, float]], table: Table
    ) -> tuple[Finding, ...]:
        on, found = table["setting"] == "manifold", []
        found.append(
            Finding("on the manifold: largest distance from it on the way", float(table["off_manifold"][on].max()),
                    high=1e-12, source="descent keeps to the manifold", basis="theorem")
        )  # fmt: skip
        one, zero = np.array(1.0), np.array(0.0)
        for name, (at, steepness) in ends.items():
            least = float(law.excess_risk(Overlaps(one, one, zero, zero, zero), steepness))
            risk = law.excess_risk(at, steepness)
            aligned = (np.abs(at.kappa) > 0.9) & (np.abs(at.nu) > 0.9)
            low = 1.0 if name == "manifold" else -np.inf
            found += [
                Finding(f"{name}: share of starts with |kappa| and |nu| above 0.9", float(aligned.mean()), low=low,
                        source="descent on the manifold converges to the two directions, up to sign" if low > 0 else "",
                        basis="theorem" if low > 0 else "ours"),
                Finding(f"{name}: median excess risk over that of the two directions themselves",
                        float(np.median(risk) / least)),
            ]  # fmt: skip
        return tuple(found)
