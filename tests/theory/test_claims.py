"""Every claim on the instances it ships with, and the machinery around it."""

import json
from pathlib import Path

import pytest

from tokenmargin.theory import CLAIMS, claim
from tokenmargin.theory.claim import Claim, Findings, above, below, equal, true

DOCS = Path(__file__).parents[2] / "docs"
PAPER_A = {
    "A.initialisation", "A.theorem5",
    *(f"A.lemma{k}" for k in (2, 3, 6, 7, 8, 9, 10, 11, 12, 17, 19, 20, 21)),
}  # fmt: skip
PAPER_B = {*(f"B.lemma{k}" for k in (*range(1, 9), 14)), *(f"B.theorem{k}" for k in range(1, 9))}
AS_PRINTED_WRONG = {"A.initialisation", "A.lemma3-closed-form", "A.lemma20", "B.lemma7", "B.theorem6"}


def test_every_stated_result_is_a_claim():
    names = [known.name for known in CLAIMS]
    assert len(set(names)) == len(names)
    assert set(names) >= PAPER_A | PAPER_B


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
    # Every hypothesis is broken by an instance on which the conclusion fails; or else the claim says why none is.
    hypotheses = {slack.name for slack in reports[0].findings.hypotheses}
    outside = [report for report in reports if report.kind == "outside"]
    broken = {slack.name for report in outside for slack in report.findings.hypotheses if not slack.holds}
    assert hypotheses - broken <= set(known.unneeded) <= hypotheses
    assert (hypotheses == set()) == bool(known.unconditional)
    assert all(known.unneeded.values())
    assert row(known, broken) in (DOCS / "theory.md").read_text(encoding="utf-8").splitlines()


def row(known, broken):
    """The claim's line in the table of the documentation."""
    needs = "; ".join(sorted(broken - set(known.unneeded))) or "no hypothesis"
    printed = str(known.refutation()) if known.refutation else "-"
    cells = (text.replace("|", "\\|") for text in (known.name, known.about, known.evidence, needs, printed))
    return f"| {' | '.join(cells)} |"


def test_what_fails_as_printed_says_so():
    assert {known.name for known in CLAIMS if known.refutation is not None} == AS_PRINTED_WRONG
    assert all(known.note for known in CLAIMS if known.refutation is not None)
    unconditional = {known.name for known in CLAIMS if known.unconditional}
    assert unconditional == {"A.initialisation", "A.lemma3", "A.lemma7", "A.lemma8", "A.lemma20", "B.lemma3"}


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
    assert slack.slack == pytest.approx(room, nan_ok=True)


@pytest.mark.parametrize(
    ("hypothesis", "conclusion", "verdict"),
    [(True, True, "holds"), (True, False, "fails"), (False, True, "vacuous"), (False, False, "vacuous")],
)
def test_verdicts(hypothesis, conclusion, verdict):
    def check(x):
        """A statement."""
        return Findings((true("h", hypothesis),), (true("c", conclusion),))

    made = Claim("X.lemma0", check, "exact", about="x", example=lambda: 0, outside=(lambda: 0,), refutation=lambda: 0)
    report = made.on(7)
    assert report.verdict == verdict
    assert report.as_expected
    example, outside, refutation = made.own()
    assert example.as_expected == (verdict == "holds")
    assert outside.as_expected == (not hypothesis and not conclusion)
    assert refutation.as_expected == (verdict == "fails")
    slacks = report.as_dict()["slacks"]
    assert [slack["role"] for slack in slacks] == ["hypothesis", "conclusion"]
    assert report.as_dict()["instance"] == "7"


def test_unknown_claims_are_corrected():
    assert claim("a.THEOREM5").name == "A.theorem5"
    with pytest.raises(ValueError, match=r"did you mean .*B\.theorem3"):
        claim("B.theorm3")
