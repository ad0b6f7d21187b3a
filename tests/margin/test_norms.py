"""Max-margin in other norms: against clarabel, exact linear programming, closed forms, and the Euclidean solver."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from fractions import Fraction
from itertools import combinations
from pathlib import Path

import clarabel
import numpy as np
import pytest
from benchmarks import norms
from scipy import sparse
from scipy.optimize import linprog
from tests.oracles.by_clarabel import semidefinite_value
from tests.oracles.edge_families import by_a_hair
from tests.oracles.rounding import of_logits, rounding

import tokenmargin as tm
from tokenmargin.cli import main
from tokenmargin.margin import GAP, MATRIX_GAP, TOLERANCE, Constraints, relaxed_max_margin, solve_in_norm
from tokenmargin.margin.constraints import attention_constraints
from tokenmargin.norms import L1, LINF, CustomNorm, LpNorm
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.instances import figure1c, figure3b

VECTOR_NORMS = ["l1", "linf", "lp:1.2", "lp:1.5", "lp:3", "lp:8"]
pytestmark = pytest.mark.usefixtures("unchecked_shapes")


def random_constraints(rng: np.random.Generator, kind: str, k: int, r: int) -> Constraints:
    """Constraints that have a solution: rows on one side of a plane. `kind` says what is awkward about them."""
    rows = rng.normal(size=(k, r))
    if kind == "small integers":
        rows = rng.integers(-2, 3, size=(k, r)).astype(float)
    if kind == "repeats":
        rows[k // 2 :] = rows[: k - k // 2]
    side = rng.normal(size=r) if kind != "small integers" else rng.integers(-2, 3, size=r).astype(float)
    heights = rows @ side
    rows = np.where(heights[:, None] < 0, -rows, rows)[np.abs(heights) >= 0.1 * max(np.abs(heights).max(), 1e-9)]
    if not len(rows):  # all at height zero
        return posed(np.eye(r)[:1])
    if kind == "spread":
        rows *= 10.0 ** rng.integers(-6, 7, size=(len(rows), 1))
    if kind == "huge":
        rows *= 1e150
    return posed(rows)


def posed(rows: np.ndarray, bound: np.ndarray | None = None, equality: np.ndarray | None = None) -> Constraints:
    k = len(rows)
    every = np.arange(k)
    asked = np.ones(k) if bound is None else bound
    return Constraints(Coordinates(rows, [every]), every, None, asked, np.stack([every, every], 1), equality=equality)


def by_clarabel(norm: LpNorm, rows: np.ndarray) -> float:
    """The least norm with `rows x >= 1`: a linear program, or cones `|x_i| <= t^(1 - 1/p) r_i^(1/p)`, sum r = t."""
    k, r = rows.shape
    eye = sparse.eye_array(r)
    if norm.p in (1, np.inf):
        many = r if norm.p == 1 else 1
        bound = -sparse.eye_array(r) if norm.p == 1 else -np.ones((r, 1))
        matrix = sparse.block_array([[-rows, np.zeros((k, many))], [eye, bound], [-eye, bound]])
        cost, room, cones = np.r_[np.zeros(r), np.ones(many)], np.r_[-np.ones(k), np.zeros(2 * r)], []
    else:
        # Variables x, r, t. Power cone i holds (r_i, t, x_i): r_i^a t^(1-a) >= |x_i| with a = 1/p.
        first = np.hstack([-rows, np.zeros((k, r + 1))])
        total = np.r_[np.zeros(r), np.ones(r), -1.0][None]
        triples = [-np.eye(2 * r + 1)[column] for i in range(r) for column in (r + i, 2 * r, i)]
        matrix = np.vstack([total, first, np.array(triples)])
        cost = np.r_[np.zeros(2 * r), 1.0]
        room, cones = np.r_[0.0, -np.ones(k), np.zeros(3 * r)], [clarabel.PowerConeT(1 / norm.p)] * r
    nothing = sparse.csc_matrix((len(cost), len(cost)))
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_rel = settings.tol_gap_abs = settings.tol_feas = 1e-10
    kinds = (
        [clarabel.NonnegativeConeT(len(room))]
        if not cones
        else [clarabel.ZeroConeT(1), clarabel.NonnegativeConeT(k), *cones]
    )
    found = clarabel.DefaultSolver(nothing, cost, sparse.csc_matrix(matrix), room, kinds, settings).solve()
    assert "Solved" in str(found.status)
    return float(found.obj_val)


@pytest.mark.parametrize("name", VECTOR_NORMS)
@pytest.mark.parametrize("kind", ["gaussian", "small integers", "repeats", "spread", "huge"])
def test_certified_in_every_shape(name, kind):
    """Tall, wide, one constraint, one dimension; the certificate is recomputed here in rationals."""
    rng = np.random.default_rng([VECTOR_NORMS.index(name), len(kind)])
    for k, r in [(12, 3), (4, 9), (1, 4), (5, 1), (30, 6)]:
        constraints = random_constraints(rng, kind, k, r)
        found = solve_in_norm(constraints, name)
        assert found.status == "optimal", (kind, k, r, found)
        assert found.certificate.gap <= GAP
        rows = [[Fraction(x) for x in row] for row in constraints.rows().tolist()]
        x = [Fraction(v) for v in found.vector.tolist()]
        assert all(sum(a * b for a, b in zip(row, x, strict=True)) >= 1 for row in rows)
        norm = tm.norm_named(name)
        assert float(norm.value(found.vector)) * found.margin == pytest.approx(
            1, rel=2 * norm.rounding(r) + rounding(2), abs=0
        )
        pulled = found.multipliers @ constraints.rows()
        assert (found.multipliers >= 0).all()
        lower = found.multipliers.sum() / float(norm.dual_value(pulled))
        assert lower * found.margin >= 1 - 2 * GAP


BY_CLARABEL = 1e-6  # it is asked for gaps of 1e-8, in units of its own scaling, which may cost a hundredfold


@pytest.mark.parametrize("name", VECTOR_NORMS)
def test_clarabel_agrees(name):
    """Ours is proven to 1e-9."""
    rng = np.random.default_rng(5)
    for k, r in [(20, 4), (6, 12), (42, 10)]:
        constraints = random_constraints(rng, "gaussian", k, r)
        ours = 1 / solve_in_norm(constraints, name).margin
        assert by_clarabel(tm.norm_named(name), constraints.rows()) == pytest.approx(ours, rel=BY_CLARABEL, abs=0)


def exact_least(rows: np.ndarray, common: bool) -> Fraction:
    """The least l1 or linf norm by enumeration of the vertices, in rationals: the witness for small integers.

    l1: at a vertex some s rows hold on some s coordinates, the others being zero. linf: besides, r - s + 1 coordinates
    are at the bound, with signs; so the system is one in t and s - 1 free coordinates.
    """
    k, r = rows.shape
    best: Fraction | None = None
    for s in range(1, r + 1):
        for chosen in combinations(range(k), s):
            for columns in combinations(range(r), s if not common else s - 1):
                for signs in [0] if not common else range(1 << (r - s + 1)):
                    x = _vertex(rows, chosen, columns, signs, common)
                    if x is None or any(sum(int(a) * b for a, b in zip(row, x, strict=True)) < 1 for row in rows):
                        continue
                    value = max(map(abs, x)) if common else sum(map(abs, x))
                    best = value if best is None else min(best, value)
    assert best is not None
    return best


def _vertex(rows, chosen, columns, signs, common):
    r = rows.shape[1]
    rest = [i for i in range(r) if i not in columns]
    system = []
    for j in chosen:
        line = [Fraction(int(rows[j, i])) for i in columns]
        if common:
            line.append(
                sum(
                    (Fraction(int(rows[j, i])) * (1 if signs >> b & 1 else -1) for b, i in enumerate(rest)), Fraction(0)
                )
            )
        system.append([*line, Fraction(1)])
    solved = _gauss(system)
    if solved is None:
        return None
    x = [Fraction(0)] * r
    for i, value in zip(columns, solved, strict=False):
        x[i] = value
    if common:
        for b, i in enumerate(rest):
            x[i] = solved[-1] * (1 if signs >> b & 1 else -1)
    return x


def _gauss(system):
    n = len(system)
    system = [row[:] for row in system]
    for c in range(n):
        pivot = next((i for i in range(c, n) if system[i][c]), None)
        if pivot is None:
            return None
        system[c], system[pivot] = system[pivot], system[c]
        system[c] = [v / system[c][c] for v in system[c]]
        for i in range(n):
            if i != c and system[i][c]:
                system[i] = [a - system[i][c] * b for a, b in zip(system[i], system[c], strict=True)]
    return [row[-1] for row in system]


@pytest.mark.parametrize("norm", [L1, LINF], ids=["l1", "linf"])
def test_exact_linear_programming_on_integers(norm):
    rng = np.random.default_rng(3)
    for _ in range(6):
        constraints = random_constraints(rng, "small integers", 5, 3)
        exact = exact_least(constraints.rows(), common=norm is LINF)
        found = solve_in_norm(constraints, norm)
        assert found.is_optimal
        assert abs(Fraction(1 / found.margin) / exact - 1) < Fraction(2, 10**9)  # the gap, and the value's rounding


def matrices_posed(matrices: np.ndarray, equality: np.ndarray | None = None) -> Constraints:
    k, *shape = matrices.shape
    every = np.arange(k)
    geometry = Coordinates(matrices.reshape(k, -1), [every], matrix_shape=tuple(shape))
    bound = np.ones(k) if equality is None else np.where(equality, 0.0, 1.0)
    return Constraints(geometry, every, None, bound, np.stack([every, every], 1), equality=equality)


@pytest.mark.parametrize("name", ["nuclear", "spectral"])
@pytest.mark.parametrize("rank", ["one", "full"])
def test_matrices_agree_with_clarabel(name, rank):
    """Attention's constraints are of rank one; others are solved as well."""
    rng = np.random.default_rng(len(name))
    for k, q, d in [(6, 3, 4), (12, 4, 3), (3, 2, 6), (4, 1, 5)]:
        matrices = rng.normal(size=(k, q, d))
        if rank == "one":
            matrices = rng.normal(size=(k, q, 1)) * rng.normal(size=(k, 1, d))
        signs = np.sign(np.einsum("kqd,qd->k", matrices, rng.normal(size=(q, d))))
        constraints = matrices_posed(matrices * signs[:, None, None])
        found = solve_in_norm(constraints, name)
        assert found.status == "optimal", (name, k, q, d, found)
        assert found.certificate.gap <= MATRIX_GAP
        by_lapack = np.linalg.norm(found.matrix, "nuc" if name == "nuclear" else 2)
        # Our margin is that of a norm with its rounding counted against it; LAPACK's own values may be off by as much.
        of_both = 2 * tm.norm_named(name).of_shape((q, d)).rounding(q * d) + rounding(2)
        assert by_lapack * found.margin == pytest.approx(1, rel=of_both, abs=0)
        assert (constraints.rows() @ found.vector).min() >= 1 - rounding(
            q * d, float(np.linalg.norm(found.vector)) * 10
        )
        assert semidefinite_value(name, matrices * signs[:, None, None]) == pytest.approx(
            1 / found.margin, rel=BY_CLARABEL, abs=0
        )


