"""Head and prompt together: the direction of p for every ratio of |v| to |p|. A max-margin problem with offsets.

With `|v| <= r`, `|p| <= R` and `rho = lim r Gamma / R` the prompt goes to the maximiser of
`min_i {mu_i(p) + (m_i - 1) rho}` over `|p| <= 1`, `mu_i >= 0`: mu_i the token margin and m_i the label margin of input
i in units of Gamma. The proof is in `docs/results/joint-phase.md`. Divided by its value M the maximiser is the
shortest p with `mu_i(p) >= max(1 - (m_i - 1) sigma, 0)`, where `sigma = rho / M`: one of a family of quadratic
programmes with moving right-hand sides, and `rho = sigma / |p|` grows with sigma.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray as Array

from tokenmargin.margin.constraints import Constraints, attention_constraints, label_constraints
from tokenmargin.margin.single.solver import solve
from tokenmargin.margin.solution import MarginSolution
from tokenmargin.norms import EPS
from tokenmargin.problem.token_problem import TokenProblem, checked_problem
from tokenmargin.selection import Selection, checked_selection

SUPPORT = 1e-7
"""Label margins up to this above the least belong to support inputs: certificates are far below it."""


@dataclass(frozen=True, eq=False)
class Phase:
    """One point of the homotopy.

    - `rho`: the ratio it belongs to, exactly: `sigma / |p|`.
    - `sigma`: by how much the bounds of inputs with room in their label margin are lowered.
    - `solution`: the shortest p with these bounds, with its certificate; its direction is the limit of p.
    """

    rho: float
    sigma: float
    solution: MarginSolution

    @property
    def value(self) -> float:
        """`max min_i {mu_i(p) + (m_i - 1) rho}` over `|p| <= 1`: the rate at which the risk nears that of the head."""
        return self.solution.margin


@dataclass(frozen=True, eq=False)
class JointPhases:
    """The phases of a problem and a selection; see `joint_phases`.

    - `head`: the max-margin head v^mm; Gamma is its margin.
    - `room`: `m_i - 1` for each input; zero on the support inputs.
    """

    problem: TokenProblem
    head: MarginSolution
    room: Float[Array, " n"]
    _constraints: Constraints

    @property
    def support(self) -> Bool[Array, " n"]:
        """The inputs whose selected token is a support vector of the head."""
        return np.asarray(self.room == 0)

    def at_sigma(self, sigma: float) -> MarginSolution:
        """The shortest p with `mu_i(p) >= max(1 - (m_i - 1) sigma, 0)`: p^mm at 0, p^relax at infinity."""
        room = self.room[self._constraints.token[:, 0]]
        with np.errstate(invalid="ignore"):
            bound = np.where(room > 0, np.maximum(1 - room * sigma, 0.0), 1.0)
        return solve(replace(self._constraints, bound=bound))

    @cached_property
    def prompt(self) -> MarginSolution:
        """p^mm: the phase at rho = 0."""
        return self.at_sigma(0.0)

    @cached_property
    def relaxed(self) -> MarginSolution:
        """p^relax: the phase from the critical ratio on."""
        return self.at_sigma(np.inf)

    @property
    def critical(self) -> float:
        """The ratio from which on p goes to p^relax: `max (M - mu_i)/(m_i - 1)` over inputs without a support vector,
        with M the margin of p^relax and mu_i the margin of its direction in input i."""
        lacking, room = self._missing_margins
        return float(np.max(lacking[room > 0] / room[room > 0], initial=0.0))

    @property
    def jumps_below(self) -> bool:
        """Whether p goes elsewhere just below the critical ratio. It does not where p^relax is held by the inputs that
        set the ratio alone, as where p^mm and p^relax have one direction."""
        from scipy.optimize import nnls  # it takes half a second to load

        if self.critical <= 0:
            return False
        lacking, room = self._missing_margins
        with np.errstate(divide="ignore", invalid="ignore"):
            setting = (room > 0) & (lacking / room >= self.critical * (1 - SUPPORT))
        setting &= room >= room[setting].max() * (1 - SUPPORT)  # just below, the one with most room falls behind most
        margins = self._rows @ self._unit
        held = setting | ((room > 0) & (margins <= SUPPORT * np.linalg.norm(self._rows, axis=1)))
        return bool(nnls(self._rows[held].T, self._unit)[1] > SUPPORT)

    @cached_property
    def _rows(self) -> Float[Array, "k r"]:
        """The differences of keys that the token margins are inner products with."""
        return self._constraints.rows()

    @cached_property
    def _unit(self) -> Float[Array, " r"]:
        """The direction of p^relax in the coordinates of the rows."""
        multipliers = self.relaxed.multipliers
        vector = multipliers @ self._rows
        return np.asarray(vector / np.linalg.norm(vector))

    @property
    def _missing_margins(self) -> tuple[Float[Array, " k"], Float[Array, " k"]]:
        """`M - <d_j, p^relax>/|p^relax|` for every difference, and the room of its input."""
        return self.relaxed.margin - self._rows @ self._unit, self.room[self._constraints.token[:, 0]]

    def at(self, rho: float) -> Phase:
        """The phase at a ratio `rho = lim r Gamma / R`."""
        from scipy.optimize import brentq

        if not rho >= 0:
            raise ValueError(f"rho must be zero or a positive number, got {rho}")
        if rho == 0:
            return Phase(0.0, 0.0, self.prompt)
        if rho >= self.critical:
            return Phase(rho, rho / self.relaxed.margin, self.relaxed)
        low, high = rho / self.relaxed.margin, rho / self.prompt.margin  # |p| lies between those of the two ends

        def excess(sigma: float) -> float:
            return sigma * self.at_sigma(sigma).margin - rho

        inside = excess(low) < 0 < excess(high)
        sigma = float(brentq(excess, low, high, xtol=1e-15 * high, rtol=1e-14)) if inside else low
        solution = self.at_sigma(sigma)
        return Phase(sigma * solution.margin, sigma, solution)


def label_room(problem: TokenProblem, selected: Selection) -> tuple[MarginSolution, Float[Array, " n"]]:
    """The max-margin head of the selected tokens, and by how much the label margin of each input exceeds the least, in
    units of it: zero on the support inputs."""
    alpha = checked_selection(problem, selected)
    head = solve(label_constraints(problem, alpha))
    if head.status == "infeasible":
        raise ValueError("the selected tokens cannot be separated by label (infeasible): there is no max-margin head")
    if not head.is_optimal:
        raise ValueError(f"the max-margin head of the selected tokens is {head.explanation}")
    inputs = np.arange(problem.n)
    with np.errstate(over="ignore", invalid="ignore"):
        room = problem.labels * problem.values.logits(head.vector)[inputs, alpha] - 1
        # Refinement moves a head inwards by up to twice the rounding of an inner product; this one is rounded as well.
        rounding = 4 * (problem.values.dimension + 4) * EPS * problem.values.token_norms[inputs, alpha] / head.margin
    if ((room > SUPPORT) & (room <= rounding)).any():
        raise ValueError(
            "which selected tokens are support vectors of the max-margin head is beyond double precision: the lengths "
            "of their values differ too much"
        )
    return head, np.where(room <= SUPPORT, 0.0, room)


def joint_phases(problem: TokenProblem, selected: Selection) -> JointPhases:
    """Where the prompt goes when head and prompt are trained together, for every ratio of their norms.

    **Arguments**
    - `problem`: its values and labels give the max-margin head at the selected tokens, its keys the token margins.
    - `selected`: one token of each input; the head must separate them by label, and some p must select them.

    >>> from tokenmargin.problem.instances import figure3b
    >>> phases = joint_phases(figure3b(), [1, 1, 1])
    >>> round(phases.critical, 9), (phases.at(0.5).solution.vector * phases.at(0.5).value).round(4)
    (1.0, array([0.9951, 0.099 ]))
    """
    alpha = checked_selection(checked_problem(problem, "joint_phases"), selected)
    found = JointPhases(problem, *label_room(problem, alpha), attention_constraints(problem, alpha))
    if not found.prompt.is_optimal:
        none = found.prompt.status == "infeasible"
        raise ValueError(
            "no prompt selects these tokens: their max-margin problem is infeasible"
            if none
            else f"the max-margin prompt of these tokens is {found.prompt.explanation}"
        )
    return found
