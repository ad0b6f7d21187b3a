"""The phase diagram of joint training: the direction of p by the ratio of |v| to |p|. A result of our own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokenmargin.dynamics import NormalizedGradientDescent, evolve, flow, ridge_path
from tokenmargin.experiments.experiment import AbstractExperiment, Finding, Progress, Result, Scales, Table, track
from tokenmargin.experiments.tables import columns
from tokenmargin.margin import JointPhases, joint_phases
from tokenmargin.objective.attention import JointObjective
from tokenmargin.problem.instances import figure3a, figure3b
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import angle
from tokenmargin.theory.results.joint_phase import scaled_values

SHARES = (0.1, 0.3, 0.5, 0.7, 0.9, 1.1, 1.5)  # of the critical ratio, where points are measured
RADII = (1e2, 1e3, 1e4)


def random_joint_problem(n: int, d: int, *, rng: np.random.Generator) -> TokenProblem:
    """Inputs {0, x_i} as in Figure 3: random tokens that lie to the right, and up or down by their label.

    Drawn again until the phase boundary is sharp and p^relax selects every token by a tenth of its margin at least. A
    token on the edge of selection ties head and prompt to each other, and minimising them in turn then takes too long.
    """
    while True:
        labels = np.where(np.arange(n) % 2, -1.0, 1.0)
        tokens = np.zeros((n, 2, d))
        tokens[:, 1] = 0.5 * rng.normal(size=(n, d))
        tokens[:, 1, 0] += 1
        tokens[:, 1, 1] = labels * (1 + np.abs(tokens[:, 1, 1]))
        problem = TokenProblem.of(tokens, labels, head=np.zeros(d))
        try:
            phases = joint_phases(problem, [1] * n)
        except ValueError:
            continue
        least = float((tokens[:, 1] @ phases.relaxed.vector).min())  # in units of the margin
        if phases.jumps_below and least > 0.1:
            return problem


@dataclass(frozen=True)
class JointPhase(AbstractExperiment):
    """`tokenmargin reproduce joint-phase`: about 20 s; every measured angle is within 20/R of the law.

    Angle of p to p^relax against rho = |v| Gamma/|p|, by the certified law, on the joint ridge path to R = 10^4, and
    by normalised descent with a ratio of steps, for Figure 3(b) of *Max-Margin Token Selection in Attention Mechanism*,
    the same with its third token at (0.5, 1.1), and random problems. Expected: p^mm at 0, p^relax from the critical
    ratio on.
    """

    figure = "joint-phase"
    source = "A result of our own (docs/results/joint-phase.md)"
    title = "Which direction joint training gives p: the phases in |v| Gamma/|p|"
    shows = "two of the phases (Theorems 5 and 6); the law, its critical ratio and the dynamics are ours."
    seconds = (20, 120)
    shown_tables = ("problems",)
    scales = Scales(paper={"randoms": 20})

    randoms: int = 2
    steps: int = 4000
    seed: int = 0

    def run(self, progress: Progress = None) -> Result:
        rng = np.random.default_rng(self.seed)
        named = [("fig3b", figure3b()), ("fig3, (0.5, 1.1)", figure3a(third=(0.5, 1.1)))]
        named += [(f"random {k + 1}", random_joint_problem(5, 4, rng=rng)) for k in range(self.randoms)]
        rows: dict[str, list[dict[str, object]]] = {"law": [], "measured": [], "problems": []}
        for name, problem in track(named, progress):
            phases = joint_phases(problem, [1] * problem.n)
            rows["law"] += _law_rows(name, phases)
            rows["measured"] += [*_ridge_rows(name, phases, rng), *_descent_rows(name, phases, self.steps)]
            rows["problems"].append(_problem_row(name, phases))
        tables = {name: columns(table) for name, table in rows.items()}
        return Result(self, tables, _findings(tables))


def _angle_to_relaxed(phases: JointPhases, p: np.ndarray) -> float:
    return float(angle(phases.problem.keys, p, phases.relaxed.vector))


def _law_rows(name: str, phases: JointPhases) -> list[dict[str, object]]:
    found = [phases.at(rho) for rho in np.linspace(0, 1.6 * phases.critical, 60)]
    return [
        {"problem": name, "rho": phase.rho, "share": phase.rho / phases.critical, "value": phase.value,
         "angle": _angle_to_relaxed(phases, phase.solution.vector)}
        for phase in found
    ]  # fmt: skip


def _row(name: str, phases: JointPhases, rho: float, p: np.ndarray, how: str) -> dict[str, object]:
    law = phases.at(rho).solution.vector
    return {
        "problem": name,
        "how": how,
        "rho": rho,
        "share": rho / phases.critical,
        "norm": float(phases.problem.keys.norm(p)),
        "angle": _angle_to_relaxed(phases, p),
        "law": _angle_to_relaxed(phases, law),
        "difference": float(angle(phases.problem.keys, p, law)),
    }


def _ridge_rows(name: str, phases: JointPhases, rng: np.random.Generator) -> list[dict[str, object]]:
    """The joint ridge path at fixed ratios."""
    rows = []
    for rho in phases.critical * np.array(SHARES):
        start = np.concatenate([phases.head.vector, phases.at(rho).solution.vector])
        for R in RADII:
            pair = (rho / phases.head.margin * R, R)
            path = ridge_path(JointObjective(phases.problem), [pair], rng=rng, starts=0, also=start[None])
            rows.append(_row(name, phases, float(rho), path.prompts[-1], f"ridge, R = {R:g}"))
    return rows


def _descent_rows(name: str, phases: JointPhases, steps: int) -> list[dict[str, object]]:
    """Normalised descent with a ratio of steps, and gradient flow."""
    rows, d = [], phases.problem.values.dimension
    start = np.concatenate([3 * phases.head.vector, 6 * phases.prompt.vector])
    for rho in phases.critical * np.array(SHARES[1:-1:2]):
        objective = JointObjective(scaled_values(phases.problem, rho / phases.head.margin))
        path = evolve(objective, NormalizedGradientDescent(0.1), steps=steps, start=start, keep=())
        rows.append(_row(name, phases, float(rho), objective.prompt(path.final), "normalised descent"))
    joint = flow(JointObjective(phases.problem), start=start, until_norm=1e8).final
    row = _row(name, phases, 2 * phases.critical, joint[d:], "gradient flow")
    rho = float(np.linalg.norm(joint[:d]) * phases.head.margin / np.linalg.norm(joint[d:]))
    return [*rows, {**row, "rho": rho, "share": rho / phases.critical}]


def _problem_row(name: str, phases: JointPhases) -> dict[str, object]:
    return {
        "problem": name,
        "inputs": phases.problem.n,
        "support": int(phases.support.sum()),
        "critical": phases.critical,
        "apart": float(angle(phases.problem.keys, phases.prompt.vector, phases.relaxed.vector)),
        "residual": max(phases.prompt.certificate.residual, phases.relaxed.certificate.residual),
    }


def _findings(tables: dict[str, Table]) -> tuple[Finding, ...]:
    measured, problems = tables["measured"], tables["problems"]
    how = measured["how"].astype(str)
    ridge, descent = np.char.startswith(how, "ridge"), how == "normalised descent"
    flows, far = how == "gradient flow", how == f"ridge, R = {RADII[-1]:g}"
    critical = dict(zip(problems["problem"].tolist(), problems["critical"].tolist(), strict=True))
    products = measured["difference"] * measured["norm"]
    exact = "the closed form max (M - mu_i)/(m_i - 1)"
    return (
        Finding("critical ratio of Figure 3(b)", critical["fig3b"], 1 - 1e-9, 1 + 1e-9, exact, basis="theorem"),
        Finding("critical ratio with (0.5, 1.1)", critical["fig3, (0.5, 1.1)"], 5 - 1e-8, 5 + 1e-8, exact,
                basis="theorem"),
        Finding("ridge path: largest angle to the law times R", float(products[ridge].max()), high=20.0,
                source="the angle falls like 1/R"),
        Finding("ridge path: largest angle to the law at R = 10^4", float(measured["difference"][far].max()), high=2e-3,
                source="the same, at the largest radius"),
        Finding("normalised descent: largest angle to the law times |p|", float(products[descent].max()), high=20.0,
                source="the ratio of the steps sets the phase"),
        Finding("gradient flow: largest angle to p^relax times |p|", float(products[flows].max()), high=20.0,
                source="|p| grows like log |v|: the ratio has no bound"),
    )  # fmt: skip
