"""Every claim on the instances it ships with, and the machinery around it."""

import json
import math
import pkgutil
from pathlib import Path

import pytest
from scipy.stats import binom

from tokenmargin.theory import CLAIMS, STATEMENTS, binomial_interval, claim, needed_hypotheses
from tokenmargin.theory.claim import Claim, Findings, above, below, equal, sampled, searched, seen, true
from tokenmargin.theory.evidence import rare_event

DOCS = Path(__file__).parents[2] / "docs"
AS_PRINTED_WRONG = {
    *("A.initialisation", "A.equation18", "A.lemma3-solvable", "A.lemma3-closed-form", "A.lemma20"),
    *("A.length-heuristic", "B.lemma7-proof-constants", "B.lemma13", "B.theorem6"),
    *("D.lemma3", "D.lemma15", "D.lemma16", "D.theorem2", "D.theorem3", "D.theorem4", "D.theorem5", "D.equation20"),
}


def test_names_of_claims_differ_and_equations_name_claims():
    names = [known.name for known in CLAIMS]
    assert len(set(names)) == len(names)
    for statement in STATEMENTS:
        if statement.kind == "equation":
            assert statement.where
            assert set(statement.where) <= set(names), statement


@pytest.mark.parametrize(
    ("paper", "kinds", "last"),
    [
        ("A", ("theorem", "lemma", "definition", "assumption"), 21),  # one sequence for all
        ("B", ("theorem",), 8),
        ("B", ("lemma",), 14),
        ("B", ("definition",), 3),
        ("D", ("theorem",), 5),
        ("D", ("lemma",), 16),
        ("D", ("definition",), 7),
        ("D", ("assumption",), 3),
    ],
)
def test_the_numbering_has_no_gaps(paper, kinds, last):
    numbers = sorted(int(s.number) for s in STATEMENTS if s.paper == paper and s.kind in kinds)
    assert numbers == list(range(1, last + 1))


def test_definitions_and_assumptions_name_what_computes_them():
    letters = [s.number for s in STATEMENTS if s.paper == "B" and s.kind == "assumption"]
    assert letters == ["A", "B", "C", "D"]
    for statement in STATEMENTS:
        if statement.kind in ("definition", "assumption"):
            for path in statement.where:
                found = pkgutil.resolve_name(path)
                assert found.__doc__, path


def table_row(known, reports):
    """The claim's line in the table of the documentation: what it says, its evidence, and the hypotheses shown to be
    needed by the instances outside."""
    shown = needed_hypotheses(report for report in reports if report.kind == "outside")
    needs = "no hypothesis" if known.unconditional else "; ".join(shown) or "-"
    printed = str(known.refutation()) if known.refutation else "-"
    cells = (text.replace("|", "\\|") for text in (known.name, known.about, known.evidence, needs, printed))
    return f"| {' | '.join(cells)} |"


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("known", CLAIMS, ids=lambda known: known.name)
def test_claims_show_what_they_ship_for(known):
    reports = list(known.own())
    for report in reports:
        assert report.as_expected, report.as_dict()
        json.dumps(report.as_dict())
    assert known.statement
    assert known.about
    assert (reports[0].kind, reports[0].verdict) == ("example", "holds")  # its hypotheses are met: not vacuous
    hypotheses = {slack.name for slack in reports[0].findings.hypotheses}
    shown = set(needed_hypotheses(report for report in reports if report.kind == "outside"))
    assert set(known.unneeded) <= hypotheses - shown  # reasons are given for what is not shown to be needed
    assert (hypotheses == set()) == bool(known.unconditional)
    assert all(known.unneeded.values())
    rows = (DOCS / "theory.md").read_text(encoding="utf-8").splitlines()
    assert table_row(known, reports) in rows


def test_what_fails_as_printed_says_so():
    assert {known.name for known in CLAIMS if known.refutation is not None} == AS_PRINTED_WRONG
    assert all(known.note for known in CLAIMS if known.refutation is not None)
    unconditional = {known.name for known in CLAIMS if known.unconditional}
    a = {"A.initialisation", "A.equation18", *(f"A.lemma{k}" for k in (3, 7, 8, 20))}
    assert unconditional == a | {"B.lemma3", "D.lemma5", "D.equation20"}


@pytest.mark.parametrize(
    ("slack", "holds", "room"),
    [
        (below("x", 1, 2), True, 1),
        (below("x", 2, 2), True, 0),
        (below("x", 2, 2, strict=True), False, 0),
        (below("x", 3, 2), False, -1),
        (above("x", 3, 2), True, 1),
        (above("x", 2, 2, strict=True), False, 0),
        (above("x", 2 - 1e-13, 2, tolerance=1e-12), True, -1e-13),
        (equal("x", 1, 1 + 1e-13, tolerance=1e-12), True, 9e-13),
        (equal("x", 1, 2, tolerance=0), False, -1),
        (true("x", True), True, 0),
        (true("x", False), False, -1),
        (below("x", float("nan"), 2), False, float("nan")),
        (above("d", 10**300, 256), True, 1e300),
    ],
)
def test_slacks(slack, holds, room):
    assert slack.holds is holds
    # Slacks of 1e-13 beside numbers of size one: eps is a share of 2e-3 of them.
    assert slack.slack == pytest.approx(room, rel=1e-2, abs=0, nan_ok=True)


