"""The corpus problem against the plain solver, its gap against the truth, and its constraints against loops."""

import numpy as np
import pytest
from tests.oracles.by_clarabel import least_norm
from tests.oracles.certified import assert_same_vector, margins_apart
from tests.oracles.rounding import rounding

from tokenmargin.margin import (
    TOLERANCE,
    MarginSolution,
    RowPairs,
    argmax_pairs,
    class_margin,
    corpus_margin,
    selected_pairs,
)
from tokenmargin.margin.corpus import pairs as module
from tokenmargin.margin.corpus import routes as cutting
from tokenmargin.margin.corpus import solve as entry
from tokenmargin.margin.corpus.pairs import Proposal, transitive_reduction
from tokenmargin.margin.corpus.routes import cutting_planes, interior_point
from tokenmargin.margin.corpus.solve import PairCertifier, Route, Ties
from tokenmargin.problem.corpus import TokenCorpus
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import selected_tokens


def of_ids(ids, lengths, vocabulary: int) -> TokenCorpus:
    return TokenCorpus(np.array(ids), np.array(lengths), np.ones(len(lengths)), tuple(map(str, range(vocabulary))))


def random_corpus(rng: np.random.Generator, *, sequences: int = 60, vocabulary: int = 30, d: int = 12):
    lengths = rng.integers(2, 9, sequences)
    ids = rng.integers(0, vocabulary, lengths.sum())
    return of_ids(ids, lengths, vocabulary), rng.standard_normal((vocabulary, d))


def as_problem(corpus: TokenCorpus, vectors: np.ndarray) -> TokenProblem:
    ids, lengths = corpus.tokens, corpus.lengths
    mask = np.arange(lengths.max()) < lengths[:, None]
    index = np.full(mask.shape, -1)
    index[mask] = ids
    return TokenProblem(Coordinates(vectors, index, mask), np.ones(len(lengths)), scores=np.zeros(mask.shape))


def rows_of(solution: MarginSolution, vectors: np.ndarray) -> np.ndarray:
    return vectors[solution.tokens[:, 0]] - vectors[solution.tokens[:, 1]]


@pytest.mark.parametrize("route", ["cuts", "interior"])
@pytest.mark.parametrize("seed", range(4))
def test_the_corpus_problem_is_the_selection_class_of_its_sequences(seed: int, route: Route) -> None:
    rng = np.random.default_rng(seed)
    corpus, vectors = random_corpus(rng)
    p = rng.standard_normal(12)
    pairs = argmax_pairs(corpus, vectors @ p)
    gaps: list[float] = []
    solution = corpus_margin(vectors, pairs, start=p, route=route, progress=gaps.append)
    problem = as_problem(corpus, vectors)
    reference = class_margin(problem, selected_tokens(problem.keys, p, tolerance=0.0))
    assert solution.status == reference.status == "optimal"
    # Asked for 1e-7; the active set at the end is solved to a tenth of TOLERANCE.
    assert solution.certificate.residual <= TOLERANCE
    assert_same_vector(solution.vector, reference.vector, solution, reference)
    assert solution.margin == pytest.approx(reference.margin, rel=margins_apart(solution, reference), abs=0)
    assert pairs.margins(vectors @ solution.vector).min() >= 1 - 1e-12  # feasible, not nearly
    assert gaps[0] == np.inf
    assert gaps[-1] <= 1e-7  # as asked for; the active set then gives the rest
    assert_built_of_its_rows(solution, rows_of(solution, vectors), vectors)


