"""Tables that several figures share: tokens, paths, limits and certified directions in the plane."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

from tokenmargin.dynamics import Trajectory
from tokenmargin.experiments.experiment import Table
from tokenmargin.margin import MarginSolution, limit_direction, max_margin
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.names import token_names
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import angle, cosine, optimal_tokens, selection_text

PAPER_B = "Max-Margin Token Selection in Attention Mechanism"
PAPER_C = "Transformers as Support Vector Machines"
PAPER_A = "Attention with Trained Embeddings Provably Selects Important Tokens"
PAPER_D = "Mechanics of Next Token Prediction with Self-Attention"
ALIGNED = 0.999  # cosine that a run of the paper's length must reach


def token_table(problem: TokenProblem, selections: Iterable[Sequence[int]] = ()) -> Table:
    """The places of the tokens in the plane and their scores; `local` marks selected tokens that are not optimal."""
    assert isinstance(problem.keys, Coordinates), "figures are drawn in coordinates"
    place = problem.keys.tokens[problem.mask]
    inputs, positions = np.nonzero(problem.mask)
    local = np.zeros(problem.mask.shape, dtype=bool)
    for alpha in selections:
        local[np.arange(problem.n), list(alpha)] = True
    local &= ~optimal_tokens(problem)
    return {
        "input": inputs,
        "token": positions,
        "name": token_names(inputs, positions),
        "x": place[:, 0],
        "y": place[:, 1],
        "score": problem.scores[problem.mask],
        "optimal": optimal_tokens(problem)[problem.mask],
        "local": local[problem.mask],
    }


def path_table(path: Trajectory, limits: Table) -> Table:
    """The kept points of every start, in the plane, each with its angle to the limit of its start."""
    points = path["point"]  # (kept, starts, D)
    kept, starts = points.shape[:2]
    limit = np.stack([limits["direction_x"], limits["direction_y"]], axis=1)
    return {
        "start": np.tile(np.arange(starts), kept),
        "step": np.repeat(path.at, starts),
        "x": points[..., 0].ravel(),
        "y": points[..., 1].ravel(),
        "norm": np.linalg.norm(points, axis=-1).ravel(),
        "angle": planar_angle(points[..., :2], limit).ravel(),
    }


def planar_angle(points: Float[Array, "... 2"], direction: Float[Array, "... 2"]) -> Float[Array, "..."]:
    """Angle of points in the plane to a direction; 0 at the origin, accurate for small angles too."""
    along = np.sum(points * direction, axis=-1)
    across = points[..., 0] * direction[..., 1] - points[..., 1] * direction[..., 0]
    return np.asarray(np.arctan2(np.abs(across), along))


def limit_table(
    problem: TokenProblem, starts: Float[Array, "S D"], finals: Float[Array, "S D"], selected: Int[Array, "S n"]
) -> Table:
    """For each start what it selected at the end, and its angle to the certified direction of that selection."""
    rows = []
    for start, final, alpha in zip(starts, finals, selected, strict=True):
        named = limit_direction(problem, alpha)
        solution = named.solution
        rows.append(
            {
                "start_x": start[0],
                "start_y": start[1],
                "selected": selection_text(named.chosen),
                "limit": named.kind,
                "direction_x": solution.vector[0],
                "direction_y": solution.vector[1],
                "margin": solution.margin,
                "residual": solution.certificate.residual,
                "cosine": float(cosine(problem.keys, final, solution.vector)),
                "angle": float(angle(problem.keys, final, solution.vector)),
                "norm": float(problem.keys.norm(final)),
            }
        )
    return columns(rows)


def direction_table(
    problem: TokenProblem, named: Iterable[tuple[str, Sequence[int]]], *, levels: bool = False
) -> Table:
    """Certified directions, by name; with `levels` also that of the hyperplane half-way (NaN where none separates)."""
    rows = []
    for name, alpha in named:
        solution = max_margin(problem, alpha)
        level = separating_level(problem, solution.vector, alpha) if levels else np.nan
        rows.append({**direction_row(name, solution), "level": level})
    return columns(rows)


def direction_row(name: str, solution: MarginSolution) -> dict[str, object]:
    """A certified direction in the plane, as a row."""
    (x, y), residual = solution.vector[:2], solution.certificate.residual
    return {"direction": name, "x": x, "y": y, "margin": solution.margin, "residual": residual}


def separating_level(problem: TokenProblem, vector: Float[Array, " D"], alpha: Sequence[int]) -> float:
    """The level of `vector` half-way between all selected tokens and all others; NaN where no level separates them."""
    logits = problem.keys.logits(vector)
    chosen = np.zeros(logits.shape, dtype=bool)
    chosen[np.arange(problem.n), list(alpha)] = True
    low, high = logits[chosen].min(), logits[~chosen & problem.mask].max(initial=-np.inf)
    return float((low + high) / 2) if low > high else np.nan


def columns(rows: Sequence[Mapping[str, object]]) -> Table:
    """A table by columns, given its rows."""
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}
