"""Paper A's gradients: Lemmas 7, 8, 9 and 10."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.margin import class_margin
from tokenmargin.objective.attention import PromptObjective
from tokenmargin.objective.embedding import EmbeddingObjective, Embeddings
from tokenmargin.problem.corpus import TokenCorpus
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import cosine, selected_tokens
from tokenmargin.theory.claim import Claim, Findings, Slack, above, below, sampled, seen
from tokenmargin.theory.paper_a.flow import length_reached, one_token
from tokenmargin.theory.paper_a.leading_pairs import (
    Pairs,
    no_more_than_rounding,
    rounding_of_logs,
    rounding_of_sums,
)
from tokenmargin.theory.settings import EmbeddingInstance

ACCURACIES = (1e-1, 1e-2, 1e-3)
"""The values of eps that stand for "any eps > 0" in Lemma 9."""
STEADY = 1e-3
"""A direction that turns by no more than this over a decade of |p| is taken to have a limit."""


def lemma7(x: EmbeddingInstance) -> Findings:
    """The gradients of the risk in `E_s` and p are the printed double sums over pairs of positions; they equal the
    rank-two form `c_s p + e_s v`, `sum_s c_s E_s`, and what training p alone computes."""
    start = next(x.starts())
    gradient = EmbeddingObjective(x.corpus).descent(start)
    on_prompt, on_head, in_prompt, sizes = printed_gradients(x.corpus, start)
    direction, log_norm = PromptObjective(start.problem()).descent(start.prompt)
    trained = direction * np.exp(log_norm[0]) if np.isfinite(log_norm[0]) else 0.0
    room = rounding_of_sums(start.problem(), start.prompt) + rounding_of_logs(log_norm[0])
    apart = {
        "coefficient on p": np.abs(on_prompt - gradient.c).max() / sizes[0],
        "coefficient on v": np.abs(on_head - gradient.e).max() / sizes[1],
        "gradient in p": np.abs(in_prompt - trained).max() / sizes[2],
    }
    slacks = [no_more_than_rounding(f"{name}, difference / terms", share, room) for name, share in apart.items()]
    return Findings((), tuple(slacks))


def printed_gradients(
    corpus: TokenCorpus, start: Embeddings
) -> tuple[Float[Array, " m"], Float[Array, " m"], Float[Array, " D"], tuple[float, float, float]]:
    """Lemma 7's sums term by term: coefficients of `-dL/dE_s` on p and on v, the vector `-dL/dp`, and for each the
    largest sum of absolute terms, which is what its rounding is a share of."""
    assert isinstance(start.geometry, Coordinates)
    a, b = start.overlaps
    E = start.geometry.vectors[: corpus.size]
    on_prompt, on_head, prompt_terms, head_terms = np.zeros((4, corpus.size))
    in_prompt, vector_terms = np.zeros((2, E.shape[1]))
    for row, here, y in zip(corpus.index, corpus.mask, corpus.labels, strict=True):
        tokens = row[here]
        q = np.exp(a[tokens] - a[tokens].max())
        q /= q.sum()
        g = y / (1 + np.exp(y * (q @ b[tokens]))) / corpus.n
        for i, s in enumerate(tokens):
            on_head[s] += g * q[i]
            head_terms[s] += abs(g) * q[i]
            for j, t in enumerate(tokens):
                if j != i:
                    weight = g * q[i] * q[j] * b[s]
                    on_prompt[s] += weight  # 1_{x_i = s} - 1_{x_j = s}
                    on_prompt[t] -= weight
                    prompt_terms[[s, t]] += abs(weight)
                    in_prompt += weight * (E[s] - E[t])
                    vector_terms += abs(weight) * (np.abs(E[s]) + np.abs(E[t]))
    sizes = float(prompt_terms.max()) or 1.0, float(head_terms.max()), float(vector_terms.max()) or 1.0
    return on_prompt, on_head, in_prompt, sizes


def lemma8(x: EmbeddingInstance) -> Findings:
    """For any vector u, `-<u, dL/dp>` is the mean over sequences of
    `g sum_{i<j} (a_i - a_j) q_i q_j (gamma_i - gamma_j)` with `a_i = <u, E_{x_i}>`."""
    after = x.steps[0].after
    problem, keys = after.problem(), after.geometry
    u = keys.combine(np.random.default_rng(x.seed).standard_normal(keys.n_vectors))
    pairs = Pairs(problem, after.prompt)
    direction, log_norm = PromptObjective(problem).descent(after.prompt)
    ahead = keys.logits(u)
    scale = pairs.log_scale(ahead)
    left = float(keys.inner(u, direction)) * np.exp(log_norm[0] - scale) if np.isfinite(log_norm[0]) else 0.0
    apart = abs(left - pairs.total(ahead)) / (pairs.size(ahead) or 1.0)
    room = rounding_of_sums(problem, after.prompt, u) + rounding_of_logs(log_norm[0], scale)
    return Findings((), (no_more_than_rounding("difference / sum of |terms|", apart, room),))


def lemma9(x: EmbeddingInstance) -> Findings:
    """If |p_t| grows without bound along gradient flow, its direction has a limit, and for any eps > 0 eventually
    `-<u, dL> >= -(1 - eps) <p_t/|p_t|, dL>` with a unit vector u (15), then the limit is u.

    Here u is the max-margin direction of `selection`, eps is 0.1, 0.01 and 0.001, and flow is watched over its last two
    decades. By the proof, from where (15) holds (|p| = r) the cosine with u at |p| = R is at least
    `(1 - eps)(1 - r/R) + <u, p_r>/R`: that is checked for each eps."""
    problem, chosen = x.problems_and_choices[0]
    limit, keys = x.limits[0], problem.keys
    solution = class_margin(problem, chosen)
    grown = length_reached([limit], x.norm)
    began = float(keys.norm(x.steps[0].after.prompt))
    if limit.path.stop != "norm" or not began < x.norm / 10 or not solution.is_optimal or np.isinf(solution.margin):
        return Findings(
            (grown,), (seen(below("angle to u; pi where u is not, or p not followed", np.pi, ACCURACIES[-1])),)
        )
    unit = solution.vector / keys.norm(solution.vector)
    norms = np.geomspace(x.norm / 100, x.norm, 30)[:-1]
    points = np.stack([*map(limit.path.at_norm, norms[norms > began]), limit.path.final])
    direction = PromptObjective(problem).descent(points).direction
    with np.errstate(invalid="ignore"):  # where texts under both labels cancel, the gradient has no direction
        ratio = keys.inner(direction, unit) * keys.norm(points) / keys.inner(direction, points)
    turn = 1 - float(cosine(keys, limit.path.at_norm(x.norm / 10), points[-1]))
    reached = float(cosine(keys, points[-1], unit))
    return Findings(
        hypotheses=(
            grown,
            seen(below("turn of p_t over the last decade, 1 - cosine", turn, STEADY)),
            *(seen(above(f"least ratio in (15) at the end, eps = {eps:g}", ratio[-1], 1 - eps)) for eps in ACCURACIES),
        ),
        conclusion=(
            *(_promised_cosine(problem, points, ratio, unit, eps) for eps in ACCURACIES),
            seen(above("cosine with u", reached, 1 - ACCURACIES[-1])),
        ),
    )


def _promised_cosine(
    problem: TokenProblem, points: Float[Array, "k D"], ratio: Float[Array, " k"], unit: Float[Array, " D"], eps: float
) -> Slack:
    """The cosine at the end against what the proof promises from where (15) holds for good."""
    keys = problem.keys
    broken = np.flatnonzero(~(ratio >= 1 - eps))
    since = points[min(broken[-1] + 1 if len(broken) else 0, len(points) - 1)]
    r, R = float(keys.norm(since)), float(keys.norm(points[-1]))
    promised = (1 - eps) * (1 - r / R) + float(keys.inner(unit, since)) / R
    reached = float(cosine(keys, points[-1], unit))
    # the flow's own error is 1e-8 a step; (15) is watched at 30 points, so that it holds between them is not proven
    return seen(above(f"cosine with u, against the proof's bound from |p| = {r:.3g}, eps = {eps:g}", reached, promised))


def lemma10(x: EmbeddingInstance) -> Findings:
    """If the selected tokens of a sequence of T are ahead of token j by tau, then `q_selected >= 1/T` and
    `1/(T e^tau) <= q_j <= 1/(1 + e^tau)`. (40 random p; the selected tokens are theirs, or those of `selection`.)"""
    problem, chosen = x.problems_and_choices[0]
    keys, T = problem.keys, problem.mask.sum(axis=1, keepdims=True)
    rng = np.random.default_rng(x.seed)
    ahead, least, low, high, room = np.inf, np.inf, np.inf, np.inf, 0.0
    for scale in np.geomspace(0.01, 30, 40):
        p = keys.combine(rng.standard_normal(keys.n_vectors))
        p *= scale / keys.norm(p)
        logits = keys.logits(p)
        log_q = logits - logits.max(axis=1, keepdims=True)
        log_q = log_q - np.log(np.exp(log_q).sum(axis=1, keepdims=True))
        drawn = x.selection in ("random", "tied")
        first = (selected_tokens(keys, p, tolerance=0.0) if drawn else chosen).argmax(axis=1)[:, None]
        tau = np.take_along_axis(logits, first, axis=1) - np.where(problem.mask, logits, 0.0)
        behind = problem.mask & (np.arange(problem.T) != first) & (tau != 0)
        ahead = min(ahead, float(tau[behind].min(initial=np.inf)))
        least = min(least, float((np.take_along_axis(log_q, first, axis=1) + np.log(T)).min()))
        high = min(high, float((-np.logaddexp(0, tau) - log_q)[behind].min(initial=np.inf)))
        low = min(low, float((log_q + np.log(T) + tau)[behind].min(initial=np.inf)))
        room = max(room, rounding_of_sums(problem, p))
    return Findings(
        hypotheses=(above("smallest tau", ahead, 0, strict=True),),
        conclusion=(
            sampled(above("least log(T q_selected)", least, 0, tolerance=room)),
            sampled(above("least log of 1/(1 + e^tau) over q_j", high, 0, tolerance=room)),
            sampled(above("least log of q_j over 1/(T e^tau)", low, 0, tolerance=room)),
        ),
    )


def _in_forty_dimensions() -> EmbeddingInstance:
    return EmbeddingInstance.of(6, 4, dimension=40, step=20.0, varied=True)


IDENTITY = "An identity: no hypothesis."

CLAIMS = (
    Claim("A.lemma7", lemma7, "exact", about="gradients in E_s and p; rank-two form", example=_in_forty_dimensions,
        unconditional=IDENTITY),
    Claim("A.lemma8", lemma8, "exact", about="directional derivative as a sum over pairs",
        example=_in_forty_dimensions, unconditional=IDENTITY),
    Claim("A.lemma9", lemma9, "sampled", about="(15) forces the limit direction",
        example=lambda: EmbeddingInstance.of(4, 3, selection="important"), outside=(one_token,),
        unneeded={
            "turn of p_t over the last decade, 1 - cosine": (
                "The proof shows that the cosine with u tends to 1, so (15) gives the limit's existence too."
            )
        }),
    Claim("A.lemma10", lemma10, "exact", about="softmax weights from logit gaps", example=_in_forty_dimensions,
        outside=(lambda: replace(_in_forty_dimensions(), selection="important"),),
        note="The proof's last display writes q_selected for q_j; the statement is right."),
)  # fmt: skip
