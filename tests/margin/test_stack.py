"""Compiled stacks: the certificate is that of single systems, hard cases are handed on, extremes are no surprise."""

import os
import subprocess
import sys
import tempfile

import numba
import numpy as np
import pytest
from tests.oracles.certified import assert_same_vector

from tokenmargin.margin import max_margin, max_margin_batch
from tokenmargin.margin.certificate import TOLERANCE, farkas_residual, kkt_residuals, normalised_systems
from tokenmargin.margin.compiled import forget_older, keep_somewhere
from tokenmargin.margin.compiled.stack import solve_stack
from tokenmargin.margin.compiled.systems import INFEASIBLE, SOLVED, solve_systems
from tokenmargin.norms import EPS
from tokenmargin.problem.token_problem import TokenProblem


@pytest.mark.parametrize(("k", "r"), [(1, 1), (3, 2), (7, 3), (20, 10), (21, 20), (20, 40), (60, 25)])
@pytest.mark.parametrize("zeros", [False, True], ids=["positive", "some bounds zero"])
def test_what_is_claimed_passes_the_certificate(k: int, r: int, zeros: bool) -> None:
    rng = np.random.default_rng(k * r)
    raw, bound = rng.standard_normal((50, k, r)), rng.uniform(0.5, 2, (50, k))
    raw[:25] *= np.sign(raw[:25] @ rng.standard_normal(r))[:, :, None]  # half of them feasible
    if zeros:
        bound[:, 1:] *= rng.random((50, k - 1)) < 0.5
    systems = normalised_systems(raw, bound)
    answers = solve_stack(systems.rows, systems.bound, systems.size)
    residuals = [
        kkt_residuals(*one, size=size)
        for *one, size in zip(systems.rows, systems.bound, answers.multipliers, systems.size, strict=True)
    ]
    solved, refuted = answers.codes == SOLVED, answers.codes == INFEASIBLE
    assert solved[:25].all()
    assert (solved | refuted).mean() > 0.9
    assert (answers.residuals[solved, :4] <= TOLERANCE).all()
    for b in np.flatnonzero(solved).tolist():
        assert residuals[b].largest <= TOLERANCE
        # Two sums of k products in different order differ by at most k eps times the sum of the sizes.
        apart = k * EPS * answers.multipliers[b].sum()
        np.testing.assert_allclose(answers.vectors[b], residuals[b].vector, rtol=0, atol=apart)
        np.testing.assert_allclose(
            answers.norms[b], residuals[b].norm, rtol=0, atol=r * apart + r * EPS * answers.norms[b]
        )
    for b in np.flatnonzero(refuted).tolist():
        assert answers.residuals[b, 4] == 0
        assert farkas_residual(systems.rows[b], systems.bound[b], answers.farkas[b]) <= TOLERANCE
    for b in range(50):  # and daqp, by itself, says the same
        alone = solve_systems(systems.one(b))
        if solved[b]:
            # Both are certified: within 2.1 sqrt(TOLERANCE) each, at worst.
            np.testing.assert_allclose(
                answers.vectors[b], alone.vectors[0], rtol=0, atol=4.2 * TOLERANCE**0.5 * answers.norms[b]
            )
        if refuted[b]:
            assert alone.infeasible[0]


def test_degenerate_stacks() -> None:
    """Integer rows: repeated, opposite, zero and dependent ones; stacks and single systems decide alike."""
    rng = np.random.default_rng(0)
    systems = normalised_systems(rng.integers(-1, 2, (400, 6, 3)).astype(float), np.ones((1, 6)))
    verdicts = solve_systems(systems)
    seen = {"optimal": 0, "infeasible": 0}
    for b in range(400):
        alone = solve_systems(systems.one(b))
        optimal = verdicts.optimal[b]
        assert optimal == alone.optimal[0]
        assert optimal == (not verdicts.infeasible[b])
        seen["optimal" if optimal else "infeasible"] += 1
    assert min(seen.values()) > 50


