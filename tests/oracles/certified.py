"""How far certified answers to one problem can be apart: tolerances that follow from the residuals themselves.

A certificate of residual r says that every margin of p is at least 1 - r, and that p is at most r longer than the
shortest vector p*. So q = p / (1 - r) is feasible, and |q| <= (1 + r) / (1 - r) |p*|. As p* is the projection of zero
on a convex set that holds q, <q - p*, p*> >= 0, hence |q - p*|^2 <= |q|^2 - |p*|^2, which is about 4 r |p*|^2.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

EPS = float(np.finfo(float).eps)


class Answer(Protocol):
    @property
    def certificate(self) -> object: ...


def _residuals(answers: tuple[Answer, ...]) -> list[float]:
    # A residual below the rounding of its own sums means no more than that rounding.
    return [max(answer.certificate.residual, 8 * EPS) for answer in answers]  # type: ignore[attr-defined]


def apart(*answers: Answer) -> float:
    """The largest distance of the vectors of certified answers, as a share of their length (Euclidean norm).

    For each, `|p - p*| <= |q - p*| + |p - q|`, which is at most `2.1 sqrt(r) + 1.1 r` for any r up to 1e-7.
    """
    return sum(2.1 * r**0.5 + 1.1 * r for r in _residuals(answers))


def margins_apart(*answers: Answer) -> float:
    """The largest relative difference of their margins: |p| is within `1 - r` and `1 + r` times |p*|."""
    return sum(1.1 * r for r in _residuals(answers))


def assert_same_vector(one: np.ndarray, other: np.ndarray, *answers: Answer) -> None:
    """Two vectors, in one system of coordinates, are as near as the certificates of their problem promise."""
    size = max(float(np.linalg.norm(one)), float(np.linalg.norm(other)))
    assert float(np.linalg.norm(np.asarray(one) - other)) <= apart(*answers) * size


ESTIMATED = 4
"""The error of a finite part is an estimate, Newton's last step: another processor's may be a few times as long."""

SETTLED = 1e-6
"""The largest angle between p and its certified direction that `limit_of` calls settled: what it promises."""
