"""Is any max-margin answer false? 100,000 small problems at the edges of double precision, against exact arithmetic.

    python -m benchmarks.margin_exact [--count 100000]

Every problem is asked of single calls, of a batch, in Gram space and (every tenth, one selection of many) of the atlas.
A quarter as many besides have ties, or margins of zero, and are asked of single calls and in Gram space.
The doubles given are rational numbers, so the truth is known exactly: see `tests/oracles`. A false answer is

- *optimal* of an infeasible problem, with a constraint violated by more than the tolerance, or a norm or margin that is
  off by more (1e-10; 1e-7 in Gram space);
- *infeasible* of a feasible problem.

No tolerance of ours enters the truth; those of the claim are the documented ones.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from tests.oracles.edge_families import FAMILIES, Family, Posed
from tests.oracles.exact_margin import (
    ExactAnswer,
    Row,
    dot,
    exact_rows,
    exact_ties,
    excess,
    solve_exactly,
    tie_violation,
    worst_violation,
)
from tests.oracles.tied_families import TIED_FAMILIES, TiedFamily

from benchmarks.tools import line, print_table, run_main
from tokenmargin.margin import TOLERANCE, MarginSolution, atlas, class_margin, max_margin, max_margin_batch, solve
from tokenmargin.margin.certificate import PRODUCTS_TOLERANCE
from tokenmargin.margin.constraints import relaxed_constraints
from tokenmargin.problem.token_problem import TokenProblem

WALKS = 10
"""One problem in so many is asked of the atlas, which solves all selections on the way."""
WAYS = ("single", "batch", "gram", "atlas")
TIED_WAYS = ("ties", "ties, gram", "margins of 0", "margins of 0, gram")
Tally = Counter[tuple[str, str]]
"""How often each way gave each kind of answer."""


@dataclass
class Audit:
    """Statuses by way of asking and by truth, the false answers in words, and how hard what was left undecided is."""

    tally: Tally = field(default_factory=Counter)
    false: list[str] = field(default_factory=list)
    undecided: float = -1.0
    """Largest exact margin of a problem that single calls or the batch left undecided, as a share of the longest row;
    0 where the undecided ones have none, -1 where there are none."""


def posed_problem(keys: np.ndarray) -> TokenProblem:
    n, T, _ = keys.shape
    return TokenProblem.of(keys, np.ones(n), scores=np.arange(float(n * T)).reshape(n, T))


def falsehood(
    solution: MarginSolution,
    rows: list[Row],
    truth: ExactAnswer,
    vector: list[Fraction],
    tolerance: float,
    *,
    level: Sequence[Row] = (),
    behind: Sequence[Row] = (),
) -> str | None:
    """What is false about an answer, to rows with margin 1, ties (`level`) and margins of 0 (`behind`); None where
    nothing is."""
    if solution.status == "infeasible":
        return "infeasible of a feasible problem" if truth.feasible else None
    if solution.status == "inaccurate":
        return None
    if not truth.feasible:
        return "optimal of an infeasible problem"
    if not rows:
        return None if solution.margin == np.inf else "a margin where there is nothing to separate"
    # What the tolerance allows: p misses a margin by that share, and is longer than p* by that share; a vector that
    # misses by t may also be shorter by t. The margin is 1 / |p|, with a rounding of its own.
    if worst_violation(rows, vector) > tolerance:
        return "a constraint violated"
    if tie_violation(rows, vector, level=level, behind=behind) > 2 * tolerance:  # lengths are told by powers of two
        return "a tie violated"
    if abs(excess(truth, vector)) > 2 * tolerance:
        return "another length"
    if abs(solution.margin / truth.margin - 1) > 2 * tolerance + 1e-15:
        return "another margin"
    return None


def in_coordinates(solution: MarginSolution, keys: np.ndarray, *, gram: bool) -> list[Fraction]:
    """The vector, exactly; in Gram space it is a combination of the keys."""
    exact = [Fraction(x) for x in solution.vector.tolist()]
    if not gram:
        return exact
    flat = [[Fraction(x) for x in token] for token in keys.reshape(-1, keys.shape[2]).tolist()]
    return [
        sum((c * x for c, x in zip(exact, column, strict=True)), start=Fraction(0))
        for column in zip(*flat, strict=True)
    ]


def as_gram(problem: TokenProblem) -> TokenProblem | None:
    """The problem by inner products, where doubles hold them."""
    with np.errstate(over="ignore"):
        size = np.abs(problem.keys.vectors).max() ** 2 * problem.keys.dimension  # type: ignore[attr-defined]
    return problem.as_gram() if size < 1e300 else None


def answers(
    keys: np.ndarray, selected: np.ndarray, batched: MarginSolution, ways: Collection[str]
) -> Iterator[tuple[str, MarginSolution]]:
    problem = posed_problem(keys)
    yield "single", max_margin(problem, selected)
    yield "batch", batched
    products = as_gram(problem) if "gram" in ways else None
    if products is not None:
        yield "gram", max_margin(products, selected)
    if (
        "atlas" in ways and problem.T > 1 and not problem.keys.has_copies
    ):  # it selects copies together, and lists directions
        yield "atlas", _of_atlas(problem, selected, batched)


def _of_atlas(problem: TokenProblem, selected: np.ndarray, batched: MarginSolution) -> MarginSolution:
    """What the atlas says of the selection: highest scores for it alone make it a limit wherever it is feasible."""
    scores = np.zeros((problem.n, problem.T))
    scores[np.arange(problem.n), selected] = 1.0
    found = atlas(TokenProblem(problem.keys, problem.labels, scores=scores), budget=200)
    for limit in found.limits:
        if np.array_equal(limit.selected, selected):
            return limit.solution
    # Ties of the others, which score alike, may be left open: the question is of one selection.
    all_seen = found.feasible + found.infeasible + len(found.undecided) == found.selections
    undecided = not all_seen or tuple(selected.tolist()) in found.undecided
    return MarginSolution(
        "inaccurate" if undecided else "infeasible",
        np.zeros(problem.keys.dimension),
        0.0,
        np.zeros(0),
        np.zeros((0, 2), dtype=np.intp),
        batched.certificate,
    )


def batches(problems: list[Posed]) -> list[MarginSolution]:
    """The batch's answers, problems of one shape together."""
    shapes: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for j, (keys, _) in enumerate(problems):
        shapes[keys.shape].append(j)
    found: dict[int, MarginSolution] = {}
    for numbers in shapes.values():
        batch = max_margin_batch(
            np.stack([problems[j][0] for j in numbers]), np.stack([problems[j][1] for j in numbers])
        )
        found.update(zip(numbers, batch, strict=True))
    return [found[j] for j in range(len(problems))]


