"""Paper A's claims: the numbers they report, computed again from the formulas by plain loops, clarabel or 60 digits."""

import itertools
import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from benchmarks.claims_audit import audit
from tests.oracles.by_clarabel import SHARP, least_norm
from tests.oracles.rounding import rounding

from tokenmargin.margin import class_margin, solve
from tokenmargin.margin.certificate import PRODUCTS_TOLERANCE, TOLERANCE
from tokenmargin.objective.attention import PromptObjective
from tokenmargin.problem.corpus import TokenCorpus
from tokenmargin.problem.instances import selective_corpus, varied_selective_corpus
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.theory import EmbeddingInstance, binomial_interval, claim
from tokenmargin.theory.evidence import follow_flow, selected_in_the_limit
from tokenmargin.theory.paper_a.classes import printed_constraints
from tokenmargin.theory.paper_a.first_step import probability_beyond
from tokenmargin.theory.paper_a.flow import OUTSIDE_THE_REGIME, one_token
from tokenmargin.theory.paper_a.leading_pairs import Pairs, choices, local_optimality
from tokenmargin.theory.paper_a.only_important import (
    aligned_start,
    balanced_flow,
    from_orthogonal,
    largest_mu,
    smallest_rival,
)
from tokenmargin.theory.settings import enough_dimensions, enough_step

pytestmark = pytest.mark.usefixtures("unchecked_shapes")


def small(**options):
    return EmbeddingInstance.of(4, 3, dimension=300, step=30.0, **options)


def measured(name, instance):
    """Slacks by name, that of a quantile by its first words."""
    findings = claim(name).check(instance)
    slacks = (*findings.hypotheses, *findings.conclusion)
    return {slack.name.removesuffix(", (1 - delta) quantile of the draws"): slack for slack in slacks}


def dot(x, y):
    return sum(a * b for a, b in zip(x, y, strict=True))


def shortest(problem, chosen):
    """The shortest p of a class, by clarabel on the differences written out."""
    vectors, rows = problem.keys.vectors, {True: [], False: []}
    for i in range(problem.n):
        tokens = problem.keys.index[i]
        top = next(t for t in range(problem.T) if chosen[i, t])
        for t in range(problem.T):
            if tokens[t] != tokens[top]:
                rows[bool(chosen[i, t])].append(vectors[tokens[top]] - vectors[tokens[t]])
    held = np.arange(len(rows[True]) + len(rows[False])) < len(rows[True])
    return least_norm(np.array([*rows[True], *rows[False]]), np.where(held, 0.0, 1.0), held, tolerance=1e-12)


def assert_is_mu(mu, own, others):
    """`1 - |p^| / min |p^'|` lies where clarabel's bounds on all of these lengths leave it."""
    most, least = (min(getattr(other, side) for other in others) for side in ("high", "low"))
    assert 1 - own.high / least - OF_MU <= mu <= 1 - own.low / most + OF_MU


def test_conditions_of_theorem_5_are_exact_integers():
    assert enough_dimensions(8, 576, 0.05) == (88 * 576**2 + 111 * 576 + 2) ** 8
    assert enough_dimensions(1000, 0.001, 1e-9) == math.ceil((2 * math.log(1000**2 / 1e-9)) ** 2)
    assert enough_dimensions(10**6, 0.001, 0.5) == 10**6 + 3
    assert 5.3e59 < EmbeddingInstance.of(4, 3).dimension < 5.4e59


