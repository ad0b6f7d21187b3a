"""MarginSolution: the answer to a max-margin problem, with the evidence for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

from tokenmargin._notebook import Tabular
from tokenmargin.margin.normed.faces import Face
from tokenmargin.norms import L2, AbstractNorm
from tokenmargin.problem.names import token_names

Status = Literal["optimal", "infeasible", "inaccurate"]


class Certificate(NamedTuple):
    """Residuals of the optimality conditions, each relative to the problem's own scale.

    - `primal`: largest violation of a constraint, in units of the margin.
    - `dual`: most negative multiplier of an inequality, relative to the largest.
    - `complementarity`: largest product of multiplier and slack, relative to |p|^2.
    - `gap`: how much longer p is than some lower bound of all solutions' lengths, relatively. The multipliers prove
      the bound, `bound' multipliers / |M' multipliers|`.
    - `farkas`: no direction has a margin of more than this share of the length of every row: |M' farkas| over
      `sum_j farkas_j |row_j|`. Zero where it is proven that none has any; infinity where nothing is known.

    Rounding is counted against the claim: `primal` and `gap` hold in exact arithmetic, for the doubles given.
    """

    primal: float = np.inf
    dual: float = np.inf
    complementarity: float = np.inf
    gap: float = np.inf
    farkas: float = np.inf

    @property
    def residual(self) -> float:
        """The largest residual of the claim made: zero where infeasibility is proven, else that of optimality."""
        return 0.0 if self.farkas == 0 else max(self.primal, self.dual, self.complementarity, self.gap)


@dataclass(frozen=True, eq=False)
class MarginSolution(Tabular):
    """The solution of `min |p|` under linear constraints, in some norm, and why to believe it.

    **Attributes**
    - `status`: "optimal", "infeasible", or "inaccurate" when neither could be proven; `explanation` says what is known.
    - `vector`: the minimiser, a parameter of the problem's geometry; zeros when infeasible.
    - `margin`: `1 / |p|`; zero when infeasible or no vector is known, infinity when there is nothing to separate.
    - `multipliers`: one per constraint; where doubles cannot hold one, the nearest they can.
    - `active`: constraints with a positive multiplier.
    - `tokens`: (input, position) of each constraint; of a corpus, (selected row, other row) of those that hold p.
    - `farkas`: `lambda >= 0` with `M' lambda = 0` and `bound' lambda = 1`: a vector with exactly these properties
      exists, and this is it to rounding. None where infeasibility is not proven.
    - `certificate`: the residuals.
    - `of_rows`: whether `tokens` are rows of a corpus.
    - `seconds`: time taken.
    - `solves`: convex problems solved on the way.
    - `norm`: the norm of `|p|`. The multipliers are scaled so that `|M' multipliers|_* = |p|`, the dual norm.
    - `face`: all solutions, where the norm may leave more than one: `face.dimension`, `face.angle(vector)`.
    - `shape`: of the matrix that the vector is, flattened row by row, where the problem is for one.

    ATT-SVM' is not convex. Its solution is one of the global minima, and has besides:

    - `choice`: the chosen token of every input.
    - `parts`: all global minima, or for an infeasible problem the refuted branches of the search, each with the Farkas
      vector of its choice. The solution's own residuals are then the largest among them.
    """

    status: Status
    vector: Float[Array, " D"]
    margin: float
    multipliers: Float[Array, " k"]
    tokens: Int[Array, "k 2"]
    certificate: Certificate
    farkas: Float[Array, " k"] | None = None
    seconds: float = 0.0
    solves: int = 1
    choice: tuple[int, ...] | None = None
    parts: tuple[MarginSolution, ...] = ()
    norm: AbstractNorm = L2
    shape: tuple[int, int] | None = None
    face: Face | None = None
    of_rows: bool = False

    @property
    def matrix(self) -> Float[Array, "q d"]:
        """The solution as a matrix, for a problem that is for one."""
        if self.shape is None:
            raise ValueError(
                "this solution is a vector; a problem for a matrix W is made by problem.with_matrix(queries)"
            )
        return self.vector.reshape(self.shape)

    @property
    def freedom(self) -> int | None:
        """The dimension of the set of solutions: 0 where the solution is the only one; None where it is not known."""
        if not self.is_optimal:
            return None
        if self.face is None:  # one of a batch in another norm does not carry the set of all
            return 0 if self.norm == L2 else None
        return self.face.dimension

    def angle_to(self, vector: Float[Array, " D"]) -> float:
        """The smallest Euclidean angle between a vector of coordinates and a solution, of all there are."""
        if not self.is_optimal:
            raise ValueError(f"this problem is {self.status}: there is no solution to measure an angle to")
        face = self.face
        if face is None:
            raise ValueError(
                "this solution carries no set of all: in the l2 norm use tokenmargin.angle(problem.keys, vector, "
                "solution.vector), in another one max_margin(problem, selected, norm=...) in the place of a batch"
            )
        return face.angle(vector)

    @property
    def minima(self) -> tuple[MarginSolution, ...]:
        """All global minima: the solution itself where the problem is convex, none where it is infeasible."""
        if self.status == "infeasible":
            return ()
        return self.parts if self.choice is not None else (self,)

    @property
    def active(self) -> Int[Array, " a"]:
        """Indices of the constraints that hold the solution: those with a non-zero multiplier."""
        return np.flatnonzero(self.multipliers)

    @property
    def is_optimal(self) -> bool:
        """Whether the vector is proven to be the minimiser."""
        return self.status == "optimal"

    @property
    def explanation(self) -> str:
        """What is proven, in a sentence."""
        certificate = self.certificate
        if self.status == "optimal":
            only = f"; one of a face of them, of dimension {self.freedom}" if self.freedom else ""
            return f"the shortest vector that satisfies the constraints, to {certificate.residual:.0e}{only}"
        if self.status == "infeasible":
            if self.parts:
                return "no choice satisfies the constraints: every branch of the search, in `parts`, is refuted"
            return "no direction satisfies the constraints: some weighted sum of them says 0 >= 1"
        if certificate.primal < 1:
            return (
                "not decided to tolerance: the vector found satisfies the constraints when lengthened, "
                f"and has a residual of {certificate.residual:.0e}"
            )
        if certificate.primal == np.inf and certificate.gap < np.inf:
            return "not decided: rounding hides whether differences of tied tokens depend on one another"
        if certificate.farkas < np.inf:
            return (
                f"not decided: no direction has a margin over {certificate.farkas:.0e} of the length of the "
                "differences, but whether one has any is beyond double precision"
            )
        return "not decided: beyond the range or the digits of doubles"

    def _columns(self) -> dict[str, Array]:
        """A row a constraint: which token it keeps behind, and what holds it."""
        first, second = self.tokens.reshape(-1, 2).T
        named = {"selected_row": first, "other_row": second}
        table = named if self.of_rows else {"token": token_names(first, second), "input": first, "position": second}
        if self.farkas is not None:
            return table | {"farkas": self.farkas}
        return table | {"multiplier": self.multipliers, "active": self.multipliers != 0}

    def __repr__(self) -> str:
        return (
            f"MarginSolution({self.status}, margin={self.margin:.6g}, active={len(self.active)} of {len(self.tokens)}, "
            f"residual={self.certificate.residual:.1e})"
        )