def audit(family: Family, count: int, *, rng: np.random.Generator, ways: Collection[str] = WAYS) -> Audit:
    """Ask so many problems of a family, and compare with the truth."""
    found = Audit()
    problems = [family(rng) for _ in range(count)]
    for number, ((keys, selected), batched) in enumerate(zip(problems, batches(problems), strict=True)):
        rows = exact_rows(keys, selected.tolist())
        said = list(answers(keys, selected, batched, ways if number % WALKS == 0 else set(ways) - {"atlas"}))
        hints = [solution for _, solution in said if solution.status != "inaccurate"]
        active = next((s.active.tolist() for s in hints if s.status == "optimal"), ())
        farkas = next((np.flatnonzero(s.farkas).tolist() for s in hints if s.farkas is not None), ())
        truth = solve_exactly(rows, active=active, farkas=farkas)
        found.tally["truth", "optimal" if truth.feasible else "infeasible"] += 1
        if any(solution.status == "inaccurate" for _, solution in said[:2]):
            found.undecided = max(found.undecided, hardness(rows, truth))
        for way, solution in said:
            found.tally[way, solution.status] += 1
            tolerance = PRODUCTS_TOLERANCE if way == "gram" else TOLERANCE
            vector = in_coordinates(solution, keys, gram=way == "gram") if solution.is_optimal else []
            what = falsehood(solution, rows, truth, vector, tolerance)
            if what is not None:
                found.tally[way, "false"] += 1
                where = f"keys={keys.tolist()!r}, selected={selected.tolist()}"
                found.false.append(f"{family.__name__}, {way}: {what}: {where}")
    return found


