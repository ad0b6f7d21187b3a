"""The picture in words: what is selected, why, and where training goes. Read by people and by screen readers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tokenmargin.problem.token_problem import TokenProblem

if TYPE_CHECKING:
    from tokenmargin.report.playground.schema import PlaneRequest

METHODS = {"normalized": "normalised descent", "descent": "gradient descent", "flow": "gradient flow"}


def named(i: int, t: int) -> str:
    """Token `t` of input `i` as the page calls it.

    >>> named(1, 0)
    'B1'
    """
    return f"{'ABCDEF'[i]}{t + 1}"


def listed(items: Iterable[str]) -> str:
    """`a, b and c`.

    >>> listed(["A1", "B2", "C1"]), listed([])
    ('A1, B2 and C1', 'none')
    """
    *others, last = [*items] or ["none"]
    return f"{', '.join(others)} and {last}" if others else last


def note(problem: TokenProblem, request: PlaneRequest, answer: dict[str, Any]) -> str:
    """A few sentences on a picture."""
    if all(len(row.tokens) == 1 for row in request.inputs):
        return "Every input has a single token: attention has nothing to choose. Add a token."
    if all(len({token.score for token in row.tokens}) == 1 for row in request.inputs):
        return "The tokens of each input share the highest score: training prefers none, and stays where it starts."
    sentences = [_best(answer), _others(answer)]
    if request.trained == "both":
        sentences.append(_together(answer["both"]))
    else:
        sentences += [_training(request, answer), _ring(answer)]
    return " ".join(sentence for sentence in sentences if sentence)


def _tokens(chosen: list[list[int]]) -> str:
    return listed(named(i, t) for i, t in chosen)


def _best(answer: dict[str, Any]) -> str:
    gmm = next((limit for limit in answer["limits"] if limit["gmm"]), None)
    if gmm is not None:
        held = listed(named(i, t) for i, t in gmm["neighbours"])
        plural = "s" if len(gmm["chosen"]) > 1 else ""
        return (
            f"The best token{plural}, {_tokens(gmm['chosen'])}, can be selected with margin {gmm['margin']:.3g}; "
            f"{held} hold{'' if len(gmm['neighbours']) > 1 else 's'} the margin."
        )
    best = [[named(i, t) for t, is_best in enumerate(row) if is_best] for i, row in enumerate(answer["optimal"])]
    if any(len(row) > 1 for row in best):
        choices = listed(" or ".join(row) for row in best)
        return f"Some tokens share the highest score of their input; no direction selects {choices} together."
    return f"No direction selects the best tokens, {listed(row[0] for row in best)}, together: infeasible."


def _others(answer: dict[str, Any]) -> str:
    others = [limit for limit in answer["limits"] if not limit["gmm"]]
    if not answer["limits"]:
        return "No selection is locally optimal."
    if not others:
        return "No other direction is locally optimal."
    shown = "; ".join(_tokens(limit["chosen"]) for limit in others[:3])
    more = f" and {len(others) - 3} more" if len(others) > 3 else ""
    also = " also" if len(others) < len(answer["limits"]) else ""
    return f"Training can{also} settle on {shown}{more}."


def _training(request: PlaneRequest, answer: dict[str, Any]) -> str:
    training = answer["training"]
    x, y = request.start
    what = f"From p = ({x:.2g}, {y:.2g}), {METHODS[request.method]}"
    if training["basin"] < 0:
        favoured = _tokens([[i, t] for i, t in enumerate(training["selected"])])
        return f"{what} has not settled on one of them yet: it now favours {favoured}."
    limit = answer["limits"][training["basin"]]
    best = ", the best" if limit["gmm"] else ""
    off = _off(training["points"][-1], limit["unit"])
    return f"{what} selects {_tokens(limit['chosen'])}{best}; p is now {off:.2g} degrees from that direction."


def _off(point: list[float], unit: list[float]) -> float:
    """Degrees between a point of a path and a direction."""
    across, along = point[0] * unit[1] - point[1] * unit[0], point[0] * unit[0] + point[1] * unit[1]
    return math.degrees(math.atan2(abs(across), along))


def _ring(answer: dict[str, Any]) -> str:
    ring, norm = answer["ring"], f"norm {answer['ring_norm']:.2g}"
    if not answer["limits"]:
        return ""
    if answer["limits"][0]["gmm"]:
        share = sum(basin == 0 for basin in ring) / len(ring)
        return f"{100 * share:.0f}% of the directions lead to the best tokens from starts of {norm}."
    return f"{100 * sum(basin >= 0 for basin in ring) / len(ring):.0f}% of the directions settle from starts of {norm}."


def _together(both: dict[str, Any]) -> str:
    """What head and prompt did, against the two directions of Theorems 5 and 6, and only that."""
    if not both["separable"]:
        return "The best tokens cannot be separated by their labels: there is no max-margin head."
    best = _tokens([[i, t] for i, t in enumerate(both["best"])])
    found = _tokens([[i, t] for i, t in enumerate(both["selected"])])
    parts = [
        f"the {name} {_course(both[key])} {direction}"
        for name, key, direction in (
            ("head", "head_degrees", f"the max-margin separator of {best}"),
            (
                "prompt",
                "prompt_degrees",
                "the relaxed direction, which needs a margin only where a token supports the head",
            ),
        )
        if both[key] is not None
    ]
    end = f"After {both['steps']} steps of head and prompt together {' and '.join(parts)}." if parts else ""
    if both["selected"] == both["best"]:
        return f"{end} The best tokens, {best}, are selected."
    return (
        f"{end} Attention favours {found}, not the best tokens {best}: Theorems 5 and 6 speak of the best tokens, and "
        "say nothing about where this run goes."
    )


NEAR = 15.0  # degrees from a direction within which it makes sense to say that a path comes nearer


def _course(degrees: list[float]) -> str:
    """Where a path is, and, close to the direction, whether it has come nearer in its second half."""
    half, end = degrees
    nearer = end < half and 0.5 < end < NEAR
    return f"is {end:.3g} degrees from, and coming nearer to," if nearer else f"is {end:.3g} degrees from"