@pytest.mark.parametrize("piece", [1, 7, 1 << 22])
def test_constraints_are_those_of_the_sequences(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE", piece)
    rng = np.random.default_rng(9)
    corpus, vectors = random_corpus(rng, sequences=40, vocabulary=10)
    logits = vectors @ rng.standard_normal(12)
    expected, occurrences, heads = set(), 0, []
    for i in range(40):
        tokens = corpus.tokens[corpus.lengths[:i].sum() :][: corpus.lengths[i]].tolist()
        best = max(tokens, key=lambda token: logits[token])
        heads.append(best)
        occurrences += sum(token != best for token in tokens)
        expected |= {(best, token) for token in tokens if token != best}
    for pairs in (
        argmax_pairs(corpus, logits),
        selected_pairs(corpus, np.array(heads)),
    ):
        found = set(zip(pairs.plus(np.arange(len(pairs))).tolist(), pairs.rivals.tolist(), strict=True))
        assert found == expected
        assert len(pairs) == len(expected)
        assert pairs.occurrences == occurrences
        assert len(pairs.ties) == 0


def test_tied_tokens_get_equal_logits() -> None:
    rng = np.random.default_rng(10)
    corpus, vectors = random_corpus(rng, sequences=30, vocabulary=12)
    difference = vectors[0] - vectors[1]
    p = rng.standard_normal(12)
    p -= (p @ difference) / (difference @ difference) * difference
    p += 3 * (vectors[0] + vectors[1])
    p -= (p @ difference) / (difference @ difference) * difference
    ids, fifth = corpus.tokens.copy(), corpus.lengths[:5].sum()
    ids[fifth], ids[fifth + 1] = 0, 1
    corpus = of_ids(ids, corpus.lengths, 12)
    logits = vectors @ p
    pairs = argmax_pairs(corpus, logits, tolerance=1e-9)
    assert len(pairs.ties) == 1
    solution = corpus_margin(vectors, pairs, start=p)
    problem = as_problem(corpus, vectors)
    reference = class_margin(problem, selected_tokens(problem.keys, p, tolerance=1e-12))
    of_row = rounding(4 * 12, 2 * float(np.linalg.norm(vectors, axis=1).max() * np.linalg.norm(solution.vector)))
    # The difference of two tokens times p, sums of 12 products each; the ties are projected out, with as many more.
    np.testing.assert_allclose(vectors[0] @ solution.vector, vectors[1] @ solution.vector, rtol=0, atol=of_row)
    assert solution.margin == pytest.approx(reference.margin, rel=margins_apart(solution, reference), abs=0)


def test_a_corpus_without_a_solution_is_refuted() -> None:
    """Three tokens on a line: the middle one can never be the best."""
    vectors = np.array([[-1.0], [0.0], [1.0]])
    pairs = selected_pairs(of_ids([0, 1, 2, 0, 1], [3, 2], 3), np.array([1, 1]))
    solution = corpus_margin(vectors, pairs)
    assert solution.status == "infeasible"
    assert (solution.farkas >= 0).all()
    rows = vectors[solution.tokens[:, 0]] - vectors[solution.tokens[:, 1]]
    assert np.abs(solution.farkas @ rows).max() <= of_rows(solution.farkas, rows, vectors)


def test_nothing_to_separate() -> None:
    pairs = argmax_pairs(of_ids([3, 3], [1, 1], 4), np.arange(4.0))
    assert corpus_margin(np.eye(4), pairs).status == "optimal"
    assert not corpus_margin(np.eye(4), pairs).vector.any()


def test_a_large_master_drops_idle_constraints(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(11)
    corpus, vectors = random_corpus(rng, sequences=400, vocabulary=80, d=6)
    p = rng.standard_normal(6)
    pairs = argmax_pairs(corpus, vectors @ p)
    usual = corpus_margin(vectors, pairs, start=p)
    monkeypatch.setattr(cutting, "MASTER", 4)
    monkeypatch.setattr(cutting, "CUTS", 1)
    tight = corpus_margin(vectors, pairs)
    assert tight.status == usual.status == "optimal"
    assert tight.margin == pytest.approx(usual.margin, rel=margins_apart(tight, usual), abs=0)


def test_selections_are_checked() -> None:
    corpus = of_ids([0, 1, 2], [2, 1], 4)
    with pytest.raises(ValueError, match="does not occur"):
        selected_pairs(corpus, np.array([0, 1]))
    with pytest.raises(ValueError, match="2 sequences"):
        selected_pairs(corpus, np.array([0]))
    with pytest.raises(ValueError, match="vocabulary, 4"):
        argmax_pairs(corpus, np.zeros(3))


def of_rows(weights: np.ndarray, rows: np.ndarray, vectors: np.ndarray) -> float:
    """Rounding of a combination of rows: differences of vectors less their mean, with weights over their sum."""
    of_difference = rounding(4, float(np.abs(weights).sum() * np.abs(vectors).max()))
    return float(rounding(len(rows) + 4, (np.abs(weights) @ np.abs(rows)).max())) + of_difference


def assert_built_of_its_rows(solution: MarginSolution, rows: np.ndarray, vectors: np.ndarray) -> None:
    """The vector is the combination of its rows, as its certificate says."""
    off = solution.certificate.dual * np.linalg.norm(solution.vector) + of_rows(solution.multipliers, rows, vectors)
    np.testing.assert_allclose(solution.multipliers @ rows, solution.vector, rtol=0, atol=off)


def check(solution: MarginSolution, vectors: np.ndarray, pairs: RowPairs) -> None:
    """The claim of a solution, on the constraints themselves."""
    rows = rows_of(solution, vectors)
    inequalities = len(rows) - len(pairs.ties)
    if solution.status == "infeasible":
        assert solution.farkas is not None
        assert (solution.farkas[:inequalities] >= 0).all()
        assert solution.farkas[:inequalities].sum() == pytest.approx(1, rel=rounding(len(rows)), abs=0)
        # Proven exactly for the weights before they were divided by their sum, and ties are added by least squares.
        assert np.abs(solution.farkas @ rows).max() <= of_rows(solution.farkas, rows, vectors)
        return
    assert solution.status == "optimal"
    norm = np.linalg.norm(solution.vector)
    of_margins = rounding(vectors.shape[1] + 4, 2 * float(np.linalg.norm(vectors, axis=1).max() * norm))
    assert pairs.margins(vectors @ solution.vector).min() >= 1 - of_margins
    assert (solution.multipliers[:inequalities] >= 0).all()
    assert_built_of_its_rows(solution, rows, vectors)
    # The certificate's bound on |p| is this sum over the length of the combination, which is |p| nearly.
    off = solution.certificate.gap + solution.certificate.dual + of_rows(solution.multipliers, rows, vectors) / norm
    off += rounding(len(rows) + 2 * vectors.shape[1])
    assert solution.multipliers[:inequalities].sum() == pytest.approx(norm**2, rel=off, abs=0)


FAMILIES = ("plain", "one_hot", "duplicates", "flat", "few", "offset")


def family(name: str, rng: np.random.Generator) -> tuple[np.ndarray, TokenCorpus]:
    """Vectors and a corpus of a kind that is hard for a solver."""
    d = {"few": 40}.get(name, 7)
    corpus, vectors = random_corpus(rng, sequences=25, vocabulary=20, d=d)
    if name == "one_hot":
        vectors = np.eye(20)
    if name == "duplicates":
        vectors[10:15] = vectors[:5]
    if name == "flat":  # all on a plane
        vectors = rng.standard_normal((20, 2)) @ rng.standard_normal((2, 7))
    if name == "offset":
        vectors = vectors + 1e4
    return vectors, corpus


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("seed", range(6))
def test_both_routes_agree_with_another_solver_on_any_selection(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    vectors, corpus = family(name, rng)
    ends = np.cumsum(corpus.lengths)
    if seed % 2:  # feasible, unless tokens coincide; with ties where they do
        pairs = argmax_pairs(corpus, vectors @ rng.standard_normal(vectors.shape[1]), tolerance=1e-9)
    else:  # an order of the rows selects, which these vectors may not be able to follow
        rank = rng.permutation(20)
        pieces = np.split(corpus.tokens, ends[:-1])
        pairs = selected_pairs(corpus, np.array([piece[rank[piece].argmax()] for piece in pieces]))
    answers = [corpus_margin(vectors, pairs, route=route) for route in ("cuts", "interior")]
    numbers = np.arange(len(pairs))
    rows = Ties(vectors, pairs.ties).projected
    theirs = least_norm(rows[pairs.plus(numbers)] - rows[pairs.rivals], tolerance=1e-10)
    for answer in answers:
        if name == "flat" and theirs.infeasible:  # on a plane up to rounding: no margin over rounding, and no proof
            assert answer.status == "inaccurate"
            assert answer.certificate.farkas <= TOLERANCE
            continue
        check(answer, vectors, pairs)
        assert (answer.status == "infeasible") == theirs.infeasible
        if not theirs.infeasible:
            theirs.assert_agrees(answer, answer.vector)


def test_a_cycle_of_selections_is_refuted_exactly() -> None:
    """a beats b, b beats c, c beats a: whatever the vectors are."""
    vectors = np.random.default_rng(3).standard_normal((3, 5))
    pairs = selected_pairs(of_ids([0, 1, 1, 2, 2, 0], [2, 2, 2], 3), np.array([0, 1, 2]))
    solution = corpus_margin(vectors, pairs)
    assert solution.status == "infeasible"
    check(solution, vectors, pairs)
    np.testing.assert_allclose(solution.farkas, 1 / 3, rtol=rounding(6))


def test_a_token_cannot_beat_its_duplicate() -> None:
    vectors = np.ones((2, 3))
    pairs = selected_pairs(of_ids([0, 1], [2], 2), np.array([0]))
    for route in ("cuts", "interior"):
        solution = corpus_margin(vectors, pairs, route=route)
        assert solution.status == "infeasible"
        assert solution.certificate.farkas == 0


def test_the_interior_route_takes_over_in_wide_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(12)
    corpus, vectors = random_corpus(rng)
    pairs = argmax_pairs(corpus, vectors @ rng.standard_normal(12))
    calls: list[str] = []
    monkeypatch.setattr(entry, "cutting_planes", lambda *a, **k: calls.append("cuts") or cutting_planes(*a, **k))
    monkeypatch.setattr(entry, "interior_point", lambda *a, **k: calls.append("interior") or interior_point(*a, **k))
    narrow = corpus_margin(vectors, pairs)
    monkeypatch.setattr(entry, "WIDE", 12)
    wide = corpus_margin(vectors, pairs)
    assert calls == ["cuts", "interior"]
    assert_same_vector(wide.vector, narrow.vector, wide, narrow)


def test_what_cutting_planes_leave_open_is_tried_by_interior_points(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(13)
    corpus, vectors = random_corpus(rng)
    pairs = argmax_pairs(corpus, vectors @ rng.standard_normal(12))
    lost = Proposal(np.zeros(len(transitive_reduction(pairs, len(vectors)).numbers)), np.zeros(12))
    monkeypatch.setattr(entry, "cutting_planes", lambda *_, **__: lost)
    assert corpus_margin(vectors, pairs, route="cuts").status == "inaccurate"
    check(corpus_margin(vectors, pairs), vectors, pairs)


def test_ties_that_leave_nothing_of_the_rows_are_answered() -> None:
    """Tokens that tie on a line leave p = 0 alone; interior points once divided by the length of what ties leave."""
    vectors = np.array(
        [
            [1.5809087117996585, 0.8655534399646931],
            [4.234021714541502e-07, 3.478358707450702e-06],
            [97.63949748667733, 78.69952430612067],
            [-0.004048882362681679, 0.006644979156118027],
            [-40029.037062352734, -4566.144170747097],
            [-6.283593465476337e-05, -6.324898554367072e-05],
            [3.4641871591466374e-06, -6.41197702605112e-07],
        ]
    )
    ordered = [(0, 2), (1, 2), (4, 1), (4, 2), (4, 3), (5, 0), (5, 1)]
    selected, counts = np.unique([pair[0] for pair in ordered], return_counts=True)
    rivals = np.array([pair[1] for pair in ordered])
    pairs = RowPairs(selected, np.concatenate([[0], np.cumsum(counts)]), rivals, np.array([[6, 5]]), len(ordered))
    for route in (None, "cuts", "interior"):
        assert corpus_margin(vectors, pairs, route=route).status in ("infeasible", "inaccurate")


def test_a_contradiction_found_on_the_way_is_no_short_gap() -> None:
    """Multipliers whose combination is zero prove a bound of infinity: no gap of zero to a vector that ties."""
    vectors = np.array([[2.0], [1.0], [0.0]])
    pairs = RowPairs(np.array([0]), np.array([0, 1]), np.array([2]), np.array([[0, 2]]), 1)
    found = PairCertifier(vectors, pairs).answer(Proposal(np.ones(1), np.ones(1)), np.zeros(1, dtype=int), gap=1e-7)
    assert found.status == "inaccurate"
    assert not found.certificate.gap < 1


@pytest.mark.parametrize("far", [1.0, 1e8, 6e13])
def test_rounding_beside_a_long_vector_is_counted(far: float) -> None:
    """On a line, 0 ahead of a far token and of one 196 behind: the margin was 195.95508, told from the mean of all."""
    vectors = np.array([[0.0], [-far], [-195.95544232544674]])
    behind = RowPairs(np.array([0]), np.array([0, 2]), np.array([1, 2]), np.zeros((0, 2), dtype=np.intp), 2)
    found = corpus_margin(vectors, behind)
    assert found.is_optimal == (far < 1e13)
    assert not found.is_optimal or found.margin == pytest.approx(
        min(far, -vectors[2, 0]), rel=margins_apart(found), abs=0
    )


def test_vectors_that_no_scale_holds_together_are_not_decided() -> None:
    """Beside 1e300 a difference of 1e-100 is nothing, and was proof that no direction tells them apart."""
    behind = RowPairs(np.array([0]), np.array([0, 2]), np.array([1, 2]), np.zeros((0, 2), dtype=np.intp), 2)
    for far, near, status in ((1e300, 1e-100, "inaccurate"), (4e-320, 2e-320, "inaccurate"), (1e300, 1e297, "optimal")):
        found = corpus_margin(np.array([[0.0, 0.0], [-far, 0.0], [0.0, -near]]), behind)
        assert found.status == status


@pytest.mark.parametrize("size", [2.0**-960, 2.0**-600, 2.0**600, 2.0**960])
def test_a_corpus_of_any_size_has_one_margin(size: float) -> None:
    vectors = np.random.default_rng(0).standard_normal((12, 5))
    behind = RowPairs(np.array([0]), np.array([0, 4]), np.arange(1, 5), np.array([[0, 5]]), 4)
    plain, scaled = corpus_margin(vectors, behind), corpus_margin(size * vectors, behind)
    assert plain.status == scaled.status == "optimal"
    assert scaled.margin == size * plain.margin
    assert (scaled.vector * size == plain.vector).all()
