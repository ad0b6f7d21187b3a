"""What is said of the direction of a selection (`LimitDirection`), and of all of them together (`Atlas`)."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from tokenmargin._notebook import Drawable, Tabular
from tokenmargin.margin.solution import MarginSolution
from tokenmargin.selection import named_sets, selection_text

Kind = Literal[
    "GMM", "LMM", "stable", "finite part", "not locally optimal", "balanced", "undecided", "infeasible", "inaccurate"
]


@dataclass(frozen=True, eq=False)
class LimitDirection(Tabular):
    """The max-margin direction of a selection, and what it is to the problem.

    **Attributes**
    - `selected`: one token of each input; of a set, the first.
    - `chosen`: all selected tokens: copies of the selected one, and tokens of its score that it does not leave behind.
    - `solution`: direction, margin, multipliers and certificate.
    - `neighbours`: the tokens of other scores at margin exactly 1.
    - `gaps`: score of the selected token less the best score among its neighbours; infinite without neighbours.
    - `kind`: "LMM" where the selected tokens outscore their neighbours, so that training converges to it (Theorem 3);
      "GMM" where besides no token scores higher, and no choice among equals has a larger margin; "stable" where some
      neighbour scores higher, but inputs that share its difference to the selected token (words of one vocabulary), or
      others that depend on it linearly, pull the other way, and more, or where training holds a tie of equals although
      some of them alone have a larger margin: training converges to it as well, though it is no LMM; "finite part"
      where tokens of different scores are kept tied. "not locally optimal" is none of these. "balanced" is not decided:
      the pulls along a shared difference cancel, and smaller terms decide; nor is "undecided": a neighbour scores
      higher, and whether the others outweigh it was neither found nor excluded.
    """

    selected: Int[Array, " n"]
    chosen: Bool[Array, "n T"]
    solution: MarginSolution
    neighbours: Bool[Array, "n T"]
    gaps: Float[Array, " n"]
    kind: Kind

    @classmethod
    def without_direction(
        cls, selected: Int[Array, " n"], chosen: Bool[Array, "n T"], solution: MarginSolution
    ) -> LimitDirection:
        """A selection without a certified direction: none exists ("infeasible"), or it is not known ("inaccurate")."""
        kind: Kind = "infeasible" if solution.status == "infeasible" else "inaccurate"
        return cls(selected, chosen, solution, np.zeros_like(chosen), np.full(len(selected), np.nan), kind)

    @property
    def is_global(self) -> bool:
        """Whether this is the GMM."""
        return self.kind == "GMM"

    @property
    def is_limit(self) -> bool:
        """Whether training converges to it from a cone of starts."""
        return self.kind in ("GMM", "LMM", "stable")

    @property
    def names(self) -> list[int | list[int]]:
        """The token of each input, or the list of them where a set is selected."""
        return named_sets(self.chosen)

    def __repr__(self) -> str:
        solved = f"margin={self.solution.margin:.6g}, " if self.solution.is_optimal else ""
        return f"LimitDirection({self.kind}, {selection_text(self.chosen)}, {solved}{self.solution.status})"

    def _columns(self) -> dict[str, Array]:
        return limit_table((self,))

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and numbers, for JSON."""
        return {
            "selected": self.names,
            "margin": self.solution.margin,
            "direction": self.solution.vector.tolist(),
            "neighbours": np.argwhere(self.neighbours).tolist(),
            "score_gaps": [gap if math.isfinite(gap) else None for gap in self.gaps.tolist()],
            "gmm": self.is_global,
            "residual": self.solution.certificate.residual,
        }