def audit_ties(family: TiedFamily, count: int, *, rng: np.random.Generator) -> Audit:
    """As `audit`: tokens that are to be level; and, of the first of them, margins of 1 on some inputs, 0 on others."""
    found = Audit()
    for _ in range(count):
        keys, chosen = family(rng)
        problem = posed_problem(keys)
        level, rows = exact_ties(keys, chosen)
        first, support = chosen.argmax(axis=1), rng.random(len(keys)) < 0.5
        margins = np.repeat(support, keys.shape[1] - 1)
        every = exact_rows(keys, first.tolist())
        hard = [row for row, kept in zip(every, margins, strict=True) if kept]
        soft = [row for row, kept in zip(every, margins, strict=True) if not kept]
        tied = solve_exactly(rows, ties=level)
        relaxed = solve_exactly([*hard, *soft], bounds=[1] * len(hard) + [0] * len(soft)) if hard else ExactAnswer(())
        for gram in (False, True):
            view = as_gram(problem) if gram else problem
            if view is None:
                continue
            asked = (
                (class_margin(view, chosen), rows, tied, {"level": level}),
                (solve(relaxed_constraints(view, first, support)), hard, relaxed, {"behind": soft}),
            )
            for way, (solution, demanded, truth, besides) in zip(TIED_WAYS[gram::2], asked, strict=True):
                found.tally[way, solution.status] += 1
                vector = in_coordinates(solution, keys, gram=gram) if solution.is_optimal else []
                tolerance = PRODUCTS_TOLERANCE if gram else TOLERANCE
                what = falsehood(solution, demanded, truth, vector, tolerance, **besides)
                if what is not None:
                    found.tally[way, "false"] += 1
                    where = f"keys={keys.tolist()!r}, chosen={chosen.tolist()}, support={support.tolist()}"
                    found.false.append(f"{family.__name__}, {way}: {what}: {where}")
        found.tally["truth", "optimal" if tied.feasible else "infeasible"] += 1
    return found


def hardness(rows: list[Row], truth: ExactAnswer) -> float:
    """The margin as a share of the longest row; 0 where there is none."""
    if not truth.feasible:
        return 0.0
    return float(1 / (truth.squared * max(dot(row, row) for row in rows))) ** 0.5


def print_audits(
    families: Sequence[Callable[..., object]], ways: Sequence[str], ask: Callable[..., Audit]
) -> list[str]:
    """A table, a family a line, and the false answers."""
    false: list[str] = []
    print_table(("family", "feasible", "infeasible", *(f"{way}: o / i / ?" for way in ways), "false"), (), numbers=7)
    for family in families:
        found = ask(family)
        tally, false = found.tally, false + found.false
        said = [" / ".join(str(tally[way, s]) for s in ("optimal", "infeasible", "inaccurate")) for way in ways]
        truths = (tally["truth", status] for status in ("optimal", "infeasible"))
        print(line(family.__name__, *truths, *said, len(found.false)), flush=True)
    print("\no / i / ?: optimal, infeasible, inaccurate.\n")
    return false


def main(*, count: int = 100_000, seed: int = 0) -> int:
    began = time.perf_counter()
    rng = np.random.default_rng(seed)
    share, tied = count // len(FAMILIES), count // (4 * len(TIED_FAMILIES))
    false = print_audits(FAMILIES, WAYS, lambda family: audit(family, share, rng=rng))
    false += print_audits(TIED_FAMILIES, TIED_WAYS, lambda family: audit_ties(family, tied, rng=rng))
    asked = share * len(FAMILIES) + tied * len(TIED_FAMILIES)
    print(f"{asked} problems in {time.perf_counter() - began:.0f} s, {len(false)} false answers")
    print("\n".join(false[:20]))
    return int(bool(false))


if __name__ == "__main__":
    run_main(main, __doc__)
