"""Is every max-margin answer right? 100,000 random problems against independent oracles.

    python -m benchmarks.margin_oracle [--count 100000] [--stacks]

- A quarter are small integer problems, whose status and optimum are computed in exact integer arithmetic by trying
  every linearly independent active set.
- The rest, of twelve kinds (see `margin_families`), are compared with clarabel, and every certificate is
  checked again in extended precision on the original constraints: a vector that separates all tokens proves
  feasibility, a Farkas vector proves infeasibility, whatever the oracle says.

With `--stacks` the problems are solved many at a time (`solve_many`), by the compiled code of batches and atlas.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import clarabel
import numpy as np
from scipy import sparse

from benchmarks.margin_families import FAMILIES, integer_problems
from tokenmargin.geometry import Coordinates
from tokenmargin.margin import MarginSolution, solve, solve_many
from tokenmargin.margin.constraints import Constraints, attention_constraints

SolveAll = Callable[[Sequence[Constraints]], list[MarginSolution]]
LARGEST = 1e-9
"""No residual of a claim may be larger."""


@dataclass
class Tally:
    """What was seen of one family."""

    statuses: Counter[str] = field(default_factory=Counter)
    wrong: int = 0
    over: int = 0
    oracle_wrong: int = 0
    oracle_silent: int = 0
    residual: float = 0.0
    difference: float = 0.0


def exact_norms(rows: np.ndarray) -> tuple[bool, int, int]:
    """Feasible?, and the exact `|p|^2 = numerator / denominator`, for integer rows in at most three dimensions.

    If a solution exists, it is held by some linearly independent subset of constraints with non-negative multipliers
    (Caratheodory); in d <= 3 dimensions these are few. All numbers are integers: determinants by Cramer's rule.
    """
    gram = rows @ rows.T
    for size in range(1, rows.shape[1] + 1):
        for subset in itertools.combinations(range(len(rows)), size):
            block = gram[np.ix_(subset, subset)].tolist()
            determinant = _determinant(block)
            if determinant <= 0:
                continue
            weights = [_determinant(_with_ones(block, j)) for j in range(size)]
            if min(weights) < 0:
                continue
            vector = np.array(weights) @ rows[list(subset)]
            if (rows @ vector >= determinant).all():
                return True, sum(weights), determinant
    return False, 0, 1


def _determinant(block: list[list[int]]) -> int:
    if len(block) == 1:
        return block[0][0]
    return sum(
        (-1) ** j * row_j * _determinant([r[:j] + r[j + 1 :] for r in block[1:]]) for j, row_j in enumerate(block[0])
    )


def _with_ones(block: list[list[int]], column: int) -> list[list[int]]:
    return [[*row[:column], 1, *row[column + 1 :]] for row in block]


def by_clarabel(constraints: Constraints) -> tuple[str, np.ndarray]:
    """Status and minimiser (in the coordinates of `constraints.rows()`) according to clarabel."""
    rows, bound = constraints.rows(), constraints.bound
    lengths = np.linalg.norm(rows, axis=1)
    lengths[lengths == 0] = 1.0
    scaled = bound / lengths
    scale = scaled.max(initial=0.0) or 1.0
    equality = np.zeros(len(rows), bool) if constraints.equality is None else constraints.equality
    order = np.argsort(~equality, kind="stable")
    matrix = sparse.csc_matrix(-(rows / lengths[:, None])[order])
    cones = [clarabel.ZeroConeT(int(equality.sum())), clarabel.NonnegativeConeT(int((~equality).sum()))]
    cones = [cone for cone, size in zip(cones, (equality.sum(), (~equality).sum()), strict=True) if size]
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    d = rows.shape[1]
    solution = clarabel.DefaultSolver(
        sparse.identity(d, format="csc"), np.zeros(d), matrix, -(scaled / scale)[order], cones, settings
    ).solve()
    return str(solution.status), np.array(solution.x) * scale


def check_proof(constraints: Constraints, solution: MarginSolution) -> float:
    """The largest residual of the claim, recomputed in extended precision on the original rows."""
    rows = constraints.rows().astype(np.longdouble)
    bound = constraints.bound.astype(np.longdouble)
    equality = np.zeros(len(rows), bool) if constraints.equality is None else constraints.equality
    lengths = np.sqrt((rows**2).sum(axis=1))
    if solution.status == "infeasible":
        farkas = solution.farkas
        assert farkas is not None
        if (farkas[~equality] < 0).any() or not bound @ farkas > 0:
            return np.inf
        weight = np.abs(farkas) @ lengths
        return float(np.sqrt(((farkas @ rows) ** 2).sum()) / weight) if weight > 0 else 0.0
    multipliers = solution.multipliers.astype(np.longdouble)
    built = multipliers @ rows
    # In Gram space the parameter is the multipliers; in coordinates it is the vector itself.
    vector = solution.vector.astype(np.longdouble) if isinstance(constraints.geometry, Coordinates) else built
    squared = vector @ vector
    if squared == 0:
        return float(bound.max(initial=0.0))
    slack = rows @ vector - bound
    largest = (bound / np.where(lengths > 0, lengths, 1)).max()
    size = np.where(bound > 0, bound, largest * lengths)
    # What rounding hides is no violation: that of the inner product, twice (there and here), of rows and vector.
    hidden = np.minimum((2 * rows.shape[1] + 3) * np.finfo(float).eps * lengths * np.sqrt(squared), 1e-3 * size)
    short = np.where(equality, np.abs(slack), -slack) - hidden
    with np.errstate(invalid="ignore", divide="ignore"):
        primal = np.where(size > 0, short / size, np.where(short > 0, np.inf, 0)).max()
    dual = (-np.where(equality, 0, multipliers)).max() / np.abs(multipliers).max()
    stationarity = np.sqrt(((vector - built) ** 2).sum() / squared)
    return float(
        max(primal, dual, stationarity, np.abs(multipliers * slack).max() / squared, abs(multipliers @ slack) / squared)
    )


def compare(constraints: Constraints, solution: MarginSolution, tally: Tally) -> None:
    tally.statuses[solution.status] += 1
    if solution.status == "inaccurate":
        tally.residual = max(tally.residual, solution.certificate.residual)
        return
    residual = check_proof(constraints, solution)
    tally.residual = max(tally.residual, residual)
    tally.over += residual > LARGEST
    if not len(constraints) or not constraints.bound.any():
        return
    status, vector = by_clarabel(constraints)
    said = {"Solved": "optimal", "PrimalInfeasible": "infeasible"}.get(status)
    if said is None:
        tally.oracle_silent += 1
    elif said != solution.status:
        # Our claim comes with a proof that was just checked: the oracle is wrong if the proof holds.
        tally.oracle_wrong += residual <= LARGEST
        tally.wrong += residual > LARGEST
    elif said == "optimal":
        ours = solution.multipliers @ constraints.rows()
        tally.difference = max(tally.difference, float(np.linalg.norm(ours - vector) / np.linalg.norm(vector)))


def compare_exactly(rng: np.random.Generator, count: int, *, solve_all: SolveAll) -> Tally:
    tally = Tally()
    posed = list(integer_problems(rng, count=count))
    solutions = solve_all([attention_constraints(*one) for one in posed])
    for (problem, selected), solution in zip(posed, solutions, strict=True):
        tally.statuses[solution.status] += 1
        rows = (problem.keys.tokens[np.arange(problem.n), selected][:, None] - problem.keys.tokens).astype(int)
        others = np.arange(problem.T) != selected[:, None]
        feasible, numerator, denominator = exact_norms(rows[others])
        tally.wrong += solution.status != ("optimal" if feasible else "infeasible")
        tally.over += not solution.certificate.residual <= LARGEST
        tally.residual = max(tally.residual, solution.certificate.residual)
        if feasible and solution.is_optimal:
            squared = solution.margin**-2
            tally.difference = max(tally.difference, abs(squared * denominator / numerator - 1))
    return tally


def one_by_one(problems: Sequence[Constraints]) -> list[MarginSolution]:
    return [solve(constraints) for constraints in problems]


def run(count: int, *, seed: int = 0, solve_all: SolveAll = one_by_one) -> dict[str, Tally]:
    """The tallies of every family, `count` problems in all."""
    rng = np.random.default_rng(seed)
    share = (count - count // 4) // len(FAMILIES)
    tallies = {"integer (exact)": compare_exactly(rng, count - share * len(FAMILIES), solve_all=solve_all)}
    for family in FAMILIES:
        tally = tallies[family.__name__] = Tally()
        posed = [family(rng) for _ in range(share)]
        for constraints, solution in zip(posed, solve_all(posed), strict=True):
            compare(constraints, solution, tally)
    return tallies


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--stacks", action="store_true", help="solve many at a time")
    arguments = parser.parse_args()
    began = time.perf_counter()
    tallies = run(arguments.count, solve_all=solve_many if arguments.stacks else one_by_one)
    columns = ("optimal", "infeasible", "inaccurate")
    print(
        "| family | optimal | infeasible | inaccurate | wrong | over 1e-9 | residual | difference | refuted | silent |"
    )
    print("|---|" + "---:|" * 9)
    for name, t in tallies.items():
        counts = [*(t.statuses[c] for c in columns), t.wrong, t.over]
        numbers = [f"{t.residual:.0e}", f"{t.difference:.0e}", t.oracle_wrong, t.oracle_silent]
        print(f"| {name} | " + " | ".join(map(str, counts + numbers)) + " |")
    print(
        "\nwrong: statuses contradicted by the oracle or by the exact answer; over 1e-9, residual: of the certificates,"
    )
    print(
        "checked again in extended precision; difference: largest relative distance to the oracle's vector (exact |p|^2"
    )
    print("for integers); refuted: oracle contradicted by a proof; silent: oracle without an answer.")
    failures = sum(t.wrong + t.over for t in tallies.values())
    solved = sum(sum(t.statuses.values()) for t in tallies.values())
    seconds = time.perf_counter() - began
    print(f"\n{solved} problems in {seconds:.0f} s; {failures} wrong statuses or residuals over {LARGEST:g}")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
