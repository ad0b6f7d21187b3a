"""The tables of the claims: every lemma and theorem of a paper, checked on the instances it ships with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

from tokenmargin.experiments.experiment import AbstractExperiment, Finding, Result
from tokenmargin.experiments.tables import PAPER_A, PAPER_B, PAPER_C, PAPER_D, columns
from tokenmargin.theory import PAPER_CLAIMS, Claim, Report, needed

__all__ = ["ClaimsA", "ClaimsB", "ClaimsC", "ClaimsD", "table_row"]


def table_row(claim: Claim, reports: Iterable[Report]) -> str:
    """The claim's line in the table of the documentation: what it says, its evidence, and the hypotheses shown to be
    needed by the instances outside."""
    shown = needed(report for report in reports if report.kind == "outside")
    needs = "no hypothesis" if claim.unconditional else "; ".join(shown) or "-"
    printed = str(claim.refutation()) if claim.refutation else "-"
    cells = (text.replace("|", "\\|") for text in (claim.name, claim.about, claim.evidence, needs, printed))
    return f"| {' | '.join(cells)} |"


@dataclass(frozen=True)
class _Claims(AbstractExperiment):
    """Each claim within its hypotheses, outside of them, and, where the printed statement is wrong, as printed."""

    paper_letter: ClassVar[str]
    shown_tables: ClassVar[tuple[str, ...]] = ("checks",)

    def run(self, progress: Callable[[float], None] | None = None) -> Result:
        claims = [claim for claim in PAPER_CLAIMS if claim.name.startswith(f"{self.paper_letter}.")]
        reports: list[Report] = []
        for done, claim in enumerate(claims):
            reports += claim.own()
            if progress is not None:
                progress((done + 1) / len(claims))
        tables = {
            "checks": columns([_check(report) for report in reports]),
            "slacks": columns([row for report in reports for row in _slacks(report)]),
        }
        examples = [report for report in reports if report.kind == "example"]
        outside = [report for report in reports if report.kind == "outside"]
        documented = [report for report in examples if report.as_expected]
        needed = [report for report in outside if report.as_expected]
        count = len(examples), len(outside)
        findings = (
            Finding(
                "examples within the hypotheses, verdict as stated", len(documented), count[0], count[0], "the paper"
            ),
            Finding("instances outside, on which the conclusion fails", len(needed), count[1], count[1], "our search"),
            Finding(
                "checks with a verdict other than documented",
                sum(not report.as_expected for report in reports),
                0,
                0,
                "the claims' own notes",
            ),
        )
        notes = tuple(f"{r.claim.name}, as printed: {r.claim.note}" for r in reports if r.kind == "refutation")
        return Result(self, tables, findings, notes)


def _check(report: Report) -> dict[str, object]:
    return {
        "claim": report.claim.name,
        "on": str(report.instance),
        "kind": report.kind,
        "verdict": report.verdict,
        "evidence": report.claim.evidence,
        "documented": "yes" if report.as_expected else "no",
        "open": "; ".join(slack.name for slack in report.findings.open),
    }


def _slacks(report: Report) -> list[dict[str, object]]:
    roles = (("hypothesis", report.findings.hypotheses), ("conclusion", report.findings.conclusion))
    return [
        {
            "claim": report.claim.name,
            "on": str(report.instance),
            "role": role,
            "what": slack.name,
            "measured": slack.measured,
            "relation": slack.relation,
            "bound": slack.bound,
            "slack": slack.slack,
            "holds": slack.holds,
            "proven": slack.proven,
            "refuted": slack.refuted,
        }
        for role, slacks in roles
        for slack in slacks
    ]


@dataclass(frozen=True)
class ClaimsA(_Claims):
    """`tokenmargin reproduce claims-a`: every claim on trained embeddings, with the slack of each inequality."""

    figure: ClassVar[str] = "claims-a"
    source: ClassVar[str] = PAPER_A
    title: ClassVar[str] = "Every lemma and theorem on trained embeddings, measured"
    paper_letter: ClassVar[str] = "A"
    seconds: ClassVar[tuple[float | None, float | None]] = (17, 17)
    shows: ClassVar[str] = "proofs; no table. Here every hypothesis and conclusion is a number beside its bound."


@dataclass(frozen=True)
class ClaimsB(_Claims):
    """`tokenmargin reproduce claims-b`: every claim on max-margin token selection, each inequality's slack."""

    figure: ClassVar[str] = "claims-b"
    source: ClassVar[str] = PAPER_B
    title: ClassVar[str] = "Every lemma and theorem on max-margin token selection, measured"
    paper_letter: ClassVar[str] = "B"
    seconds: ClassVar[tuple[float | None, float | None]] = (40, 40)
    shows: ClassVar[str] = "proofs; no table. Here every hypothesis and conclusion is a number beside its bound."


@dataclass(frozen=True)
class ClaimsC(_Claims):
    """`tokenmargin reproduce claims-c`: the main statements on W and on K and Q, each inequality's slack."""

    figure: ClassVar[str] = "claims-c"
    source: ClassVar[str] = PAPER_C
    title: ClassVar[str] = "The main statements on W and on K and Q, measured"
    paper_letter: ClassVar[str] = "C"
    seconds: ClassVar[tuple[float | None, float | None]] = (12, 12)
    shows: ClassVar[str] = "proofs; no table. Here every hypothesis and conclusion is a number beside its bound."


@dataclass(frozen=True)
class ClaimsD(_Claims):
    """`tokenmargin reproduce claims-d`: every claim on next-token prediction, each inequality's slack."""

    figure: ClassVar[str] = "claims-d"
    source: ClassVar[str] = PAPER_D
    title: ClassVar[str] = "The statements on next-token prediction, measured"
    paper_letter: ClassVar[str] = "D"
    seconds: ClassVar[tuple[float | None, float | None]] = (7, 7)
    shows: ClassVar[str] = "proofs; no table. Here every hypothesis and conclusion is a number beside its bound."