@dataclass(frozen=True, eq=False)
class Atlas(Tabular, Drawable):
    """All limits of a problem that were found, and how many of its selections were decided.

    **Attributes**
    - `limits`: the locally optimal selections, the GMM first, then by margin.
    - `selections`: number of selections: the product of the numbers of distinct keys of the inputs.
    - `feasible`, `infeasible`: how many were proven to be so.
    - `undecided`: selections whose status could not be proven in double precision.
    - `ties_undecided`, `ties_left`: ties of equals that are neither listed nor proven not to be held, and those that
      were not looked at (`held_ties`).
    - `balanced`, `unsettled`: feasible selections that are neither listed nor proven to be no limits: the pulls along a
      difference that inputs share cancel, so that smaller terms decide; or a neighbour scores higher whose difference
      depends linearly on others, and no minimum of the risk beside it was found or excluded.
    - `solves`: max-margin problems solved on the way.
    - `seconds`: time taken.
    """

    limits: tuple[LimitDirection, ...]
    selections: int
    feasible: int
    infeasible: int
    undecided: tuple[tuple[int, ...], ...]
    solves: int
    seconds: float
    ties_undecided: int = 0
    ties_left: int = 0
    balanced: tuple[tuple[int, ...], ...] = ()
    unsettled: tuple[tuple[int, ...], ...] = ()

    @property
    def complete(self) -> bool:
        """Whether every selection and every tie of equals was decided: `docs/limits.md` says what is then proven.

        Limits with a finite part and points of rest are no selections, and not covered: `limit_of` names those.
        """
        return not self.unsearched

    @property
    def unsearched(self) -> str:
        """What was not decided, in words; empty when the atlas is complete."""
        left = self.selections - self.feasible - self.infeasible - len(self.undecided)
        parts = []
        if left:
            parts.append(f"{_number(left)} of {_number(self.selections)} selections not looked at: the budget is spent")
        if self.undecided:
            count = len(self.undecided)
            parts.append(f"{count} selection{'s are' if count > 1 else ' is'} too close to call in double precision")
        if self.ties_left:
            parts.append(f"{_number(self.ties_left)} ties of equals not looked at")
        if self.ties_undecided:
            count = self.ties_undecided
            parts.append(f"{count} tie{'s' if count > 1 else ''} of equals neither found to be held nor excluded")
        if self.balanced:
            count = len(self.balanced)
            words = "s have pulls that cancel" if count > 1 else " has pulls that cancel"
            parts.append(f"{count} selection{words} along a shared difference, so that smaller terms decide")
        if self.unsettled:
            count = len(self.unsettled)
            words = "s have neighbours" if count > 1 else " has a neighbour"
            parts.append(f"{count} selection{words} of higher score neither found to be outweighed nor not")
        return "; ".join(parts)

    @property
    def gmm(self) -> LimitDirection | None:
        """The globally optimal direction, when it is feasible and known."""
        return next((limit for limit in self.limits if limit.is_global), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and numbers, for JSON."""
        return {
            "complete": self.complete,
            "unsearched": self.unsearched,
            "selections": self.selections,
            "feasible": self.feasible,
            "infeasible": self.infeasible,
            "undecided": [list(selected) for selected in self.undecided],
            "balanced": [list(selected) for selected in self.balanced],
            "unsettled": [list(selected) for selected in self.unsettled],
            "solves": self.solves,
            "seconds": self.seconds,
            "limits": [limit.to_dict() for limit in self.limits],
        }

    def _columns(self) -> dict[str, Array]:
        return limit_table(self.limits)

    def __repr__(self) -> str:
        seen = "all decided" if self.complete else f"partial: {self.unsearched}"
        count = _number(self.selections)
        return f"Atlas({len(self.limits)} limits, {self.feasible} feasible of {count} selections, {seen})"


class SelectionTally:
    """What a walk through the selections of a problem has found so far.

    - `leaves`: how many selections begin with one prefix of each length.
    - `solves`, `budget`: max-margin problems solved, and how many may be.
    - `limits`, `open`: the limits, and the feasible selections that are none or not known to be.
    """

    def __init__(self, sizes: Sequence[int], budget: int | float) -> None:
        self.leaves = [math.prod(sizes[j:]) for j in range(len(sizes) + 1)]
        self.budget = budget
        self.feasible = self.infeasible = self.solves = 0
        self.undecided: list[tuple[int, ...]] = []
        self.limits: list[LimitDirection] = []
        self.open: list[LimitDirection] = []

    @property
    def left(self) -> int:
        """How many selections were not looked at yet."""
        return self.leaves[0] - self.feasible - self.infeasible - len(self.undecided)

    @property
    def budget_is_spent(self) -> bool:
        """Whether no more problems may be solved."""
        return self.solves >= self.budget

    def record(self, selected: Int[Array, " n"], limit: LimitDirection) -> None:
        """Count a feasible selection and list its direction, unless that belongs to another selection of equals."""
        if limit.kind == "inaccurate":
            self.undecided.append(tuple(selected.tolist()))
            return
        self.feasible += 1
        if limit.solution.vector.any() and (limit.selected == selected).all():
            (self.limits if limit.is_limit else self.open).append(limit)

    def _open(self, kind: Kind) -> tuple[tuple[int, ...], ...]:
        """The selections of one kind among those that are no limits, as plain numbers."""
        return tuple(tuple(one.selected.tolist()) for one in self.open if one.kind == kind)

    def atlas(
        self, limits: tuple[LimitDirection, ...], *, began: float, ties_left: int, ties_undecided: int = 0
    ) -> Atlas:
        """The atlas with these `limits`, of a walk that `began` then."""
        return Atlas(
            limits=limits,
            selections=self.leaves[0],
            feasible=self.feasible,
            infeasible=self.infeasible,
            undecided=tuple(self.undecided),
            solves=self.solves,
            seconds=time.perf_counter() - began,
            ties_undecided=ties_undecided,
            ties_left=ties_left,
            balanced=self._open("balanced"),
            unsettled=self._open("undecided"),
        )


def limit_table(limits: Sequence[LimitDirection]) -> dict[str, Array]:
    """A row a direction: what it is, its tokens, its margin and its proof."""
    return {
        "kind": np.array([one.kind for one in limits], dtype=str),
        "tokens": np.array([selection_text(one.chosen) for one in limits], dtype=str),
        "margin": np.array([one.solution.margin for one in limits]),
        "score_gap": np.array([one.gaps.min() for one in limits]),
        "neighbours": np.array([one.neighbours.sum() for one in limits], dtype=int),
        "residual": np.array([one.solution.certificate.residual for one in limits]),
    }


def _number(count: int) -> str:
    """A count to be read: its order of magnitude when it is beyond counting."""
    return str(count) if count < 10**15 else f"10^{len(str(count)) - 1}"
