"""Paper A's start and first step: (14), Lemmas 2, 11 and 12."""

from __future__ import annotations

import numpy as np

from tokenmargin.attention import LogisticLoss
from tokenmargin.corpus import TokenCorpus
from tokenmargin.embedding import EmbeddingObjective
from tokenmargin.theory.claim import Claim, Findings, above, below
from tokenmargin.theory.instances import EmbeddingInstance
from tokenmargin.theory.paper_a.conditions import concentrated, deviation, flat_attention, quantile, share

__all__ = ["CLAIMS"]


def initialisation(x: EmbeddingInstance) -> Findings:
    """With probability 1 - delta all `|<E_s, v>|, |<E_s, p>|, |<p, v>|` are at most `sqrt(2 log(|S|^2/delta) / d)`
    and all lengths of `E_s` and p at most 2 (14)."""
    bound = deviation(x) / np.sqrt(float(x.dimension))
    products, lengths = [], []
    for start in x.starts():
        a, b = start.overlaps
        pv = start.geometry.inner(start.prompt, start.head)
        products.append(float(max(np.abs(a).max(), np.abs(b).max(), abs(pv))))
        lengths.append(float(start.norms[:-1].max()))
    facts = [product <= bound and length <= 2 for product, length in zip(products, lengths, strict=True)]
    return Findings(
        hypotheses=(),
        conclusion=(
            share("all of (14)", facts, x),
            below("inner products, (1 - delta) quantile", quantile(products, x), bound),
            below("lengths, (1 - delta) quantile", quantile(lengths, x), 2),
        ),
    )


def lemma2(x: EmbeddingInstance) -> Findings:
    """After one step of size eta_0 from the random start, `E_s = E_s^0 + (eta_0/2) alpha_s v + err_s` and
    `p = p^0 + err_p`, with all errors at most `11 eta_0 d^(-1/4)` with probability 1 - delta (5), (6)."""
    errors = [step.error for step in x.steps]
    bound = x.steps[0].bound(x.dimension)
    return Findings(
        hypotheses=concentrated(x),
        conclusion=(
            below("probability of a larger error", float(x.weights @ (np.array(errors) > bound)) / x.draws, x.delta),
            below("largest error, (1 - delta) quantile", quantile(errors, x), bound),
        ),
    )


def lemma11(x: EmbeddingInstance) -> Findings:
    """After the first step all `|E_s| <= 2 (1 + 2 eta_0)` and `|p| <= 2 + 11 eta_0 d^(-1/4)`, with probability
    1 - delta."""
    tokens = [float(step.after.norms[:-2].max()) for step in x.steps]
    prompts = [float(step.after.norms[-2]) for step in x.steps]
    most, most_prompt = 2 * (1 + 2 * x.step), 2 + x.steps[0].bound(x.dimension)
    facts = [token <= most and p <= most_prompt for token, p in zip(tokens, prompts, strict=True)]
    return Findings(
        hypotheses=concentrated(x),
        conclusion=(
            share("both bounds", facts, x),
            below("longest E_s, (1 - delta) quantile", quantile(tokens, x), most),
            below("|p|, (1 - delta) quantile", quantile(prompts, x), most_prompt),
        ),
    )


def lemma12(x: EmbeddingInstance) -> Findings:
    """After the first step the risk is at most `mean log(1 + exp(-(1/T) sum_i (eta_0/2) y alpha_{x_i} + 1/(22 eta_0)))`
    with probability 1 - delta."""
    corpus = x.corpus
    alpha = np.where(corpus.mask, corpus.signed_frequency[corpus.index], 0.0).sum(axis=1) / corpus.lengths
    u = x.step / 2 * corpus.labels * alpha - 1 / (22 * x.step)
    bound = float(LogisticLoss().value(u).mean())
    losses = [EmbeddingObjective(corpus).value(step.after) for step in x.steps]
    return Findings(
        hypotheses=(*concentrated(x), flat_attention(x)),
        conclusion=(
            share("risk within the bound", [loss <= bound for loss in losses], x),
            below("risk, (1 - delta) quantile", quantile(losses, x), bound),
        ),
    )


def initialisation_repaired(x: EmbeddingInstance) -> Findings:
    """(14) holds with probability 1 - delta for a vocabulary of three tokens or more in at least 256 dimensions. (The
    union bound: 2|S| + 1 inner products are each too large with probability delta/|S|^2.)"""
    hypotheses = above("|S|", x.corpus.size, 3), above("d", x.dimension, 256)
    return Findings(hypotheses, initialisation(x).conclusion)


def _one_token(dimension: int) -> EmbeddingInstance:
    corpus = TokenCorpus.of([["film"], ["film"]], [1, -1])
    return EmbeddingInstance(corpus, dimension, step=1.0, delta=0.5, draws=400)


def _rarely_far() -> EmbeddingInstance:
    corpus = TokenCorpus.of([["good", "film"]], [1])
    return EmbeddingInstance(corpus, 1, step=1.0, delta=1e-12, draws=4000, widened=4.0)


CLAIMS = (
    Claim(
        "A.initialisation",
        initialisation,
        "sampled",
        about="(14): inner products and lengths at the start",
        example=lambda: EmbeddingInstance.of(4, 3, dimension=256, draws=400),
        refutation=lambda: _one_token(300),
        unconditional="Printed without a condition; A.initialisation-repaired has the one it needs.",
        note=(
            "With one token and delta = 1/2 it fails in any dimension (three normals, each allowed 1.18 deviations); "
            "in low dimension the lengths exceed 2. It holds for |S| >= 3 and d >= 256."
        ),
    ),
    Claim(
        "A.initialisation-repaired",
        initialisation_repaired,
        "sampled",
        about="(14) for three tokens or more, in 256 dimensions or more",
        example=lambda: EmbeddingInstance.of(4, 3, dimension=256, draws=400),
        outside=(lambda: EmbeddingInstance.of(4, 3, dimension=2, draws=400), lambda: _one_token(300)),
    ),
    Claim(
        "A.lemma2",
        lemma2,
        "sampled",
        about="(5), (6): the first step adds (eta_0/2) alpha_s v, up to 11 eta_0 d^(-1/4)",
        example=lambda: EmbeddingInstance.of(4, 3, draws=100),
        outside=(_rarely_far,),
        note=(
            "The measured error falls like d^(-1/2), not d^(-1/4). The condition on d is needed for very small delta "
            "only: in one dimension errors have the tails of products of normals, and pass 11 eta_0 once in 4e8 draws."
        ),
    ),
    Claim(
        "A.lemma11",
        lemma11,
        "sampled",
        about="lengths after the first step",
        example=lambda: EmbeddingInstance.of(4, 3, draws=100),
        outside=(lambda: EmbeddingInstance.of(8, 4, dimension=1, step=1e-3, draws=100),),
    ),
    Claim(
        "A.lemma12",
        lemma12,
        "sampled",
        about="risk after the first step",
        example=lambda: EmbeddingInstance.of(4, 3, draws=100),
        outside=(lambda: EmbeddingInstance.of(4, 3, dimension=4, draws=100),),
    ),
)