def test_start_and_first_step_by_loops():
    x = small()
    step = x.steps[0]
    rows = step.before.geometry.vectors.tolist()
    E, p, v, m, c = rows[:-2], rows[-2], rows[-1], len(rows) - 2, x.corpus
    new, new_p = [list(e) for e in E], list(p)
    for tokens, y in zip(c.index.tolist(), c.labels.tolist(), strict=True):
        q = [math.exp(dot(E[s], p)) for s in tokens]
        q = [w / sum(q) for w in q]
        f = sum(w * dot(E[s], v) for w, s in zip(q, tokens, strict=True))
        g = y / (1 + math.exp(y * f)) / c.n * 30
        for (i, s), (j, t) in itertools.product(enumerate(tokens), repeat=2):
            for k in range(len(p)):
                new_p[k] += g * q[i] * q[j] * (E[s][k] - E[t][k]) * dot(E[s], v)
                new[s][k] += g * q[i] * q[j] * dot(E[s], v) * p[k]
                new[t][k] -= g * q[i] * q[j] * dot(E[s], v) * p[k]
                new[s][k] += (g * q[i] * v[k]) if i == j else 0.0
    alpha = [sum(y * row.count(s) for row, y in zip(c.index.tolist(), c.labels, strict=True)) / 12 for s in range(m)]
    errors = [math.dist(new[s], [a + 15 * alpha[s] * b for a, b in zip(E[s], v, strict=True)]) for s in range(m)]
    largest = max(*errors, math.dist(new_p, p))
    found = measured("A.lemma2", x)["largest error"]
    # Steps of 30 in 300 dimensions, sums of some thousand products: 1e-12, and 1e-11 of what alpha leaves.
    assert found.measured == pytest.approx(largest, rel=1e-10, abs=0)
    assert found.bound == pytest.approx(11 * 30 / 300**0.25, rel=rounding(8), abs=0)
    found = measured("A.lemma11", x)
    longest = max(math.sqrt(dot(e, e)) for e in new)
    # Sums of 300 products, and of some tens of those.
    assert found["longest E_s"].measured == pytest.approx(longest, rel=rounding(3000), abs=0)
    assert found["|p|"].measured == pytest.approx(math.sqrt(dot(new_p, new_p)), rel=rounding(3000), abs=0)

    risk = bound = 0.0
    for tokens, y in zip(c.index.tolist(), c.labels.tolist(), strict=True):
        q = [math.exp(dot(new[s], new_p)) for s in tokens]
        f = sum(w * dot(new[s], v) for w, s in zip(q, tokens, strict=True)) / sum(q)
        risk += math.log1p(math.exp(-y * f)) / c.n
        bound += math.log1p(math.exp(-sum(15 * y * alpha[s] for s in tokens) / 3 + 1 / 660)) / c.n
    found = measured("A.lemma12", x)["risk"]
    # Logits of order ten carry their rounding of 1e-12 into weights and risk.
    assert (found.measured, found.bound) == pytest.approx((risk, bound), rel=1e-10, abs=0)


def test_pairs_of_lemmas_8_and_17_at_sixty_digits():
    x = EmbeddingInstance.of(4, 3)
    problem, _ = x.problems_and_choices[0]
    keys = problem.keys
    w = class_margin(problem, x.corpus.important).vector
    p = 12 * w + 0.3 * x.point(0)
    pairs = Pairs(problem, p)
    first = np.asarray(keys.logits(p) == keys.logits(p).max(axis=1, keepdims=True))
    among = first[:, :, None] & ~first[:, None, :]
    with mpmath.workdps(60):
        total = leading = mpmath.mpf(0)
        for i in range(problem.n):
            a = [mpmath.mpf(z) for z in keys.logits(p)[i]]
            ahead = [mpmath.mpf(z) for z in keys.logits(w)[i]]
            gamma = [mpmath.mpf(z) for z in problem.scores[i]]
            q = [mpmath.exp(z) / mpmath.fsum(mpmath.exp(u) for u in a) for z in a]
            g = 1 / (1 + mpmath.exp(mpmath.fsum(s * t for s, t in zip(q, gamma, strict=True))))
            for s, t in itertools.combinations(range(problem.T), 2):
                term = g * (ahead[s] - ahead[t]) * q[s] * q[t] * (gamma[s] - gamma[t]) / problem.n
                total += term
                leading += term if first[i, s] or first[i, t] else 0
        ratio = float(total / leading)
        log_total = float(mpmath.log(total))
    # Logits of order a hundred, whose roundings are those of weights: a hundred times T of them.
    assert np.log(pairs.total(keys.logits(w))) + pairs.log_scale(keys.logits(w)) == pytest.approx(
        log_total, rel=rounding(100 * problem.n * problem.T), abs=0
    )
    assert pairs.total(keys.logits(w)) / pairs.total(keys.logits(w), among) == pytest.approx(
        ratio, rel=rounding(100 * problem.n * problem.T), abs=0
    )


