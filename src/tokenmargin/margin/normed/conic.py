"""Nuclear and spectral norms."""

from __future__ import annotations

from collections.abc import Iterator

from jaxtyping import Bool, Float
from numpy import ndarray as Array

from tokenmargin.norms import SchattenNorm

__all__ = ["matrix_proposals"]


def matrix_proposals(
    norm: SchattenNorm, rows: Float[Array, "k r"], bound: Float[Array, " k"], tied: Bool[Array, " k"]
) -> Iterator[tuple[Float[Array, " r"], Float[Array, " k"]]]:
    """None so far."""
    return iter(())
