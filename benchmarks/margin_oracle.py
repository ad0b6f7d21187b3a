"""Is any max-margin answer false? A million random problems, one by one and in stacks, every proof checked again.

    python -m benchmarks.margin_oracle --problems 1000000
    python -m benchmarks.margin_oracle --problems 100000 --norm l1     # linf, lp:1.5, ...; nuclear, spectral

Of a hundred problems

- ninety go in stacks (`tests/oracles/stacked_families.py`): ties, copies, scales from 1e-150 to 1e150, nearly parallel
  rows down to 1e-14, infeasible by a hair. Every proof is checked again in extended precision on the original rows; the
  first of each stack is asked alone as well. The hard kinds, which take a hundred times as long, are a tenth as many.
- eight go one by one (`margin_families.py`): tied, relaxed and choice problems, heads, Gram space, wide ones. Every
  proof is checked, and one problem in `--peer` is also solved by clarabel (of choices, all of them).
- two are small and at the edges of double precision (`edge_families.py`), one by one and in stacks, against exact
  rational arithmetic; `benchmarks.margin_exact` asks those of Gram space and of the atlas too.

In other norms all go in stacks (matrices one by one), every proof checked by its two bounds; of matrices, one in
25 `--peer` is also solved by clarabel, as a semidefinite program, and what is infeasible is proven in integers.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from tests.oracles.by_clarabel import LARGEST, Tally, compare, compare_choice, semidefinite_value
from tests.oracles.by_stack import check_exactly, check_in_matrix_norm, check_stack, rows_of
from tests.oracles.edge_families import FAMILIES as EDGES
from tests.oracles.exact_margin import exact_rows, exactly_infeasible
from tests.oracles.margin_families import FAMILIES, choice
from tests.oracles.stacked_families import FAMILIES as STACKS

from benchmarks.margin_exact import audit
from benchmarks.tools import line, print_table, run_main
from tokenmargin.margin import MarginBatch, MarginSolution, choice_margin, max_margin, max_margin_batch, solve
from tokenmargin.margin.constraints import attention_constraints
from tokenmargin.margin.normed.solve import gap_tolerance
from tokenmargin.norms import L2, AbstractNorm, LpNorm, SchattenNorm, norm_named
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.token_problem import TokenProblem

TOGETHER = 100
"""Problems of a stack."""
BY_CLARABEL = 1e-6
"""Its own accuracy: a tolerance of 1e-9, of problems conditioned up to a thousand."""
HARD = ("near_duplicates", "rank_deficient", "nearly_parallel", "by_a_hair")
STATUSES = ("optimal", "infeasible", "inaccurate")


@dataclass
class Seen(Tally):
    """Answers of one kind: statuses, the largest residual, those over what is allowed, contradictions."""

    bound: float = 0.0
    """Largest share of its longest row that the margin of an undecided problem can be (in l2 alone)."""
    asked: int = 0
    """Of matrices, those that clarabel has solved too."""
    proven: int = 0
    """Of matrices, those whose rows are infeasible in exact arithmetic."""

    def note(self, residuals: np.ndarray, statuses: list[str], allowed: float) -> None:
        self.statuses.update(statuses)
        self.residual = max(self.residual, float(residuals.max()))
        self.over += int((residuals > allowed).sum())


def statuses(batch: MarginBatch) -> list[str]:
    return np.where(batch.optimal, STATUSES[0], np.where(batch.infeasible, STATUSES[1], STATUSES[2])).tolist()


def contradicts(one: str, other: str) -> bool:
    return {one, other} == {"optimal", "infeasible"}


def slashed(counted: Counter[str]) -> str:
    return " / ".join(str(counted[status]) for status in STATUSES)


def undecided(keys: np.ndarray, selected: np.ndarray, batch: MarginBatch) -> float:
    """How large a margin the hardest problem may have, as a share of its longest row: what was found, or refuted."""
    left = np.flatnonzero(~batch.optimal & ~batch.infeasible)
    longest = np.sqrt((rows_of(keys[left], selected[left]) ** 2).sum(axis=2)).max(axis=1)
    found = np.where(batch.residuals[left, 0] < 1, batch.margins[left] / longest, batch.residuals[left, 4])
    return float(found.max(initial=0.0))


def in_stacks(count: int, norm: LpNorm, seed: int) -> Iterator[tuple[str, Seen]]:
    """Stacks of every kind. That there is a direction holds in any norm: others must not contradict the Euclidean."""
    easy = count / (len(STACKS) - 0.9 * len(HARD))
    allowed = LARGEST if norm == L2 else 1.01 * gap_tolerance(norm)  # the check rounds too, far below a hundredth
    for number, family in enumerate(STACKS):
        rng, seen = np.random.default_rng([seed, number]), Seen()
        share = easy / 10 if family.__name__ in HARD else easy
        for _ in range(math.ceil(share / TOGETHER)):
            keys, selected = family(rng, TOGETHER)
            batch = max_margin_batch(keys, selected, norm=norm, threads=1)
            found, residuals = statuses(batch), check_stack(keys, selected, batch, norm.p)
            for b in np.flatnonzero(residuals > allowed).tolist():
                residuals[b] = check_exactly(keys[b], selected[b], batch[b], norm.p)
            seen.note(residuals, found, allowed)
            if norm == L2:
                alone = TokenProblem.of(keys[0], np.ones(keys.shape[1]), scores=keys[0, :, :, 0])
                seen.wrong += contradicts(max_margin(alone, selected[0]).status, found[0])
                seen.bound = max(seen.bound, undecided(keys, selected, batch))
            else:
                plain = max_margin_batch(keys, selected, threads=1)
                seen.wrong += sum(map(contradicts, statuses(plain), found))
        yield family.__name__, seen


def of_matrices(count: int, norm: SchattenNorm, peer: int, seed: int) -> Iterator[tuple[str, Seen]]:
    """Matrices W, one by one: random keys and queries, or small integers; one in `peer` by clarabel too."""
    rng, kinds = np.random.default_rng(seed), {"normal": Seen(), "integers": Seen()}
    for k in range(count):
        n, T, d, q = (int(rng.integers(1, most)) for most in (5, 6, 8, 5))
        keys, queries = rng.standard_normal((n, T + 1, d)), rng.standard_normal((n, q))
        seen = kinds["normal" if rng.random() < 2 / 3 else "integers"]
        if seen is kinds["integers"]:
            keys, queries = rng.integers(-2, 3, keys.shape) * 1.0, rng.integers(-2, 3, queries.shape) * 1.0
        scale = 10.0 ** rng.choice([0, 0, -70, 70])  # rows are products of the two
        posed = TokenProblem.of(keys * scale, np.ones(n), scores=keys[:, :, 0]).with_matrix(queries * scale)
        selected = rng.integers(0, T + 1, n)
        found = max_margin(posed, selected, norm=norm)
        constraints = attention_constraints(posed, selected)
        residual = check_in_matrix_norm(constraints, found, norm.p)
        seen.note(np.array([residual]), [found.status], 1.01 * gap_tolerance(norm))
        seen.wrong += contradicts(found.status, max_margin(posed, selected).status)
        if found.farkas is not None:
            seen.proven += exactly_infeasible(exact_rows(_vectors(posed), selected.tolist()), found.farkas)
        if found.is_optimal and k % peer == 0:
            compare_least(norm, constraints.rows(), found, seen)
    yield from kinds.items()


def _vectors(problem: TokenProblem) -> np.ndarray:
    """The products of keys and queries, one vector per token, as the package has rounded them."""
    assert isinstance(problem.keys, Coordinates)
    return problem.keys.tokens


def compare_least(norm: SchattenNorm, rows: np.ndarray, found: MarginSolution, seen: Seen) -> None:
    """Count an optimal answer for a matrix beside clarabel's, in units of the largest entry."""
    assert found.shape is not None
    size = float(np.abs(rows).max())
    least = semidefinite_value(norm.name, (rows / size).reshape(len(rows), *found.shape))
    if least is None:
        seen.oracle_silent += 1
        return
    seen.asked += 1
    difference = abs(least * found.margin / size - 1)
    seen.difference = max(seen.difference, difference)
    seen.wrong += difference > BY_CLARABEL