def made(hypothesis, conclusion):
    def check(x):
        """A statement."""
        return Findings((hypothesis,), (conclusion,))

    return Claim("X.lemma0", check, "exact", about="x", example=lambda: 0, outside=(lambda: 0,), refutation=lambda: 0)


YES, NO = true("x", True), true("x", False)


@pytest.mark.parametrize(
    ("hypothesis", "conclusion", "verdict"),
    [
        (YES, YES, "holds"),
        (YES, NO, "fails"),
        (NO, YES, "vacuous"),
        (NO, NO, "vacuous"),
        (YES, seen(YES), "holds"),
        (YES, seen(NO), "undecided"),  # a limit followed to a finite norm refutes nothing
        (YES, sampled(NO), "fails"),  # a point that breaks a "for all" does
        (YES, searched(NO), "undecided"),  # what was not found may be there
        (seen(NO), YES, "undecided"),
        (sampled(YES), NO, "undecided"),  # the hypothesis was tried on some points only
        (sampled(NO), NO, "vacuous"),
        (searched(YES), NO, "fails"),
        (searched(NO), NO, "undecided"),
        (above("x", 1 + 1e-13, 1, tolerance=1e-12), NO, "undecided"),  # met by less than the error of the number
        (above("x", 2, 1, tolerance=1e-12), NO, "fails"),
        (equal("x", 1, 1, tolerance=1e-12), NO, "undecided"),
        (equal("x", 1, 1, tolerance=0), NO, "fails"),
        (YES, below("x", math.nan, 1), "undecided"),  # no number is no evidence
    ],
)
def test_verdicts(hypothesis, conclusion, verdict):
    claimed = made(hypothesis, conclusion)
    report = claimed.on(7)
    assert report.verdict == verdict
    assert report.as_expected
    example, outside, refutation = claimed.own()
    assert example.as_expected == (verdict == "holds")
    assert outside.as_expected == (not hypothesis.holds and not conclusion.holds)
    assert refutation.as_expected == (verdict == "fails")
    plain = report.as_dict()
    assert [slack["role"] for slack in plain["slacks"]] == ["hypothesis", "conclusion"]
    assert plain["instance"] == "7"
    assert bool(plain["undecided"]) == (verdict == "undecided")


def test_undecided_says_what_was_seen_and_what_would_decide():
    report = made(YES, seen(below("angle", 0.3, 0.1), "following it to |p| = 1e9")).on(0)
    (found,) = report.as_dict()["undecided"]
    assert found == {"name": "angle", "seen": 0.3, "would_decide": "following it to |p| = 1e9"}
    (found,) = made(sampled(true("h", True), "a proof of h"), NO).on(0).as_dict()["undecided"]
    assert found["would_decide"] == "a proof of h"


def test_needed_hypotheses_are_broken_alone():
    def check(x):
        """A statement."""
        return Findings(
            (true("one", x != "one"), true("two", x not in ("two", "both")), true("three", x != "both")), (NO,)
        )

    claimed = Claim("X.lemma0", check, "exact", about="x", example=lambda: 0)
    assert needed_hypotheses([claimed.on("one"), claimed.on("both")]) == ("one",)
    assert needed_hypotheses([claimed.on("one"), claimed.on("two")]) == ("one", "two")
    assert needed_hypotheses([claimed.on("none")]) == ()
    without_subject = Claim("X.lemma0", lambda x: Findings((NO,), ()), "exact", about="x", example=lambda: 0)
    assert needed_hypotheses([without_subject.on(0)]) == ()
    assert without_subject.on(0).verdict == "vacuous"


BISECTED = 1e-8  # the quantile that scipy finds, and what the tail makes of its last digits


@pytest.mark.parametrize(("events", "draws"), [(0, 1), (0, 59), (3, 20), (10, 10), (199, 1000)])
def test_binomial_intervals_by_their_definition(events, draws):
    """At either end the binomial tail beyond what was seen has probability 2.5%."""
    low, high = binomial_interval(events, draws)
    assert low <= events / draws <= high
    if events > 0:
        assert binom.sf(events - 1, draws, low) == pytest.approx(0.025, rel=2 * BISECTED, abs=0)
    else:
        assert low == 0
    if events < draws:
        assert binom.cdf(events, draws, high) == pytest.approx(0.025, rel=2 * BISECTED, abs=0)
    else:
        assert high == 1


def test_few_draws_decide_nothing():
    assert not rare_event("x", 0, 19, 0.05).holds
    assert not rare_event("x", 1, 19, 0.05).refuted
    assert rare_event("x", 0, 80, 0.05).holds
    assert not rare_event("x", 0, 80, 0.05).proven
    assert not rare_event("x", 30, 200, 0.1).refuted  # 15% seen: likely, not sure
    assert rare_event("x", 150, 200, 0.1).refuted
    with pytest.raises(ValueError, match="draws"):
        binomial_interval(3, 2)


def test_unknown_claims_are_corrected():
    assert claim("a.THEOREM5").name == "A.theorem5"
    with pytest.raises(ValueError, match=r"did you mean .*B\.theorem3"):
        claim("B.theorm3")
