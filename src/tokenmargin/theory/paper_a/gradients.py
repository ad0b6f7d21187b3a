"""Paper A's gradients: Lemmas 7, 8, 9, 10 and 17."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray as Array

from tokenmargin.attention import LogisticLoss, PromptObjective
from tokenmargin.corpus import TokenCorpus
from tokenmargin.embedding import EmbeddingObjective, Embeddings
from tokenmargin.margin import class_margin
from tokenmargin.problem import TokenProblem
from tokenmargin.selection import attention_weights, cosine
from tokenmargin.theory.claim import Claim, Findings, Slack, above, below, true
from tokenmargin.theory.instances import EmbeddingInstance
from tokenmargin.theory.limits import selects

__all__ = ["CLAIMS"]

ROUNDING = 1e-12
"""Relative error of a sum of a few hundred doubles of either sign, with a wide margin."""


def lemma7(x: EmbeddingInstance) -> Findings:
    """The gradients of the risk in `E_s` and p are the printed double sums over pairs of positions; they equal the
    rank-two form `c_s p + e_s v`, `sum_s c_s E_s`."""
    start = next(x.starts())
    gradient = EmbeddingObjective(x.corpus).gradient(start)
    on_prompt, on_head, on_tokens = _printed_gradients(x.corpus, start)
    size = max(np.abs(gradient.c).max(), np.abs(gradient.e).max())
    return Findings(
        hypotheses=(),
        conclusion=(
            below("coefficient on p, difference / size", np.abs(on_prompt - gradient.c).max() / size, ROUNDING),
            below("coefficient on v, difference / size", np.abs(on_head - gradient.e).max() / size, ROUNDING),
            below("gradient in p, difference / size", np.abs(on_tokens - gradient.c).max() / size, ROUNDING),
        ),
    )


def _printed_gradients(
    corpus: TokenCorpus, start: Embeddings
) -> tuple[Float[Array, " m"], Float[Array, " m"], Float[Array, " m"]]:
    """Lemma 7's sums term by term: coefficients of `-dL/dE_s` on p and on v, and of `-dL/dp` on the `E_s`."""
    a, b = start.overlaps
    on_prompt, on_head, on_tokens = np.zeros((3, corpus.size))
    for row, here, y in zip(corpus.index, corpus.mask, corpus.labels, strict=True):
        tokens = row[here]
        q = np.exp(a[tokens] - a[tokens].max())
        q /= q.sum()
        g = y / (1 + np.exp(y * (q @ b[tokens]))) / corpus.n
        for i, s in enumerate(tokens):
            on_head[s] += g * q[i]
            for j, t in enumerate(tokens):
                if j != i:
                    weight = g * q[i] * q[j] * b[s]
                    on_prompt[s] += weight  # 1_{x_i = s} - 1_{x_j = s}
                    on_prompt[t] -= weight
                    on_tokens[s] += weight  # E_{x_i} - E_{x_j}
                    on_tokens[t] -= weight
    return on_prompt, on_head, on_tokens


class _Pairs:
    """`h_ij = g q_i q_j (gamma_i - gamma_j)` for every pair of positions, up to a common factor, in the log domain."""

    def __init__(self, problem: TokenProblem, p: Float[Array, " D"]) -> None:
        logits = problem.keys.logits(p)
        relative = logits - logits.max(axis=1, keepdims=True)
        log_q = relative - np.log(np.exp(relative).sum(axis=1, keepdims=True))
        self.log_g = LogisticLoss().log_slope(PromptObjective(problem).outputs(p))
        logs = self.log_g[:, None, None] + log_q[:, :, None] + log_q[:, None, :]
        apart = problem.mask[:, :, None] & problem.mask[:, None, :] & ~np.eye(problem.T, dtype=bool)
        logs = np.where(apart, logs, -np.inf)
        self.log_scale = float(logs.max()) - np.log(problem.n)
        gamma = problem.scores
        self.h = np.exp(logs - logs.max()) * (gamma[:, :, None] - gamma[:, None, :])

    def total(self, a: Float[Array, "n T"], among: Bool[Array, "n T T"] | None = None) -> float:
        """`sum (a_i - a_j) h_ij` over unordered pairs, or over the ordered pairs in `among`."""
        a = np.where(np.isfinite(a), a, 0.0)
        terms = (a[:, :, None] - a[:, None, :]) * self.h
        return float(terms.sum() / 2 if among is None else terms[among].sum())


