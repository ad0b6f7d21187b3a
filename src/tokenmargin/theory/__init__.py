"""The stated results of both papers, as claims that can be run.

>>> from tokenmargin.theory import claim
>>> report = next(claim("B.lemma3").own())
>>> report.verdict
'holds'
"""

from difflib import get_close_matches
from typing import Any

from tokenmargin.theory import paper_a, paper_b
from tokenmargin.theory.claim import Claim, Findings, Report, Slack, Verdict, needed
from tokenmargin.theory.probability import binomial_interval
from tokenmargin.theory.settings import EmbeddingInstance, ProblemInstance
from tokenmargin.theory.statements import STATEMENTS, Statement

__all__ = [
    "CLAIMS",
    "STATEMENTS",
    "Claim",
    "EmbeddingInstance",
    "Findings",
    "ProblemInstance",
    "Report",
    "Slack",
    "Statement",
    "Verdict",
    "binomial_interval",
    "claim",
    "needed",
    "verify",
]

CLAIMS: tuple[Claim, ...] = (*paper_a.CLAIMS, *paper_b.CLAIMS)
"""Every claim, paper A first."""


def claim(name: str) -> Claim:
    """The claim of a name such as "A.theorem5"."""
    found = {known.name.lower(): known for known in CLAIMS}
    if name.lower() in found:
        return found[name.lower()]
    near = get_close_matches(name.lower(), found, n=3, cutoff=0.4)
    hint = (
        f"did you mean {', '.join(found[match].name for match in near)}?" if near else "see tokenmargin verify --list"
    )
    raise ValueError(f"there is no claim {name!r}; {hint}")


def verify(name: str, instance: Any = None) -> tuple[Report, ...]:
    """Check a claim on the instances it ships with, or on one given.

    >>> [report.verdict for report in verify("B.lemma3")][0]
    'holds'
    """
    found = claim(name)
    return tuple(found.own()) if instance is None else (found.on(instance),)
