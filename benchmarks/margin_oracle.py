"""Is any max-margin answer false? A million random problems, one by one and in stacks, every proof checked again.

    python -m benchmarks.margin_oracle --problems 1000000
    python -m benchmarks.margin_oracle --problems 100000 --norm l1     # linf, lp:1.5, ...; nuclear, spectral

- Thirteen kinds (`tests/oracles/margin_families.py`): ties, choices, zero margins, heads, Gram space, wide and
  degenerate ones. Every certificate is checked again in extended precision on the original constraints, and one problem
  in `--peer` is also solved by clarabel (of choices, all of them). What asks one selection of plain vectors is asked
  again in stacks.
- One problem in twenty is small and at the edges of double precision (`edge_families.py`: nearly parallel rows down
  to 1e-17, scales from 1e-300 to 1e300, infeasible by a hair), one by one and in stacks, against rational arithmetic.
- In other norms: the same kinds and edges, in stacks (matrices one by one), every proof checked by the two bounds.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
from tests.oracles.by_clarabel import LARGEST, Tally, compare, compare_choice
from tests.oracles.by_stack import check_in_matrix_norm, check_stack, stacks_of
from tests.oracles.edge_families import FAMILIES as EDGES
from tests.oracles.margin_families import FAMILIES, choice

from benchmarks.margin_exact import audit
from tokenmargin.margin import MarginBatch, choice_margin, max_margin, max_margin_batch, solve
from tokenmargin.margin.constraints import Constraints, attention_constraints
from tokenmargin.margin.normed.certificate import gap_tolerance
from tokenmargin.norms import LpNorm, SchattenNorm, norm_named
from tokenmargin.problem.token_problem import TokenProblem

BLOCK = 20_000
"""Problems in memory at a time: in stacks by shape, some eighty of each."""
STATUSES = ("optimal", "infeasible", "inaccurate")
Family = Callable[[np.random.Generator], Constraints]


def statuses(batch: MarginBatch) -> list[str]:
    return np.where(batch.optimal, STATUSES[0], np.where(batch.infeasible, STATUSES[1], STATUSES[2])).tolist()


def ask(family: Family, count: int, peer: int, rng: np.random.Generator) -> tuple[Tally, Counter[str]]:
    """One kind of problem, one by one and in stacks; statuses of the two ways that contradict each other are wrong."""
    tally, stacked = Tally(), Counter[str]()
    for start in range(0, count, BLOCK):
        problems = [family(rng) for _ in range(min(BLOCK, count - start))]
        singles = [solve(one) for one in problems]
        for number, (one, answer) in enumerate(zip(problems, singles, strict=True)):
            compare(one, answer, tally, peer=number % peer == 0)
        for keys, selected, numbers in stacks_of(problems):
            batch = max_margin_batch(keys, selected, threads=1)
            residuals = check_stack(keys, selected, batch)
            tally.residual = max(tally.residual, float(residuals.max()))
            tally.over += int((residuals > LARGEST).sum())
            for number, status in zip(numbers.tolist(), statuses(batch), strict=True):
                stacked[status] += 1
                tally.wrong += {status, singles[number].status} == {"optimal", "infeasible"}
    return tally, stacked


def ask_choices(count: int, peer: int, rng: np.random.Generator) -> Tally:
    """Problems that are not convex: the least over all choices."""
    tally = Tally()
    for number in range(count):
        problem, sets = choice(rng)
        compare_choice(problem, sets, choice_margin(problem, sets), tally, peer=number % peer == 0)
    return tally


def run(count: int, *, peer: int = 10, seed: int = 0) -> Iterator[tuple[str, Tally, Counter[str]]]:
    """What became of the problems that are not at the edges, kind by kind."""
    share = count // (len(FAMILIES) + 1)
    for number, family in enumerate(FAMILIES):
        yield family.__name__, *ask(family, share, peer, np.random.default_rng([seed, number]))
    yield "choice", ask_choices(share, peer, np.random.default_rng([seed, len(FAMILIES)])), Counter()


def kinds(count: int, peer: int, seed: int) -> tuple[int, int]:
    """The first table: how many problems, how many false answers."""
    print("| kind | optimal | infeasible | inaccurate | in stacks: o / i / ? | wrong | over | residual | difference |"
          " refuted | silent |")  # fmt: skip
    print("|---|" + "---:|" * 10)
    asked = failures = 0
    for name, t, stacked in run(count, peer=peer, seed=seed):
        counts = [*(t.statuses[s] for s in STATUSES), slashed(stacked) if stacked else "", t.wrong, t.over]
        numbers = [f"{t.residual:.0e}", f"{t.difference:.0e}", t.oracle_wrong, t.oracle_silent]
        print(f"| {name} | " + " | ".join(map(str, counts + numbers)) + " |", flush=True)
        asked, failures = asked + t.statuses.total(), failures + t.wrong + t.over
    print(
        "\nwrong: statuses contradicted by the oracle, whose proofs do not hold, or by the other way; over: residuals"
    )
    print("over 1e-9 (1e-6 in Gram space), checked in extended precision; difference: largest relative distance to the")
    print("oracle's vector; refuted: oracle contradicted by a proof; silent: oracle without an answer.\n")
    return asked, failures


def slashed(counted: Counter[str]) -> str:
    return " / ".join(str(counted[status]) for status in STATUSES)


def edges(count: int, seed: int) -> tuple[int, int]:
    """The second table, against exact arithmetic."""
    print("| at the edge | feasible | infeasible | one by one: o / i / ? | in stacks | undecided: margin | false |")
    print("|---|" + "---:|" * 6)
    share, false = count // len(EDGES), 0
    for number, family in enumerate(EDGES):
        found = audit(family, share, rng=np.random.default_rng([seed, 1, number]), ways=("single", "batch"))
        said = [slashed(Counter({s: found.tally[way, s] for s in STATUSES})) for way in ("single", "batch")]
        least = f"{found.undecided:.0e}" if found.undecided >= 0 else ""
        truths = f"{found.tally['truth', 'optimal']} | {found.tally['truth', 'infeasible']}"
        print(f"| {family.__name__} | {truths} | {' | '.join(said)} | {least} | {len(found.false)} |", flush=True)
        print("".join(f"{line}\n" for line in found.false[:5]), end="")
        false += len(found.false)
    print("\nundecided: of the problems called inaccurate, the largest exact margin, as a share of the shortest row.\n")
    return share * len(EDGES), false


def _posed(rng: np.random.Generator) -> Iterator[Constraints]:
    """The kinds that ask one selection of plain vectors, and those at the edges, in turn."""
    plain = [family for family in FAMILIES if family.__name__ not in ("gram", "tied", "relaxed", "heads", "one_hot")]
    while True:
        for family in plain:
            yield family(rng)
        for edge in EDGES:
            keys, selected = edge(rng)
            if keys.shape[1] > 1 and 1e-150 < np.abs(keys).max() < 1e150:  # multipliers go with the inverse square
                yield attention_constraints(TokenProblem.of(keys, np.ones(len(keys)), scores=keys[:, :, 0]), selected)


def in_vector_norm(norm: LpNorm, count: int, rng: np.random.Generator) -> tuple[Counter[str], np.ndarray, int]:
    """Statuses, residuals, and contradictions of the Euclidean status: that there is a direction holds in any norm."""
    source, counted, residuals, contradicted = _posed(rng), Counter[str](), [], 0
    for start in range(0, count, BLOCK):
        for keys, selected, _ in stacks_of(next(source) for _ in range(min(BLOCK, count - start))):
            batch = max_margin_batch(keys, selected, norm=norm, threads=1)
            plain = max_margin_batch(keys, selected, threads=1)
            residuals.append(check_stack(keys, selected, batch, norm.p))
            contradicted += int(((batch.optimal & plain.infeasible) | (batch.infeasible & plain.optimal)).sum())
            counted.update(statuses(batch))
    return counted, np.concatenate(residuals), contradicted


def in_matrix_norm(norm: SchattenNorm, count: int, rng: np.random.Generator) -> tuple[Counter[str], np.ndarray, int]:
    """The same for matrices W, one by one: random keys and queries, a third of them small integers."""
    counted, residuals, contradicted = Counter[str](), [], 0
    for _ in range(count):
        n, T, d, q = (int(rng.integers(1, most)) for most in (5, 6, 8, 5))
        keys, queries = rng.standard_normal((n, T + 1, d)), rng.standard_normal((n, q))
        if rng.random() < 1 / 3:
            keys, queries = rng.integers(-2, 3, keys.shape) * 1.0, rng.integers(-2, 3, queries.shape) * 1.0
        scale = 10.0 ** rng.choice([0, 0, -70, 70])  # rows are products of the two
        plain = TokenProblem.of(keys * scale, np.ones(n), scores=keys[:, :, 0]).with_matrix(queries * scale)
        selected = rng.integers(0, T + 1, n)
        found, euclidean = max_margin(plain, selected, norm=norm), max_margin(plain, selected)
        counted[found.status] += 1
        contradicted += {found.status, euclidean.status} == {"optimal", "infeasible"}
        residuals.append(check_in_matrix_norm(attention_constraints(plain, selected), found, norm.p))
    return counted, np.array(residuals), contradicted


def in_norm(name: str, count: int, seed: int) -> tuple[int, int]:
    """The table of one norm."""
    norm, rng = norm_named(name), np.random.default_rng([seed, 2])
    if isinstance(norm, SchattenNorm):
        counted, residuals, contradicted = in_matrix_norm(norm, count, rng)
    else:
        assert isinstance(norm, LpNorm), "norms by name"
        counted, residuals, contradicted = in_vector_norm(norm, count, rng)
    # The check rounds too, far below a hundredth of the tolerance.
    over = int((residuals > 1.01 * gap_tolerance(norm)).sum())
    print("| norm | problems | optimal | infeasible | inaccurate | over | contradicted | residual |")
    print("|---|" + "---:|" * 7)
    numbers = [counted.total(), *(counted[s] for s in STATUSES), over, contradicted, f"{residuals.max():.0e}"]
    print(f"| {name} | " + " | ".join(map(str, numbers)) + " |")
    return counted.total(), over + contradicted


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=75_000)
    parser.add_argument("--peer", type=int, default=10, help="one problem in so many is solved by clarabel as well")
    parser.add_argument("--norm", help="this one instead of the Euclidean")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    began = time.perf_counter()
    if given.norm is not None:
        asked, failures = in_norm(given.norm, given.problems, given.seed)
    else:
        plain, exact = kinds(given.problems * 19 // 20, given.peer, given.seed), edges(given.problems // 20, given.seed)
        asked, failures = plain[0] + exact[0], plain[1] + exact[1]
    print(f"{asked} problems in {time.perf_counter() - began:.0f} s; {failures} wrong statuses or residuals")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