def test_lemma_9_ratio_from_the_gradient_written_out():
    x = EmbeddingInstance.of(2, 2, selection="important")
    found = measured("A.lemma9", x)
    problem, chosen = x.problems_and_choices[0]
    u = class_margin(problem, chosen).vector
    p = x.limits[0].path.at_norm(1e3)
    with mpmath.workdps(900):  # the gradient is about exp(-1200) there
        rows = [[mpmath.mpf(z) for z in row] for row in problem.keys.vectors.tolist()]
        gradient = [mpmath.mpf(0)] * len(rows[0])
        for tokens, gammas in zip(problem.keys.index.tolist(), problem.scores.tolist(), strict=True):
            weights = [mpmath.exp(mpmath.fdot(rows[s], [mpmath.mpf(z) for z in p.tolist()])) for s in tokens]
            q = [w / mpmath.fsum(weights) for w in weights]
            f = mpmath.fdot(q, gammas)
            for q_t, s, gamma in zip(q, tokens, gammas, strict=True):
                for k in range(len(gradient)):
                    gradient[k] += q_t * (gamma - f) * rows[s][k] / (1 + mpmath.exp(f))
        ratio = (mpmath.fdot(gradient, u.tolist()) / mpmath.norm(u.tolist())) / (
            mpmath.fdot(gradient, p.tolist()) / mpmath.norm(p.tolist())
        )
    direction = PromptObjective(problem).descent(p).direction
    # Logits of 1e3 are rounded to 1e-13 of themselves, hence weights to 1e-10, and some cancel.
    assert direction @ u / np.linalg.norm(u) / (direction @ p / np.linalg.norm(p)) == pytest.approx(
        float(ratio), rel=1e-8, abs=0
    )
    assert found["cosine with u"].holds
    # At the end, |p| = 1e4, what is left out is of order 1 / |p|^2 or less.
    assert found["least ratio in (15) at the end, eps = 0.001"].measured == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("selection", ["random", "tied", "important"])
@pytest.mark.parametrize(("n", "T"), [(2, 2), (4, 3), (6, 3)])
def test_classes_against_clarabel(n, T, selection):
    for seed in range(3):
        x = EmbeddingInstance.of(n, T, dimension=20, step=5.0, seed=seed, selection=selection)
        problem, chosen = x.problems_and_choices[0]
        shortest(problem, chosen).assert_agrees(class_margin(problem, chosen))


def test_mu_by_trying_every_set_of_ties():
    x = EmbeddingInstance.of(4, 2, irrelevant=1)
    problem, important = x.problems_and_choices[0][0], x.corpus.important
    sets = [ties for ties in itertools.product((False, True), repeat=4) if any(ties) and not all(ties)]
    lengths = [shortest(problem, important | (np.array(ties)[:, None] & ~important)) for ties in sets]
    # each sequence has one irrelevant token, so these are all the selections that contain the important tokens
    assert_is_mu(largest_mu(problem, important), shortest(problem, important), lengths)
    assert largest_mu(problem, important) < -0.9


def test_the_limit_selects_by_its_definition():
    x = EmbeddingInstance.of(4, 3)
    problem, important = x.problems_and_choices[0][0], x.corpus.important
    limit = follow_flow(problem, x.steps[0].after.prompt, norm=1e4)
    assert (limit.chosen == important).all()
    # The next term is of order log |p| / |p|, over the last decade of |p| = 1e4.
    assert limit.slope == pytest.approx(-1, abs=0.01)
    unit = limit.solution.vector * limit.solution.margin
    # An arc cosine near 1 has the square root of rounding.
    assert limit.angle == pytest.approx(float(np.arccos(limit.path.prompt @ unit / 1e4)), abs=10 * rounding(60) ** 0.5)
    tie = selected_in_the_limit(problem, problem.keys.vectors[x.corpus.index[0]].sum(axis=0) * 100)
    assert tie.any(axis=1).all()


def test_gram_and_coordinates_give_the_same_limit():
    x = EmbeddingInstance.of(4, 3, dimension=60)
    after = x.steps[0].after
    one = follow_flow(after.problem(), after.prompt, norm=1e4)
    gram = after.as_gram()
    other = follow_flow(gram.problem(), gram.prompt, norm=1e4)
    assert (one.chosen == other.chosen).all()
    # Inner products know the margin to the tolerance of their certificates.
    assert one.solution.margin == pytest.approx(other.solution.margin, rel=PRODUCTS_TOLERANCE, abs=0)
    # Flows with a tolerance of 1e-8 beside logits of 1e4, some steps of it.
    np.testing.assert_allclose(
        after.geometry.logits(one.path.prompt), gram.geometry.logits(other.path.prompt), rtol=0, atol=1e-3
    )


