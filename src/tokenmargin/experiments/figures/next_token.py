"""The public experiments of *Mechanics of Next Token Prediction with Self-Attention*: their draws, seeds and numbers.

Two notebooks train one layer by normalised descent and print the correlation of W with the graph max-margin solution,
for ten draws each. The draws are torch's, so the very same problems and starts can be drawn again. There, gradients are
divided by `|gradient| + eps`, a guard that stops training where the gradient is small; here nothing guards.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array
from scipy.special import softmax

from tokenmargin.dynamics import NormalizedGradientDescent, evolve
from tokenmargin.experiments.experiment import AbstractExperiment, Curves, Finding, Progress, Result, Table, track
from tokenmargin.experiments.tables import PAPER_D, columns
from tokenmargin.limits import NextTokenLimit, limit_of, next_token_limit
from tokenmargin.objective.attention import AbstractObjective, PromptObjective
from tokenmargin.objective.local_scores import HeadObjective, NonlinearHead
from tokenmargin.objective.losses import CustomLoss, LogLoss
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.next_token import NextTokenProblem
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import attention_weights

SEQUENCES, LENGTH, VOCABULARY, DIMENSION = 6, 4, 6, 8
GLOBAL = (
    0.98744261, 0.98757892, 0.98401835, 0.98774575, 0.98767699, 0.99123754, 0.97859767, 0.97615322, 0.98601229,
    0.99279535,
)  # fmt: skip
LOCAL = (
    0.99887992, 0.99209596, 0.99952876, 0.9970317, 0.99857763, 0.99940865, 0.99917508, 0.99583999, 0.99928289,
    0.99951486,
)  # fmt: skip
"""Correlations that the two notebooks print, draw by draw."""
SOLVER = 1e-4  # relative accuracy of the solver behind the printed numbers: they are known to about this
SELECTED = 1e-2  # weight from which the local notebook takes a token for selected


def drawn_problems(count: int, *, unused: int) -> Iterator[tuple[NextTokenProblem, Float[Array, "d d"]]]:
    """The notebooks' problems and starts in their order: torch's generator, asked for the same numbers.

    Sequences are drawn again until some graph has a cycle. After each start, as many layers as are `unused` here are
    drawn, since the notebooks draw them.
    """
    import torch

    rng = torch.Generator().manual_seed(1)
    layer = 1 / np.sqrt(DIMENSION)  # torch's default for a linear layer: uniform up to this

    def uniform() -> Float[Array, "d d"]:
        return np.asarray(torch.empty(DIMENSION, DIMENSION).uniform_(-layer, layer, generator=rng).double().numpy())

    def problem() -> NextTokenProblem:
        rows = torch.randn(VOCABULARY, DIMENSION, generator=rng).double()
        even = torch.ones(VOCABULARY)
        sequences = torch.multinomial(even.expand(SEQUENCES, -1), LENGTH, replacement=False, generator=rng).numpy()
        labels = torch.multinomial(even, SEQUENCES, replacement=True, generator=rng).numpy()
        for i, row in enumerate(sequences):
            if labels[i] not in row:
                labels[i] = row[int(torch.randint(LENGTH, (1,), generator=rng))]
        return NextTokenProblem.of(sequences, labels, embeddings=torch.nn.functional.normalize(rows, dim=-1).numpy())

    for _ in range(count):
        drawn = problem()
        while drawn.graph.is_acyclic:
            drawn = problem()
        start = uniform()
        for _ in range(unused):
            uniform()
        yield drawn, start.T  # their logits are x' W z


@dataclass(frozen=True)
class _Notebook(AbstractExperiment):
    """Ten draws, trained as printed, compared with the certified solution and with the printed correlations."""

    source = PAPER_D
    needs = ("train",)
    curves = Curves("draws", "draw", ("printed", "cosine", "farther"))
    shown_tables = ("draws",)
    printed: ClassVar[tuple[float, ...]]
    unused: ClassVar[int]

    draws: int = 10
    steps: int = 4000
    step: float = 0.01

    @abc.abstractmethod
    def measure_draw(self, problem: NextTokenProblem, start: Float[Array, "d d"]) -> dict[str, object]:
        """What is measured of one draw."""

    def run(self, progress: Progress = None) -> Result:
        rows = []
        drawn = drawn_problems(self.draws, unused=self.unused)
        for draw in track(range(self.draws), progress):
            problem, start = next(drawn)
            printed = self.printed[draw] if draw < len(self.printed) else np.nan
            rows.append({"draw": draw, "printed": printed, **self.measure_draw(problem, start)})
        table = columns(rows)
        return Result(self, {"draws": table}, self.findings(table))

    @abc.abstractmethod
    def findings(self, table: Table) -> tuple[Finding, ...]:
        """What is expected of the draws."""


def _train(objective: AbstractObjective, start: Float[Array, "d d"], step: float, steps: int) -> Float[Array, " D"]:
    return evolve(objective, NormalizedGradientDescent(step), steps=steps, start=start.ravel()).final


class NextTokenGlobal(_Notebook):
    """`tokenmargin reproduce ntp-global`: about 25 s; the printed correlations, and the limit itself."""

    figure = "ntp-global"
    title = "Next tokens, log loss: W goes to the graph max-margin direction and a finite part"
    seconds = (25, 25)
    shows = (
        "ten draws of six sequences over six tokens; after 4000 steps of normalised descent W has a correlation of "
        ".976 to .993 with the graph max-margin solution (printed by the public notebook)."
    )
    printed = GLOBAL
    unused = 1

    def measure_draw(self, problem: NextTokenProblem, start: Float[Array, "d d"]) -> dict[str, object]:
        limit, posed = next_token_limit(problem), problem.attention()
        weights = _train(PromptObjective(posed, LogLoss()), start, self.step, self.steps)
        farther = limit_of(posed, start.ravel(), loss=LogLoss())
        part = farther.finite
        return {
            "cosine": limit.cosine(weights),
            "farther": limit.cosine(farther.point),
            "angle": farther.angle,
            "rate": farther.rate,
            "finite_off": np.nan if part is None else float(np.linalg.norm(part.point - limit.finite.point)),
            "finite_rate": farther.finite_rate,
            "certified": limit.is_certified,
        }

    def findings(self, table: Table) -> tuple[Finding, ...]:
        off = np.abs(table["cosine"] - table["printed"])
        return (
            Finding("largest difference to a printed correlation", _largest(off), high=SOLVER,
                    source="the notebook, draw by draw; its solver's accuracy", basis="printed"),
            Finding("certified limits", int(table["certified"].sum()), low=self.draws, source="both certificates"),
            Finding("flow to |W| = 1e8: largest angle to the certified direction", float(table["angle"].max()),
                    high=1e-6, source="gradient descent converges in direction", basis="theorem"),
            Finding("flow: largest distance of its finite part to the certified one",
                    _largest(table["finite_off"]), high=1e-8,
                    source="the projection onto the ties converges", basis="theorem"),
            Finding("flow: exponent of the angle in the norm, largest", float(table["rate"].max()), -1.01, -0.99,
                    source="W = R W_mm + W_fin"),
            Finding("flow: exponent of the distance to the finite part in time, median",
                    float(np.nanmedian(table["finite_rate"])), -1.05, -0.95,
                    source="weights of the others fall as 1/t"),
        )  # fmt: skip


@dataclass(frozen=True)
class NextTokenLocal(_Notebook):
    """`tokenmargin reproduce ntp-local`: about 20 s; local limits of a general head, passed without the guard."""

    figure = "ntp-local"
    title = "Next tokens, general head and squared loss: W goes to a local max-margin solution"
    seconds = (20, 20)
    shows = (
        "ten draws with the embeddings as head and the loss (1 - softmax)^2; after 2000 steps W has a correlation of "
        ".992 to .9995 with the max-margin solution of the tokens it selects (printed by the public notebook)."
    )
    printed = LOCAL
    unused = 2

    steps: int = 2000
    step: float = 0.1

    def measure_draw(self, problem: NextTokenProblem, start: Float[Array, "d d"]) -> dict[str, object]:
        objective = _general_head(problem)
        weights = _train(objective, start, self.step, self.steps)
        guarded = _train_with_torch(problem, start, self.step, self.steps)
        farther = _train(objective, start, self.step, 4 * self.steps)
        limit = _selected_limit(problem, objective.problem, weights)
        return {
            "guarded": _selected_limit(problem, objective.problem, guarded).cosine(guarded),
            "cosine": limit.cosine(weights),
            "farther": limit.cosine(farther),
            "guarded_norm": float(np.linalg.norm(guarded)),
            "norm": float(np.linalg.norm(weights)),
            "certified": limit.direction.is_optimal,
        }

    def findings(self, table: Table) -> tuple[Finding, ...]:
        return (
            Finding("with the guard: largest difference to a printed correlation",
                    _largest(np.abs(table["guarded"] - table["printed"])), high=SOLVER,
                    source="the notebook, draw by draw; its solver's accuracy", basis="printed"),
            Finding("without: draws whose correlation is at least the printed one",
                    int((table["cosine"] >= table["printed"] - SOLVER).sum()), low=self.draws, source="the same steps"),
            Finding("four times as many steps: draws above .9999", int((table["farther"] > 0.9999).sum())),
            Finding("four times as many steps: draws farther from the direction than before",
                    int((table["farther"] < table["cosine"]).sum()), high=0),
            Finding("certified directions", int(table["certified"].sum()), low=self.draws, source="the certificate"),
        )  # fmt: skip


def _general_head(problem: NextTokenProblem) -> HeadObjective:
    """The output is `softmax(E x)_y` of the attended vector x: values carry their label's unit vector beside them."""
    posed, rows = problem.attention(), problem.embeddings
    assert rows is not None, "the draws have embeddings"
    index = problem.tokens.reshape(problem.n, -1)
    beside = np.eye(problem.size)[problem.labels]
    values = np.concatenate([rows[index], np.repeat(beside[:, None], index.shape[1], axis=1)], axis=-1)
    d = rows.shape[1]

    def output(x: Array) -> Array:
        return np.asarray((softmax(x[..., :d] @ rows.T, axis=-1) * x[..., d:]).sum(axis=-1))

    def gradient(x: Array) -> Array:
        shares = softmax(x[..., :d] @ rows.T, axis=-1)
        chosen = (shares * x[..., d:]).sum(axis=-1, keepdims=True)
        return np.concatenate([(shares * x[..., d:] - chosen * shares) @ rows, shares], axis=-1)

    loss = CustomLoss(lambda u: (1 - u) ** 2, lambda u: -2 * (1 - u), lambda u: np.full_like(u, 2.0))
    full = TokenProblem(posed.keys, posed.labels, Coordinates.of(values), scores=posed.scores)
    return HeadObjective(full, loss, head=NonlinearHead(output, gradient))