@pytest.mark.parametrize(("name", "of_diagonals"), [("nuclear", "l1"), ("spectral", "linf")])
def test_diagonal_matrices_are_vectors(name, of_diagonals):
    """Dropping what is off the diagonal lengthens no Schatten norm, so the least W is diagonal: an lp problem."""
    rng = np.random.default_rng(8)
    for k, r in [(5, 3), (2, 4), (9, 5)]:
        rows = random_constraints(rng, "gaussian", k, r).rows()
        matrices = rows[:, :, None] * np.eye(r)
        ours, theirs = solve_in_norm(matrices_posed(matrices), name), solve_in_norm(posed(rows), of_diagonals)
        assert ours.is_optimal
        assert ours.margin == pytest.approx(theirs.margin, rel=GAP + MATRIX_GAP, abs=0)


@pytest.mark.parametrize("name", ["nuclear", "spectral"])
def test_matrix_problems(name):
    rng = np.random.default_rng(0)
    problem = tm.random_problem(n=3, T=4, d=6, rng=rng)
    wide = problem.with_matrix(rng.normal(size=(3, 5)))
    found = tm.max_margin(wide, [0, 1, 2], norm=name)
    assert found.is_optimal
    assert found.matrix.shape == (5, 6)
    # In the coordinates of the data alone, and rotated, the problem is the same.
    turn, _ = np.linalg.qr(rng.normal(size=(6, 6)))
    turned = tm.TokenProblem.of(problem.keys.tokens @ turn, problem.labels, scores=problem.scores)
    again = tm.max_margin(turned.with_matrix(wide.keys.queries), [0, 1, 2], norm=name)
    assert again.margin == pytest.approx(found.margin, rel=2 * MATRIX_GAP, abs=0)
    euclidean = tm.max_margin(wide, [0, 1, 2])
    assert euclidean.matrix.shape == (5, 6)
    least = np.linalg.norm(euclidean.matrix, "nuc" if name == "nuclear" else 2)
    assert 1 / found.margin <= least * (1 + MATRIX_GAP)
    tied = tm.class_margin(wide, np.array([[1, 1, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]], dtype=bool), norm=name)
    assert tied.is_optimal
    logits = wide.keys.logits(tied.vector)
    off = TOLERANCE + of_logits(wide, tied.vector)
    assert abs(logits[0, 0] - logits[0, 1]) <= off
    assert (logits[0, 0] - logits[0, 2:]).min() >= 1 - off


