"""Is every limit of gradient flow named? Random problems with ties, repeats and symmetry, three starts each.

    python -m benchmarks.limits_audit [--count 2000] [--starts 3] [--seed 0]

Problems have n <= 4 inputs of T <= 6 tokens in d <= 6 dimensions, half of them known by inner products alone. In turn
their scores tie, their inputs repeat a token, or neither; every tenth is its own mirror image, with two of the three
starts in the mirror. From each start `limit_of` follows the flow to |p| = 1e8.

A *miss* is a direction that no entry of the atlas is within 1e-6 rad of although `limit_of` calls it a limit; a path
that reached |p| = 1e8 with tokens selected, but is further than that from the direction it was compared with; or an
answer without a word on why there is no direction. Every entry of every atlas is solved again by clarabel, from
rows that are formed here.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from tests.oracles.by_clarabel import least_norm

from benchmarks.tools import print_table, run_main
from tokenmargin.limits.by_method import SATURATED
from tokenmargin.limits.limit import Limit, limit_of
from tokenmargin.margin import Atlas, LimitDirection, atlas
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import angle

__all__ = ["FAMILIES", "Case", "Tally", "audit", "case"]

FAMILIES = ("ties", "repeats", "distinct", "mirrored")
CLOSE = 1e-6
"""Largest angle, in radians, between the flow at |p| = 1e8 and the entry of the atlas it belongs to."""


@dataclass(frozen=True, eq=False)
class Case:
    """A problem in coordinates, as it is posed (perhaps by inner products), and three starts."""

    family: str
    plain: TokenProblem
    posed: TokenProblem
    starts: tuple[np.ndarray, ...]


@dataclass
class Tally:
    """What was seen of one family."""

    problems: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    silent: list[str] = field(default_factory=list)
    listed: int = 0
    sets: int = 0
    held: int = 0
    complete: int = 0
    unsearched: Counter[str] = field(default_factory=Counter)
    clarabel: float = 0.0
    largest: float = 0.0
    slowest: float = 0.0


def case(number: int, seed: int = 0) -> Case:
    """Problem `number` of the audit."""
    rng = np.random.default_rng([seed, number])
    n, T, d = int(rng.integers(1, 5)), int(rng.integers(2, 7)), int(rng.integers(1, 7))
    keys, scores = rng.standard_normal((n, T, d)), rng.standard_normal((n, T))
    family = "mirrored" if number % 10 == 9 else FAMILIES[number % 3]
    flat = np.ones(d)
    match family:
        case "ties":
            scores = rng.integers(0, int(rng.integers(2, 4)), (n, T)).astype(float)
        case "repeats" if rng.random() < 0.5:  # words of one vocabulary, some of them twice in an input
            words = rng.standard_normal((int(rng.integers(2, 7)), d))
            index = rng.integers(0, len(words), (n, T))
            keys, scores = words[index], rng.standard_normal(len(words))[index]
            if rng.random() < 0.5:
                scores = scores * rng.choice([-1.0, 1.0], (n, 1))
        case "repeats":
            for i, (one, other) in enumerate(rng.integers(0, T, (n, 2)).tolist()):
                keys[i, other] = keys[i, one]
                if rng.random() < 0.8:  # a word twice has one score; keys alone may agree as well
                    scores[i, other] = scores[i, one]
        case "mirrored":  # the second half of every input is the first, seen in a mirror
            flat[-1] = -1.0
            half = slice(T // 2)
            keys = np.concatenate([keys[:, half], keys[:, half] * flat], axis=1)
            scores = np.concatenate([scores[:, half], scores[:, half]], axis=1)
    plain = TokenProblem.of(keys, np.ones(n), scores=scores)
    starts = [np.zeros(d), rng.standard_normal(d), 5 * rng.standard_normal(d)]
    starts[1] = (starts[1] + flat * starts[1]) / 2
    if number % 2:
        return Case(family, plain, plain, tuple(starts))
    posed = plain.as_gram(np.array(starts))
    return Case(family, plain, posed, tuple(posed.keys.unit(plain.keys.n_vectors + j) for j in range(3)))


def _coordinates(here: Case, p: np.ndarray) -> np.ndarray:
    """A parameter of the posed problem, in coordinates."""
    if here.posed is here.plain:
        return p
    rows = np.concatenate([here.plain.keys.vectors, _gram_starts(here)])
    return p @ rows


def _gram_starts(here: Case) -> np.ndarray:
    """The rows after the keys' own, recovered as coordinates: least squares on their inner products with the keys."""
    keys, matrix = here.plain.keys.vectors, here.posed.keys.matrix
    return np.linalg.lstsq(keys, matrix[: len(keys), len(keys) :], rcond=None)[0].T


def asked_rows(problem: TokenProblem, limit: LimitDirection) -> tuple[np.ndarray, np.ndarray]:
    """The rows `k_selected - k_other` for the tokens of other scores, copies with the mean of theirs, and those for the
    tokens that are selected together."""
    rows, level = [], [np.zeros((0, problem.keys.tokens.shape[2]))]
    for i, t in enumerate(limit.selected.tolist()):
        keys = problem.keys.tokens[i]
        means = [problem.scores[i][(keys == key).all(axis=1)].mean() for key in keys]
        rows += [keys[t] - keys[u] for u in range(problem.T) if abs(means[u] - means[t]) > 1e-15]
        together = keys[limit.chosen[i]] - keys[t]
        level.append(together[together.any(axis=1)])
    return np.array(rows), np.concatenate(level)


