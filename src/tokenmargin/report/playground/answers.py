"""The answer about one selection: feasible or not, locally optimal or not, why, and the certificate."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tokenmargin.margin import max_margin
from tokenmargin.problem import TokenProblem
from tokenmargin.report.playground.words import listed, named
from tokenmargin.selection import cone_constants, is_globally_optimal, neighbours

__all__ = ["answer_about"]


def answer_about(problem: TokenProblem, selected: list[int]) -> dict[str, Any]:
    """Status, direction, margin, reasons and certificate of one selection, in plain types."""
    solution = max_margin(problem, selected)
    certificate = solution.certificate
    answer: dict[str, Any] = {
        "selected": selected,
        "status": solution.status,
        "margin": solution.margin if math.isfinite(solution.margin) else None,
        "vector": solution.vector.tolist() if solution.is_optimal else None,
        "gmm": is_globally_optimal(problem, selected),
        "residual": certificate.residual if math.isfinite(certificate.residual) else None,
        "local": False,
        "cone": None,
        "neighbours": [],
        "multipliers": [],
        "farkas": [],
    }
    names = listed(named(i, t) for i, t in enumerate(selected))
    if solution.status == "infeasible" and solution.farkas is not None:
        weights = [
            (token, weight) for token, weight in zip(solution.tokens, solution.farkas, strict=True) if weight > 0
        ]
        answer["farkas"] = [{"token": token.tolist(), "weight": float(weight)} for token, weight in weights]
        rivals = listed(f"{named(*token)}" for token, _ in weights)
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
    near = neighbours(problem, solution.vector, selected)
    beaten = near & (problem.scores >= problem.scores[np.arange(problem.n), selected][:, None])
    answer["neighbours"] = np.argwhere(near).tolist()
    answer["local"] = not beaten.any()
    answer["multipliers"] = [
        {"token": solution.tokens[k].tolist(), "weight": float(solution.multipliers[k])} for k in solution.active
    ]
    held = listed(named(i, t) for i, t in np.argwhere(near).tolist())
    if answer["local"]:
        cone = cone_constants(problem, solution.vector, selected)
        answer["cone"] = {"half_angle": math.acos(1 - cone.mu), "norm": cone.radius}
        answer["why"] = f"{names} outscore{'s' if len(selected) == 1 else ''} every token on the margin ({held})."
    else:
        worse = listed(named(i, t) for i, t in np.argwhere(beaten).tolist())
        answer["why"] = f"{names} can be selected, but training leaves: {worse} on the margin scores no less."
    return answer