def test_one_constraint_has_a_closed_form():
    """`min |x|` with `<row, x> >= 1` is `1 / |row|_*`."""
    row = np.array([[3.0, -4.0, 0.5]])
    for name in VECTOR_NORMS:
        norm = tm.norm_named(name)
        assert solve_in_norm(posed(row), name).margin == pytest.approx(float(norm.dual_value(row[0])), rel=GAP, abs=0)
    matrix = np.random.default_rng(0).normal(size=(1, 3, 4))
    for name, order in {"nuclear": 2, "spectral": "nuc"}.items():
        expected = np.linalg.norm(matrix[0], order)
        assert solve_in_norm(matrices_posed(matrix), name).margin == pytest.approx(expected, rel=MATRIX_GAP, abs=0)


@pytest.mark.parametrize("norm", [L1, LINF], ids=["l1", "linf"])
def test_faces_against_linear_programs(norm):
    """Solutions found by linear programs with random objectives: they span the face, and lie at angle zero to it."""
    rng = np.random.default_rng(12)
    several = 0
    for _ in range(12):
        constraints = random_constraints(rng, "small integers", 3, 4)
        rows, found = constraints.rows(), solve_in_norm(constraints, norm)
        points = np.array([some_solution(norm, rows, 1 / found.margin, rng) for _ in range(12)])
        assert found.freedom == np.linalg.matrix_rank(points - points[0], tol=1e-6)
        assert ("face of them" in found.explanation) == (found.freedom > 0)
        several += found.freedom > 0
        inside = rng.dirichlet(np.ones(len(points))) @ points
        assert found.angle_to(inside) < BY_LINEAR
        v = rng.normal(size=4)
        cosines = points @ v / np.linalg.norm(points, axis=1) / np.linalg.norm(v)
        assert found.angle_to(v) <= np.arccos(np.clip(cosines.max(), -1, 1)) + BY_LINEAR
    assert several >= 2


