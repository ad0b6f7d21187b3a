"""The two parts of the limit, W_mm and W_fin: what holds of each, and that gradient descent takes W to them."""

from __future__ import annotations

import numpy as np

from tokenmargin.limits.next_token import tied_choice
from tokenmargin.objective.losses import CorrelationLoss, CustomLoss
from tokenmargin.problem.next_token import NextTokenProblem
from tokenmargin.selection import angle, attention_weights
from tokenmargin.theory.claim import NO_SUBJECT, Claim, Findings, Slack, below, equal, sampled, searched, seen, true
from tokenmargin.theory.evidence import vanishing
from tokenmargin.theory.paper_d.instance import (
    NextTokenInstance,
    independent,
    log_loss,
    ordered,
    tied_pair,
    twice_forced,
    two_chains,
)

FLOW = "following descent itself: its norm grows like the logarithm of the number of steps"
NOT_INDEPENDENT = (
    "Where they are dependent and the graph problem is feasible all the same, W still goes there; where it is not, "
    "there is no W_mm for the statement to speak of (then training goes to `next_token_limit`, with further ties)."
)
POINTS = 20
"""Points at which a statement about all W is tried."""
ROUNDING = 1e-12
"""Of a Hessian whose terms are weights times products of two keys, relative to the longest: some hundred terms, each
known to a few eps."""


def squared() -> CustomLoss:
    """`(1 - u)^2`, which falls on (0, 1) as -log does, and is not it."""
    return CustomLoss(lambda u: (1 - u) ** 2, lambda u: -2 * (1 - u), lambda u: np.full_like(u, 2.0))


def feasible(x: NextTokenInstance) -> Findings:
    """If the embeddings are linearly independent, the graph max-margin problem has a solution (and one only, since the
    norm is strictly convex): logits of any table can be had, and within a graph the components are an order."""
    return Findings(
        (independent(x),), (true("the problem is solved, with a certificate", x.graph_solution.is_optimal),)
    )


def orthogonal(x: NextTokenInstance) -> Findings:
    """W_mm is orthogonal to the cyclic subspace, the span of `z (x_i - x_j)'` for i and j of one component."""
    hypotheses = (true("the graph problem is feasible", x.graph_solution.is_optimal),)
    if not hypotheses[0].holds:
        return Findings(hypotheses, ())
    vector = x.graph_solution.vector
    share = float(np.linalg.norm(x.ties @ vector)) / max(float(np.linalg.norm(vector)), 1e-300)
    # The constraints hold to the certificate's residual, of at most 1e-10.
    return Findings(hypotheses, (equal("share of W_mm in the cyclic subspace", share, 0, tolerance=1e-8),))


def convex(x: NextTokenInstance) -> Findings:
    """With the loss -log the risk is convex in W. (Least eigenvalue of the Hessian at 20 points.)"""
    rng = np.random.default_rng(x.seed)
    longest = float(x.objective.problem.keys.lengths.max())
    least = 0.0
    for size in np.geomspace(0.1, 10.0, POINTS):
        point = size / longest * rng.standard_normal(x.objective.dimension)
        descent, relative, _ = x.objective.linearise(point)
        hessian = -(relative + relative.T) / 2 * np.exp(descent.log_norm[0])
        least = min(least, float(np.linalg.eigvalsh(hessian)[0]) / longest**2)
    slack = below("least eigenvalue of the Hessian, below zero, over the longest key squared", -least, 0,
                  tolerance=ROUNDING)  # fmt: skip
    return Findings((log_loss(x),), (sampled(slack, "the proof: a sum of log-sum-exp"),))


def finite_part(x: NextTokenInstance) -> Findings:
    """The risk of the tied tokens alone is strictly convex on the cyclic subspace and has its one minimum there, W_fin,
    at a finite place. (The minimum is bracketed: its distance is bounded by gradient and least curvature.)"""
    soft = tied_choice(x.problem, x.problem.graph).minimum()
    return Findings((), (searched(below("proven distance of the minimum from the point found", soft.distance, 1e-6)),))


def odds(x: NextTokenInstance) -> Findings:
    """If every sequence whose next token lies in a component of several tokens holds each of them once, W_fin gives
    these the probabilities with which they come next after that last token."""
    graph, problem = x.problem.graph, x.problem
    codes = graph.last * problem.size + graph.token
    label = np.searchsorted(codes, problem.last * problem.size + problem.labels)
    several = graph.sizes[graph.component[label]] > 1
    node = np.searchsorted(codes, problem.last[problem.sequence] * problem.size + problem.tokens)
    whole, off = 0, 0.0
    for component in np.unique(graph.component[label][several]).tolist():
        members = np.flatnonzero(graph.component == component)
        here = graph.component[label] == component
        counts = np.stack([np.bincount(problem.sequence[node == k], minlength=problem.n)[here] for k in members])
        whole = max(whole, int(np.abs(counts - 1).max()))
        seen = np.bincount(label[here], minlength=graph.nodes)[members] / here.sum()
        soft = x.limit.finite.logits[members]
        off = max(off, float(np.abs(np.exp(soft - np.logaddexp.reduce(soft)) - seen).max()))
    hypotheses = (independent(x), below("largest number of a tied token in a sequence, less one", whole, 0))
    # The minimum is known to its proven distance, of 1e-6 at most; a probability moves by no more than its logits.
    return Findings(hypotheses, (below("largest difference of a probability and a frequency", off, 0, tolerance=1e-6),))