def test_the_example_of_lemma_19_by_hand():
    """Every start of it satisfies (14); its mu is found again over all sets of ties, by clarabel."""
    x = aligned_start()
    start, problem, important = x.steps[0].before, x.problems_and_choices[0][0], x.corpus.important
    a, b = start.overlaps
    allowed = math.sqrt(2 * math.log(x.corpus.size**2 / x.delta) / float(x.dimension))
    assert max(np.abs(a).max(), np.abs(b).max(), abs(start.prompt @ start.head)) <= allowed
    assert start.geometry.vector_norms.max() <= 2
    # good a, fine a, fine the, bad a, dull a, dull the: each sequence is one pair, and one set of ties a subset
    sets = [np.array(ties) for ties in itertools.product((False, True), repeat=6) if any(ties) and not all(ties)]
    lengths = [shortest(problem, important | (ties[:, None] & ~important)) for ties in sets]
    own = shortest(problem, important)
    assert_is_mu(largest_mu(problem, important), own, lengths)
    assert 0.46 < largest_mu(problem, important) < 0.48
    assert 0.49 < own.low <= own.high < 0.51  # h/2


def corpora_under_assumption_4():
    """Random corpora of a few shapes, and every pair of partitions of 3 sequences into important tokens."""
    for seed, (n, T, irrelevant, equal) in enumerate(
        [(2, 2, 1, True), (4, 2, 1, True), (4, 2, 2, False), (4, 3, 2, True), (6, 2, 1, False), (6, 2, 2, True)]
    ):
        rng = np.random.default_rng(seed)
        yield selective_corpus(n, T, rng=rng, irrelevant=irrelevant, equal=equal, repeats=irrelevant < T - 1)
    for up, down in itertools.product(("xyz", "xxy", "xxx"), repeat=2):
        words = [[f"+{s}", t] for s, t in zip(up, "aab", strict=True)]
        words += [[f"-{s}", t] for s, t in zip(down, "aab", strict=True)]
        yield TokenCorpus.of(words, [1, 1, 1, -1, -1, -1])


def instance(corpus):
    eta = float(enough_step(corpus))
    return EmbeddingInstance(corpus, enough_dimensions(corpus.size, eta, 0.05), eta)


OF_MU = 4 * TOLERANCE  # one minus a quotient below 2 of two certified lengths


def test_mu_is_negative_on_every_corpus_as_proven():
    largest = []
    for corpus in corpora_under_assumption_4():
        x = instance(corpus)
        assert corpus.assumption4().holds
        assert claim("A.lemma19-no-mu").on(x).verdict == "holds"
        M = int((corpus.sole_label != 0).sum())
        mu = largest_mu(x.problems_and_choices[0][0], corpus.important)
        assert mu <= 1 - math.sqrt((1 - 1 / (M + 1)) / smallest_rival(x)) + OF_MU
        largest.append(mu)
    assert max(largest) < -0.2


def test_no_corpus_found_by_search_has_a_larger_mu_than_proven():
    """Climb: exchange irrelevant tokens, or merge and split important ones, and keep what raises mu."""
    rng = np.random.default_rng(3)

    def posed(up, down, filling, order):
        words = [[f"+{s}", f"t{t}"] for s, t in zip(up, filling, strict=True)]
        words += [[f"-{s}", f"t{t}"] for s, t in zip(down, filling[order], strict=True)]
        corpus = TokenCorpus.of(words, np.repeat([1, -1], len(up)))
        x = instance(corpus)
        return largest_mu(x.problems_and_choices[0][0], corpus.important), x

    state = [np.zeros(4, dtype=int), np.arange(4), rng.integers(2, size=4), np.arange(4)]
    best, x = posed(*state)
    for _ in range(25):
        tried = [part.copy() for part in state]
        which = int(rng.integers(4))
        tried[which] = (
            rng.permutation(4) if which == 3 else np.where(rng.random(4) < 0.4, rng.integers(4, size=4), tried[which])
        )
        mu, y = posed(*tried)
        if mu >= best:
            state, best, x = tried, mu, y
    M = int((x.corpus.sole_label != 0).sum())
    assert best <= 1 - math.sqrt((1 - 1 / (M + 1)) / smallest_rival(x)) + OF_MU
    assert best < 0


