"""Do max-margin answers of every kind agree with another solver? 75,000 random problems against clarabel.

    python -m benchmarks.margin_oracle [--count 75000]

Twelve kinds (see `tests/oracles/margin_families.py`): ties, zero margins, heads, Gram space, wide and degenerate ones.
Every certificate is checked again in extended precision on the original constraints. Small problems at the edges of
double precision are compared with exact arithmetic by `benchmarks.margin_exact`.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np
from tests.oracles.by_clarabel import Tally, compare
from tests.oracles.margin_families import FAMILIES

from tokenmargin.margin import solve


def run(count: int, *, seed: int = 0) -> dict[str, Tally]:
    """The tallies of every family, `count` problems in all."""
    rng = np.random.default_rng(seed)
    tallies = {}
    for family in FAMILIES:
        tally = tallies[family.__name__] = Tally()
        for _ in range(count // len(FAMILIES)):
            constraints = family(rng)
            compare(constraints, solve(constraints), tally)
    return tallies


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=75_000)
    arguments = parser.parse_args()
    began = time.perf_counter()
    tallies = run(arguments.count)
    columns = ("optimal", "infeasible", "inaccurate")
    print("| family | optimal | infeasible | inaccurate | wrong | over | residual | difference | refuted | silent |")
    print("|---|" + "---:|" * 9)
    for name, t in tallies.items():
        counts = [*(t.statuses[c] for c in columns), t.wrong, t.over]
        numbers = [f"{t.residual:.0e}", f"{t.difference:.0e}", t.oracle_wrong, t.oracle_silent]
        print(f"| {name} | " + " | ".join(map(str, counts + numbers)) + " |")
    print("\nwrong: statuses contradicted by the oracle, whose proofs do not hold; over: residuals over 1e-9 (1e-6 in")
    print("Gram space), checked again in extended precision; difference: largest relative distance to the oracle's")
    print("vector; refuted: oracle contradicted by a proof; silent: oracle without an answer.")
    failures = sum(t.wrong + t.over for t in tallies.values())
    solved = sum(sum(t.statuses.values()) for t in tallies.values())
    print(f"\n{solved} problems in {time.perf_counter() - began:.0f} s; {failures} wrong statuses or residuals")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
