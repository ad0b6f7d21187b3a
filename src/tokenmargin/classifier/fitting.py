"""From labelled texts in a vocabulary to a trained one-layer model; what the two-layer one shares with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float, Int
from numpy import ndarray as Array

from tokenmargin.classifier.solver import Penalty, fit_weights, start_weights
from tokenmargin.classifier.validation import Validation, validate
from tokenmargin.classifier.weights import Weights

__all__ = ["Fitted", "Labelled", "Settings", "fit_one_layer"]

ITERATIONS_AFTER_CHECK = 6  # on all texts, from the answer on those not held out
W = TypeVar("W")


@dataclass(frozen=True, eq=False)
class Labelled:
    """Which text holds which token, the class of each text (of `k`), and as how many texts it counts."""

    presence: sp.csr_matrix
    codes: Int[Array, " n"]
    weight: Float[Array, " n"]
    k: int

    def part(self, rows: Array) -> Labelled:
        """Some of the texts."""
        return Labelled(self.presence[rows], self.codes[rows], self.weight[rows], self.k)


@dataclass(frozen=True)
class Settings:
    """The settings of the classifier that concern training."""

    attention: str
    dimension: int | None
    logit_penalty: float
    value_penalty: float
    max_iter: int
    tol: float
    progress: Callable[[int, float], None] | None


@dataclass(frozen=True, eq=False)
class Fitted(Generic[W]):
    """Weights, the loss at every iteration, how texts held out were decided, and what a warm start goes on from."""

    weights: W
    losses: list[float]
    validation: Validation | None
    learned: Weights | None = None


def fit_one_layer(
    data: Labelled, settings: Settings, held: Array | None, *, learned: Weights | None = None
) -> Fitted[Weights]:
    """Train on the texts not held out, judge on those held out, and go on with all."""
    n, uniform = float(data.weight.sum()), settings.attention == "uniform"
    penalty = Penalty(np.inf if uniform else settings.logit_penalty / n, settings.value_penalty / n)
    losses: list[float] = []
    judged = None
    iterations = settings.max_iter
    if held is not None:
        part = data.part(~held)
        found, origin, losses = _fit(part, settings, penalty, learned=learned, iterations=iterations)
        judged = validate(found.decide(data.presence[held]), data.codes[held], data.codes)
        learned = found.since(origin)
        iterations = min(ITERATIONS_AFTER_CHECK, iterations)
    found, origin, more = _fit(data, settings, penalty, learned=learned, iterations=iterations)
    return Fitted(found, losses + more, judged, found.since(origin))


def _fit(
    data: Labelled, settings: Settings, penalty: Penalty, *, learned: Weights | None, iterations: int
) -> tuple[Weights, Weights, list[float]]:
    """Weights, the start that the ridge holds them to, and the losses."""
    uniform = settings.attention == "uniform"
    origin = start_weights(data.presence, data.codes, data.weight, data.k, uniform=uniform)
    found, losses = fit_weights(
        data.presence, data.codes, data.weight, start=origin.moved(learned), origin=origin, penalty=penalty,
        iterations=iterations, tolerance=settings.tol, progress=settings.progress, dimension=settings.dimension,
    )  # fmt: skip
    return found, origin, losses
