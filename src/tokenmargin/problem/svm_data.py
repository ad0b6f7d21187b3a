"""The random data of *Transformers as Support Vector Machines*, by the law and the seeds of its public code.

They are drawn in single precision in the order v, Y, X, Z (or V, X, Y, Z), each vector divided by its length, and then
taken for doubles: `TorchNormals` draws the same numbers without torch.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.problem.attention_problems import cross_attention
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.problem.torch_normals import TorchNormals


def _unit(vectors: Float[Array, "... d"]) -> Float[Array, "... d"]:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True))


def svm_problem(seed: int, *, n: int = 6, T: int = 8, d: int = 10) -> TokenProblem:
    """Cross-attention on unit tokens, unit queries and a unit head, all uniform on the sphere; random labels.

    >>> problem = svm_problem(0)
    >>> problem.n, problem.T, problem.keys.matrix_shape
    (6, 8, (10, 10))
    """
    draw = TorchNormals(seed).draw
    head = _unit(draw(d))
    labels = np.where(draw(n) > 0, 1.0, -1.0)
    tokens, queries = _unit(draw(n, T, d)), _unit(draw(n, d))
    return cross_attention(*(a.astype(float) for a in (tokens, queries, labels)), head=head.astype(float))


class ReluData(NamedTuple):
    """Cross-attention before a layer of rectified units: `f = sum_j relu(x V)_j` of the attended token x."""

    problem: TokenProblem
    layer: Float[Array, "d d"]


def svm_relu_data(seed: int, *, n: int = 3, T: int = 4, d: int = 4) -> ReluData:
    """The data of its experiment on several tokens; the problem's scores are those of its tokens attended alone."""
    draw = TorchNormals(seed).draw
    layer = draw(d, d)
    layer /= np.linalg.norm(layer)
    tokens = _unit(draw(n, T, d)).astype(float)
    labels = np.where(draw(n) > 0, 1.0, -1.0)
    queries = _unit(draw(n, d)).astype(float)
    layer = layer.astype(float)
    scores = labels[:, None] * np.maximum(tokens @ layer, 0.0).sum(axis=-1)
    return ReluData(cross_attention(tokens, queries, labels, scores=scores), layer)


def svm_path_data(seed: int) -> TokenProblem:
    """The problems in the plane of its pictures of global convergence: seed 1 (n = 2, T = 3) or 3 (n = 2, T = 5)."""
    if seed not in (1, 3):
        raise ValueError(f"the pictures have the seeds 1 and 3, got {seed}")
    draw = TorchNormals(seed).draw
    head = _unit(draw(2)).astype(float)
    if seed == 1:
        tokens = np.float32(0.3) * draw(2, 3, 2)
        tokens += np.array([[[-1, 0]], [[1, 0]]], dtype=np.float32)
    else:
        tokens = np.float32(0.5) * draw(2, 5, 2)
        tokens[:, 0] = [[1, 0.5], [1, -0.5]]
        tokens[:, 1:] += np.array([-1, 0], dtype=np.float32)
    return cross_attention(tokens.astype(float), _unit(draw(2, 2)).astype(float), [1, 1], head=head)