BY_LINEAR = 1e-6  # HiGHS keeps constraints to 1e-7; a vertex, of length about 1, is held by a handful of them


def some_solution(norm: LpNorm, rows: np.ndarray, least: float, rng: np.random.Generator) -> np.ndarray:
    """A vertex of the set of solutions: the largest value of a random function of (x, t) on it."""
    k, r = rows.shape
    eye, common = np.eye(r), norm is LINF
    ones = -np.ones((r, 1)) if common else -eye
    many = ones.shape[1]
    most = np.block([[-rows, np.zeros((k, many))], [eye, ones], [-eye, ones], [np.zeros((1, r)), np.ones((1, many))]])
    room = np.r_[-np.ones(k), np.zeros(2 * r), least * (1 + 1e-9)]
    found = linprog(np.r_[rng.normal(size=r), np.zeros(many)], most, room, bounds=[(None, None)] * (r + many))
    assert found.status == 0
    return found.x[:r]


def test_the_face_of_a_nuclear_norm():
    """`min |W|` with trace at least 1: all positive semidefinite matrices of trace one; projections in closed form."""
    found = solve_in_norm(matrices_posed(np.eye(3)[None]), "nuclear")
    assert found.freedom == 5
    rng = np.random.default_rng(0)
    for _ in range(3):
        v = rng.normal(size=(3, 3))
        values, vectors = np.linalg.eigh((v + v.T) / 2)
        nearest = (vectors * np.maximum(values, 0)) @ vectors.T
        expected = np.arccos((v * nearest).sum() / np.linalg.norm(v) / np.linalg.norm(nearest))
        # Angles within a face are minimised to the square root of rounding: their cosine is known to EPS.
        assert found.angle_to(v.ravel()) == pytest.approx(expected, abs=10 * rounding(1) ** 0.5)
    assert solve_in_norm(posed(np.array([[1.0, 2.0]])), "lp:3").freedom == 0
    assert solve_in_norm(matrices_posed(np.eye(3)[None]), "spectral").freedom == 0
    assert solve_in_norm(matrices_posed(np.diag([1.0, 0.0, 0.0])[None]), "spectral").freedom == 4
    assert tm.max_margin(tm.figure1b(), [0]).freedom == 0


