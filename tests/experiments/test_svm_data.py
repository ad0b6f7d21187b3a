"""The data of *Transformers as Support Vector Machines* without torch: the same numbers as torch's."""

import numpy as np
import pytest
from tests.oracles.rounding import rounding

from tokenmargin.problem.attention_problems import TorchNormals, svm_path_data, svm_problem, svm_relu_data

ONE_ULP = 4.8e-7  # of single precision for numbers up to 8: torch's vector unit rounds logarithm and cosine otherwise


@pytest.mark.parametrize("seed", [0, 1, 99, 2**31, 2**32 - 1])
def test_normals_are_those_of_torch(seed):
    torch = pytest.importorskip("torch", reason="torch is not installed; it is in the extra train")
    generator, ours = torch.Generator().manual_seed(seed), TorchNormals(seed)
    for shape in ((10,), (3,), (6, 8, 10), (1,), (2,), (6, 10), (15,), (16,), (17,), (5,)):
        expected = torch.randn(shape, generator=generator).numpy()
        np.testing.assert_allclose(ours.draw(*shape), expected, rtol=0, atol=ONE_ULP)


def test_normals_as_recorded():
    """Printed by torch 2: `torch.randn(3)` after `manual_seed(0)`."""
    np.testing.assert_allclose(TorchNormals(0).draw(3), [1.5409961, -0.2934289, -2.1787894], rtol=0, atol=ONE_ULP)


def test_problems_have_unit_vectors_and_the_printed_law():
    problem = svm_problem(5)
    for vectors in (problem.values.tokens, problem.keys.queries, problem.head[None]):
        np.testing.assert_allclose(
            np.linalg.norm(vectors, axis=-1), 1, rtol=0, atol=3e-7
        )  # a few roundings of single precision
    assert set(problem.labels) <= {-1.0, 1.0}
    data = svm_relu_data(5, d=6)
    alone = np.maximum(data.problem.values.tokens @ data.layer, 0).sum(axis=-1)
    # Sums of 6 rectified products of unit vectors.
    np.testing.assert_allclose(data.problem.scores, data.problem.labels[:, None] * alone, rtol=0, atol=rounding(6, 6))
    path = svm_path_data(3)
    np.testing.assert_array_equal(path.values.tokens[:, 0], [[1, 0.5], [1, -0.5]])


def test_seeds_that_are_none_are_refused():
    with pytest.raises(ValueError, match=r"seed must lie in 0\.\.4294967295"):
        TorchNormals(-1)
    with pytest.raises(ValueError, match="seeds 1 and 3"):
        svm_path_data(2)