def audit(here: Case, tally: Tally, *, starts: int = 3) -> None:
    """One problem: its atlas against clarabel, and the flow from its starts against its atlas."""
    tally.problems += 1
    found = atlas(here.posed)
    open_ends = {
        "ties not looked at": found.ties_left,
        "ties neither found to be held nor excluded": found.ties_undecided,
        "selections too close to call": found.undecided,
        "selections whose pulls cancel": found.balanced,
        "selections with a neighbour of higher score neither found to be outweighed nor not": found.unsettled,
    }
    tally.unsearched.update(words for words, some in open_ends.items() if some)
    tally.complete += found.complete
    for limit in found.limits:
        tally.listed += 1
        tally.sets += bool((limit.chosen.sum(axis=1) > 1).any())
        tally.held += limit.kind == "stable" and bool((limit.gaps > 0).all())
        rows, level = asked_rows(here.plain, limit)
        held = np.arange(len(rows) + len(level)) >= len(rows)
        theirs = least_norm(np.vstack([rows, level]), np.where(held, 0.0, 1.0), held, tolerance=1e-12).vector
        ours = _coordinates(here, limit.solution.vector)
        tally.clarabel = max(tally.clarabel, float(angle(here.plain.keys, ours, theirs)))
    for j, start in enumerate(here.starts[:starts]):
        began = time.perf_counter()
        limit = limit_of(here.posed, start)
        tally.slowest = max(tally.slowest, time.perf_counter() - began)
        _compare(here, found, limit, tally, f"start {j}")


def _compare(here: Case, found: Atlas, limit: Limit, tally: Tally, where: str) -> None:
    """File the answer; silence is a miss."""
    keys = here.posed.keys
    if limit.outcome == "direction" and limit.named.is_limit:
        # Where the angle is said to be larger, and why, the direction that is named must be listed itself.
        p = limit.path.prompt if limit.angle <= CLOSE or not limit.reason else limit.solution.vector
        off = min((float(angle(keys, p, entry.solution.vector)) for entry in found.limits), default=np.pi)
        tally.largest = max(tally.largest, off if off <= CLOSE else 0.0)
        tally.outcomes["listed limit" if off <= CLOSE else "MISSING"] += 1
        if off > CLOSE:
            tally.silent.append(f"{where}: {limit!r} is {off:.1e} rad from the atlas, {found!r}")
        return
    tally.outcomes[limit.outcome] += 1
    went_all_the_way = limit.path.stop == "norm" and limit.path.saturation >= SATURATED
    if limit.outcome == "undecided" and went_all_the_way and not limit.angle <= CLOSE:
        tally.silent.append(f"{where}: {limit!r} has gone all the way along no direction that is known")
    if limit.outcome != "bounded":
        tally.reasons[limit.reason or "NO REASON"] += 1
        if not limit.reason:
            tally.silent.append(f"{where}: {limit!r} gives no reason")


def _print_families(tallies: dict[str, Tally]) -> None:
    names = sorted({name for tally in tallies.values() for name in tally.outcomes})
    print_table(
        ("family", "problems", "atlas entries (sets)", *names, "ties held", "misses", "clarabel, rad"),
        (
            (family, t.problems, f"{t.listed} ({t.sets})", *(t.outcomes[name] for name in names), t.held,
             len(t.silent), f"{t.clarabel:.0e}")
            for family, t in tallies.items()
        ),
    )  # fmt: skip


def main(*, count: int = 2000, first: int = 0, starts: int = 3, seed: int = 0) -> int:
    """So many problems from the first on, with up to three flows each; without flows atlases alone are looked at."""
    began, tallies = time.perf_counter(), {family: Tally() for family in FAMILIES}
    for number in range(first, first + count):
        here = case(number, seed)
        tally = tallies[here.family]
        before = len(tally.silent)
        reasons = tally.reasons.copy()
        audit(here, tally, starts=starts)
        for line in tally.silent[before:]:
            print(f"problem {number}, {here.family}: {line}", flush=True)
        for reason in tally.reasons - reasons:
            print(f"problem {number}, {here.family}: {reason}", flush=True)
    print()
    _print_families(tallies)
    print()
    for family, tally in tallies.items():
        for reason, times in tally.reasons.most_common():
            print(f"{family}: {times} x {reason}")
    largest, slowest = (max(getattr(t, name) for t in tallies.values()) for name in ("largest", "slowest"))
    silent, seconds = sum(len(tally.silent) for tally in tallies.values()), time.perf_counter() - began
    print(f"\nmisses {silent}; largest angle to a listed limit {largest:.1e} rad; {seconds:.0f} s, ", end="")
    print(f"slowest flow {slowest:.1f} s")
    for family, tally in tallies.items():
        for words, times in tally.unsearched.most_common():
            print(f"{family}: {times} atlases: {words}")
        print(f"{family}: {tally.complete} of {tally.problems} atlases complete")
    return 1 if silent else 0


if __name__ == "__main__":
    run_main(main, __doc__)
