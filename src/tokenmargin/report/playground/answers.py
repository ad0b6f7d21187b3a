"""The answer about one selection: feasible or not, locally optimal or not, why, and the certificate."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tokenmargin.margin import limit_direction
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.report.playground.words import listed
from tokenmargin.report.playground.words import named as token_name
from tokenmargin.selection import cone_constants, score_gaps


def answer_about(problem: TokenProblem, selected: list[int]) -> dict[str, Any]:
    """Status, direction, margin, reasons and certificate of one selection, in plain types."""
    named = limit_direction(problem, selected)
    solution = named.solution
    certificate = solution.certificate
    answer: dict[str, Any] = {
        "selected": selected,
        "status": solution.status,
        "margin": solution.margin if math.isfinite(solution.margin) else None,
        "vector": solution.vector.tolist() if solution.is_optimal else None,
        "gmm": named.is_global,
        "residual": certificate.residual if math.isfinite(certificate.residual) else None,
        "local": False,
        "cone": None,
        "neighbours": [],
        "multipliers": [],
        "farkas": [],
    }
    names = listed(token_name(i, t) for i, t in np.argwhere(named.chosen).tolist())
    if solution.status == "infeasible" and solution.farkas is not None:
        weights = [
            (token, weight) for token, weight in zip(solution.tokens, solution.farkas, strict=True) if weight > 0
        ]
        answer["farkas"] = [{"token": token.tolist(), "weight": float(weight)} for token, weight in weights]
        rivals = listed(token_name(*token) for token, _ in weights)
        answer["why"] = (
            f"No direction selects {names}: the constraints against {rivals}, weighted and added, cancel to zero, "
            "and no p can make zero positive."
        )
        return answer
    if solution.status == "inaccurate" or answer["margin"] is None:
        answer["why"] = (
            "Every input has a single token: there is nothing to choose."
            if answer["margin"] is None and solution.is_optimal
            else f"Whether a direction selects {names} is too close to call in double precision."
        )
        return answer
    near = named.neighbours
    beaten = near & (problem.shared_scores > problem.shared_scores[np.arange(problem.n), selected][:, None])
    answer["neighbours"] = np.argwhere(near).tolist()
    answer["local"] = named.is_limit
    answer["multipliers"] = [
        {"token": solution.tokens[k].tolist(), "weight": float(solution.multipliers[k])} for k in solution.active
    ]
    held = listed(token_name(i, t) for i, t in np.argwhere(near).tolist())
    if answer["local"]:
        if score_gaps(problem, solution.vector, selected).min() > 0:  # beside tied tokens no cone is known
            cone = cone_constants(problem, solution.vector, selected)
            answer["cone"] = {"half_angle": math.acos(1 - cone.mu), "norm": cone.radius}
        answer["why"] = f"{names} outscore{'s' if len(selected) == 1 else ''} every token on the margin ({held})."
    else:
        worse = listed(token_name(i, t) for i, t in np.argwhere(beaten).tolist())
        why = (
            f"{worse} on the margin scores higher" if beaten.any() else "a token of equal score allows a larger margin"
        )
        answer["why"] = f"{names} can be selected, but training leaves: {why}."
    return answer
