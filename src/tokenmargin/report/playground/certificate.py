"""The answer about one selection: feasible or not, locally optimal or not, why, and the certificate."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from jaxtyping import Bool
from numpy import ndarray as Array

from tokenmargin.margin import LimitDirection, limit_direction
from tokenmargin.problem.names import token_name
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import cone_constants, score_gaps


def listed(items: Iterable[str]) -> str:
    """`a, b and c`; of more than eight the first seven.

    >>> listed(["A1", "B2", "C1"]), listed([])
    ('A1, B2 and C1', 'none')
    """
    *others, last = [*items] or ["none"]
    if len(others) > 7:
        others, last = others[:7], f"{len(others) - 6} more"
    return f"{', '.join(others)} and {last}" if others else last


def names_of(marked: Bool[Array, "n T"]) -> str:
    """The names of the marked tokens."""
    return listed(token_name(i, t) for i, t in np.argwhere(marked).tolist())


def certified(problem: TokenProblem, selected: list[int]) -> dict[str, Any]:
    """Status, margin, reasons and certificate of one selection, in plain types."""
    named = limit_direction(problem, selected)
    solution = named.solution
    evidence = solution.farkas if solution.status == "infeasible" else solution.multipliers
    weights = [] if evidence is None else zip(solution.tokens.tolist(), evidence.tolist(), strict=True)
    answer: dict[str, Any] = {
        "selected": selected,
        "status": solution.status,
        "margin": solution.margin if math.isfinite(solution.margin) else None,
        "gmm": named.is_global,
        "local": named.is_limit,
        "residual": solution.certificate.residual if math.isfinite(solution.certificate.residual) else None,
        "against": solution.tokens.tolist(),  # tokens of the selected one's score ask for nothing
        "neighbours": np.argwhere(named.neighbours).tolist(),
        "evidence": [{"token": token, "weight": weight} for token, weight in weights if weight > 0],
        "cone": None,
    }
    if named.is_limit and answer["margin"] and score_gaps(problem, solution.vector, selected).min() > 0:
        cone = cone_constants(problem, solution.vector, selected)  # beside tied tokens none is known
        answer["cone"] = {"degrees": math.degrees(math.acos(1 - cone.mu)), "norm": cone.radius}
    answer["why"] = _why(problem, named, answer)
    return answer


def _why(problem: TokenProblem, named: LimitDirection, answer: dict[str, Any]) -> str:
    names = names_of(named.chosen)
    if answer["status"] == "infeasible":
        rivals = listed(token_name(*one["token"]) for one in answer["evidence"])
        return (
            f"No direction selects {names}: the differences to {rivals}, weighted and added, are zero, "
            "and no p can make zero positive."
        )
    if answer["status"] == "inaccurate":
        return f"Whether a direction selects {names} is too close to call in double precision."
    if answer["margin"] is None:
        return "Every input has a single token: there is nothing to choose."
    band = f"A direction selects {names} with margin {answer['margin']:.4g}, held by {names_of(named.neighbours)}."
    if named.is_limit:
        best = "these are the best tokens" if named.is_global else "though these are not the best tokens"
        return f"{band} They outscore every token on the margin, so training can settle here: {best}."
    shared = problem.shared_scores
    beaten = named.neighbours & (shared > shared[np.arange(problem.n), answer["selected"]][:, None])
    reason = f"{names_of(beaten)} on the margin score{'' if beaten.sum() > 1 else 's'} higher"
    reason = reason if beaten.any() else "a choice among equals allows a larger margin"
    return f"{band} Training does not stay: {reason}."
