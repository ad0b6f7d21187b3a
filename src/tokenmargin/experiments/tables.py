"""Tables that several figures share: tokens, paths, limits and certified directions in the plane."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

from tokenmargin.dynamics import Trajectory
from tokenmargin.experiments.experiment import Table
from tokenmargin.geometry import Coordinates
from tokenmargin.margin import limit_direction, max_margin
from tokenmargin.problem import TokenProblem
from tokenmargin.selection import angle, cosine, optimal_tokens, spelled

__all__ = ["ALIGNED", "PAPER_A", "PAPER_B", "columns", "direction_table", "limit_table", "path_table", "token_table"]

PAPER_B = "Max-Margin Token Selection in Attention Mechanism"
PAPER_A = "Attention with Trained Embeddings Provably Selects Important Tokens"
ALIGNED = 0.999  # cosine that a run of the paper's length must reach


def token_table(problem: TokenProblem) -> Table:
    """Where the tokens lie in the plane, with scores."""
    assert isinstance(problem.keys, Coordinates), "figures are drawn in coordinates"
    place = problem.keys.tokens[problem.mask]
    inputs, positions = np.nonzero(problem.mask)
    return {
        "input": inputs,
        "token": positions,
        "x": place[:, 0],
        "y": place[:, 1],
        "score": problem.scores[problem.mask],
        "optimal": optimal_tokens(problem)[problem.mask],
    }


def path_table(path: Trajectory) -> Table:
    """The kept points of every start, in the plane."""
    points = path["point"]  # (kept, starts, D)
    kept, starts = points.shape[:2]
    return {
        "start": np.tile(np.arange(starts), kept),
        "step": np.repeat(path.at, starts),
        "x": points[..., 0].ravel(),
        "y": points[..., 1].ravel(),
        "norm": np.linalg.norm(points, axis=-1).ravel(),
    }


def limit_table(
    problem: TokenProblem, starts: Float[Array, "S D"], finals: Float[Array, "S D"], selected: Int[Array, "S n"]
) -> Table:
    """Where each start went, and its angle to the certified direction of what it selected."""
    rows = []
    for start, final, alpha in zip(starts, finals, selected, strict=True):
        named = limit_direction(problem, alpha)
        solution = named.solution
        rows.append(
            {
                "start_x": start[0],
                "start_y": start[1],
                "selected": spelled(named.chosen),
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


def direction_table(problem: TokenProblem, named: Iterable[tuple[str, Sequence[int]]]) -> Table:
    """Certified directions, by name."""
    rows = []
    for name, alpha in named:
        solution = max_margin(problem, alpha)
        rows.append(
            {
                "direction": name,
                "x": solution.vector[0],
                "y": solution.vector[1],
                "margin": solution.margin,
                "residual": solution.certificate.residual,
            }
        )
    return columns(rows)


def columns(rows: Sequence[dict[str, object]]) -> Table:
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}