def lemma8(x: EmbeddingInstance) -> Findings:
    """For any vector u, `-<u, dL/dp>` is the mean over sequences of
    `g sum_{i<j} (a_i - a_j) q_i q_j (gamma_i - gamma_j)` with `a_i = <u, E_{x_i}>`."""
    after = x.steps[0].after
    problem, keys = after.problem(), after.geometry
    u = keys.combine(np.random.default_rng(x.seed).standard_normal(keys.rows))
    pairs = _Pairs(problem, after.prompt)
    direction, log_norm = PromptObjective(problem).descent(after.prompt)
    left = float(keys.inner(u, direction))
    right = pairs.total(keys.logits(u)) * np.exp(pairs.log_scale - log_norm[0])
    return Findings((), (below("difference / (|u| |dL/dp|)", abs(left - right) / float(keys.norm(u)), ROUNDING),))


def lemma9(x: EmbeddingInstance) -> Findings:
    """If |p_t| grows without bound along gradient flow, its direction has a limit, and eventually
    `-<u, dL> >= -(1 - eps) <p_t/|p_t|, dL>` for a unit vector u and any eps > 0 (15), then the limit is u.
    Here u is the max-margin direction of `selection`; the condition is watched over the last two decades of |p|."""
    eps = 1e-3
    problem, chosen = x.posed[0]
    limit, u = x.limits[0], class_margin(problem, chosen).vector
    keys = problem.keys
    if limit.path.stop != "norm":
        grown = above("|p_t| reached", limit.path.norm, x.norm)
        return Findings((grown,), (above("cosine with u", float(cosine(keys, limit.path.final, u)), 1 - eps),))
    norms = np.geomspace(x.norm / 100, x.norm, 30)
    points = np.stack([limit.path.at_norm(r) for r in norms[:-1]] + [limit.path.final])
    direction = PromptObjective(problem).descent(points).direction
    unit = u / keys.norm(u)
    ratio = keys.inner(direction, unit) * keys.norm(points) / keys.inner(direction, points)
    first, last = points[0], points[-1]
    ends = float(keys.norm(first)), float(keys.norm(last))
    promised = (1 - eps) * (1 - ends[0] / ends[1]) + float(keys.inner(unit, first)) / ends[1]
    reached = float(cosine(keys, last, u))
    return Findings(
        hypotheses=(
            above("|p_t| reached", ends[1], x.norm, tolerance=1e-6 * x.norm),
            above("smallest ratio in (15)", ratio.min(), 1 - eps),
        ),
        conclusion=(
            above("cosine with u, against what the proof promises by now", reached, promised),
            above("cosine with u", reached, 1 - eps),
        ),
    )


def lemma10(x: EmbeddingInstance) -> Findings:
    """If the selected token of a sequence of T is ahead of token j by tau, then `q_selected >= 1/T` and
    `1/(T e^tau) <= q_j <= 1/(1 + e^tau)`. (40 random p; the selected tokens are theirs, or those of `selection`.)"""
    problem, chosen = x.posed[0]
    keys, T = problem.keys, problem.mask.sum(axis=1, keepdims=True)
    rng = np.random.default_rng(x.seed)
    ahead, least, low, high = np.inf, np.inf, np.inf, np.inf
    for scale in np.geomspace(0.01, 30, 40):
        p = keys.combine(rng.standard_normal(keys.rows))
        p *= scale / keys.norm(p)
        logits, q = keys.logits(p), attention_weights(keys, p)
        first = (selects(problem, p) if x.selection == "random" else chosen).argmax(axis=1)[:, None]
        tau = np.take_along_axis(logits, first, axis=1) - logits
        behind = problem.mask & (np.arange(problem.T) != first) & (tau != 0)
        ahead = min(ahead, float(tau[behind].min()))
        least = min(least, float((np.take_along_axis(q, first, axis=1) * T).min()))
        high = min(high, float(((1 / (1 + np.exp(tau)) - q) / q)[behind].min()))
        low = min(low, float(((q - 1 / (T * np.exp(tau))) / q)[behind].min()))
    return Findings(
        hypotheses=(above("smallest tau", ahead, 0, strict=True),),
        conclusion=(
            above("smallest T q_selected", least, 1, tolerance=ROUNDING),
            above("relative room below 1/(1 + e^tau)", high, 0, tolerance=ROUNDING),
            above("relative room above 1/(T e^tau)", low, 0, tolerance=ROUNDING),
        ),
    )


