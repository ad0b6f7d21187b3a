"""Batches give the answers of single calls, block by block."""

import numpy as np
import pytest
from tests.oracles.certified import EPS, assert_same_vector
from tests.oracles.rounding import rounding

from tokenmargin.margin import TOLERANCE, max_margin, max_margin_batch
from tokenmargin.margin import batch as module
from tokenmargin.problem.token_problem import TokenProblem


@pytest.mark.parametrize(("n", "T", "d"), [(4, 6, 2), (3, 4, 5), (2, 3, 40)])
def test_a_batch_is_its_problems_one_by_one(n: int, T: int, d: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", 7)  # blocks of seven, to cross their borders
    rng = np.random.default_rng(d)
    keys, selected = rng.standard_normal((40, n, T, d)), rng.integers(0, T, (40, n))
    keys[3, 0, 0] = keys[3, 0, 1]
    selected[3, 0] = 0  # a duplicate: infeasible
    done: list[int] = []
    batch = max_margin_batch(keys, selected, progress=done.append)
    assert done == [7, 14, 21, 28, 35, 40]
    for b in range(40):
        one = max_margin(TokenProblem.of(keys[b], np.ones(n), scores=np.zeros((n, T))), selected[b])
        assert batch[b].status == one.status
        np.testing.assert_array_equal(batch[b].tokens, one.tokens)
        if one.is_optimal:
            assert_same_vector(batch[b].vector, one.vector, batch[b], one)
            rows = np.repeat(keys[b][np.arange(n), selected[b]], T - 1, axis=0) - keys[b][tuple(one.tokens.T)]
            held = rows[one.active]
            np.testing.assert_array_equal(batch[b].active, one.active)
            # Multipliers solve `held held' m = 1`: two ways of rounding its sums differ by that times its condition.
            off = 2 * d * EPS * np.linalg.cond(held @ held.T) * one.multipliers.max()
            np.testing.assert_allclose(batch[b].multipliers, one.multipliers, rtol=0, atol=off)
        assert batch[b].certificate.residual <= TOLERANCE
        if one.status == "infeasible":
            rows = np.repeat(keys[b][np.arange(n), selected[b]], T - 1, axis=0) - keys[b][tuple(batch[b].tokens.T)]
            assert (batch[b].farkas >= 0).all()
            assert np.linalg.norm(batch[b].farkas @ rows) <= TOLERANCE * np.linalg.norm(rows, axis=1).max()
            assert batch[b].farkas.sum() == pytest.approx(1, rel=rounding(2 * len(rows)), abs=0)
    assert batch[3].status == "infeasible"
    assert (batch.optimal ^ batch.infeasible).all()


def test_many_selections_of_one_problem() -> None:
    rng = np.random.default_rng(1)
    keys, selected = rng.standard_normal((1, 3, 4, 6)), rng.integers(0, 4, (30, 3))
    shared, repeated = max_margin_batch(keys, selected), max_margin_batch(np.repeat(keys, 30, axis=0), selected)
    np.testing.assert_array_equal(shared.vectors, repeated.vectors)  # the same code on the same numbers
    assert len(shared) == 30
    assert shared[-1].margin == shared[29].margin


@pytest.mark.parametrize(
    ("keys", "selected", "message"),
    [
        (np.zeros((2, 3, 4)), np.zeros((2, 3), int), "shape"),
        (np.zeros((2, 3, 4, 5)), np.zeros((2, 2), int), "n = 3"),
        (np.zeros((2, 3, 4, 5)), np.zeros((5, 3), int), "one problem or 5"),
        (np.zeros((1, 3, 4, 5)), np.full((2, 3), 4), "0..3"),
        (np.full((1, 1, 2, 1), np.nan), np.zeros((1, 1), int), "finite"),
        ([[[[1.0, 2.0], [1.0]]]], np.zeros((1, 1), int), "keys must be a rectangular array.*sizes one by one"),
    ],
)
def test_errors_say_what_is_wrong(keys, selected, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        max_margin_batch.__wrapped__(keys, selected) if hasattr(max_margin_batch, "__wrapped__") else max_margin_batch(
            keys, selected
        )


@pytest.mark.parametrize("norm", ["l1", "linf", "lp:1.5", "lp:3"])
@pytest.mark.parametrize("scale", [1.0, 1e-90])
def test_a_batch_in_another_norm_is_its_problems_one_by_one(norm: str, scale: float) -> None:
    rng = np.random.default_rng(5)
    keys, selected = rng.standard_normal((20, 2, 3, 4)), rng.integers(0, 3, (20, 2))
    keys[:6] = rng.integers(-1, 2, (6, 2, 3, 4))  # ties, repeats, faces of solutions
    keys[3, 0, 0] = keys[3, 0, 1]
    selected[3, 0] = 0  # infeasible
    batch = max_margin_batch(keys * scale, selected, norm=norm)
    for b in range(20):
        one = max_margin(TokenProblem.of(keys[b] * scale, np.ones(2), scores=np.zeros((2, 3))), selected[b], norm=norm)
        assert batch[b].status == one.status != "inaccurate"
        assert batch[b].margin == pytest.approx(one.margin, rel=2e-9, abs=0)  # two certified gaps of at most 1e-9
        if one.is_optimal:
            assert (one.norm, one.face is None) == (batch[b].norm, False)
            assert batch[b].freedom is None
            rows = np.repeat(keys[b][np.arange(2), selected[b]], 2, axis=0) - keys[b][tuple(batch[b].tokens.T)]
            assert (rows @ (batch[b].vector * scale)).min() >= 1 - TOLERANCE
    assert (batch.optimal ^ batch.infeasible).all()
    assert batch.infeasible[3]


@pytest.mark.parametrize("norm", ["l1", "lp:1.5", "lp:3"])
def test_rays_of_small_integers_are_decided_in_a_batch_of_another_norm(norm: str) -> None:
    """Whole numbers: infeasible by a hair's breadth or not, and a ray that proves nothing is not kept as a proof."""
    rng = np.random.default_rng(1)
    keys, selected = rng.integers(-2, 3, size=(60, 3, 4, 3)).astype(float), rng.integers(0, 4, size=(60, 3))
    euclidean, batch = max_margin_batch(keys, selected), max_margin_batch(keys, selected, norm=norm, threads=2)
    assert 0 < batch.optimal.sum() < 60
    assert (batch.optimal == euclidean.optimal).all()
    assert (batch.infeasible == euclidean.infeasible).all()
    assert not batch.farkas[batch.optimal].any()
    np.testing.assert_array_equal(batch.farkas[batch.infeasible].sum(axis=1).round(12), 1)


def test_problems_of_very_different_size_share_a_stack_in_another_norm() -> None:
    """Each is solved in its own unit: beside keys of 1e300, those of 1e-20 once lost every digit."""
    keys = np.random.default_rng(3).standard_normal((3, 1, 2, 2))
    sizes = np.array([1e300, 1.0, 1e-20])
    batch = max_margin_batch(keys * sizes[:, None, None, None], np.zeros((3, 1), dtype=int), norm="lp:1.5")
    alone = max_margin_batch(keys, np.zeros((3, 1), dtype=int), norm="lp:1.5")
    assert batch.optimal.all()
    # Both margins are within their certified gap of the least norm; scaling the keys scales the margin.
    np.testing.assert_allclose(batch.margins, alone.margins * sizes, rtol=2 * batch.tolerance)
    assert np.isfinite(batch.multipliers).all()


@pytest.mark.parametrize("norm", ["l2", "linf", "nuclear", "spectral"])
def test_a_batch_of_matrices_is_its_problems_one_by_one(norm: str) -> None:
    rng = np.random.default_rng(6)
    keys, selected, queries = (
        rng.standard_normal((4, 2, 3, 3)),
        rng.integers(0, 3, (4, 2)),
        rng.standard_normal((1, 2, 2)),
    )
    keys[2, 0, 0] = keys[2, 0, 1]
    selected[2, 0] = 0  # infeasible
    batch = max_margin_batch(keys, selected, queries=queries, norm=norm)
    for b in range(4):
        problem = TokenProblem.of(keys[b], np.ones(2), scores=np.zeros((2, 3))).with_matrix(queries[0])
        one = max_margin(problem, selected[b], norm=norm)
        assert batch[b].status == one.status != "inaccurate"
        assert batch[b].margin == pytest.approx(one.margin, rel=2 * batch.tolerance, abs=0)
        if one.is_optimal:
            assert batch[b].matrix.shape == one.matrix.shape == (2, 3)
            logits = np.einsum("nq,qd,ntd->nt", queries[0], batch[b].matrix, keys[b])
            lead = logits[np.arange(2), selected[b]][:, None] - logits
            assert np.sort(lead, axis=1)[:, 1].min() >= 1 - 1e-9  # 0 is the lead over itself
    assert batch.infeasible.tolist() == [False, False, True, False]


def test_a_batch_of_matrices_says_what_it_needs() -> None:
    keys, selected = np.zeros((2, 3, 4, 5)), np.zeros((2, 3), dtype=int)
    with pytest.raises(ValueError, match=r"nuclear norm is one of matrices: give the queries"):
        max_margin_batch(keys, selected, norm="nuclear")
    with pytest.raises(ValueError, match="queries must be finite"):
        max_margin_batch(keys, selected, queries=np.full((1, 3, 2), np.nan))


@pytest.mark.usefixtures("unchecked_shapes")
def test_a_batch_of_inner_products_says_what_to_do() -> None:
    gram = TokenProblem.of(np.eye(3)[None], [1], scores=[[1.0, 0, 0]]).as_gram()
    with pytest.raises(TypeError, match=r"one by one, by max_margin\(problem, selected\)"):
        max_margin_batch(gram.keys, np.array([[0]]))  # type: ignore[arg-type]


def test_what_is_beyond_doubles_is_said_alike() -> None:
    """Keys of 1e-314 ask for vectors of 1e314: of norms other than l2 a batch once called one of length 1 optimal."""
    keys = np.array([[[2, 1], [-2, 1], [2, -1]], [[1, -2], [-1, -2], [-2, 1]]]) * 1e-314
    problem = TokenProblem.of(keys, [1, 1], scores=np.zeros((2, 3)))
    for norm in ("l2", "l1", "linf", "lp:1.5"):
        alone, stacked = (
            max_margin(problem, [0, 0], norm=norm),
            max_margin_batch(keys[None], np.zeros((1, 2), dtype=int), norm=norm)[0],
        )
        for found in (alone, stacked):
            assert found.status == "inaccurate"
            assert found.margin == 0
            assert not found.vector.any()
            assert found.explanation == "not decided: beyond the range or the digits of doubles"
