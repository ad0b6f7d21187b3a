"""Do limits depend on how a problem is told? Scaled, shifted, turned, reordered, every input twice: five ways each.

    python -m benchmarks.invariance [--count 200] [--first 0]

Keys and scores are in turn small integers (ties, repeats, symmetry) and any numbers, n <= 3, T <= 4, d <= 3; scales are
1e-30, 1e-8, 1e8 and 1e20. Outcome, kind and certified direction from a start must be the same, and so must the atlas
where both are complete.
"""

from __future__ import annotations

from tests.oracles.told_otherwise import contradictions

from benchmarks.tools import run_main


def main(*, count: int = 200, first: int = 0) -> int:
    total = 0
    for seed in range(first, first + count):
        for line in contradictions(seed):
            total += 1
            print(f"problem {seed}, {line}", flush=True)
    print(f"{count} problems, each told in five other ways: {total} contradictions")
    return int(total > 0)


if __name__ == "__main__":
    run_main(main, __doc__)