def test_errors_beyond_the_bound_are_possible_in_one_dimension():
    """One sequence of two tokens: the probability of an error beyond (6), by summing over a grid."""
    grid = np.arange(-9, 9.01, 0.1)
    one, two, p = np.meshgrid(grid, grid, grid, indexing="ij")
    q = 1 / (1 + np.exp(p * (two - one)))
    f = q * one + (1 - q) * two
    g = 1 / (1 + np.exp(f))
    moved = g * q * (1 - q) * (one - two)  # coefficient on p of -dL/dE_1, minus that of -dL/dE_2
    on_prompt = np.abs(moved * (one - two))
    on_first, on_second = np.abs(moved * p + g * q - 0.25), np.abs(-moved * p + g * (1 - q) - 0.25)
    beyond = np.maximum(on_prompt, np.maximum(on_first, on_second)) > 11
    exact = float(np.exp(-(one**2 + two**2 + p**2) / 2)[beyond].sum()) * (0.1 / math.sqrt(2 * math.pi)) ** 3
    # A grid of 0.1 under a normal density beyond an edge: percents.
    assert exact == pytest.approx(2.4e-9, rel=0.02, abs=0)


@pytest.mark.parametrize(
    ("size", "delta", "d"), [(3, 1e-10, 256), (3, 1e-12, 256), (3, 1e-20, 256), (2, 0.05, 300), (7, 0.5, 12)]
)
def test_the_probability_that_the_start_is_far_by_quadrature(size, delta, d):
    """P(some <E_s, p> too large) <= P((14) fails) <= sum of all, each in 30 digits."""
    with mpmath.workdps(30):
        L, half = mpmath.log(size**2 / mpmath.mpf(delta)), mpmath.mpf(d) / 2

        def density(r):
            return mpmath.exp((half - 1) * mpmath.log(r) - half * r + half * mpmath.log(half) - mpmath.loggamma(half))

        cuts = [mpmath.mpf(k) / 100 for k in (1, 30, 60, 80, 90, 100, 110, 120, 140, 170, 220, 400, 900)]
        alone = mpmath.quad(lambda r: density(r) * mpmath.erfc(mpmath.sqrt(L / r)), cuts)
        some = mpmath.quad(lambda r: density(r) * (1 - (1 - mpmath.erfc(mpmath.sqrt(L / r))) ** size), cuts)
        normal = mpmath.erfc(mpmath.sqrt(L))
        long_ = mpmath.gammainc(half, 2 * d, mpmath.inf, regularized=True)
        bound = size * alone + (size + 1) * (normal + long_)
        low, high = float(max(some, 1 - (1 - normal) ** (size + 1))), float(bound)
    found = probability_beyond(size, d, delta)
    # the sums over 4000 cells bracket the integral, and lose at most a few percent to the cells' width
    assert 0.93 * low <= found[0] <= low * (1 + 1e-9)
    assert high * (1 - 1e-9) <= found[1] <= 1.07 * high


def test_the_repair_of_the_start_is_proven_where_it_applies():
    """The proof's closed bound is below delta on its boundary, and above the bracketed probability."""
    for size, delta in itertools.product((2, 3, 10, 1000), (0.999, 0.5, 1e-3, 1e-12, 1e-60)):
        L = math.log(size**2 / delta)
        d = max(256, math.ceil(4 * L**2))
        printed = delta * (2.35 * size + 1) / (size**2 * math.sqrt(math.pi * L)) + (size + 1) * math.exp(-0.8 * d)
        assert probability_beyond(size, d, delta)[1] <= 1.07 * printed
        assert printed <= 0.7 * delta
    assert probability_beyond(3, 256, 1e-20)[0] > 10e-20  # d is not tied to delta: refuted
    assert math.erf(math.sqrt(math.log(2))) ** 3 == pytest.approx(0.4407, abs=1e-4)  # one token, delta = 1/2


def test_definitions_15_and_16_with_ties():
    """s and a tied above b above c, twice: the sum of leads is that of s, the least pairwise lead is zero."""
    tokens = [[2.0, 0.0], [2.0, 0.0], [1.0, 0.0], [0.0, 0.0]]
    problem = TokenProblem.of([tokens, tokens], [1, -1], scores=[[16.0, 0.0, 0.0, 0.0]] * 2)
    chosen = choices(problem, np.array([1.0, 0.0]))
    assert chosen.first.tolist() == [[True, True, False, False]] * 2
    assert chosen.second.tolist() == [[False, False, True, False]] * 2
    assert chosen.rest.tolist() == [[False, False, False, True]] * 2
    assert chosen.gap == 1
    assert local_optimality(problem, chosen) == 16
    all_tied = choices(problem, np.array([0.0, 1.0]))
    assert not all_tied.second.any()
    assert local_optimality(problem, all_tied) == math.inf


