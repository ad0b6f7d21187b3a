"""The numbering of papers A, B and D: every theorem, lemma, definition, assumption, and equation that states a result.

The table has no gaps: paper A numbers all of them in one sequence, papers B and D each kind in its own. Theorems
and lemmas are claims of the same name; an equation that says more than the statement around it names its own claims;
definitions and assumptions name the function that computes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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


_A = (
    ("definition", "positive, negative, irrelevant tokens", "tokenmargin.problem.corpus.TokenCorpus.sole_label"),
    ("lemma", "the first step adds eta_0 alpha_s v / 2 to each token"),
    ("lemma", "the max-margin problem of a selection has one solution"),
    ("assumption", "one important token in every sequence", "tokenmargin.problem.corpus.TokenCorpus.assumption4"),
    ("theorem", "the limit is a max-margin direction that selects all important tokens"),
    ("lemma", "the limit does not select every token"),
    ("lemma", "the gradients"),
    ("lemma", "the gradient along any vector"),
    ("lemma", "convergence lemma"),
    ("lemma", "attention ratios"),
    ("lemma", "boundedness of the embeddings"),
    ("lemma", "upper bound on the loss"),
    ("lemma", "|p| grows without bound"),
    ("lemma", "a limit selects every important token"),
    ("definition", "secondary selection set", "tokenmargin.theory.paper_a.leading_pairs.choices"),
    ("definition", "locally optimal direction", "tokenmargin.theory.paper_a.leading_pairs.local_optimality"),
    ("lemma", "locally optimal directions and the gradient"),
    ("lemma", "a limit is the max-margin direction of what it selects"),
    ("lemma", "the max-margin direction of the important tokens"),
    ("lemma", "some constraint is tight"),
    ("lemma", "length of the max-margin solution"),
)
"""Paper A, in its one sequence from 1 to 21: kind, title, and for definitions the function that computes them."""

_B: dict[StatementKind, tuple[tuple[str, ...], ...]] = {
    "lemma": (
        ("descent on W is descent on p",),
        ("all labels +1, W of full rank: the GMM exists",),
        ("key lemma",),
        ("the GMM is a descent direction everywhere",),
        ("n = 1: far out, no direction beats the GMM",),
        ("smoothness and descent",),
        ("local gradient condition",),
        ("when one direction dominates another",),
        ("all neighbours of higher score: the risk approaches its limit from below",),
        ("at most d directional neighbours",),
        ("v in the range of W': the GMM exists",),
        ("asymptotically selected tokens lie in the quadrant",),
        ("the path confined to the quadrant",),
        ("linear label mixing gives Assumption D",),
    ),
    "theorem": (
        ("regularisation path to the GMM",),
        ("global convergence of descent",),
        ("local convergence of descent",),
        ("other directions are no limits of local paths",),
        ("joint path, all support vectors",),
        ("joint path, relaxed problem",),
        ("non-LMM regularisation paths fail",),
        ("several optimal tokens, any head",),
    ),
    "definition": (
        ("token scores, optimal tokens, GMM", "tokenmargin.selection.optimal_tokens"),
        ("SVM-neighbours, locally optimal tokens", "tokenmargin.selection.is_locally_optimal"),
        ("selected tokens, neighbours, margins of a direction", "tokenmargin.selection.directional_neighbours"),
    ),
    "assumption": (
        ("well-behaved loss", "tokenmargin.theory.paper_b.assumptions.assumption_a"),
        ("other tokens score alike", "tokenmargin.theory.paper_b.assumptions.assumption_b"),
        ("optimal tokens of the label margin", "tokenmargin.theory.paper_b.assumptions.assumption_c"),
        ("mixing non-optimal tokens hurts", "tokenmargin.theory.paper_b.assumptions.assumption_d"),
    ),
}
"""Paper B, each kind from 1 on (assumptions from A on)."""

_D: dict[StatementKind, tuple[tuple[str, ...], ...]] = {
    "lemma": (
        ("embeddings of full row rank: (Graph-SVM) is feasible",),
        ("the risk is convex, strictly so on the cyclic subspace",),
        ("without cycles, L* is the infimum",),
        ("W_svm is orthogonal to the cyclic subspace and to W_fin",),
        ("the cyclic risk depends on the projection alone",),
        ("the limit of the risk along W_svm is the cyclic risk",),
        ("the risk against the cyclic risk, (13), (14)",),
        ("where W_svm and the gradients lie",),
        ("strict convexity on the active subspace",),
        ("linear maps that keep convexity",),
        ("convexity in the logits of one-hot tokens",),
        ("descent lemma",),
        ("W_svm is a direction of descent",),
        ("W_fin is unique and finite",),
        ("far out nothing beats W_svm by more than a factor 1 + pi in length",),
        ("the path across the cyclic subspace",),
    ),
    "theorem": (
        ("informal: hard retrieval and soft composition",),
        ("global convergence of descent",),
        ("regularisation path",),
        ("regularisation path without cycles",),
        ("|W| grows without bound",),
    ),
    "definition": (
        ("cyclic subspace", "tokenmargin.margin.graph_margin.cyclic_subspace"),
        ("acyclic dataset", "tokenmargin.problem.priority_graph.PriorityGraph.is_acyclic"),
        ("cyclic subdataset", "tokenmargin.problem.next_token.NextTokenProblem.with_label"),
        ("cyclic component", "tokenmargin.theory.paper_d.risk.cyclic_minimum"),
        ("active subspace", "tokenmargin.margin.graph_margin.active_subspace"),
        ("cyclic subspace, again", "tokenmargin.margin.graph_margin.cyclic_subspace"),
        ("SVM subspace", "tokenmargin.margin.graph_margin.svm_subspace"),
    ),
    "assumption": (
        ("the head reads next tokens off", "tokenmargin.theory.paper_d.instance.assumption1"),
        ("next tokens are in their sequences", "tokenmargin.theory.paper_d.instance.assumption2"),
        ("next tokens score best", "tokenmargin.theory.paper_d.instance.assumption3"),
    ),
}
"""Paper D, each kind from 1 on."""

_EQUATIONS = (
    Statement("A", "equation", "14", "norms and inner products at the start", ("A.initialisation",)),
    Statement("A", "equation", "18", "the max-margin problem without the class", ("A.equation18",)),
    Statement("B", "equation", "24", "smoothness constant L_p", ("B.lemma6",)),
    Statement("B", "equation", "26", "the gradient vanishes along descent", ("B.lemma6",)),
    Statement("B", "equation", "31", "local gradient condition (31a)-(31c)", ("B.lemma7",)),
    Statement("D", "equation", "2", "the projection converges to W_fin", ("D.theorem2", "D.theorem2-repaired")),
    Statement("D", "equation", "13", "the risk is above what tied tokens leave", ("D.lemma7",)),
    Statement("D", "equation", "14", "infima of the risk (14a), (14b)", ("D.lemma7",)),
    Statement("D", "equation", "18", "the gradient", ("D.equation18",)),
    Statement("D", "equation", "20", "how weights move with W", ("D.equation20", "D.equation22")),
    Statement("D", "equation", "22", "smoothness constant, after (19) and (21)", ("D.equation22",)),
    Statement("D", "equation", "23", "W matters by its part in the span of e_i e_j'", ("D.lemma9",)),
    Statement("D", "equation", "31", "R_pi", ("D.lemma15", "D.lemma15-repaired")),
)


def _paper_a() -> tuple[Statement, ...]:
    return tuple(
        Statement("A", kind, str(number), title, tuple(filter(None, where)))  # type: ignore[arg-type]
        for number, (kind, title, *where) in enumerate(_A, start=1)
    )


def _by_kind(
    paper: Literal["B", "D"], kinds: dict[StatementKind, tuple[tuple[str, ...], ...]]
) -> tuple[Statement, ...]:
    lettered = {("B", "assumption")}
    return tuple(
        Statement(
            paper,
            kind,
            chr(ord("A") + k) if (paper, kind) in lettered else str(k + 1),
            title,
            tuple(filter(None, where)),
        )
        for kind, rows in kinds.items()
        for k, (title, *where) in enumerate(rows)
    )


STATEMENTS: tuple[Statement, ...] = (*_paper_a(), *_by_kind("B", _B), *_by_kind("D", _D), *_EQUATIONS)
"""Every numbered item of paper A, then of B and D, then the equations."""
