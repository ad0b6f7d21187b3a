"""Selection classes, several optimal tokens, the closed form, arcs of the plane: each against its definition."""

import itertools

import numpy as np
import pytest
from tests.oracles.certified import assert_same_vector, margins_apart
from tests.oracles.rounding import of_logits, rounding

from tokenmargin.margin import TOLERANCE, choice_margin, class_margin, max_margin, selection_arcs
from tokenmargin.margin.certificate import PRODUCTS_TOLERANCE
from tokenmargin.problem.instances import figure8, random_problem, shared_vocabulary_problem
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import select, selected_tokens


def test_a_class_without_ties_is_the_plain_problem() -> None:
    rng = np.random.default_rng(0)
    problem = random_problem(3, 4, 8, rng=rng)
    selected = rng.integers(0, 4, 3)
    one = class_margin(problem, np.eye(4, dtype=bool)[selected])
    plain = max_margin(problem, selected)
    assert_same_vector(one.vector, plain.vector, one, plain)


def test_the_solution_of_a_class_lies_in_the_class() -> None:
    """Selected tokens tie exactly, others are at least 1 behind, and the solution selects what it was asked to."""
    rng = np.random.default_rng(1)
    for geometry in ("coordinates", "gram"):
        problem = shared_vocabulary_problem(3, 5, 9, vocabulary=9, rng=rng)
        view = problem if geometry == "coordinates" else problem.as_gram()
        # Two tokens of the vocabulary become twins under p: a direction orthogonal to their difference.
        difference = problem.keys.vectors[problem.keys.index[0, 0]] - problem.keys.vectors[problem.keys.index[0, 1]]
        p = rng.standard_normal(9)
        p -= (p @ difference) / (difference @ difference) * difference
        selection = selected_tokens(problem.keys, p, tolerance=1e-9)
        solution = class_margin(view, selection)
        assert solution.is_optimal  # p itself is feasible, up to scale
        logits = view.keys.logits(solution.vector)
        best = logits.max(axis=1, keepdims=True)
        # A tie is a row with equality, kept to TOLERANCE beside margins of 1.
        np.testing.assert_allclose(
            np.where(selection, logits, best) - best,
            0,
            rtol=0,
            atol=TOLERANCE if geometry == "coordinates" else PRODUCTS_TOLERANCE,
        )
        assert (best - logits)[~selection].min() >= 1 - solution.certificate.residual - of_logits(view, solution.vector)
        np.testing.assert_array_equal(selected_tokens(view.keys, solution.vector), selection)


def test_tied_selections_are_checked() -> None:
    problem = figure8()
    with pytest.raises(ValueError, match="no selected token"):
        class_margin(problem, np.array([[True, False], [False, False]]))
    with pytest.raises(ValueError, match="shape"):
        class_margin(problem, np.array([[True, False]]))


def brute_choice(problem: TokenProblem, sets: np.ndarray) -> tuple[float, list[np.ndarray]]:
    """The least norm over all choices, and the distinct vectors that have it."""
    from tokenmargin.margin.constraints import choice_constraints
    from tokenmargin.margin.single.solver import solve

    answers = []
    for choice in itertools.product(*(np.flatnonzero(row).tolist() for row in sets)):
        solution = solve(choice_constraints(problem, sets, dict(enumerate(choice))))
        if solution.is_optimal:
            answers.append(solution.vector)
    if not answers:
        return np.inf, []
    least = min(np.linalg.norm(p) for p in answers)
    minima: list[np.ndarray] = []
    for p in answers:
        if np.linalg.norm(p) <= least * (1 + 1e-9) and all(np.linalg.norm(p - q) > 1e-7 * least for q in minima):
            minima.append(p)
    return least, minima


def test_several_optimal_tokens_equal_the_search_over_all_choices() -> None:
    rng = np.random.default_rng(2)
    infeasible = 0
    for trial in range(40):
        d = 1 + trial % 4
        keys = rng.integers(-2, 3, (3, 4, d)).astype(float) if trial % 2 else rng.standard_normal((3, 4, d))
        sets = rng.random((3, 4)) < 0.5
        sets[np.arange(3), rng.integers(0, 4, 3)] = True
        problem = TokenProblem.of(keys, np.ones(3), scores=sets.astype(float))
        least, minima = brute_choice(problem, sets)
        found = choice_margin(problem)
        assert found.status == ("optimal" if minima else "infeasible")
        infeasible += not minima
        assert len(found.minima) == len(minima)
        if not minima:  # the refuted branches prove it
            assert found.parts
            assert all(part.farkas is not None and part.certificate.farkas <= TOLERANCE for part in found.parts)
            assert found.certificate.residual <= TOLERANCE
        for minimum in found.minima:
            choice = minimum.choice
            assert minimum.is_optimal or least == 0
            # The minima are those within the tolerance of the least.
            assert minimum.margin == pytest.approx(found.margin, rel=margins_apart(minimum, found), abs=0)
            assert min(np.linalg.norm(minimum.vector - p) for p in minima) <= 1e-7 * max(least, 1)
            assert all(sets[i, a] for i, a in enumerate(choice))
    assert 0 < infeasible < 40


def test_a_choice_budget_is_kept() -> None:
    rng = np.random.default_rng(3)
    sets = np.zeros((5, 6), dtype=bool)
    sets[:, :3] = True
    problem = TokenProblem.of(rng.standard_normal((5, 6, 6)), np.ones(5), scores=sets.astype(float))
    assert choice_margin(problem, budget=3).status == "inaccurate"
    assert choice_margin(problem).status == "optimal"


def _selected(constraints, problem: TokenProblem) -> list[int]:
    return [
        int(np.flatnonzero(problem.keys.index[i] == constraints.plus[constraints.token[:, 0] == i][0])[0])
        for i in range(problem.n)
    ]


def test_arcs_hold_the_directions_that_select_their_tokens() -> None:
    rng = np.random.default_rng(5)
    problem = random_problem(3, 5, 2, rng=rng)
    arcs = selection_arcs(problem)
    assert sum(arc.stop - arc.start for arc in arcs) == pytest.approx(2 * np.pi, rel=rounding(2 * len(arcs)), abs=0)
    starts = np.array([arc.start for arc in arcs])
    assert (np.diff(starts) > 0).all()
    for angle in rng.uniform(0, 2 * np.pi, 500):
        arc = arcs[np.searchsorted(starts, angle, side="right") - 1]
        np.testing.assert_array_equal(select(problem.keys, np.array([np.cos(angle), np.sin(angle)])), arc.selected)
    for arc in arcs:  # neighbours differ, and every feasible direction lies in its own arc
        solution = max_margin(problem, arc.selected)
        assert solution.is_optimal
        angle = np.mod(np.arctan2(solution.vector[1], solution.vector[0]) - arc.start, 2 * np.pi) + arc.start
        assert arc.start < angle < arc.stop


def test_arcs_of_degenerate_keys() -> None:
    same = TokenProblem.of(np.ones((1, 2, 2)), [1], scores=[[1.0, 0.0]])
    assert [arc.selected.tolist() for arc in selection_arcs(same)] == [[0]]
    with pytest.raises(ValueError, match="plane"):
        selection_arcs(random_problem(1, 2, 3, rng=np.random.default_rng(0)))