def acyclic(x: NextTokenInstance) -> Findings:
    """Without a cycle in any graph the risk comes as close to zero as one likes: its infimum, that of the tied tokens
    alone, is zero."""
    several = int((x.problem.graph.sizes > 1).sum())
    hypotheses = (independent(x), below("components of several tokens", several, 0))
    return Findings(hypotheses, (below("infimum of the risk", x.limit.finite.risk, 0, tolerance=1e-12),))


def _parts_of_a_cycle() -> NextTokenInstance:
    """1, 2 and 3 tie in a ring, and no sequence holds all three of them."""
    sequences, labels = [[1, 2, 0], [2, 3, 0], [3, 1, 0], [1, 2, 0]], [1, 2, 3, 2]
    rows = np.random.default_rng(3).standard_normal((4, 5))
    return NextTokenInstance(NextTokenProblem.of(sequences, labels, embeddings=rows), "a ring, seen in parts")


def direction(x: NextTokenInstance) -> Findings:
    """With linearly independent embeddings, -log, and some order in the graphs, gradient descent with a small step
    diverges from any start, and its direction converges to that of W_mm. (Gradient flow to |W| = 10^5.)"""
    hypotheses = (independent(x), log_loss(x), ordered(x))
    if not x.graph_solution.is_optimal or not hypotheses[-1].holds:
        return Findings(hypotheses, ())
    path, keys, target = x.trained.path, x.objective.problem.keys, x.graph_solution.vector
    if path.stop != "norm":
        return Findings(hypotheses, (seen(below("angle to W_mm", np.inf, 0), FLOW),))
    ends = tuple(float(angle(keys, path.at_norm(norm), target)) for norm in (x.norm / 10, x.norm * (1 - 1e-9)))
    return Findings(hypotheses, vanishing("W_mm", (ends[0], ends[1]), norm=x.norm))


def finite(x: NextTokenInstance) -> Findings:
    """Under the same hypotheses the projection of W onto the cyclic subspace converges to W_fin. (Of the flow at
    |W| = 10^5, where rounding moves it by eps |W|.)"""
    hypotheses = (independent(x), log_loss(x))
    off = x.ties @ (x.trained.point - x.limit.finite.point)
    return Findings(hypotheses, (_close("distance of the projection to W_fin", float(np.linalg.norm(off))),))


def retrieval(x: NextTokenInstance) -> Findings:
    """Hard retrieval: on every training sequence the weight goes to the tokens of the component that nothing in the
    sequence is ahead of, that of its next token. (At the end of the flow.)"""
    problem, graph = x.problem, x.problem.graph
    codes = graph.last * problem.size + graph.token
    node = np.searchsorted(codes, problem.last[problem.sequence] * problem.size + problem.tokens)
    label = np.searchsorted(codes, problem.last * problem.size + problem.labels)
    inside = graph.component[node] == graph.component[label][problem.sequence]
    posed = x.objective.problem
    weights = attention_weights(posed.keys, x.trained.point)[posed.mask]
    outside = np.bincount(problem.sequence, np.where(inside, 0.0, weights), minlength=problem.n)
    return Findings((independent(x), log_loss(x)), (_close("largest weight outside that component", outside.max()),))


def _close(name: str, value: float) -> Slack:
    return seen(below(name, value, 1e-6), FLOW)


CLAIMS = (
    Claim("D.feasible", feasible, "bounded",
        about="independent embeddings: the graph max-margin problem has one solution", example=tied_pair,
        outside=(twice_forced,)),
    Claim("D.orthogonal", orthogonal, "bounded", about="W_mm is orthogonal to the cyclic subspace", example=tied_pair,
        unneeded={"the graph problem is feasible": NO_SUBJECT}),
    Claim("D.convex", convex, "sampled", about="with -log the risk is convex in W", example=tied_pair,
        outside=(lambda: tied_pair(squared()),)),
    Claim("D.finite-part", finite_part, "bounded",
        about="W_fin exists, is finite, and is the only minimum on the cyclic subspace", example=tied_pair,
        unconditional=(
            "a direction of that subspace that moves no difference of tied logits is zero, and every other "
            "one raises the risk without bound, since it runs against some edge of a cycle."
        )),
    Claim("D.odds", odds, "bounded",
        about="soft composition: tied tokens get the probabilities with which they come next", example=tied_pair,
        outside=(_parts_of_a_cycle,),
        unneeded={
            "rank of the embeddings": "Dependent embeddings may still give these odds; "
            "where they force further ties, the components are no longer those of the statement."
        },
        note="A corollary in our reading: with the whole component in a sequence the tied problem is a table of odds."),
    Claim("D.acyclic", acyclic, "bounded", about="without cycles the risk has infimum zero", example=two_chains,
        outside=(tied_pair, twice_forced)),
    Claim("D.direction", direction, "sampled", about="descent diverges along the graph max-margin direction",
        example=tied_pair, outside=(lambda: tied_pair(CorrelationLoss()),),
        unneeded={"rank of the embeddings": NOT_INDEPENDENT, "pairs of components in order": NO_SUBJECT}),
    Claim("D.finite", finite, "sampled", about="the projection onto the cyclic subspace converges to W_fin",
        example=tied_pair, outside=(lambda: tied_pair(CorrelationLoss()),),
        unneeded={"rank of the embeddings": NOT_INDEPENDENT}),
    Claim("D.retrieval", retrieval, "sampled",
        about="hard retrieval: the weight goes to the first component of the sequence", example=tied_pair,
        outside=(twice_forced,),
        unneeded={
            "the loss is -log": "Other losses select tokens of their own, often within that component; no instance "
            "that leaves it is shipped."
        }),
)  # fmt: skip