def _train_with_torch(
    problem: NextTokenProblem, start: Float[Array, "d d"], step: float, steps: int
) -> Float[Array, " D"]:
    """The layer in torch, trained as in the notebook: autograd, the gradient over its length plus the rounding unit."""
    import torch

    assert problem.embeddings is not None, "the draws have embeddings"
    rows = torch.tensor(problem.embeddings)
    keys = rows[torch.tensor(problem.tokens.reshape(problem.n, -1))]
    queries, labels = rows[torch.tensor(problem.last)], torch.tensor(problem.labels)
    weights = torch.tensor(start.copy(), requires_grad=True)
    for _ in range(steps):
        shares = torch.softmax(torch.einsum("nd,de,nte->nt", queries, weights, keys), dim=-1)
        attended = torch.einsum("nt,ntd->nd", shares, keys)
        chosen = torch.softmax(attended @ rows.T, dim=-1)[torch.arange(problem.n), labels]
        (gradient,) = torch.autograd.grad(((1 - chosen) ** 2).mean(), weights)
        with torch.no_grad():
            weights -= step * gradient / (gradient.norm() + torch.finfo(gradient.dtype).eps)
    return np.asarray(weights.detach().numpy().ravel())


def _selected_limit(problem: NextTokenProblem, posed: TokenProblem, weights: Float[Array, " D"]) -> NextTokenLimit:
    """The graph problem in which every selected token of a sequence counts as its next one."""
    shares = attention_weights(posed.keys, weights)
    rows = problem.tokens.reshape(problem.n, -1)
    picked = [(rows[i], rows[i, t]) for i, t in np.argwhere(shares > SELECTED)]
    chosen = NextTokenProblem.of(
        [row for row, _ in picked], [token for _, token in picked], embeddings=problem.embeddings
    )
    return next_token_limit(chosen)


def _largest(values: Float[Array, " draws"]) -> float:
    """The largest number that is known; NaN without one."""
    known = values[np.isfinite(values)]
    return float(known.max()) if known.size else np.nan
