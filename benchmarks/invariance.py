"""Do limits depend on how a problem is told? Scaled, shifted, turned, reordered, every input twice: five ways each.

    python -m benchmarks.invariance [--count 200] [--first 0]

Keys and scores are in turn small integers (ties, repeats, symmetry) and any numbers, n <= 3, T <= 4, d <= 3; scales are
1e-30, 1e-8, 1e8 and 1e20. Outcome, kind and certified direction from a start must be the same, and so must the atlas
where both are complete.
"""

from __future__ import annotations

import argparse
import sys

from tests.oracles.told_otherwise import contradictions


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=200, help="problems")
    parser.add_argument("--first", type=int, default=0, help="number of the first problem")
    options = parser.parse_args()
    total = 0
    for seed in range(options.first, options.first + options.count):
        for line in contradictions(seed):
            total += 1
            print(f"problem {seed}, {line}", flush=True)
    print(f"{options.count} problems, each told in five other ways: {total} contradictions")
    return int(total > 0)


if __name__ == "__main__":
    sys.exit(main())
