"""What claims are checked on: a corpus with its random start (paper A), or a problem with points of interest (B)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from tokenmargin.objective.attention import AbstractObjective, PromptObjective
from tokenmargin.objective.embedding import Embeddings, FirstStep, first_step, gaussian_embeddings, wishart_embeddings
from tokenmargin.objective.local_scores import HeadObjective, NonlinearHead
from tokenmargin.objective.losses import AbstractLoss, LogisticLoss
from tokenmargin.problem.corpus import TokenCorpus
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.instances import selective_corpus, varied_selective_corpus
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import selected_tokens
from tokenmargin.theory.evidence import FollowedFlow, follow_flow

Selection = Literal["random", "tied", "important", "everything"]
MOST_DIMENSIONS = 10**300
DRAWN_SHARE = 0.3
"""What is left of the drawn part of a token in an aligned start, beside a common part of length 1."""


def log_of_union(size: int, delta: float) -> float:
    """`log(|S|^2/delta)`, also where delta is so small that the quotient is beyond doubles."""
    return 2 * math.log(size) - math.log(delta)


def enough_step(corpus: TokenCorpus) -> int:
    """The smallest step of (10): `4 n^2 T^2`."""
    return 4 * corpus.n**2 * corpus.T**2


def enough_dimensions(size: int, eta: float, delta: float) -> int:
    """The smallest dimension of (10), exactly: `max{256, (2 log(|S|^2/delta))^2, (88 eta^2 + 111 eta + 2)^8, |S|+3}`.

    >>> enough_dimensions(8, 576, 0.05) // 10**57
    537
    """
    step = Fraction(eta)
    concentration = math.ceil((2 * log_of_union(size, delta)) ** 2)
    return max(256, concentration, math.ceil((88 * step**2 + 111 * step + 2) ** 8), size + 3)


def _check_positive(step: float, delta: float) -> None:
    if not 0 < step < math.inf:
        raise ValueError(f"eta_0 is the length of a step: it must be positive and finite, got {step:g}")
    if not 0 < delta <= 1:
        raise ValueError(f"delta is a probability: it must lie in 0..1 and not be 0, got {delta}")


@dataclass(frozen=True, eq=False)
class EmbeddingInstance:
    """Paper A's setting: a corpus, the dimension, the first step's size, and random starts.

    **Arguments**
    - `corpus`: the sequences.
    - `dimension`: d, a number up to 1e300.
    - `step`: eta_0.
    - `delta`: the probability the statement may fail with.
    - `draws`: how many starts are drawn.
    - `seed`: of the draws.
    - `norm`: how far gradient flow is followed.
    - `selection`: which selection a statement about any `p_o` is checked on: that of a "random" vector, of a "tied" one
      (random logits of 0 and 1; as "random" where the tokens are linearly dependent), the "important" tokens, or
      "everything".
    - `aligned`: give the important tokens a common part at the start, and the irrelevant ones its opposite. Such starts
      satisfy (14), which says nothing of inner products between tokens, and are all but never drawn.
    - `name`: how to call the corpus in a report.
    """

    corpus: TokenCorpus
    dimension: int | float
    step: float
    delta: float = 0.05
    draws: int = 1
    seed: int = 0
    norm: float = 1e5
    selection: Selection = "random"
    aligned: bool = False
    name: str = ""

    def __post_init__(self) -> None:
        _check_positive(self.step, self.delta)

    @classmethod
    def with_corpus(
        cls,
        corpus: TokenCorpus,
        *,
        dimension: int | float | None = None,
        step: float | None = None,
        delta: float = 0.05,
        **options: Any,
    ) -> EmbeddingInstance:
        """A corpus, with the smallest step and dimension that (10) allows unless told."""
        eta = float(enough_step(corpus) if step is None else step)
        _check_positive(eta, delta)
        d = enough_dimensions(corpus.size, eta, delta) if dimension is None else dimension
        if d > MOST_DIMENSIONS:
            raise ValueError(
                f"eta_0 = {eta:g} needs more than 1e300 dimensions by (10); give a dimension, or a smaller step"
            )
        return cls(corpus, d, eta, delta, **options)

    @classmethod
    def of(
        cls,
        n: int,
        T: int,
        *,
        seed: int = 0,
        irrelevant: int | None = None,
        equal: bool = True,
        varied: bool = False,
        **options: Any,
    ) -> EmbeddingInstance:
        """A random corpus under Assumption 4: as `selective_corpus` draws it, or `varied` in all it leaves open."""
        rng = np.random.default_rng(seed)
        repeats = irrelevant is not None and irrelevant < T - 1
        corpus = (
            varied_selective_corpus(n, T, rng=rng)
            if varied
            else selective_corpus(n, T, rng=rng, irrelevant=irrelevant, equal=equal, repeats=repeats)
        )
        return cls.with_corpus(corpus, seed=seed, **options)

    @classmethod
    def on(cls, sequences: list[str], labels: list[int], **options: Any) -> EmbeddingInstance:
        """A corpus of sequences of words."""
        corpus = TokenCorpus.of([sequence.split() for sequence in sequences], labels)
        return cls.with_corpus(corpus, name=", ".join(sequences), **options)

    def starts(self) -> Iterator[Embeddings]:
        """The random starts."""
        for k in range(self.draws):
            rng = np.random.default_rng([self.seed, k])
            if self.dimension >= self.corpus.size + 2:
                drawn = wishart_embeddings(self.corpus, self.dimension, rng=rng)
                yield _aligned_embeddings(drawn) if self.aligned else drawn
            else:
                yield gaussian_embeddings(self.corpus, int(self.dimension), rng=rng)

    @cached_property
    def steps(self) -> tuple[FirstStep, ...]:
        """The first step from each start."""
        return tuple(first_step(start, self.step) for start in self.starts())

    @cached_property
    def problems_and_choices(self) -> tuple[tuple[TokenProblem, Bool[Array, "n T"]], ...]:
        """The problem of training p after the first step, and the selection that `selection` asks for."""
        return tuple((step.after.problem(), self._selected_mask(k)) for k, step in enumerate(self.steps))

    def _selected_mask(self, k: int) -> Bool[Array, "n T"]:
        """The selection of start k."""
        if self.selection == "important":
            return self._important()
        if self.selection == "everything":
            return self.corpus.mask
        if self.selection == "tied" and (logits := self._tied_logits(k)) is not None:
            values = np.where(self.corpus.mask, logits[self.corpus.index], -1.0)
            return np.asarray(values == values.max(axis=1, keepdims=True))
        return selected_tokens(self.steps[k].after.problem().keys, self.point(k), tolerance=0.0)

    def _important(self) -> Bool[Array, "n T"]:
        """The important tokens, where every sequence has one."""
        missing = np.flatnonzero(~self.corpus.important.any(axis=1))
        if len(missing):
            raise ValueError(
                f"sequence {missing[0]} has no completely positive or negative token, so the selection 'important' has "
                "nothing to select there; take another selection (random, tied or everything)"
            )
        return self.corpus.important

    def point(self, k: int) -> Float[Array, " D"]:
        """A vector `p_o` that selects as `selection` says; for "important" and "everything", any random vector."""
        geometry = self.steps[k].after.geometry
        if self.selection == "tied" and (logits := self._tied_logits(k)) is not None:
            assert isinstance(geometry, Coordinates)
            return np.asarray(np.linalg.pinv(geometry.vectors[: self.corpus.size]) @ logits)
        return geometry.combine(np.random.default_rng([self.seed, k, 1]).standard_normal(geometry.n_vectors))

    def _tied_logits(self, k: int) -> Float[Array, " m"] | None:
        """A logit of 0 or 1 for every token; None where dependent tokens cannot have any logits they like."""
        size = self.corpus.size
        geometry = self.steps[k].after.geometry
        if not isinstance(geometry, Coordinates) or np.linalg.matrix_rank(geometry.vectors[:size]) < size:
            return None
        return np.random.default_rng([self.seed, k, 2]).integers(2, size=size).astype(float)

    @cached_property
    def limits(self) -> tuple[FollowedFlow, ...]:
        """Gradient flow of p after the first step, from each start."""
        return tuple(follow_flow(step.after.problem(), step.after.prompt, norm=self.norm) for step in self.steps)

    def __str__(self) -> str:
        c = self.corpus
        return (
            (f"{self.name}: " if self.name else "")
            + f"n={c.n} T={c.T} |S|={c.size} d={float(self.dimension):.3g} eta0={self.step:g} "
            f"delta={self.delta:g} draws={self.draws} seed={self.seed}"
            + ("" if self.selection == "random" else f" selection={self.selection}")
            + (" aligned" if self.aligned else "")
        )


def _aligned_embeddings(start: Embeddings) -> Embeddings:
    """`E_s = +-h + 0.3 E_s^drawn` with h a unit vector orthogonal to all: + for important tokens, - for the others."""
    assert isinstance(start.geometry, Coordinates)
    *tokens, prompt, head = start.geometry.vectors
    h = np.where(start.corpus.sole_label != 0, 1.0, -1.0)
    moved = np.column_stack([DRAWN_SHARE * np.array(tokens), h])
    return Embeddings.of(start.corpus, moved, np.append(prompt, 0.0), np.append(head, 0.0))


@dataclass(frozen=True, eq=False)
class ProblemInstance:
    """Paper B's setting: a problem and, where a statement needs them, a selection and points.

    **Arguments**
    - `problem`: keys, labels and scores.
    - `name`: how to call it in a report.
    - `loss`: logistic by default.
    - `selected`: the tokens `alpha_i`; the optimal ones by default.
    - `p`, `q`: points or directions the statement speaks of; drawn from `seed` by default.
    - `factor`: what an instance puts where the statement has 1 (the step size over the allowed one, say); for the joint
      theorems |v|/|p|.
    - `optimal`: the sets `O_i` of Assumption D; the tokens of highest score by default.
    - `head`: a nonlinear head, for the statements about any; the problem's linear one by default.
    - `norm`: how far limits are followed.
    """

    problem: TokenProblem
    name: str = "problem"
    loss: AbstractLoss = LogisticLoss()  # noqa: RUF009  # frozen and without state
    selected: tuple[int, ...] | None = None
    p: Float[Array, " D"] | None = None
    q: Float[Array, " D"] | None = None
    factor: float = 1.0
    optimal: Bool[Array, "n T"] | None = None
    head: NonlinearHead | None = None
    norm: float = 1e5
    seed: int = 0

    def __post_init__(self) -> None:
        if self.problem.mask.sum(axis=1).max() < 2:
            raise ValueError("every input has a single token: there is nothing to select, and no claim to check")

    @property
    def alpha(self) -> Int[Array, " n"]:
        """The selected tokens; by default those of highest score."""
        return self.best if self.selected is None else np.array(self.selected, dtype=np.intp)

    @property
    def best(self) -> Int[Array, " n"]:
        """A token of highest score in each input, whatever is selected."""
        return np.where(self.problem.mask, self.problem.scores, -np.inf).argmax(axis=1)

    @property
    def objective(self) -> PromptObjective:
        """The risk as a function of p."""
        return PromptObjective(self.problem, self.loss)

    @property
    def risk(self) -> AbstractObjective:
        """The risk as a function of p, with the nonlinear head where there is one."""
        if self.head is None:
            return self.objective
        return HeadObjective(self.problem, self.loss, head=self.head)

    @property
    def rng(self) -> np.random.Generator:
        """A fresh generator: every check of an instance sees the same numbers."""
        return np.random.default_rng(self.seed)

    def sphere(self, number: int, rng: np.random.Generator) -> Float[Array, "number D"]:
        """Random unit vectors of the keys' span; zeros where all keys are zero."""
        keys = self.problem.keys
        rows = keys.combine(rng.standard_normal((number, keys.n_vectors)))
        lengths = keys.norm(rows)[:, None]
        return rows / np.where(lengths > 0, lengths, 1.0)

    def __str__(self) -> str:
        chosen = "" if self.selected is None else f" alpha={','.join(map(str, self.selected))}"
        factor = "" if self.factor == 1 else f" factor={self.factor:g}"
        return f"{self.name} (n={self.problem.n} T={self.problem.T}){chosen}{factor}"
