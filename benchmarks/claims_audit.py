"""Does any claim lie? Every claim on random instances that are not its own.

    python -m benchmarks.claims_audit [--count 300] [--paper B] [--claim B.theorem3 ...]

*fails* may appear for claims listed as false as printed, and for no other; nor may a check raise. The table says how
often the others hold, are vacuous (a hypothesis is not met) or undecided (what was computed cannot tell). Instances
come from families that no shipped instance belongs to: see `claims_families_a` and its neighbours.
"""

from __future__ import annotations

import importlib.util
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from benchmarks.tools import print_table, run_main
from tokenmargin.theory import PAPER_CLAIMS, Claim

__all__ = ["Tally", "audit", "families"]

VERDICTS = ("holds", "undecided", "vacuous", "fails", "raises")


@dataclass
class Tally:
    """What was seen of one claim: verdicts, what it fails or raises on, and how long it took."""

    claim: Claim
    verdicts: Counter[str] = field(default_factory=Counter)
    fails: list[str] = field(default_factory=list)
    seconds: float = 0.0
    slowest: float = 0.0

    @property
    def lies(self) -> bool:
        """Whether it raised, or failed without being listed as false as printed."""
        return self.verdicts["raises"] > 0 or (self.verdicts["fails"] > 0 and self.claim.refutation is None)


def families(claim: Claim) -> tuple[Callable[[np.random.Generator], Any], ...]:
    """What the claim is tried on: its own families where it has some, those of its paper otherwise."""
    name = f"benchmarks.claims_families_{claim.name[0].lower()}"
    if importlib.util.find_spec(name) is None:
        return ()
    module = importlib.import_module(name)
    own: tuple[Callable[[np.random.Generator], Any], ...] = module.OF_CLAIM.get(claim.name, module.FAMILIES)
    return own


def audit(claim: Claim, count: int, *, seed: int = 0) -> Tally:
    """The claim on `count` random instances, from its families in turn."""
    tally, kinds = Tally(claim), families(claim)
    for k in range(count if kinds else 0):
        make = kinds[k % len(kinds)]
        instance = make(np.random.default_rng([seed, k]))
        try:
            report = claim.on(instance)
        except Exception as error:  # counted, and named: a check must answer on every problem
            tally.verdicts["raises"] += 1
            tally.fails.append(f"{make.__name__}, draw {k}: {instance}: raises {error!r}")
            continue
        tally.verdicts[report.verdict] += 1
        tally.seconds += report.seconds
        tally.slowest = max(tally.slowest, report.seconds)
        if report.verdict == "fails":
            broken = "; ".join(
                f"{s.name}: {s.measured:.6g} {s.relation} {s.bound:.6g}"
                for s in report.findings.conclusion
                if not s.holds
            )
            tally.fails.append(f"{make.__name__}, draw {k}: {instance}: {broken}")
    return tally


def _row(tally: Tally) -> list[object]:
    seconds = f"{tally.seconds / max(1, tally.verdicts.total()):.2f}"
    return [tally.claim.name, *(tally.verdicts[verdict] for verdict in VERDICTS), seconds]


def main(
    *,
    count: int = 300,
    paper: Literal["A", "B", "C", "D", "R"] | None = None,
    claim: list[str] | None = None,
    seed: int = 0,
) -> int:
    asked = [one for one in PAPER_CLAIMS if paper in (None, one.name[0]) and (not claim or one.name in claim)]
    began, tallies = time.perf_counter(), []
    for one in asked:
        tally = audit(one, count, seed=seed)
        tallies.append(tally)
        print(f"{one.name}: {dict(tally.verdicts)}, {tally.seconds:.0f} s, slowest {tally.slowest:.1f} s", flush=True)
        for failed in tally.fails if tally.lies else ():
            print(f"  {failed}", flush=True)
    print()
    print_table(("claim", *VERDICTS, "s per instance"), map(_row, tallies))
    lies = [tally.claim.name for tally in tallies if tally.lies]
    print(
        f"\n{len(tallies)} claims, {time.perf_counter() - began:.0f} s; fail without being listed as false: {lies or 0}"
    )
    return 1 if lies else 0


if __name__ == "__main__":
    run_main(main, __doc__)