def test_definition_15_by_sorting():
    x = EmbeddingInstance.of(6, 4, dimension=40, step=5.0, varied=True)
    problem = x.problems_and_choices[0][0]
    chosen = choices(problem, x.point(0))
    for i, tokens in enumerate(x.corpus.index.tolist()):
        logits = problem.keys.logits(x.point(0))[i]
        levels = sorted({logits[t] for t in range(len(tokens))}, reverse=True)
        for part, level in ((chosen.first, levels[0]), (chosen.second, levels[1] if len(levels) > 1 else None)):
            assert [t for t in range(4) if part[i, t]] == [t for t in range(4) if logits[t] == level]


def test_lemma_17_ties_in_its_example():
    x = claim("A.lemma17").example()
    found = claim("A.lemma17").check(x)
    assert found.verdict == "holds"
    ratio = found.conclusion[0]
    assert ratio.bound / 4 < ratio.measured <= ratio.bound  # a number that could fail
    assert any(len(set(row.tolist())) < x.corpus.T for row in x.corpus.index)  # a token twice


def test_lemma_17_beside_a_sequence_that_is_tied_throughout():
    """In the first and third, where all tokens are tied, the output is a mean, and the slope exp(2000) times that of a
    sequence with a second choice; it adds nothing to either sum, and must not push the others below the smallest
    double."""
    x = EmbeddingInstance.of(4, 2, irrelevant=2, dimension=40, step=1e5, seed=6, equal=False)
    gamma = x.problems_and_choices[0][0].scores
    tied = np.array([True, False, True, False])
    assert gamma[~tied].max(axis=1).min() - gamma[tied].mean(axis=1).min() > 2000
    assert claim("A.lemma17").on(x).verdict == "holds"


def test_lemma_8_where_logits_have_no_digits_left():
    """Tokens of length 1e11 and logits of as many units: rounding is all there is, which refutes nothing."""
    x = EmbeddingInstance.of(2, 3, dimension=9, step=4e11, seed=27)
    report = claim("A.lemma8").on(x)
    assert report.findings.conclusion[0].bound > 1
    assert report.verdict == "undecided"


@pytest.mark.parametrize("dimension", [7000.0, 4e29, 1e114])
def test_lemma_7_where_every_coefficient_on_v_cancels(dimension):
    """Every text stands under both labels, so that alpha is 0 everywhere: rounding is a share of what cancels."""
    for texts in (["a b b", "c a d"], ["a"], ["a b"]):
        corpus = TokenCorpus.of([text.split() for text in texts * 2], [1.0] * len(texts) + [-1.0] * len(texts))
        for seed in range(4):
            assert claim("A.lemma7").on(EmbeddingInstance(corpus, dimension, 1.0, seed=seed)).verdict == "holds"


def test_lemma_12_where_the_bound_is_closer_than_rounding():
    """The risk is 2e7 and its bound 1/(22 eta_0) = 5e-12 more."""
    texts = ["d g d d", "g d a e", "e a f d", "f d f c", "a e d f", "e a g a", "e c f e"]
    x = EmbeddingInstance.on(texts, [1, 1, 1, -1, -1, -1, -1], step=1e10, delta=0.25, draws=13)
    assert claim("A.lemma12").on(x).verdict == "holds"


def test_lemma_3_where_ties_are_rounded():
    """A vector p_o that ties tokens ties them up to the digits of logits of 1e9."""
    texts = ["c b p", "c m b", "d a q", "n a d"]
    for seed in range(20):
        x = EmbeddingInstance.on(texts, [1, -1, 1, -1], step=4e11, selection="tied", draws=3, seed=seed)
        assert claim("A.lemma3").on(x).verdict != "fails"


@pytest.mark.parametrize("name", ["A.lemma3", "A.lemma20", "A.lemma20-repaired", "A.equation18"])
def test_what_doubles_do_not_solve_is_left_open(name):
    """Beside a step of 1e14 two digits are left of what tokens differ by across v."""
    inaccurate = 0
    for seed in range(4):
        x = EmbeddingInstance.of(4, 3, equal=False, dimension=30, step=1e14, selection="tied", seed=seed, draws=1)
        unsolved = class_margin(*x.problems_and_choices[0]).status == "inaccurate"
        assert (claim(name).on(x).verdict == "undecided") == unsolved
        inaccurate += unsolved
    assert inaccurate


