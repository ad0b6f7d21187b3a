"""A problem of the reader's own, in any dimension: certified, trained on, and drawn in the plane of its proof.

What is said of one selection: feasible or not, locally optimal or not, why, and the certificate.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray as Array

from tokenmargin.dynamics.evolve import evolve
from tokenmargin.dynamics.methods import NormalizedGradientDescent
from tokenmargin.margin import LimitDirection, atlas, label_margin, limit_direction, relaxed_max_margin
from tokenmargin.objective.attention import JointObjective, PromptObjective
from tokenmargin.problem.abstract_geometry import AbstractGeometry
from tokenmargin.problem.geometry import in_coordinates
from tokenmargin.problem.instances import random_problem
from tokenmargin.problem.names import token_name
from tokenmargin.problem.token_problem import TokenProblem, with_fixed_scores
from tokenmargin.report.explore.page import page_inputs
from tokenmargin.selection import angle, cone_constants, score_gaps

MOST_INPUTS, MOST_TOKENS, MOST_NUMBERS = 26, 40, 50_000
PLANE_INPUTS, PLANE_TOKENS, PLANE_LARGEST = 6, 10, 1e4  # what the sections of the article take
BUDGET, SHOWN = 500, 20  # max-margin problems solved to list the limits, and how many are listed
STEPS, SECONDS = 1000, 0.8  # of training; a run that takes longer ends there


def example() -> dict[str, Any]:
    """The problem file that the section opens with: three inputs of five tokens in ten dimensions."""
    problem = random_problem(3, 5, 10, rng=np.random.default_rng(3))
    return {name: problem.fields()[name].round(3).tolist() for name in ("keys", "labels", "head")}


def answer_about(problem: TokenProblem, asked: list[int] | None = None) -> dict[str, Any]:
    """What is drawn: the tokens, and the certificate of a selection (None: the tokens of highest score).

    Raises ValueError or TypeError for a problem that the page does not show.
    """
    _check_size(problem)
    best = _best_tokens(problem)
    verdict = describe_certificate(problem, _check_selection(problem, best if asked is None else asked))
    places, unit = _drawing(problem, verdict)
    return {
        "shape": [problem.n, problem.T, problem.keys.dimension],
        "best": best,
        "inputs": [
            one | {"label": int(y)} for one, y in zip(page_inputs(problem, places), problem.labels, strict=True)
        ],
        "planar": problem.keys.dimension <= 2 and _fits_the_plane(problem),
        "unit": unit,
        "verdict": verdict,
    }


def overview(problem: TokenProblem) -> dict[str, Any]:
    """What takes longer: all places to settle, as far as a budget goes, and where training went."""
    _check_size(problem)
    best = _best_tokens(problem)
    found = atlas(problem, budget=BUDGET)
    prompt = _train_prompt(problem)
    return {
        "limits": [
            {
                "selected": limit.selected.tolist(),
                "sets": [np.flatnonzero(row).tolist() for row in limit.chosen],
                "margin": limit.solution.margin,
                "gmm": limit.is_global,
            }
            for limit in found.limits[:SHOWN]
        ],
        "found": len(found.limits),
        "complete": found.complete,
        "unsearched": found.unsearched,
        "trained": prompt["selected"],
        "words": [prompt["words"], *([] if problem.head is None else [_train_jointly(problem, best)])],
    }


def _best_tokens(problem: TokenProblem) -> list[int]:
    """The tokens of highest score, the first of equals; copies count with the mean of theirs, as in training."""
    return np.where(problem.mask, problem.shared_scores, -np.inf).argmax(axis=1).tolist()


def _check_size(problem: TokenProblem) -> None:
    with_fixed_scores(problem, "the page", "use tokenmargin solve, or max_margin and limit_of in Python")
    numbers = problem.n * problem.T * problem.keys.dimension
    if problem.n > MOST_INPUTS or problem.T > MOST_TOKENS or numbers > MOST_NUMBERS:
        raise ValueError(
            f"the page shows at most {MOST_INPUTS} inputs of {MOST_TOKENS} tokens and {MOST_NUMBERS:,} coordinates, "
            f"got {problem.n} of {problem.T} in {problem.keys.dimension} dimensions; use tokenmargin solve"
        )


def _check_selection(problem: TokenProblem, selected: list[int]) -> list[int]:
    if len(selected) != problem.n or not all(0 <= t < problem.T and problem.mask[i, t] for i, t in enumerate(selected)):
        raise ValueError(f"asked must name one existing token of each of the {problem.n} inputs")
    return selected


def _drawing(problem: TokenProblem, verdict: dict[str, Any]) -> tuple[Float[Array, "n T 2"], list[float]]:
    """Where tokens are drawn, and the direction of p there.

    In the plane, where they are. In more dimensions a feasible selection is seen along its direction, so that band and
    margin are true, and an infeasible one in the plane in which the differences that refute it spread most: they add up
    to zero there too.
    """
    tokens = in_coordinates(problem.keys)
    d = tokens.shape[-1]
    direction = np.zeros(d)
    if verdict["status"] == "optimal" and verdict["margin"] is not None:
        direction = limit_direction(problem, verdict["selected"]).solution.vector * verdict["margin"]
    if d <= 2:
        flat = np.zeros((*tokens.shape[:2], 2))
        flat[..., :d] = tokens
        return flat, [*direction.tolist(), *[0.0] * (2 - d)]
    if direction.any():
        rest = tokens - (tokens @ direction)[..., None] * direction
        spread = rest[problem.mask] - rest[problem.mask].mean(axis=0)
        axes = np.stack([direction, np.linalg.svd(spread, full_matrices=False)[2][0]])
    else:
        chosen = tokens[np.arange(problem.n), verdict["selected"]]
        rows = [chosen[i] - tokens[i, t] for i, t in (one["token"] for one in verdict["evidence"])]
        axes = np.linalg.svd(np.array([*rows, np.zeros(d), np.zeros(d)]), full_matrices=False)[2][:2]
    return tokens @ axes.T, [1.0, 0.0]


def _fits_the_plane(problem: TokenProblem) -> bool:
    largest = max(np.abs(in_coordinates(problem.keys)).max(), np.abs(problem.scores).max())
    return problem.n <= PLANE_INPUTS and problem.T <= PLANE_TOKENS and bool(largest <= PLANE_LARGEST)


def _step(geometry: AbstractGeometry) -> NormalizedGradientDescent:
    """Steps that suit the scale of the keys: the longest moves a logit by about a tenth."""
    return NormalizedGradientDescent(0.1 / max(float(geometry.vector_norms.max()), 1e-9))


def _train_prompt(problem: TokenProblem) -> dict[str, Any]:
    """Where normalised descent from p = 0 goes, and how far it is from the direction that it turns to."""
    objective = PromptObjective(problem)
    path = evolve(objective, _step(problem.keys), steps=STEPS, progress=_stop_in_time())
    limit = limit_direction(problem, path.selected)
    words = f"After {path.steps} steps of normalised descent from p = 0"
    if problem.keys.norm(path.prompt) == 0:
        return {"selected": path.selected.tolist(), "words": f"{words}, p is still zero: the pulls on it cancel there."}
    weights = objective.forward(path.prompt).weights
    largest = weights.max(axis=-1, keepdims=True)
    level = np.vectorize(_percent)(weights) == np.vectorize(_percent)(largest)  # what reads alike is named together
    least = float(largest.min())
    share = "over 99.9%" if least > 0.999 else f"{'at least ' if problem.n > 1 else ''}{_percent(least)}"
    words += f" attention gives {names_of(level)} {share} of the weight{' each' if level.sum() > 1 else ''}"
    if (level & ~limit.chosen).any():
        words += "; some of these are level, and to which of them training goes on, if to any, this run does not tell"
        return {"selected": path.selected.tolist(), "words": f"{words}."}
    if limit.is_limit and np.isfinite(limit.solution.margin):
        off = np.degrees(angle(problem.keys, path.prompt, limit.solution.vector))
        settles = "" if limit.is_global else "but training can settle there, "
        whose = "their" if limit.chosen.sum() > 1 else "its"
        words += f"; {_how_good(problem, limit)}, {settles}and p is {off:.3g} degrees from {whose} max-margin direction"
    elif limit.kind in ("balanced", "undecided", "inaccurate"):
        words += "; whether training settles there is not decided"
    else:
        words += "; that is no place to settle: it has further to go, or rests"
    return {"selected": path.selected.tolist(), "words": f"{words}."}


def _percent(weight: float) -> str:
    return f"{100 * weight:.3g}%"


def _how_good(problem: TokenProblem, limit: LimitDirection) -> str:
    """How good the tokens of a limit are; equals of the best may have a smaller margin than they."""
    these, tokens = ("these are", "tokens") if limit.chosen.sum() > 1 else ("this is", "token")
    scores = np.where(problem.mask, problem.shared_scores, -np.inf)
    if limit.is_global:
        alone = not ((scores == scores.max(axis=1, keepdims=True)) & ~limit.chosen).any()
        return f"{these} the best {tokens}" if alone else f"{these} as good as any"
    chosen = np.where(limit.chosen, problem.shared_scores, np.inf).min(axis=1)
    if (chosen == scores.max(axis=1)).all():
        return f"{these} as good as the best, with less margin"
    return f"though {these} not the best {tokens}"


def _train_jointly(problem: TokenProblem, best: list[int]) -> str:
    """Head and prompt trained together, against the two directions of Theorems 5 and 6, and only what the run did."""
    head = label_margin(problem, best)
    names = list_names(token_name(i, t) for i, t in enumerate(best))
    if head.status == "infeasible":
        return f"Trained with the head: the values of {names} cannot be separated by their labels."
    if not head.is_optimal:
        return f"Trained with the head: whether labels separate the values of {names} is {head.explanation}."
    path = evolve(JointObjective(problem), _step(problem.keys), steps=STEPS, progress=_stop_in_time())
    relaxed, values, point = relaxed_max_margin(problem, best), problem.values, path.final
    parts = [
        f"the head is {_angle_text(values, point[: values.dimension], head.vector)} the max-margin separator of {names}"
    ]
    if relaxed.is_optimal:
        off = _angle_text(problem.keys, point[values.dimension :], relaxed.vector)
        parts.append(f"p is {off} the relaxed direction, which asks a margin only where a token supports the head")
    end = f"After {path.steps} steps of head and prompt together {' and '.join(parts)}."
    if path.selected.tolist() == best:
        return end
    found = list_names(token_name(i, t) for i, t in enumerate(path.selected.tolist()))
    return f"{end} It favours {found}; Theorems 5 and 6 speak of the best tokens, and say nothing about this run."


def _angle_text(geometry: AbstractGeometry, point: Float[Array, " D"], direction: Float[Array, " D"]) -> str:
    if not (geometry.norm(point) > 0 and geometry.norm(direction) > 0):
        return "not turned to"
    return f"{np.degrees(angle(geometry, point, direction)):.3g} degrees from"


def _stop_in_time() -> Callable[[float], None]:
    """A progress callback that ends a run, as Ctrl-C does, when its time is up."""
    deadline = time.perf_counter() + SECONDS

    def check(_: float) -> None:
        if time.perf_counter() > deadline:
            raise KeyboardInterrupt

    return check


def list_names(items: Iterable[str]) -> str:
    """`a, b and c`; of more than eight the first seven.

    >>> list_names(["A1", "B2", "C1"]), list_names([])
    ('A1, B2 and C1', 'none')
    """
    *others, last = [*items] or ["none"]
    if len(others) > 7:
        others, last = others[:7], f"{len(others) - 6} more"
    return f"{', '.join(others)} and {last}" if others else last


def names_of(marked: Bool[Array, "n T"]) -> str:
    """The names of the marked tokens."""
    return list_names(token_name(i, t) for i, t in np.argwhere(marked).tolist())


def describe_certificate(problem: TokenProblem, selected: list[int]) -> dict[str, Any]:
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
    answer["why"] = _reason(problem, named, answer)
    return answer


def _reason(problem: TokenProblem, named: LimitDirection, answer: dict[str, Any]) -> str:
    names = names_of(named.chosen)
    if answer["status"] == "infeasible":
        rivals = list_names(token_name(*one["token"]) for one in answer["evidence"])
        return (
            f"No direction selects {names}: the differences to {rivals}, weighted and added, are zero, "
            "and no p can make zero positive."
        )
    if answer["status"] == "inaccurate":
        return f"Whether a direction selects {names} is too close to call in double precision."
    if answer["margin"] is None and problem.mask.sum() == problem.n:
        return "Every input has a single token: there is nothing to choose."
    if answer["margin"] is None:
        return "No input has tokens that score differently at different places: nothing is asked, and nothing pulls p."
    near = names_of(named.neighbours)
    are = "are" if named.neighbours.sum() > 1 else "is"
    band = f"A direction selects {names} with margin {answer['margin']:.4g}; on the margin {are} {near}."
    shared = problem.shared_scores
    beaten = named.neighbours & (shared > shared[np.arange(problem.n), answer["selected"]][:, None])
    reason = f"{names_of(beaten)} on the margin score{'' if beaten.sum() > 1 else 's'} higher"
    if named.is_limit:
        if beaten.any():
            return f"{band} {reason}, but the others outweigh that, so training can settle here."
        good = _how_good(problem, named)
        return f"{band} Each selected token outscores its rivals there, so training can settle here: {good}."
    if named.kind in ("balanced", "undecided", "inaccurate"):
        return f"{band} {f'{reason}; w' if beaten.any() else 'W'}hether training settles here is not decided."
    reason = reason if beaten.any() else "a choice among equals allows a larger margin"
    return f"{band} Training does not stay: {reason}."
