"""Problems to start from: random ones, and those of the figures of *Max-Margin Token Selection in Attention Mechanism*.

In the figures with d = 3 a token is `x = (key_1, key_2, score)`: the keys are `W x` with `W = diag(1, 1, 0)` and the
head is `(0, 0, 1)`, so every token can be given any score at any place of the plane.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin._statistics import Rng, generator
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.token_problem import TokenProblem


def random_problem(n: int, T: int, d: int, *, rng: Rng) -> TokenProblem:
    """Tokens and head uniform on the unit sphere, labels fair coins: the data of Figures 9 and 10.

    >>> random_problem(n=4, T=6, d=10, rng=np.random.default_rng(0)).scores.shape
    (4, 6)
    """
    rng = generator(rng)
    for name, size in (("n", n), ("T", T), ("d", d)):
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")
    keys = _on_sphere(rng, (n, T, d))
    return TokenProblem.of(keys, rng.choice([-1.0, 1.0], size=n), head=_on_sphere(rng, (d,)))


def shared_vocabulary_problem(n: int, T: int, d: int, *, vocabulary: int, rng: Rng) -> TokenProblem:
    """As `random_problem`, but the tokens of every input are drawn from one dictionary of `vocabulary` vectors."""
    rng = generator(rng)
    if not 1 <= T <= vocabulary:
        raise ValueError(f"T must lie in 1..vocabulary = {vocabulary} (no token twice in one input), got {T}")
    vectors = _on_sphere(rng, (vocabulary, d))
    index = np.stack([rng.choice(vocabulary, size=T, replace=False) for _ in range(n)])
    return TokenProblem(Coordinates(vectors, index), rng.choice([-1.0, 1.0], size=n), head=_on_sphere(rng, (d,)))


def figure1a() -> TokenProblem:
    """One input of three tokens; the two others score alike, so every start reaches the GMM (Theorem 2)."""
    return _planar([[(-0.1, 1.0, 1.0), (1.0, 0.0, 0.9), (0.0, 0.0, 0.9)]])


def figure1b() -> TokenProblem:
    """As 1a, but the token at the origin scores 0: token 1 becomes locally optimal (Theorem 3)."""
    return _planar([[(-0.1, 1.0, 1.0), (1.0, 0.0, 0.9), (0.0, 0.0, 0.0)]])


_FIGURE_1C_KEYS = (
    ((0.774832, -0.23047204), (-1.0867758, 1.1697421), (-1.0632025, 0.57695615), (-1.252667, 1.0699966),
     (-0.4760317, -0.2524684), (-0.54945564, -0.77053076), (-0.38666987, -0.34129834)),
    ((0.68898094, -0.06827208), (-0.8499621, 0.8829005), (-0.9633044, 1.2778733), (-0.81074035, 0.8312646),
     (-0.49368146, -0.5985354), (-0.41206083, -0.47751775), (-0.41176873, -0.5204619)),
    ((0.94206643, 0.0105015), (-0.5395589, 0.7062212), (-1.1138496, 1.1839943), (-0.74202514, 0.7043652),
     (-0.594624, -0.23494503), (-0.60994875, -0.5959669), (-0.7133961, -0.27701208)),
)  # fmt: skip


def figure1c() -> TokenProblem:
    """Three inputs of seven tokens, the first of each optimal; also the data of Figure 4."""
    return _planar([[(*key, 1.0 if t == 0 else 0.5) for t, key in enumerate(row)] for row in _FIGURE_1C_KEYS])


def figure3a(third: tuple[float, float] = (0.5, 1.0)) -> TokenProblem:
    """Three inputs {(0, 0), x_i}: head and attention are trained together; all x_i are support vectors (Theorem 5)."""
    tokens = np.array([[(0.0, 0.0), (1.0, 1.0)], [(0.0, 0.0), (1.0, -1.0)], [(0.0, 0.0), third]])
    return TokenProblem.of(tokens, [1, -1, 1], head=[-1.0, 0.0])


def figure3b() -> TokenProblem:
    """As 3a, with the third token moved up to (0.5, 1.5): no longer a support vector (Theorem 6)."""
    return figure3a(third=(0.5, 1.5))


def figure5(score: float = 1.0) -> TokenProblem:
    """Two inputs whose optimal tokens (1, 1) and (1, -1) score `score` and 1: how the loss bends the path."""
    return _planar([[(0.0, 0.0, 0.0), (1.0, 1.0, score)], [(0.0, 0.0, 0.0), (1.0, -1.0, 1.0)]])


def figure8() -> TokenProblem:
    """Two inputs of two tokens with d = 2 and two limits: Theorem 2 needs n = 1. Our own instance (none is printed).

    With `d_i` the optimal key minus the other key of input `i`, the direction `d_1` selects the worse token of input 2
    and is locally optimal when that token wins by more than the margin: `-<d_2, d_1> > |d_1|^2`. Here `d_1 = (1, 0)`
    and `d_2 = (-2, 1)`: the LMM is (1, 0) and the GMM is (1, 3). W is the identity, and the head (1, 3) gives the
    optimal tokens the score 1 and the others 0.
    """
    keys = [[(1.0, 0.0), (0.0, 0.0)], [(-2.0, 1.0), (0.0, 0.0)]]
    return TokenProblem.of(keys, [1, 1], head=[1.0, 3.0])


def three_limits() -> TokenProblem:
    """Two inputs of four tokens in the plane with three limit directions: an instance of our own, to demonstrate."""
    return _planar(
        [
            [(-0.1, -0.6, 0.8), (-0.5, -0.2, 0.1), (0.0, 0.2, 0.3), (0.1, 1.0, 0.6)],
            [(-0.3, -0.6, 0.7), (0.5, 0.5, 0.3), (-0.7, 0.1, 0.4), (-0.1, 0.1, 0.2)],
        ]
    )


def figure9(d: int, *, rng: Rng) -> TokenProblem:
    """One trial of Figures 9 and 10: four inputs of six random tokens in `d` dimensions."""
    return random_problem(n=4, T=6, d=d, rng=rng)


NAMED_PROBLEMS: MappingProxyType[str, Callable[[], TokenProblem]] = MappingProxyType(
    {
        "fig1a": figure1a,
        "fig1b": figure1b,
        "fig1c": figure1c,
        "fig3a": figure3a,
        "fig3b": figure3b,
        "fig5": figure5,
        "fig8": figure8,
        "three-limits": three_limits,
    }
)
"""Problems that take no argument, by name: what the command line accepts in place of a file."""


def _on_sphere(rng: np.random.Generator, shape: tuple[int, ...]) -> Float[Array, "..."]:
    points = rng.standard_normal(shape)
    return points / np.linalg.norm(points, axis=-1, keepdims=True)


def _planar(tokens: list[list[tuple[float, float, float]]]) -> TokenProblem:
    """Tokens (key_1, key_2, score), labels +1, W = diag(1, 1, 0), head (0, 0, 1)."""
    values = np.array(tokens)
    return TokenProblem.of(values * [1.0, 1.0, 0.0], np.ones(len(tokens)), values=values, head=[0.0, 0.0, 1.0])
