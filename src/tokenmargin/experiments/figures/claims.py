"""The tables of the claims: every lemma and theorem of a paper, checked on the instances it ships with."""

from __future__ import annotations

from dataclasses import dataclass

from tokenmargin.experiments.experiment import AbstractExperiment, Finding, Progress, Result, track
from tokenmargin.experiments.tables import PAPER_A, PAPER_B, PAPER_C, PAPER_D, columns
from tokenmargin.theory import PAPER_CLAIMS, Report


@dataclass(frozen=True)
class _Claims(AbstractExperiment):
    """Each claim within its hypotheses, outside of them, and, where the printed statement is wrong, as printed."""

    shown_tables = ("checks",)
    shows = "proofs; no table. Here every hypothesis and conclusion is a number beside its bound."

    def run(self, progress: Progress = None) -> Result:
        paper = f"{self.figure[-1].upper()}."  # as in claims-a
        claims = [claim for claim in PAPER_CLAIMS if claim.name.startswith(paper)]
        reports: list[Report] = []
        for claim in track(claims, progress):
            reports += claim.own()
        tables = {
            "checks": columns([_check(report) for report in reports]),
            "slacks": columns([row for report in reports for row in _slacks(report)]),
        }
        kept = {
            kind: [report.as_expected for report in reports if report.kind == kind] for kind in ("example", "outside")
        }
        (inside, all_in), (outside, all_out) = ((sum(facts), len(facts)) for facts in kept.values())
        findings = (
            Finding("examples within the hypotheses, verdict as stated", inside, all_in, all_in, "the paper"),
            Finding("instances outside, on which the conclusion fails", outside, all_out, all_out, "our search"),
            Finding("checks with a verdict other than documented", sum(not report.as_expected for report in reports),
                    0, 0, "the claims' own notes"),
        )  # fmt: skip
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
    names = ("measured", "relation", "bound", "slack", "holds", "proven", "refuted")
    return [
        {"claim": report.claim.name, "on": str(report.instance), "role": role, "what": slack.name}
        | {name: getattr(slack, name) for name in names}
        for role, slacks in roles
        for slack in slacks
    ]


def _claims_of(letter: str, paper: str, what: str, seconds: float) -> type[_Claims]:
    """The experiment that checks the claims of one paper."""
    facts = {"figure": f"claims-{letter}", "source": paper, "title": f"{what}, measured", "seconds": (seconds, seconds)}
    facts["__doc__"] = f"`tokenmargin reproduce claims-{letter}`: {what[0].lower()}{what[1:]}, each inequality's slack."
    return type(f"Claims{letter.upper()}", (_Claims,), {**facts, "__module__": __name__})


ClaimsA = _claims_of("a", PAPER_A, "Every lemma and theorem on trained embeddings", 17)
ClaimsB = _claims_of("b", PAPER_B, "Every lemma and theorem on max-margin token selection", 40)
ClaimsC = _claims_of("c", PAPER_C, "The main statements on W and on K and Q", 12)
ClaimsD = _claims_of("d", PAPER_D, "Every lemma and theorem on next-token prediction", 8)