def test_infeasible_is_the_same_proof_in_every_norm():
    rows = np.array([[1.0, 2.0], [-3.0, 1.0], [1.0, -4.0]])
    for name in VECTOR_NORMS:
        found = solve_in_norm(posed(rows), name)
        assert found.status == "infeasible"
        assert found.certificate.farkas == 0
        assert np.abs(found.farkas @ rows).max() < 1e-14  # rounded from the exact one: three terms below 2


def test_the_other_problems_take_a_norm():
    tied = tm.TokenProblem.of([[[1.0, 1.0], [1.0, -1.0], [0.0, 0.0]]], [1], scores=[[1.0, 1.0, 0.0]])
    both = np.array([[True, True, False]])
    for name in VECTOR_NORMS:
        # Within GAP of the shortest, hence to its square root at worst.
        assert tm.class_margin(tied, both, norm=name).vector == pytest.approx([1, 0], abs=(2 * GAP) ** 0.5)
        assert tm.relaxed_max_margin(figure3b(), [1, 1, 1], norm=name).is_optimal
        assert tm.label_margin(figure3b(), [1, 1, 1], norm=name).is_optimal
    best = tm.choice_margin(tied, both, norm="l1")  # one token alone: (1, 1) x >= 1, by either coordinate
    assert best.is_optimal
    assert best.margin == pytest.approx(1, rel=GAP, abs=0)
    assert tm.choice_margin(tied, both, norm="linf").margin == pytest.approx(2, rel=GAP, abs=0)


