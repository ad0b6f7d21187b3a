"""Where gradient descent takes W: direction, finite part, and the tokens it retrieves."""

from __future__ import annotations

import numpy as np

from tokenmargin.objective.losses import CorrelationLoss
from tokenmargin.selection import angle, attention_weights
from tokenmargin.theory.claim import NO_SUBJECT, Claim, Findings, Slack, below, seen
from tokenmargin.theory.limits import vanishing
from tokenmargin.theory.paper_d.instance import (
    NextTokenInstance,
    independent,
    log_loss,
    ordered,
    tied_pair,
    twice_forced,
)

FLOW = "following descent itself: its norm grows like the logarithm of the number of steps"
NOT_INDEPENDENT = (
    "Where they are dependent and the graph problem is feasible all the same, W still goes there; where it is not, "
    "there is no W_mm for the statement to speak of (then training goes to `next_token_limit`, with further ties)."
)


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
