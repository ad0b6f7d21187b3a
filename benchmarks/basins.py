"""Are starts filed under the limits that they go to? `basins` against gradient flow from each start.

    python -m benchmarks.basins [--count 100] [--starts 20] [--seed 0]

Problems are those of `benchmarks.limits_audit` in four families (ties, repeats, neither, mirrored), random starts of
length 3. Counted are the starts that `basins` files otherwise than `limit_of` names them, those that the tokens of
the first saturated softmax would have filed otherwise (what is saved by going on), and the flows that were needed.
"""

from __future__ import annotations

import time
from collections import Counter
from unittest import mock

import numpy as np

from benchmarks.limits_audit import FAMILIES, case
from benchmarks.tools import print_table, run_main
from tokenmargin.dynamics import NormalizedGradientDescent, evolve_many
from tokenmargin.limits import shares
from tokenmargin.limits.by_method import SATURATED
from tokenmargin.limits.limit import limit_of
from tokenmargin.margin import limit_direction
from tokenmargin.problem.token_problem import TokenProblem

STEP = 0.1


def _names(found: shares.Basins) -> list[bytes | None]:
    return [None if label < 0 else found.basins[label].named.chosen.tobytes() for label in found.labels]


def _at_saturation(problem: TokenProblem, starts: np.ndarray) -> tuple[list[bytes | None], float]:
    began = time.process_time()
    runs = evolve_many(
        [problem], NormalizedGradientDescent(STEP), steps=10_000, starts=[starts], until_saturation=SATURATED
    )
    seconds = time.process_time() - began
    kept = runs.saturation[0] >= SATURATED
    named = [limit_direction(problem, one).chosen.tobytes() for one in runs.selected[0]]
    return [name if there else None for name, there in zip(named, kept, strict=True)], seconds


def audit(number: int, count: int, seed: int, tally: Counter[str]) -> None:
    """One problem: every start filed in three ways."""
    problem = case(number, seed).posed
    starts = shares.random_starts(problem, count, radius=3.0, rng=np.random.default_rng([seed, number, 1]))
    early, seconds = _at_saturation(problem, starts)
    began = time.process_time()
    with mock.patch.object(shares, "limit_of", wraps=limit_of) as flows:
        filed = _names(shares.basins(problem, starts, method=NormalizedGradientDescent(STEP)))
    tally["ms"] += int(1000 * (time.process_time() - began))
    tally["ms until saturation"] += int(1000 * seconds)
    tally["flows"] += flows.call_count
    for j, start in enumerate(starts):
        limit = limit_of(problem, start)
        true = limit.named.chosen.tobytes() if limit.outcome == "direction" else None
        tally["starts"] += 1
        tally["unsettled"] += filed[j] is None
        if limit.outcome in ("undecided", "rounding"):
            tally["not known"] += 1
            continue
        tally["otherwise than flow"] += filed[j] != true
        tally["... at saturation"] += early[j] != true
        if filed[j] != true:
            print(f"problem {number}, start {j}: {limit!r}, filed {'nowhere' if filed[j] is None else 'elsewhere'}")


def main(*, count: int = 100, starts: int = 20, seed: int = 0) -> None:
    tallies = {family: Counter[str]() for family in FAMILIES}
    for number in range(count):
        audit(number, starts, seed, tallies[case(number, seed).family])
    names = ("starts", "otherwise than flow", "... at saturation", "unsettled", "not known", "flows", "ms",
             "ms until saturation")  # fmt: skip
    print_table(("family", *names), ((family, *(tally[name] for name in names)) for family, tally in tallies.items()))


if __name__ == "__main__":
    run_main(main, __doc__)
