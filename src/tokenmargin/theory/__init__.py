"""The stated results of the papers, and some of our own, as claims that can be run.

>>> from tokenmargin.theory import claim
>>> report = next(claim("B.lemma3").own())
>>> report.verdict
'holds'
"""

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from tokenmargin.plugins import added_names, find, kind_in_words, load_added
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.theory import paper_a, paper_b, paper_c, paper_d, results
from tokenmargin.theory.claim import Claim as Claim
from tokenmargin.theory.claim import Findings as Findings
from tokenmargin.theory.claim import Report as Report
from tokenmargin.theory.claim import Slack as Slack
from tokenmargin.theory.claim import Verdict as Verdict
from tokenmargin.theory.claim import needed_hypotheses as needed_hypotheses
from tokenmargin.theory.evidence import binomial_interval as binomial_interval
from tokenmargin.theory.settings import EmbeddingInstance as EmbeddingInstance
from tokenmargin.theory.settings import ProblemInstance as ProblemInstance
from tokenmargin.theory.statements import Statement as Statement
from tokenmargin.theory.statements import numbered_statements

PAPER_CLAIMS: tuple[Claim, ...] = (*paper_a.CLAIMS, *paper_b.CLAIMS, *paper_c.CLAIMS, *paper_d.CLAIMS, *results.CLAIMS)
"""The claims of the papers, paper A first, and results of our own on their questions."""
STATEMENTS = numbered_statements(PAPER_CLAIMS)
"""Every numbered item of papers A, B and D."""

if TYPE_CHECKING:
    CLAIMS: tuple[Claim, ...]
    """The claims of the papers, and those that other packages add."""


def __getattr__(name: str) -> tuple[Claim, ...]:
    """`CLAIMS` is put together when it is first asked for: other packages are looked for, and loaded."""
    if name != "CLAIMS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    added = load_added("claims", taken=(known.name for known in PAPER_CLAIMS))
    globals()[name] = found = (*PAPER_CLAIMS, *added.values())
    return found


def claim(name: str) -> Claim:
    """The claim of a name such as "A.theorem5", one that another package adds, or the one at `MODULE:OBJECT`.

    >>> claim("B.theorem1")
    Claim(B.theorem1: regularisation path to the GMM; sampled)
    """
    for known in PAPER_CLAIMS:
        if known.name.lower() == name.lower():
            return known
    if ":" in name or name.lower() in map(str.lower, added_names("claims")):
        added: Claim = find("claims", name)
        return added
    spelled = {known.lower(): known for known in (*(known.name for known in PAPER_CLAIMS), *added_names("claims"))}
    near = get_close_matches(name.lower(), spelled, n=3, cutoff=0.4)
    hint = f"did you mean {', '.join(map(spelled.__getitem__, near))}?" if near else "see tokenmargin verify --list"
    raise ValueError(f"there is no claim {name!r}; {hint}")


def verify(name: str, instance: Any = None) -> tuple[Report, ...]:
    """Check a claim on the instances it ships with, or on one given.

    A problem stands for `ProblemInstance(problem)`: the tokens of highest score selected, everything else by default.

    >>> [report.verdict for report in verify("B.lemma3")][0]
    'holds'
    >>> from tokenmargin.problem.instances import figure1b
    >>> verify("B.theorem1", figure1b())[0].verdict
    'holds'
    """
    found = claim(name)
    if instance is None:
        return tuple(found.own())
    wanted = type(found.example())
    if isinstance(instance, TokenProblem) and wanted is ProblemInstance:
        instance = ProblemInstance(instance)
    if wanted in (ProblemInstance, EmbeddingInstance) and not isinstance(instance, wanted):
        remedy = (
            "ProblemInstance(problem), or a problem"
            if wanted is ProblemInstance
            else "EmbeddingInstance.with_corpus(corpus)"
        )
        raise TypeError(f"{found.name} is checked on {remedy}; got {kind_in_words(instance)}")
    return (found.on(instance),)