def lemma17(x: EmbeddingInstance) -> Findings:
    """Let p = R u select with a gap tau_1 to the second choices and from those to the rest, let the selected tokens
    outscore the second choices, and let w select as p does. Then for large R, `-<w, dL/dp>` is the sum over pairs
    (selected, second choice) alone, up to a factor `1 +- eps`; eps falls like exp(-tau_1 R). (u is near the max-margin
    vector of the important tokens. w is that vector; or, where `selection` is "everything", one that ties them with
    their second choices.)"""
    problem, _ = x.posed[0]
    keys, T, size = problem.keys, problem.T, float(x.steps[0].after.norms[:-2].max())
    u = _beside(x, problem)
    first, second, tau1 = _first_choices(problem, u)
    kept = first | second if x.selection == "everything" else x.corpus.important
    w = class_margin(problem, kept).vector
    gamma, ahead = problem.scores, keys.logits(w)
    ahead = np.where(kept, ahead.max(axis=1, keepdims=True), ahead)  # ties without rounding
    leading = first[:, :, None] & second[:, None, :]
    mu = float((gamma[:, :, None] - gamma[:, None, :])[leading].min())
    tau2 = float((ahead[first][:, None] - ahead)[~kept & problem.mask].min())
    constant = (T + T**2) * (2 * float(keys.norm(w)) * size / tau2) * (2 * T * size / mu)
    R = np.log(constant / 0.01) / tau1  # where the proof promises one percent
    pairs = _Pairs(problem, R * u)
    whole, part = pairs.total(ahead), pairs.total(ahead, leading)
    return Findings(
        hypotheses=(
            true("w selects as u does", bool((first == kept).all())),
            above("tau_1", tau1, 0, strict=True),
            above("tau_2", tau2, 0, strict=True),
            above("score lead mu over second choices", mu, 0, strict=True),
        ),
        conclusion=(_relative(whole, part, constant * float(np.exp(-tau1 * R))),),
    )


def _beside(x: EmbeddingInstance, problem: TokenProblem) -> Float[Array, " D"]:
    """A unit vector beside the max-margin one of the important tokens: it selects them, and has one second choice."""
    keys = problem.keys
    nudge = keys.combine(np.random.default_rng(x.seed).standard_normal(keys.rows))
    head = x.steps[0].after.head
    nudge -= keys.inner(nudge, head) * head  # the tokens differ along v by far more than elsewhere
    u = class_margin(problem, x.corpus.important).vector + 0.1 * nudge / keys.norm(nudge)
    return np.asarray(u / keys.norm(u))


def _first_choices(
    problem: TokenProblem, u: Float[Array, " D"]
) -> tuple[Bool[Array, "n T"], Bool[Array, "n T"], float]:
    """`S_X`, `S_X^2` and the smallest gap from one to the other and from that to the rest (22)."""
    logits = np.where(problem.mask, problem.keys.logits(u), -np.inf)
    first = logits == logits.max(axis=1, keepdims=True)
    rest = np.where(first, -np.inf, logits)
    second = (rest == rest.max(axis=1, keepdims=True)) & np.isfinite(rest)
    third = np.where(second, -np.inf, rest).max(axis=1)
    return first, second, float(np.concatenate([logits.max(axis=1) - rest.max(axis=1), rest.max(axis=1) - third]).min())


def _relative(whole: float, part: float, promised: float) -> Slack:
    apart = abs(whole / part - 1) if part else np.inf
    return below("|sum / leading pairs - 1|", apart, promised, tolerance=ROUNDING)


def _in_forty_dimensions() -> EmbeddingInstance:
    return EmbeddingInstance.of(6, 4, dimension=40, step=20.0)


IDENTITY = "An identity: no hypothesis."

CLAIMS = (
    Claim(
        "A.lemma7",
        lemma7,
        "exact",
        about="gradients in E_s and p; rank-two form",
        example=_in_forty_dimensions,
        unconditional=IDENTITY,
    ),
    Claim(
        "A.lemma8",
        lemma8,
        "exact",
        about="directional derivative as a sum over pairs",
        example=_in_forty_dimensions,
        unconditional=IDENTITY,
    ),
    Claim(
        "A.lemma9",
        lemma9,
        "sampled",
        about="(15) forces the limit direction",
        example=lambda: EmbeddingInstance.of(4, 3, selection="important"),
        outside=(
            lambda: EmbeddingInstance.of(4, 3, selection="random"),
            lambda: EmbeddingInstance.of(4, 2, dimension=2, step=1.0, seed=4, selection="important"),  # comes to rest
        ),
    ),
    Claim(
        "A.lemma10",
        lemma10,
        "exact",
        about="softmax weights from logit gaps",
        example=_in_forty_dimensions,
        outside=(lambda: replace(_in_forty_dimensions(), selection="important"),),
        note="The proof's last display writes q_selected for q_j; the statement is right.",
    ),
    Claim(
        "A.lemma17",
        lemma17,
        "exact",
        about="leading pairs of the gradient at large norm",
        example=lambda: EmbeddingInstance.of(4, 3),
        outside=(lambda: EmbeddingInstance.of(4, 3, selection="everything"),),
        unneeded={
            "tau_1": "Positive by definition of the second choices.",
            "tau_2": "Positive by definition of what w selects.",
            "score lead mu over second choices": (
                "Needed only to keep the leading sum from vanishing: the bound has its inverse as a factor. Where all "
                "second choices score higher, signs change on both sides."
            ),
        },
        note="Checked with the constants of the proof: |ratio - 1| <= (T + T^2) C_3 C_4 exp(-tau_1 R).",
    ),
)
