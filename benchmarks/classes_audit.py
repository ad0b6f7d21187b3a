"""Many classes, real labels and attention maps on instances nobody chose.

    python -m benchmarks.classes_audit derivatives --count 1000   gradient and Hessian against torch's autograd
    python -m benchmarks.classes_audit limits --count 60          limit_of against clarabel's solution of its problem

Families: normal keys; integer keys with ties; copies of a key; one dimension; one input; masked inputs; keys times 1e3
and times 1e-3; class logits times 30.
"""

from __future__ import annotations

import collections
import time
from typing import Literal

import numpy as np
import torch
from tests.oracles.by_clarabel import by_clarabel

from benchmarks.tools import run_main
from tokenmargin.limits import Limit, limit_of
from tokenmargin.margin import attention_constraints
from tokenmargin.objective.attention_maps import Entmax, MapObjective, Sparsemax
from tokenmargin.objective.local_scores import ClassObjective, SquareObjective
from tokenmargin.problem.label_problems import ClassProblem, RegressionProblem
from tokenmargin.problem.token_problem import TokenProblem

FAMILIES = ("normal", "integers", "copies", "one dimension", "one input", "masked", "long keys", "short keys", "sure")


def drawn(family: str, rng: np.random.Generator):
    """Keys, mask and a head with k columns."""
    n, T, d, k = (int(rng.integers(low, high)) for low, high in ((2, 6), (2, 6), (2, 7), (2, 6)))
    n, d = 1 if family == "one input" else n, 1 if family == "one dimension" else d
    keys, head, mask = rng.standard_normal((n, T, d)), rng.standard_normal((d, k)), np.ones((n, T), dtype=bool)
    if family == "integers":
        keys, head = rng.integers(-2, 3, keys.shape).astype(float), rng.integers(-1, 2, head.shape).astype(float)
    if family == "copies":
        keys[:, 1] = keys[:, 0]
    if family == "masked":
        mask = rng.random((n, T)) < 0.6
        mask[:, 0] = True
    keys *= {"long keys": 1e3, "short keys": 1e-3}.get(family, 1.0)
    return keys, mask, head * (30.0 if family == "sure" else 1.0)


def posed(kind: str, family: str, rng: np.random.Generator):
    """An objective, and its risk in torch."""
    keys, mask, head = drawn(family, rng)
    n, k = len(keys), head.shape[1]
    K, M, H = torch.from_numpy(keys), torch.from_numpy(mask), torch.from_numpy(head)

    def attended(p):
        return torch.einsum("nt,ntd->nd", torch.softmax((K @ p).masked_fill(~M, -torch.inf), -1), K)

    if kind == "classes":
        y = rng.integers(k, size=n)
        objective = ClassObjective(ClassProblem.of(keys, y, head=head, mask=mask, keep_unused=True))
        return objective, lambda p: torch.nn.functional.cross_entropy(attended(p) @ H, torch.from_numpy(y))
    targets = rng.standard_normal(n) * np.abs(keys @ head[:, 0]).max()
    objective = SquareObjective(RegressionProblem.of(keys, targets, head=head[:, 0], mask=mask))
    return objective, lambda p: ((attended(p) @ H[:, 0] - torch.from_numpy(targets)) ** 2).mean()


def derivatives(count: int) -> None:
    rng, worst = np.random.default_rng(1), collections.defaultdict(float)
    for j in range(count):
        kind, family = ("classes", "real")[j % 2], FAMILIES[j // 2 % len(FAMILIES)]
        objective, risk = posed(kind, family, rng)
        keys = objective.problem.keys
        p = rng.standard_normal(keys.dimension) / max(np.abs(keys.vectors).max(), 1e-12)
        point = torch.from_numpy(p).requires_grad_()
        (gradient,) = torch.autograd.grad(risk(point), point)
        hessian = torch.autograd.functional.hessian(risk, torch.from_numpy(p)).numpy()
        linear = objective.linearise(p)
        size = max(np.abs(hessian).max(), np.abs(gradient.numpy()).max() * np.abs(keys.vectors).max(), 1e-300)
        off = np.abs(objective.gradient(p) - gradient.numpy()).max() * np.abs(keys.vectors).max() / size
        bent = np.abs(linear.jacobian * np.exp(linear.descent.log_norm) + hessian).max() / size
        flat = float(linear.descent.log_norm[0]) == -np.inf  # nothing to divide the derivative by
        worst[kind, family] = max(worst[kind, family], off, 0.0 if flat else bent)
    for (kind, family), value in sorted(worst.items()):
        print(f"{kind:8} {family:14} {value:.1e}")
    print(f"{count} instances, largest difference of gradient or Hessian over their size: {max(worst.values()):.1e}")


def angle_to_clarabel(limit: Limit, problem: TokenProblem) -> tuple[float, float]:
    """The distance between the end of the path and clarabel's vector, both as unit vectors, and what it can be.

    A feasible x has `|x - x*|^2 <= |x|^2 - |x*|^2`, x* being the shortest: so clarabel's vector, scaled until it is
    feasible and longer than the certified one by a share g, is off by at most `sqrt((1 + g)^2 - 1)`; the path's end
    by its own angle.
    """
    theirs = by_clarabel(attention_constraints(problem, limit.selected))
    p, found = limit.path.prompt, theirs.vector
    longer = max(theirs.high * limit.solution.margin, 1.0)
    off = float(np.linalg.norm(p / np.linalg.norm(p) - found / np.linalg.norm(found)))
    return off, float(np.sqrt(longer**2 - 1)) + limit.angle


def limits(count: int) -> None:
    rng, seen, begun = np.random.default_rng(2), collections.Counter(), time.perf_counter()
    worst = share = 0.0
    for j in range(count):
        kind, family = ("classes", "real", "sparse")[j % 3], FAMILIES[j // 3 % len(FAMILIES)]
        if kind == "sparse":
            keys, mask, head = drawn(family, rng)
            labels = rng.choice([-1.0, 1.0], len(keys))
            problem = TokenProblem.of(keys, labels, head=head[:, 0], mask=mask)
            objective = MapObjective(problem, attention=(Sparsemax(), Entmax(1.5))[j // 3 % 2])
        else:
            objective, _ = posed(kind, family, rng)
        limit = limit_of(objective)
        seen[kind, limit.outcome] += 1
        if limit.outcome == "direction" and limit.chosen.sum(axis=1).max() == 1 and not limit.reason:
            off, allowed = angle_to_clarabel(limit, objective.problem)
            worst, share = max(worst, off), max(share, off / (allowed + 1e-12))
        if limit.outcome == "bounded" and kind != "sparse":
            reduced = limit.path._field.objective
            assert reduced.linearise(limit.path._field.reduce(limit.point)).balance.max() <= 1e-12, (j, kind, family)
        if limit.outcome == "saturated":
            assert limit.log_gradient == -np.inf, (j, kind, family)
        if limit.outcome == "undecided":
            print(f"{j} {kind}, {family}: {limit.reason[:110]}")
    for (kind, outcome), number in sorted(seen.items()):
        print(f"{kind:8} {outcome:12} {number}")
    print(f"{count} limits in {time.perf_counter() - begun:.0f} s; largest angle to clarabel's direction {worst:.1e}")
    print(f"largest share of what clarabel's own gap and the path's end allow: {share:.2f}")


def main(what: Literal["derivatives", "limits"], /, *, count: int = 60) -> None:
    {"derivatives": derivatives, "limits": limits}[what](count)


if __name__ == "__main__":
    run_main(main, __doc__)