@pytest.mark.parametrize("scale", [1e-150, 1e-120, 1e120, 1e150])
def test_the_scale_of_the_tokens_does_not_matter(scale: float) -> None:
    rng = np.random.default_rng(2)
    keys, selected = rng.standard_normal((20, 2, 3, 4)), rng.integers(0, 3, (20, 2))
    plain, scaled = max_margin_batch(keys, selected), max_margin_batch(keys * scale, selected)
    np.testing.assert_array_equal(scaled.optimal, plain.optimal)
    np.testing.assert_array_equal(scaled.infeasible, plain.infeasible)
    for b in range(20):
        if plain.optimal[b]:
            assert_same_vector(scaled.vectors[b] * scale, plain.vectors[b], scaled[b], plain[b])
        one = max_margin(TokenProblem.of(keys[b] * scale, np.ones(2), scores=np.zeros((2, 3))), selected[b])
        assert one.status == plain[b].status


def test_single_tokens_have_nothing_to_separate() -> None:
    batch = max_margin_batch(np.ones((3, 2, 1, 4)), np.zeros((3, 2), dtype=int))
    assert batch.optimal.all()
    assert [solution.margin for solution in batch] == [np.inf] * 3
    assert batch[0].tokens.shape == (0, 2)


def test_large_problems_in_a_batch() -> None:
    """More constraints than the compiled code takes."""
    rng = np.random.default_rng(3)
    keys = rng.standard_normal((3, 30, 6, 12))
    selected = (keys @ rng.standard_normal(12)).argmax(axis=2)
    batch = max_margin_batch(keys, selected)
    assert batch.optimal.all()
    for b, solution in enumerate(batch):
        one = max_margin(TokenProblem.of(keys[b], np.ones(30), scores=np.zeros((30, 6))), selected[b])
        assert_same_vector(solution.vector, one.vector, solution, one)


def test_threads_change_nothing() -> None:
    rng = np.random.default_rng(4)
    keys, selected = rng.standard_normal((300, 4, 6, 5)), rng.integers(0, 6, (300, 4))
    one, three = max_margin_batch(keys, selected, threads=1), max_margin_batch(keys, selected, threads=3)
    np.testing.assert_array_equal(one.vectors, three.vectors)
    np.testing.assert_array_equal(one.residuals, three.residuals)
    assert one.seconds > 0
    assert one[0].seconds == one.seconds / 300


def test_compiled_code_is_loaded_only_where_it_is_used() -> None:
    check = "import sys, tokenmargin.margin; assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True)


def test_compiled_code_is_kept_for_the_process_where_nothing_can_be_written(tmp_path, monkeypatch) -> None:
    (tmp_path / "installed").mkdir()
    (tmp_path / "home").mkdir()
    allowed = {tmp_path / "home"}
    monkeypatch.setattr(os, "access", lambda path, _: path in allowed)
    home = {"XDG_CACHE_HOME": str(tmp_path / "home")}
    beside = tmp_path / "installed" / "__pycache__"
    assert keep_somewhere(beside, home) is None  # numba finds the user's cache
    allowed.clear()
    monkeypatch.setattr(tempfile, "mkdtemp", lambda prefix: str(tmp_path / prefix))
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    assert keep_somewhere(beside, home) == str(tmp_path / "tokenmargin-") == home["NUMBA_CACHE_DIR"]
    assert keep_somewhere(beside, home) is None  # there is one now
    allowed.add(tmp_path / "installed")
    assert keep_somewhere(beside, {"XDG_CACHE_HOME": str(tmp_path / "home")}) is None


def test_compiled_code_older_than_a_source_is_forgotten(tmp_path) -> None:
    """numba fails on what it kept of a class that has moved, and does not see changes in other files."""
    folders = [tmp_path / "compiled", tmp_path / "normed"]
    for folder in folders:
        (folder / "__pycache__").mkdir(parents=True)
        for name in ("old.nbi", "old.1.nbc", "new.nbi", "kept.pyc"):
            (folder / "__pycache__" / name).touch()
            os.utime(folder / "__pycache__" / name, ns=(0, 300 if name == "new.nbi" else 100))
        (folder / "source.py").touch()
        os.utime(folder / "source.py", ns=(0, 50))
    forget_older(*folders)
    assert (folders[0] / "__pycache__" / "old.nbi").exists()
    os.utime(folders[1] / "source.py", ns=(0, 200))
    forget_older(*folders)
    for folder in folders:
        assert sorted(path.name for path in (folder / "__pycache__").iterdir()) == ["kept.pyc", "new.nbi"]
