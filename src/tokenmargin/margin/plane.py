"""Keys in the plane: which directions select which tokens, as exact arcs of the circle.

A selection is feasible exactly when some direction selects it strictly, that is, when it owns an arc of the circle.
There are at most n T (T - 1) arcs where there are T^n selections, and they are known exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int
from numpy import ndarray as Array

from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import select


@dataclass(frozen=True, eq=False)
class Arc:
    """Directions `(cos a, sin a)` with `start < a < stop`, all of which select the same token of every input.

    Angles are in radians, `0 <= start < 2 pi` and `stop <= start + 2 pi`; the last arc may run past `2 pi`.
    """

    start: float
    stop: float
    selected: Int[Array, " n"]


def is_planar(problem: TokenProblem) -> bool:
    """Whether the keys lie in the plane of the first two coordinates."""
    keys = problem.keys
    return isinstance(keys, Coordinates) and keys.dimension >= 2 and not keys.vectors[:, 2:].any()


def selection_arcs(problem: TokenProblem) -> tuple[Arc, ...]:
    """The circle of directions cut into arcs by the tokens they select: the basins of the selection rule.

    A far point `R q` in an arc attends to the arc's tokens as R grows. The max-margin direction of a feasible
    selection lies inside the arc of that selection, so an arc holds at most one limit of training. An arc is the set
    where a selection rules, not the set of starts that training takes to its limit: that one depends on the norm of
    the start and on the scores, and is for the dynamics to tell.

    The ends are exact: directions where two keys of one input tie, perpendicular to their difference.

    >>> from tokenmargin.problem.instances import figure8
    >>> [(round(float(np.degrees(arc.start)), 1), arc.selected.tolist()) for arc in selection_arcs(figure8())]
    [(63.4, [0, 0]), (90.0, [1, 0]), (243.4, [1, 1]), (270.0, [0, 1])]
    """
    keys = problem.keys
    if not isinstance(keys, Coordinates) or not is_planar(problem):
        raise ValueError("selection arcs need keys in the plane: coordinates with d = 2, or zero beyond the second")
    plane = keys.vectors[:, :2][keys.index]
    pairs = plane[:, :, None] - plane[:, None, :]
    seen = problem.mask[:, :, None] & problem.mask[:, None, :] & pairs.any(axis=3)
    differences = pairs[seen]
    # Each pair occurs with both signs, so turning a difference by a quarter gives both directions of the tie.
    turned = np.arctan2(differences[:, 0], -differences[:, 1])
    ends = np.unique(np.mod(turned, 2 * np.pi))
    if not len(ends):
        return (Arc(0.0, 2 * np.pi, select(keys, np.eye(keys.dimension)[0])),)
    stops = np.append(ends[1:], ends[0] + 2 * np.pi)
    middles = (ends + stops) / 2
    directions = np.zeros((len(ends), keys.dimension))
    directions[:, 0], directions[:, 1] = np.cos(middles), np.sin(middles)
    selections = select(keys, directions)
    # Only ties between the leading tokens change the selection: join what they leave apart.
    begins = np.flatnonzero((selections != np.roll(selections, 1, axis=0)).any(axis=1))
    if not len(begins):
        return (Arc(float(ends[0]), float(stops[-1]), selections[0]),)
    starts = ends[begins]
    stops = np.append(starts[1:], starts[0] + 2 * np.pi)
    return tuple(Arc(float(a), float(b), s) for a, b, s in zip(starts, stops, selections[begins], strict=True))