def test_the_atlas_in_another_norm_lists_what_a_search_through_all_selections_finds():
    problem = tm.random_problem(n=2, T=3, d=2, rng=np.random.default_rng(4))
    for name in ("l1", "linf", "lp:3"):
        found = tm.atlas(problem, norm=name)
        assert found.complete
        every = [tm.limit_direction(problem, [a, b], norm=name) for a in range(3) for b in range(3)]
        expected = {tuple(limit.selected.tolist()): limit.solution.margin for limit in every if limit.is_limit}
        assert {tuple(limit.selected.tolist()) for limit in found.limits} == set(expected)
        for limit in found.limits:
            assert limit.solution.norm.name == name
            assert limit.solution.margin == pytest.approx(
                expected[tuple(limit.selected.tolist())], rel=GAP + MATRIX_GAP, abs=0
            )
    assert {tuple(x.selected.tolist()) for x in tm.atlas(problem).limits} == {
        tuple(x.selected.tolist()) for x in tm.atlas(problem, norm=LpNorm(2.0)).limits
    }
    tied = tm.TokenProblem.of([[[1.0, 1.0], [1.0, -1.0], [0.0, 0.0]]], [1], scores=[[1.0, 1.0, 0.0]])
    assert "1 ties of equals not looked at" in tm.atlas(tied, norm="l1").unsearched


_KEPT = np.array([[True, True, False], [True, False, False]])
_ASKED = {
    "max_margin": lambda problem, norm: tm.max_margin(problem, [0, 0], norm=norm),
    "limit_direction": lambda problem, norm: tm.limit_direction(problem, [0, 0], norm=norm).solution,
    "class_margin": lambda problem, norm: tm.class_margin(problem, _KEPT, norm=norm),
    "label_margin": lambda problem, norm: tm.label_margin(problem, [0, 0], norm=norm),
    "relaxed_max_margin": lambda problem, norm: relaxed_max_margin(problem, [0, 0], norm=norm),
    "choice_margin": lambda problem, norm: tm.choice_margin(problem, _KEPT, norm=norm),
    "atlas": lambda problem, norm: tm.atlas(problem, norm=norm).limits[0].solution,
}


@pytest.mark.parametrize("asked", _ASKED)
def test_every_function_answers_in_a_norm_or_says_in_a_line_why_not(asked):
    """All norms, for p, p known by inner products, and W: an answer with its norm, or an error with the remedy."""
    rng = np.random.default_rng(4)
    of_p = tm.TokenProblem.of(rng.standard_normal((2, 3, 6)), [1, -1], head=rng.standard_normal(6))
    for kind, problem in {
        "p": of_p,
        "gram": of_p.as_gram(),
        "W": of_p.with_matrix(rng.standard_normal((2, 2))),
    }.items():
        for norm in ("l2", "l1", "linf", "lp:1.5", "lp:3", "nuclear", "spectral", "schatten:3"):
            of_matrices = norm in ("nuclear", "spectral", "schatten:3")
            if kind == "gram":
                remedy = None if norm == "l2" else "pose it with keys of shape"
            elif of_matrices and (kind == "p" or asked == "label_margin"):
                remedy = r"problem.with_matrix\(queries\)"
            else:
                remedy = "use nuclear, spectral or l2" if norm == "schatten:3" else None
            if remedy is None:
                found = _ASKED[asked](problem, norm)
                assert found.is_optimal, (kind, norm)
                assert found.norm.name == norm
                continue
            with pytest.raises(ValueError, match=remedy) as refused:
                _ASKED[asked](problem, norm)
            assert "\n" not in str(refused.value)


def test_a_norm_that_makes_no_sense_says_what_to_do():
    problem = tm.figure1b()
    with pytest.raises(ValueError, match=r"needs coordinates.*pose it with keys of shape"):
        tm.max_margin(problem.as_gram(), [0], norm="l1")
    with pytest.raises(ValueError, match=r"becomes one for W by problem\.with_matrix"):
        tm.max_margin(problem, [0], norm="nuclear")
    with pytest.raises(ValueError, match="corpus_margin is Euclidean"):
        tm.corpus_margin(np.eye(2), None, norm="l1")
    half = CustomNorm("half", lambda x: float(np.abs(x).sum()), lambda g: float(np.abs(g).max()))
    with pytest.raises(ValueError, match=r"give CustomNorm\(propose="):
        tm.max_margin(problem, [0], norm=half)