def in_norm(norm: AbstractNorm, count: int, seed: int, *, peer: int = 4) -> tuple[int, int]:
    """The table of one norm: how many problems, how many false answers."""
    print_table((f"{norm.name}, in stacks", *STATUSES, "wrong", "over", "residual", "undecided"), (), numbers=7)
    asked = failures = 0
    if isinstance(norm, SchattenNorm):
        found = of_matrices(count, norm, 25 * peer, seed)
    else:
        assert isinstance(norm, LpNorm), "norms by name"
        found = in_stacks(count, norm, seed)
    for name, seen in found:
        numbers = [*(seen.statuses[s] for s in STATUSES), seen.wrong, seen.over, f"{seen.residual:.0e}"]
        print(line(name, *numbers, f"{seen.bound:.0e}" if seen.bound else ""), flush=True)
        asked, failures = asked + seen.statuses.total(), failures + seen.wrong + seen.over
        if isinstance(norm, SchattenNorm):
            peer_said = (
                f"{seen.asked} optimal by clarabel, {seen.difference:.0e} apart at most, {seen.oracle_silent} not"
            )
            print(f"| ... {peer_said}; {seen.proven} infeasible in integers |")
    print("\nwrong: statuses contradicted by another way; over: residuals over the tolerance, checked in extended")
    print(
        "precision or exactly; undecided: the largest margin among those not decided, as a share of the longest row.\n"
    )
    return asked, failures