def test_flows_that_begin_far_out_or_have_no_slope_are_answered():
    """The first step alone may be longer than the flow is followed; logits of 1e4 leave no slope to a double."""
    far = EmbeddingInstance.on(["a b", "a c"], [1, 1], dimension=1, step=1e6, draws=1, norm=1e3)
    assert float(np.linalg.norm(far.steps[0].after.prompt)) > 1e3
    assert claim("A.lemma9").on(far).verdict == "undecided"
    for step in (7e3, 7e4):  # the steps underflow, and then the Lipschitz constant too
        sole = EmbeddingInstance.on(["a b c b a"], [1], step=step, dimension=5, norm=1e3)
        assert claim("A.gradient-descent").on(sole).verdict == "vacuous"


def test_delta_may_be_the_smallest_double():
    x = EmbeddingInstance.of(2, 2, delta=5e-324)
    assert claim("A.lemma2").on(x).verdict == "undecided"
    assert probability_beyond(1, 300, 1.0)[0] == 1  # no deviation is allowed


@pytest.mark.parametrize("step", [1e16, 1e20, 1e26])
def test_classes_are_not_refuted_by_a_step_beyond_the_digits_of_doubles(step):
    """Tokens of size one beside parts of `step` along v: M p = 1 is solvable as it is for any step."""
    x = EmbeddingInstance.of(4, 3, dimension=40, step=step, selection="important")
    assert claim("A.lemma3-solvable-repaired").on(x).verdict == "holds"
    for name in ("A.lemma3", "A.lemma3-closed-form-with-signs"):
        assert claim(name).on(x).verdict in ("holds", "undecided")
        assert claim(name).on(replace(x, selection="tied")).verdict != "fails"
    assert claim("A.lemma19-no-mu").on(replace(x, step=1e40)).verdict == "vacuous"  # 1e80 to the eighth power
    with pytest.raises(ValueError, match="more than 1e300 dimensions"):
        EmbeddingInstance.of(4, 3, step=1e40)


def test_lemma_17_says_nothing_where_no_token_leads():
    """a and b stand side by side everywhere: one is selected, the other the second choice, and they score the same."""
    corpus = TokenCorpus.of([["a", "b"]] * 3, [1, 1, -1])
    levels = [claim("A.lemma17").on(EmbeddingInstance.with_corpus(corpus, seed=seed)) for seed in range(8)]
    leads = [slack.measured for report in levels for slack in report.findings.hypotheses if slack.name[:2] == "mu"]
    assert 0.0 in leads
    assert all(report.verdict == "vacuous" for report in levels)


def test_equation_18_leaves_the_class():
    """a = (1, 0), b = (3, 1), c = 0 with a and b selected: (18) gives (1, 0), whose logits 1 and 3 are no tie."""
    problem = TokenProblem.of([[[1.0, 0.0], [3.0, 1.0], [0.0, 0.0]]], [1], scores=[[1.0, 1.0, 0.0]])
    both = np.array([[True, True, False]])
    # Two or three constraints in the plane, of small integers.
    np.testing.assert_allclose(solve(printed_constraints(problem, both)).vector, [1, 0], rtol=0, atol=rounding(50))
    np.testing.assert_allclose(class_margin(problem, both).vector, [1, -2], rtol=0, atol=rounding(50))
    x = claim("A.equation18").refutation()
    problem, chosen = x.problems_and_choices[0]
    p = solve(printed_constraints(problem, chosen)).vector
    logits = problem.keys.logits(p)
    ties = [np.ptp(row[here]) for row, here in zip(logits, chosen, strict=True) if here.sum() > 1]
    assert max(ties) > 0.1  # tokens selected together have other logits
    assert x.corpus.assumption4().holds


def test_the_length_formula_by_clarabel():
    for corpus in corpora_under_assumption_4():
        x = instance(corpus)
        M, N = (corpus.sole_label != 0).sum(), (corpus.sole_label == 0).sum()
        found = shortest(x.problems_and_choices[0][0], corpus.important)
        assert found.high - found.low <= SHARP * found.high
        if balanced_flow(corpus):
            e = from_orthogonal(corpus, x.steps[0].after, x.step)  # rounding alone, in these dimensions
            assert found.low**2 <= M * N / (M + N) * (1 + 2 * e)
            assert found.high**2 >= M * N / (M + N) * (1 - 2 * e)
        else:
            assert found.high**2 < M * N / (M + N)


