"""Claim: a stated result as something to run. Hypotheses and conclusion are measured numbers beside their bounds.

A claim checked on an instance gives a `Report` with one of four verdicts:

- **holds**: every hypothesis and the conclusion are true of the instance, as far as the evidence goes;
- **fails**: every hypothesis is proven and the conclusion is refuted. It cannot be otherwise: the numbers behind it are
  exact, or rest on a certificate, or have an error that is bounded;
- **vacuous**: a hypothesis is refuted, so the result says nothing. Whether the conclusion happens to be true is still
  reported: where it is not, and no other hypothesis is broken, the instance shows that the hypothesis is needed;
- **undecided**: what was computed cannot tell. The report says what was seen, and what would decide it.

A number is turned into a `Slack` by `below`, `above`, `equal` or `true`, and is taken for exact. Where it is not,
`sampled` (a "for all" tried on some points), `searched` (a "there is" not found) or `seen` (a limit followed to a
finite norm) says so: such a slack can be met or broken without being proven or refuted.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy import ndarray as Array

from tokenmargin._notebook import Tabular

Verdict = Literal["holds", "fails", "vacuous", "undecided"]
Evidence = Literal["exact", "bounded", "sampled"]
"""How much a verdict can be trusted.

- exact: the quantities are computed to rounding, for this instance the verdict is the truth;
- bounded: as exact, resting on a certificate (a max-margin solution's residuals);
- sampled: a limit is followed to a finite norm, or a "for all" is tried on finitely many points.
"""

Conclusive = Literal["always", "if broken", "if met", "never"]
"""When a slack is proof of what it says: "if broken" for a statement about all points that was tried on some."""

Kind = Literal["example", "outside", "refutation", "given"]
"""Which instance a report is about: one of those a claim ships with, or one given."""

NO_SUBJECT = "Without it there is no max-margin direction for the statement to speak of."
"""Why nothing is outside the hypothesis that tokens can be separated."""

_SIGN = {"<=": 1, "<": 1, ">=": -1, ">": -1, "=": 0}


@dataclass(frozen=True)
class Slack:
    """One inequality of a claim: `measured relation bound`, and by how much it is true.

    >>> below("loss", 0.25, 0.5).slack
    0.25
    """

    name: str
    measured: float
    relation: Literal["<=", "<", ">=", ">", "="]
    bound: float
    tolerance: float = 0.0  # how far the measured number can be from the true one
    conclusive: Conclusive = "always"
    decide: str = ""  # what would decide it, where this does not

    @property
    def slack(self) -> float:
        """Distance to the bound, negative when violated; for an equation, tolerance minus the difference."""
        sign = _SIGN[self.relation]
        if sign == 0:
            return self.tolerance - abs(self.measured - self.bound)
        return sign * (self.bound - self.measured) + 0.0  # no negative zero

    @property
    def holds(self) -> bool:
        """Whether the measured number meets the bound, within its tolerance."""
        if self.relation == "=":
            return self.slack >= 0
        return self.slack > -self.tolerance if self.relation in "<>" else self.slack >= -self.tolerance

    @property
    def proven(self) -> bool:
        """Whether it holds by more than the error of the measured number."""
        room = self.tolerance == 0 or (self.relation != "=" and self.slack >= self.tolerance)
        return self.conclusive in ("always", "if met") and self.holds and room

    @property
    def refuted(self) -> bool:
        """Whether it is broken and cannot be otherwise."""
        return self.conclusive in ("always", "if broken") and not self.holds and not math.isnan(self.slack)


def below(name: str, measured: float, bound: float, *, strict: bool = False, tolerance: float = 0.0) -> Slack:
    """`measured <= bound` (or `<`)."""
    return Slack(name, _number(measured), "<" if strict else "<=", _number(bound), _number(tolerance))


def above(name: str, measured: float, bound: float, *, strict: bool = False, tolerance: float = 0.0) -> Slack:
    """`measured >= bound` (or `>`)."""
    return Slack(name, _number(measured), ">" if strict else ">=", _number(bound), _number(tolerance))


def equal(name: str, measured: float, bound: float, *, tolerance: float) -> Slack:
    """`measured = bound` up to rounding."""
    return Slack(name, _number(measured), "=", _number(bound), _number(tolerance))


def true(name: str, fact: bool) -> Slack:
    """A plain fact: measured 1 when true, against the bound 1."""
    return Slack(name, float(fact), ">=", 1.0)


def sampled(slack: Slack, decide: str = "a proof for every point") -> Slack:
    """A statement about all points, tried on some: one that breaks it is proof, many that do not are not."""
    return replace(slack, conclusive="if broken", decide=decide)


def searched(slack: Slack, decide: str = "a wider search") -> Slack:
    """A statement that something exists: what is found is proof, what is not found may yet be there."""
    return replace(slack, conclusive="if met", decide=decide)


def seen(slack: Slack, decide: str = "following it farther") -> Slack:
    """A limit followed to a finite norm: what was seen there is no proof either way."""
    return replace(slack, conclusive="never", decide=decide)


def _number(value: Any) -> float:
    # Exact integers of 300 digits are compared as floats: the conditions on d are inequalities with room.
    return float(value)


@dataclass(frozen=True)
class Findings:
    """What a check measured: the hypotheses and the conclusion.

    Where a broken hypothesis leaves the conclusion without a subject (no max-margin direction to converge to), the
    conclusion is empty.
    """

    hypotheses: tuple[Slack, ...]
    conclusion: tuple[Slack, ...] = ()

    def given(self, *more: Slack) -> Findings:
        """The same findings of a statement with `more` hypotheses."""
        return replace(self, hypotheses=(*self.hypotheses, *more))

    @property
    def applies(self) -> bool:
        """Whether all hypotheses hold."""
        return all(slack.holds for slack in self.hypotheses)

    @property
    def concludes(self) -> bool:
        """Whether all of the conclusion holds."""
        return all(slack.holds for slack in self.conclusion)

    @property
    def verdict(self) -> Verdict:
        """One of the four verdicts above, by what is proven and what is refuted."""
        if any(slack.refuted for slack in self.hypotheses):
            return "vacuous"
        if self.applies and self.concludes:
            return "holds"
        proven = all(slack.proven for slack in self.hypotheses)
        return "fails" if proven and any(slack.refuted for slack in self.conclusion) else "undecided"

    @property
    def open(self) -> tuple[Slack, ...]:
        """What leaves the verdict undecided: slacks broken without proof, or hypotheses met without."""
        if self.verdict != "undecided":
            return ()
        broken = tuple(slack for slack in (*self.hypotheses, *self.conclusion) if not slack.holds and not slack.refuted)
        return broken or tuple(slack for slack in self.hypotheses if not slack.proven)


@dataclass(frozen=True)
class Report(Tabular):
    """A claim, the instance it was checked on, and what was found."""

    claim: Claim
    instance: Any
    findings: Findings
    seconds: float
    kind: Kind = "given"

    @property
    def verdict(self) -> Verdict:
        return self.findings.verdict

    @property
    def as_expected(self) -> bool:
        """Whether a claim's own instance shows what it ships for; any verdict is fine on a given one."""
        match self.kind:
            case "example":
                return self.verdict == "holds"
            case "outside":
                return not self.findings.applies and not self.findings.concludes
            case "refutation":
                return self.verdict == "fails"
            case _:
                return True

    def __repr__(self) -> str:
        return f"Report({self.claim.name} {self.verdict} on {self.instance}, {self.seconds:.2g} s)"

    def _columns(self) -> dict[str, Array]:
        """A row an inequality."""
        roles = [("if", slack) for slack in self.findings.hypotheses]
        roles += [("then", slack) for slack in self.findings.conclusion]
        names = ("name", "measured", "relation", "bound", "slack", "holds", "proven", "refuted")
        return {"role": np.array([role for role, _ in roles], dtype=str)} | {
            name: np.array([getattr(slack, name) for _, slack in roles]) for name in names
        }

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""

        def plain(role: str, slack: Slack) -> dict[str, Any]:
            names = ("measured", "relation", "bound", "slack", "holds", "proven", "refuted")
            return {"role": role, "name": slack.name, **{name: getattr(slack, name) for name in names}}

        return {
            "claim": self.claim.name,
            "about": self.claim.about,
            "verdict": self.verdict,
            "kind": self.kind,
            "as_expected": self.as_expected,
            "conclusion_holds": self.findings.concludes,
            "evidence": self.claim.evidence,
            "instance": str(self.instance),
            "undecided": [
                {"name": slack.name, "seen": slack.measured, "would_decide": slack.decide}
                for slack in self.findings.open
            ],
            "slacks": [
                *(plain("hypothesis", slack) for slack in self.findings.hypotheses),
                *(plain("conclusion", slack) for slack in self.findings.conclusion),
            ],
            "note": self.claim.note,
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True)
class Claim:
    """A lemma or theorem.

    **Attributes**
    - `name`: such as "B.theorem3".
    - `check`: measures hypotheses and conclusion on an instance; its docstring is the statement.
    - `evidence`: what kind of verdict it can give.
    - `about`: what it says, in a line.
    - `example`: an instance on which the claim is not vacuous.
    - `outside`: instances that break a hypothesis and on which the conclusion fails. One that breaks it alone shows
      that it is needed.
    - `refutation`: an instance with all printed hypotheses on which the printed conclusion fails.
    - `unneeded`: for each hypothesis not shown to be needed, why not.
    - `unconditional`: why there is no hypothesis at all.
    - `note`: where the printed statement or its proof needs a word.
    """

    name: str
    check: Callable[[Any], Findings]
    evidence: Evidence
    _: KW_ONLY
    about: str
    example: Callable[[], Any]
    outside: tuple[Callable[[], Any], ...] = ()
    unneeded: Mapping[str, str] = field(default_factory=dict)
    refutation: Callable[[], Any] | None = None
    unconditional: str = ""
    note: str = ""

    def __repr__(self) -> str:
        return f"Claim({self.name}: {self.about}; {self.evidence})"

    @property
    def statement(self) -> str:
        """What is claimed, in words."""
        return inspect.getdoc(self.check) or ""

    def on(self, instance: Any, kind: Kind = "given") -> Report:
        """Check the claim on an instance."""
        began = time.perf_counter()
        findings = self.check(instance)
        return Report(self, instance, findings, time.perf_counter() - began, kind)

    def own(self) -> Iterator[Report]:
        """Check the claim on the instances it ships with."""
        yield self.on(self.example(), "example")
        for make in self.outside:
            yield self.on(make(), "outside")
        if self.refutation is not None:
            yield self.on(self.refutation(), "refutation")


def needed_hypotheses(reports: Iterable[Report]) -> tuple[str, ...]:
    """The hypotheses shown to be needed: each is broken, alone, by an instance on which the conclusion fails."""
    names = set()
    for report in reports:
        broken = [slack.name for slack in report.findings.hypotheses if not slack.holds]
        if len(broken) == 1 and not report.findings.concludes:
            names.add(broken[0])
    return tuple(sorted(names))
