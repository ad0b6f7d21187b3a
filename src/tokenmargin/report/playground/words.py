"""The picture in words: what is selected, why, and where training goes. Read by people and by screen readers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tokenmargin.problem import TokenProblem

if TYPE_CHECKING:
    from tokenmargin.report.playground.schema import PlaneRequest

__all__ = ["listed", "named", "note"]

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
    return f"{what} selects {_tokens(limit['chosen'])}{', the best' if limit['gmm'] else ''}."


def _ring(answer: dict[str, Any]) -> str:
    ring = answer["ring"]
    if not answer["limits"]:
        return ""
    if answer["limits"][0]["gmm"]:
        share = sum(basin == 0 for basin in ring) / len(ring)
        return f"{100 * share:.0f}% of the starting directions lead to the best tokens."
    return f"{100 * sum(basin >= 0 for basin in ring) / len(ring):.0f}% of the starting directions settle."


def _together(both: dict[str, Any]) -> str:
    if not both["separable"]:
        return "The best tokens cannot be separated by their labels: there is no max-margin head."
    return (
        "Head and prompt are trained together: the head turns to the max-margin separator of the best tokens, and the "
        "prompt to the relaxed direction, which needs a margin only where a token supports the head."
    )
