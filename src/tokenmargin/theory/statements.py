"""The numbering of papers A, B and D: every theorem, lemma, definition, assumption, and equation that states a result.

Theorems and lemmas are the claims of the same name. Definitions and assumptions name the function that computes them;
an equation that says more than the statement around it names its own claims. Paper A numbers all its items in one
sequence, papers B and D each kind in its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from tokenmargin.theory.claim import Claim

StatementKind = Literal["theorem", "lemma", "definition", "assumption", "equation"]


@dataclass(frozen=True)
class Statement:
    """One numbered item of a paper.

    - `paper`: "A", "B" or "D".
    - `kind`, `number`: as printed, such as "lemma" and "7".
    - `title`: what it is about.
    - `where`: for definitions and assumptions, the function that computes it; for equations, the claims that check it.
    """

    paper: Literal["A", "B", "D"]
    kind: StatementKind
    number: str
    title: str
    where: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Such as "B.lemma7": the name of the claim, for theorems and lemmas."""
        return f"{self.paper}.{self.kind}{self.number}"


_CORPUS, _NEIGHBOURS = "tokenmargin.problem.corpus.TokenCorpus", "tokenmargin.selection"
_PAIRS, _ASSUMPTIONS = "tokenmargin.theory.paper_a.leading_pairs", "tokenmargin.theory.paper_b.assumptions"
_SPACES, _NEXT = "tokenmargin.margin.graph_margin", "tokenmargin.theory.paper_d"
_LISTED = (
    Statement(
        "A",
        "definition",
        "1",
        "positive, negative, irrelevant tokens",
        (f"{_CORPUS}.token_class", f"{_CORPUS}.sole_label"),
    ),
    Statement("A", "assumption", "4", "one important token in every sequence", (f"{_CORPUS}.assumption4",)),
    Statement("A", "definition", "15", "secondary selection set", (f"{_PAIRS}.choices",)),
    Statement("A", "definition", "16", "locally optimal direction", (f"{_PAIRS}.local_optimality",)),
    Statement("A", "equation", "14", "norms and inner products at the start", ("A.initialisation",)),
    Statement("A", "equation", "18", "the max-margin problem without the class", ("A.equation18",)),
    Statement("B", "definition", "1", "token scores, optimal tokens, GMM", (f"{_NEIGHBOURS}.optimal_tokens",)),
    Statement("B", "definition", "2", "SVM-neighbours, local optimality", (f"{_NEIGHBOURS}.is_locally_optimal",)),
    Statement("B", "definition", "3", "margins of a direction", (f"{_NEIGHBOURS}.directional_neighbours",)),
    Statement("B", "assumption", "A", "well-behaved loss", (f"{_ASSUMPTIONS}.assumption_a",)),
    Statement("B", "assumption", "B", "other tokens score alike", (f"{_ASSUMPTIONS}.assumption_b",)),
    Statement("B", "assumption", "C", "optimal tokens of the label margin", (f"{_ASSUMPTIONS}.assumption_c",)),
    Statement("B", "assumption", "D", "mixing non-optimal tokens hurts", (f"{_ASSUMPTIONS}.assumption_d",)),
    Statement("B", "equation", "24", "smoothness constant L_p", ("B.lemma6",)),
    Statement("B", "equation", "26", "the gradient vanishes along descent", ("B.lemma6",)),
    Statement("B", "equation", "31", "local gradient condition (31a)-(31c)", ("B.lemma7",)),
    Statement("D", "definition", "1", "cyclic subspace", (f"{_SPACES}.cyclic_subspace",)),
    Statement("D", "definition", "2", "acyclic dataset", ("tokenmargin.problem.next_token.PriorityGraph.is_acyclic",)),
    Statement(
        "D", "definition", "3", "cyclic subdataset", ("tokenmargin.problem.next_token.NextTokenProblem.with_label",)
    ),
    Statement("D", "definition", "4", "cyclic component", (f"{_NEXT}.risk.cyclic_minimum",)),
    Statement("D", "definition", "5", "active subspace", (f"{_SPACES}.active_subspace",)),
    Statement("D", "definition", "6", "cyclic subspace, again", (f"{_SPACES}.cyclic_subspace",)),
    Statement("D", "definition", "7", "SVM subspace", (f"{_SPACES}.svm_subspace",)),
    Statement("D", "assumption", "1", "the head reads next tokens off", (f"{_NEXT}.assumption1",)),
    Statement("D", "assumption", "2", "next tokens are in their sequences", (f"{_NEXT}.assumption2",)),
    Statement("D", "assumption", "3", "next tokens score best", (f"{_NEXT}.assumption3",)),
    Statement("D", "equation", "2", "the projection converges to W_fin", ("D.theorem2", "D.theorem2-repaired")),
    Statement("D", "equation", "13", "the risk is above what tied tokens leave", ("D.lemma7",)),
    Statement("D", "equation", "14", "infima of the risk (14a), (14b)", ("D.lemma7",)),
    Statement("D", "equation", "18", "the gradient", ("D.equation18",)),
    Statement("D", "equation", "20", "how weights move with W", ("D.equation20", "D.equation22")),
    Statement("D", "equation", "22", "smoothness constant, after (19) and (21)", ("D.equation22",)),
    Statement("D", "equation", "23", "W matters by its part in the span of e_i e_j'", ("D.lemma9",)),
    Statement("D", "equation", "31", "R_pi", ("D.lemma15", "D.lemma15-repaired")),
)


def numbered_statements(claims: Iterable[Claim]) -> tuple[Statement, ...]:
    """Every numbered item: theorems and lemmas by their claims, then what is listed here."""
    results = [
        Statement(match[1], match[2], match[3], claim.about)  # type: ignore[arg-type]
        for claim in claims
        if (match := re.fullmatch(r"([ABD])\.(theorem|lemma)(\d+)", claim.name))
    ]
    return (*sorted(results, key=lambda one: (one.paper, one.kind, int(one.number))), *_LISTED)