def test_balanced_flows_by_trying_every_set():
    """The condition of Hall: the irrelevant tokens beside a set of important ones are no smaller a share."""
    for seed in range(60):
        corpus = varied_selective_corpus(2 * (seed % 4 + 1), seed % 3 + 2, rng=np.random.default_rng(seed))
        important, irrelevant = (
            {int(s) for s in np.flatnonzero(m)} for m in (corpus.sole_label != 0, corpus.sole_label == 0)
        )
        beside = {s: set().union(*(set(row) - {s} for row in corpus.index.tolist() if s in row)) for s in important}
        fine = all(
            len(set().union(*(beside[s] for s in part))) * len(important) >= len(part) * len(irrelevant)
            for size in range(1, len(important) + 1)
            for part in itertools.combinations(sorted(important), size)
        )
        assert balanced_flow(corpus) == fine


def test_descent_goes_where_the_flow_goes():
    """Steps of 1 from the start of flow: after 1000 the same point at the same length."""
    x = EmbeddingInstance.of(2, 2)
    after = x.steps[0].after
    problem, p = after.problem(), after.prompt
    objective = PromptObjective(problem)
    for _ in range(1000):
        direction, log_norm = objective.descent(p)
        p = p + np.exp(log_norm[0]) * direction
    path = follow_flow(problem, after.prompt, norm=1e3).path
    # Flow of a tolerance of 1e-8; descent with steps this short follows it to second order in them.
    np.testing.assert_allclose(path.at_norm(np.linalg.norm(p)), p, rtol=0, atol=1e-6)
    assert np.linalg.norm(p) > 2


@pytest.mark.parametrize("make", [*OUTSIDE_THE_REGIME, one_token], ids=lambda make: make.__name__)
def test_outside_the_regime_most_draws_fail(make):
    """Breaking one condition alone, Theorem 5 fails in a larger share of the draws than delta allows."""
    x = make()
    findings = claim("A.theorem5").check(x)
    assert sum(not slack.holds for slack in findings.hypotheses) == 1
    failed = [limit.path.stop != "norm" or not limit.chosen[x.corpus.important].all() for limit in x.limits]
    low, _ = binomial_interval(sum(failed), x.draws)
    assert low > x.delta


@pytest.mark.parametrize(("seed", "turned"), [(4, 3), (12, 1)])
def test_sequences_are_turned_away_from_tokens_that_attention_began_on(seed, turned):
    """Too low a dimension for the step: errors score, and a sequence may end on one of them."""
    x = EmbeddingInstance.of(8, 4, dimension=512, step=4096.0, seed=seed, norm=1e4)
    after, (limit,) = x.steps[0].after, x.limits
    lost = ~limit.chosen[x.corpus.important]
    problem = after.problem()
    logits = problem.keys.logits(after.prompt)
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    assert lost.sum() == turned
    assert weights[x.corpus.important][lost].min() > 0.99
    scores = np.where(limit.chosen, problem.scores, np.inf).min(axis=1)[lost]
    assert 1 < scores.min() <= scores.max() < 8


def test_one_token_in_each_sequence_is_among_what_lemmas_14_and_21_speak_of():
    """They ask nothing of T: the token is selected, and the max-margin vector is 0."""
    for name, verdict in (("A.lemma14", "holds"), ("A.lemma21", "holds"), ("A.lemma18", "vacuous")):
        assert claim(name).on(one_token()).verdict == verdict


def test_a_corpus_without_important_tokens_leaves_nothing_to_conclude():
    x = EmbeddingInstance.on(["the film", "the film"], [1, -1])
    names = [
        f"A.{name}" for name in ("lemma13", "lemma14", "lemma18", "lemma19", "lemma19-no-mu", "lemma19-without-mu")
    ]
    names += ["A.theorem5", "A.theorem5-proof", "A.lemma19-proof", "A.one-irrelevant-token", "A.gradient-descent"]
    for name in (*names, "A.lemma21", "A.length", "A.length-bound", "A.length-heuristic"):
        report = claim(name).on(x)
        assert (report.verdict, report.findings.conclusion) == ("vacuous", ())


@pytest.mark.parametrize(
    "name",
    [
        *("A.initialisation-repaired", "A.lemma2", "A.lemma2-proof", "A.lemma7", "A.lemma8", "A.lemma10", "A.lemma11"),
        *("A.lemma12", "A.lemma17", "A.lemma3", "A.lemma20-repaired", "A.equation18-without-ties", "A.lemma21"),
        *("A.lemma3-solvable-repaired", "A.lemma3-closed-form-with-signs", "A.length", "A.length-bound", "A.overlap"),
    ],
)
def test_a_sample_of_the_audit(name):
    """`python -m benchmarks.claims_audit --paper A` tries hundreds."""
    tally = audit(claim(name), 16, seed=5)
    assert not tally.lies, tally.fails
    assert tally.verdicts["holds"] > 0