def test_a_users_norm_is_judged_and_not_trusted():
    """The l1 norm by two functions; a right proposal is optimal, a wrong one is not."""
    problem = tm.random_problem(n=3, T=4, d=6, rng=np.random.default_rng(0))
    known = tm.max_margin(problem, [0, 1, 2], norm="l1")
    systems = attention_constraints(problem, [0, 1, 2]).systems()

    def norm(factor: float) -> CustomNorm:
        def propose(rows, bound):
            return known.vector / systems.scale[0] * factor, known.multipliers * systems.lengths[0]

        wrong = np.eye(6)[0] if factor != 1 else 0.0
        return CustomNorm(
            "mine",
            lambda x: float(np.abs(x).sum()),
            lambda g: float(np.abs(g).max()),
            propose=lambda r, b: (propose(r, b)[0] + wrong, propose(r, b)[1]),
        )

    assert tm.max_margin(problem, [0, 1, 2], norm=norm(1.0)).margin == pytest.approx(known.margin, rel=2 * GAP, abs=0)
    assert tm.max_margin(problem, [0, 1, 2], norm=norm(1.5)).status == "inaccurate"


def test_the_command(capsys):
    assert main(["solve", "fig1c", "--norm", "linf", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    expected = tm.max_margin(figure1c(), report["selected"], norm="linf")
    assert report["norm"] == "linf"
    assert report["vector"] == expected.vector.tolist()
    assert report["gap"] <= GAP
    assert report["matrix"] is None
    assert main(["solve", "fig1b", "--select", "1", "--norm", "l1"]) == 0
    assert re.search(r"margin +1 \(l1\)", capsys.readouterr().out)
    assert main(["solve", "fig1b", "--norm", "nuclear"]) == 2
    assert "becomes one for W" in capsys.readouterr().err


def test_the_command_on_a_problem_for_a_matrix(capsys, tmp_path):
    rng = np.random.default_rng(3)
    problem = tm.random_problem(n=3, T=4, d=4, rng=rng).with_matrix(rng.normal(size=(3, 3)))
    problem.save(tmp_path / "w.npz")
    assert main(["solve", str(tmp_path / "w.npz"), "--select", "0,3,3", "--norm", "nuclear", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert np.shape(report["matrix"]) == (3, 4)
    assert np.linalg.norm(report["matrix"], "nuc") * report["margin"] == pytest.approx(1, rel=2 * GAP, abs=0)
    assert report["gap"] <= MATRIX_GAP
    assert main(["atlas", "fig1b", "--norm", "linf", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["limits"]
    expected = tm.atlas(tm.figure1b(), norm="linf").limits
    assert [limit["margin"] for limit in listed] == [limit.solution.margin for limit in expected]
    assert main(["atlas", "fig1b", "--norm", "l7"]) == 2
    assert "such as lp:1.5" in capsys.readouterr().err


def test_an_added_norm_is_found_by_the_command(capsys, monkeypatch):
    """The example's norm, the sum of the two largest, proposed by a linear program; beside l1 in two dimensions."""
    plugin = Path(__file__).parents[2] / "docs" / "examples" / "plugin"
    monkeypatch.chdir(plugin)
    monkeypatch.setattr(sys, "path", [*sys.path, str(plugin)])
    assert main(["solve", "fig1c", "--norm", "heavy_tails:TWO_LARGEST", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["status"], report["norm"]) == ("optimal", "two-largest")
    vector = np.sort(np.abs(report["vector"]))
    assert vector[-2:].sum() * report["margin"] == pytest.approx(1, rel=2 * GAP, abs=0)
    flat = random_constraints(np.random.default_rng(2), "gaussian", 6, 2)
    from heavy_tails import TWO_LARGEST

    assert solve_in_norm(flat, TWO_LARGEST).margin == pytest.approx(
        solve_in_norm(flat, "l1").margin, rel=2 * GAP, abs=0
    )


def test_the_nuclear_solution_has_lower_rank():
    """Seeds 3 and 4 of the public rank study, n = T = 5, d = 10: Frobenius of rank n, nuclear below; proven optimal."""
    pytest.importorskip(
        "torch", reason="the study's data come from torch's generator (pip install 'tokenmargin[train]')"
    )
    for seed in (3, 4):
        problem, selected = norms.drawn(seed, 5, 5, 10)
        frobenius, nuclear = tm.max_margin(problem, selected), tm.max_margin(problem, selected, norm="nuclear")
        assert nuclear.is_optimal
        assert norms.rank(frobenius.matrix) == 5
        assert norms.rank(nuclear.matrix) <= 3


@pytest.mark.parametrize("norm", ["l1", "linf", "lp:1.5", "lp:3"])
def test_a_token_and_its_copy_cannot_be_told_apart_in_any_norm(norm: str) -> None:
    """The only difference is zero: infeasible, without a warning on the way."""
    problem = tm.TokenProblem.of([[[1.0, 2], [1, 2]]], [1], scores=[[1, 0]])
    assert tm.max_margin(problem, [0], norm=norm).status == "infeasible"


def test_where_no_constraint_is_close_there_are_no_multipliers_to_look_for() -> None:
    """A margin of 2e-6 between rows of length one: scipy's nnls was asked for no unknowns, and ended the process."""
    keys, selected = by_a_hair(np.random.default_rng(110))
    found = tm.max_margin(tm.TokenProblem.of(keys, np.ones(len(keys)), scores=keys[:, :, 0]), selected, norm="lp:3")
    assert found.status in ("optimal", "inaccurate")
    # Known to three digits, by exact arithmetic in the Euclidean norm, to which it is close: which problem it is.
    assert found.margin == pytest.approx(2.14e-6, rel=0.01, abs=0)


@pytest.mark.parametrize("p", [1.2, 1.5, 1.9])
def test_a_solution_where_constraints_cross_and_a_coordinate_vanishes(p: float) -> None:
    """Three active constraints cross at (3, -2, 0): there Newton's method in the multipliers gains a bit a step."""
    keys = [[[-1, -2, 2], [2, 2, -2], [-2, 2, -2], [-2, 2, 2]], [[2, -2, 1], [-1, 1, 1], [2, -1, 1], [-2, -1, 1]],
            [[2, 1, 2], [0, -2, -1], [1, -1, 1], [-2, 1, -2]]]  # fmt: skip
    problem = tm.TokenProblem.of(keys, np.ones(3), scores=np.zeros((3, 4)))
    found = tm.max_margin(problem, [1, 0, 2], norm=f"lp:{p}")
    assert found.is_optimal
    assert found.margin == pytest.approx((3**p + 2**p) ** (-1 / p), rel=GAP, abs=0)  # what the certificate promises


@pytest.mark.parametrize("norm", ["nuclear", "spectral"])
def test_rows_that_are_opposite_but_for_their_rounding(norm: str) -> None:
    """Tokens on both sides of the selected one, on a line: rows q and -q, rounded; no iterate nears a constraint."""
    keys = [[[-0.635617207419113], [-1.0521037293395488], [0.6004607248956575]]]
    posed = tm.TokenProblem.of(keys, [1], scores=[[1.0, 0.0, 0.0]])
    queries = np.array([[-0.9575469403813043, 0.6135205786855819, 1.729921778887927]])
    assert tm.max_margin(posed.with_matrix(queries), [0], norm=norm).status != "optimal"


def test_multipliers_that_cancel_leave_the_output_to_the_answer(tmp_path: Path) -> None:
    """Newton's method met weights that are no numbers, and LAPACK wrote about it between the lines of JSON."""
    keys = [[[-1e-8, 0.0, 1e-8], [-1e-8, 2e-8, -1e-8]], [[1e-8, 0.0, 0.0], [2e-8, -2e-8, 2e-8]]]
    problem = {"keys": keys, "labels": [-1, -1], "scores": [[0.0, -1.0], [-1.0, -1.0]]}
    (tmp_path / "p.json").write_text(json.dumps(problem))
    command = [sys.executable, "-m", "tokenmargin", "atlas", str(tmp_path / "p.json"), "--norm", "lp:8", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # 1: a tie of equals is open
    assert json.loads(done.stdout)["limits"]
