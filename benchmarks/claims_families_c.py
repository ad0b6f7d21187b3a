"""Random instances in W, for the claims of paper C: sizes, self-attention, ties, repeats, scales, d = 1, n = 1."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks import claims_families_b as of_p
from tokenmargin.objective.local_scores import NonlinearHead
from tokenmargin.problem.attention_problems import cross_attention, self_attention
from tokenmargin.theory import ProblemInstance

__all__ = ["FAMILIES", "OF_CLAIM"]

Family = Callable[[np.random.Generator], ProblemInstance]
FAR = 1e3
"""How far flows of W are followed here: an instance takes a third of a second, and hundreds a few minutes."""


def _in_matrix(family: Family) -> Family:
    """The keys of a family for p, each input with a query of its own; or all with one."""

    def make(rng: np.random.Generator) -> ProblemInstance:
        x = family(rng)
        shape = (int(rng.integers(1, 4)),) if rng.random() < 0.2 else (x.problem.n, int(rng.integers(1, 4)))
        problem = x.problem.with_matrix(rng.standard_normal(shape))
        return ProblemInstance(problem, f"{x.name}, in W", selected=x.selected, seed=x.seed, norm=FAR)

    return make


def own_query(rng: np.random.Generator) -> ProblemInstance:
    """Self-attention with the last token as query."""
    n, T, d = int(rng.integers(1, 3)), int(rng.integers(2, 5)), int(rng.integers(1, 4))
    tokens, labels = rng.standard_normal((n, T, d)), rng.choice([-1, 1], n)
    problem = self_attention(tokens, labels, head=rng.standard_normal(d))
    return ProblemInstance(problem, "self-attention", seed=int(rng.integers(1 << 30)), norm=FAR)


def many_dimensions(rng: np.random.Generator) -> ProblemInstance:
    """`d >= max(T - 1, n)`, now and then with a query or a token that depends on the others."""
    n, T = int(rng.integers(1, 4)), int(rng.integers(2, 5))
    d = max(T - 1, n) + int(rng.integers(0, 2))
    tokens, queries = rng.standard_normal((n, T, d)), rng.standard_normal((n, d))
    if n > 1 and rng.random() < 0.2:
        queries[-1] = queries[0]
    problem = cross_attention(tokens, queries, np.ones(n), head=rng.standard_normal(d))
    return ProblemInstance(problem, "many dimensions", seed=int(rng.integers(1 << 30)))


def bowls(rng: np.random.Generator) -> ProblemInstance:
    """A concave head, best served by mixtures."""
    n, T, d = int(rng.integers(1, 3)), int(rng.integers(2, 4)), int(rng.integers(1, 4))
    centre, bend = rng.standard_normal(d), -np.eye(d)
    head = NonlinearHead(
        lambda x: -((x - centre) ** 2).sum(-1) / 2, lambda x: centre - x, lambda x: np.broadcast_to(bend, (*x.shape, d))
    )
    tokens, queries = rng.standard_normal((n, T, d)), rng.standard_normal((n, max(n, 2)))
    problem = cross_attention(tokens, queries, np.ones(n), scores=np.zeros((n, T)))
    return ProblemInstance(problem, "a bowl", head=head, seed=int(rng.integers(1 << 30)))


FAMILIES: tuple[Family, ...] = (
    _in_matrix(of_p.gaussian), _in_matrix(of_p.integers), _in_matrix(of_p.repeats), own_query,
)  # fmt: skip
OF_CLAIM: dict[str, tuple[Family, ...]] = {
    "C.separability": (many_dimensions, *FAMILIES),
    "C.global": (_in_matrix(of_p.alone), _in_matrix(of_p.alone), _in_matrix(of_p.alike)),
    "C.growth": (_in_matrix(of_p.alike), own_query),
    "C.several-tokens": (bowls,),
}