def one_by_one(count: int, peer: int, seed: int) -> Iterator[tuple[str, Tally]]:
    """Every kind of problem, and those that are not convex: the least over all choices."""
    share = math.ceil(count / (len(FAMILIES) + 1))
    for number, family in enumerate(FAMILIES):
        rng, tally = np.random.default_rng([seed, number]), Tally()
        for k in range(share):
            constraints = family(rng)
            compare(constraints, solve(constraints), tally, peer=k % peer == 0)
        yield family.__name__, tally
    rng, tally = np.random.default_rng([seed, len(FAMILIES)]), Tally()
    for k in range(share):
        problem, sets = choice(rng)
        compare_choice(problem, sets, choice_margin(problem, sets), tally, peer=k % peer == 0)
    yield "choice", tally


def kinds(count: int, peer: int, seed: int) -> tuple[int, int]:
    """The table of single calls."""
    names = ("one by one", *STATUSES, "wrong", "over", "residual", "difference", "refuted", "silent")
    print_table(names, (), numbers=9)
    asked = failures = 0
    for name, t in one_by_one(count, peer, seed):
        counts = [*(t.statuses[s] for s in STATUSES), t.wrong, t.over]
        numbers = [f"{t.residual:.0e}", f"{t.difference:.0e}", t.oracle_wrong, t.oracle_silent]
        print(line(name, *counts, *numbers), flush=True)
        asked, failures = asked + t.statuses.total(), failures + t.wrong + t.over
    print("\nwrong: statuses contradicted by the oracle, whose proofs do not hold; over: residuals over 1e-9 (1e-6 in")
    print("Gram space), checked again in extended precision; difference: largest relative distance to the oracle's")
    print("vector; refuted: oracle contradicted by a proof; silent: oracle without an answer.\n")
    return asked, failures


def edges(count: int, seed: int) -> tuple[int, int]:
    """The table of what is compared with exact arithmetic."""
    names = (
        "at the edge",
        "feasible",
        "infeasible",
        "one by one: o / i / ?",
        "in stacks",
        "undecided: margin",
        "false",
    )
    print_table(names, (), numbers=6)
    share, false = math.ceil(count / len(EDGES)), 0
    for number, family in enumerate(EDGES):
        found = audit(family, share, rng=np.random.default_rng([seed, 1, number]), ways=("single", "batch"))
        said = [slashed(Counter({s: found.tally[way, s] for s in STATUSES})) for way in ("single", "batch")]
        least = f"{found.undecided:.0e}" if found.undecided >= 0 else ""
        truths = (found.tally["truth", status] for status in STATUSES[:2])
        print(line(family.__name__, *truths, *said, least, len(found.false)), flush=True)
        print("".join(f"{words}\n" for words in found.false[:5]), end="")
        false += len(found.false)
    print("\nundecided: of the problems called inaccurate, the largest exact margin, as a share of the longest row.\n")
    return share * len(EDGES), false


def main(*, problems: int = 75_000, peer: int = 4, norm: str = "l2", seed: int = 0) -> int:
    """One problem in `peer` is solved by clarabel as well; in a norm other than l2 there are stacks alone."""
    began, count, named = time.process_time(), problems, norm_named(norm)
    tables = [in_norm(named, count if named != L2 else count * 90 // 100, seed, peer=peer)]
    if named == L2:
        tables += [kinds(count * 8 // 100, peer, seed), edges(count * 2 // 100, seed)]
    asked, failures = (sum(column) for column in zip(*tables, strict=True))
    print(f"{asked} problems in {time.process_time() - began:.0f} s of CPU; {failures} wrong statuses or residuals")
    return int(failures > 0)


if __name__ == "__main__":
    run_main(main, __doc__)
