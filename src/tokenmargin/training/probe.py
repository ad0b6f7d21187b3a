"""Compare a trained model with the theory: alignment with the frequencies, attention mass, the selected tokens.

The papers say that `<E_s, v>` follows the posterior difference of token s and `<E_s, p>` its modulus, and that p turns
towards the max-margin direction of the tokens it selects. The functions here measure how far a model does so;
`train_observed` measures it during training.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray as Array

from tokenmargin._statistics import spearman
from tokenmargin.problem.corpus import CountedByLabel, TokenCorpus
from tokenmargin.training.batches import Sequences, training_data, truncate
from tokenmargin.training.config import TrainingConfig
from tokenmargin.training.one_layer import Model
from tokenmargin.training.parameters import State
from tokenmargin.training.ranks import AbstractSplit, ByTexts
from tokenmargin.training.trainer import TrainingRun, train

if TYPE_CHECKING:
    from tokenmargin.margin import MarginSolution


CLEAR = 2.0  # the sign of a posterior difference is clear from so many standard deviations on


@dataclass(frozen=True)
class Alignment:
    """How well the scores of a model follow the frequencies of its tokens.

    **Attributes**
    - `rho_v`: rank correlation of `<E_s, v>` with the posterior difference (37).
    - `rho_p`: rank correlation of `<E_s, p>` with its modulus.
    - `sign`: of the tokens whose posterior difference is clearly not zero, the share on which `<E_s, v>` has its sign.
    - `clear`: how many such tokens there are.
    - `alpha_v`, `alpha_p`: as `rho_v` and `rho_p`, with the signed frequency (3) instead of the posterior difference:
        the difference of the counts, not divided by their sum.
    """

    rho_v: float
    rho_p: float
    sign: float
    clear: int
    alpha_v: float
    alpha_p: float


def token_scores(model: Model) -> Float[Array, "2 m"]:
    """`<E_s, p>` and `<E_s, v>` of all tokens."""
    return model.scores().detach().cpu().double().numpy()


def alignment(scores: Float[Array, "2 m"], corpus: CountedByLabel) -> Alignment:
    """Compare the scores of a model with the frequencies of a corpus; tokens that never occur are left out.

    >>> corpus = TokenCorpus.of([["good"] * 9 + ["film"], ["bad"] * 9 + ["film"]], [1, -1])
    >>> alignment(np.array([[2.0, 0.0, 2.0], [1.0, 0.0, -1.0]]), corpus)
    Alignment(rho_v=1.0, rho_p=1.0, sign=1.0, clear=2, alpha_v=1.0, alpha_p=1.0)
    """
    counts = corpus.counts.sum(axis=0)
    seen = counts > 0
    posterior = corpus.posterior_difference[seen]
    alpha = (corpus.counts[1] - corpus.counts[0])[seen].astype(float)
    a, b = scores[:, seen]
    clear = np.abs(posterior) * np.sqrt(counts[seen]) > CLEAR
    agree = np.sign(b[clear]) == np.sign(posterior[clear])
    return Alignment(
        rho_v=float(spearman(b, posterior)),
        rho_p=float(spearman(a, np.abs(posterior))),
        sign=float(agree.mean()) if agree.size else float("nan"),
        clear=int(clear.sum()),
        alpha_v=float(spearman(b, alpha)),
        alpha_p=float(spearman(a, np.abs(alpha))),
    )


def attention_mass(logits: Float[Array, " m"], corpus: TokenCorpus) -> dict[str, float]:
    """The mean attention of a one-layer model on clearly negative, clearly positive and all other tokens.

    Every occurrence of a token gets attention. Keys with `uniform` are what uniform attention would give.
    """
    values = logits[corpus.tokens]
    begin = np.concatenate([[0], np.cumsum(corpus.lengths)[:-1]])
    weights = np.exp(values - np.repeat(np.maximum.reduceat(values, begin), corpus.lengths))
    weights /= np.repeat(np.add.reduceat(weights, begin), corpus.lengths)
    counts = corpus.counts.sum(axis=0)
    clear = np.abs(corpus.posterior_difference) * np.sqrt(counts) > CLEAR
    kind = np.where(clear, np.sign(corpus.posterior_difference), 0).astype(int)[corpus.tokens]
    even = np.repeat(1.0 / corpus.lengths, corpus.lengths)
    mass = {}
    for name, value in (("negative", -1), ("irrelevant", 0), ("positive", 1)):
        mass[name] = float(weights[kind == value].sum() / corpus.n)
        mass[f"{name} uniform"] = float(even[kind == value].sum() / corpus.n)
    return mass


@dataclass(frozen=True, eq=False)
class LearnedDirection:
    """The max-margin direction of the tokens that a trained p selects, and how near p is to it.

    **Attributes**
    - `margin`: the certified solution; infeasible when no p selects these tokens with a margin.
    - `cosine`: of the angle between the trained p and the solution.
    - `distinct`: how many different tokens are selected.
    """

    margin: MarginSolution
    cosine: float
    distinct: int


def learned_direction(
    state: State, corpus: TokenCorpus, *, gap: float = 1e-6, progress: Callable[[float], None] | None = None
) -> LearnedDirection:
    """The max-margin problem of the tokens that the trained p selects in every sequence of the corpus.

    `progress` is called with the gap reached, in every round of the solver.
    """
    from tokenmargin.margin import argmax_pairs, corpus_margin

    E = state.embeddings.detach().cpu().double().numpy()
    p = state.prompt.detach().cpu().double().numpy()
    pairs = argmax_pairs(corpus, E @ p)
    found = corpus_margin(E, pairs, start=p, gap=gap, progress=progress)
    norm = float(np.linalg.norm(found.vector) * np.linalg.norm(p))
    cosine = float(found.vector @ p / norm) if norm > 0 else float("nan")
    return LearnedDirection(found, cosine, len(pairs.selected))


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A model on all sequences: mean loss, accuracy, and in how many sequences each token is selected."""

    loss: float
    accuracy: float
    selected: Int[Array, " m"]


@torch.no_grad()
def evaluate(model: Model, data: Sequences, *, split: AbstractSplit | None = None, batch: int = 256) -> Evaluation:
    """Evaluate a model on all sequences; several ranks share the work, and all get the result.

    A model that has diverged, so that some score is not finite, has loss NaN and selects no token.
    """
    split = split or ByTexts()
    data, scores = data.cast(torch.float64), model.scores()
    if not all(bool(torch.isfinite(score).all()) for score in scores):
        return Evaluation(np.nan, np.nan, np.zeros(data.m, np.int64))
    sums = torch.zeros(2, dtype=torch.float64, device=data.device)
    selected = torch.zeros(data.m, dtype=torch.int64, device=data.device)
    for rows in torch.split(torch.arange(data.n, device=data.device)[split.own_rows(data.n)], batch):
        part = data.batch(rows)
        margin = part.labels * model.outputs(rows).double()
        sums += torch.stack([torch.nn.functional.softplus(-margin).sum(), (margin > 0).double().sum()])
        logits = scores[0][part.ids]
        top = logits.new_full((len(rows),), -torch.inf).scatter_reduce(0, part.segment, logits, "amax")
        # Of several tokens with the largest logit the first is selected: the smallest place where it is reached.
        place = torch.where(logits == top[part.segment], torch.arange(len(logits), device=data.device), len(logits))
        first = place.new_full((len(rows),), len(logits)).scatter_reduce(0, part.segment, place, "amin")
        selected += torch.bincount(part.ids[first], minlength=data.m)
    loss, right = (split.total(sums, "evaluation") / data.n).tolist()
    return Evaluation(loss, right, split.total(selected, "evaluation").cpu().numpy())


def observed_epochs(epoch: int) -> bool:
    """Whether a model is compared with the frequencies after an epoch: about ten epochs of every decade."""
    return epoch <= 10 or epoch % 10 ** int(np.log10(epoch)) == 0 or (epoch > 100 and epoch % 20 == 0)


def train_observed(
    config: TrainingConfig,
    corpus: TokenCorpus,
    *,
    device: str,
    budget: float = float("inf"),
    folder: Path | None = None,
    progress: Callable[[Any], None] | None = None,
) -> tuple[TrainingRun, dict[str, Any], Float[Array, "2 m"]]:
    """Train on a corpus, and measure the alignment on the way; returns the run, a record of it, and the scores."""
    data = training_data(corpus, device=device)
    run = train(
        data,
        config,
        folder=folder,
        checkpoint_every=300.0,
        budget=budget,
        observe=lambda model: asdict(alignment(token_scores(model), corpus)),
        observe_at=observed_epochs,
        chunk=1 << 20 if device == "cuda" and config.model == "one-layer" else 64,
        progress=progress,
    )
    found, scores = evaluate(run.model, truncate(data, config.max_tokens)), token_scores(run.model)
    record = {
        "config": asdict(config),
        "status": run.status,
        "seconds": run.seconds,
        "steps": run.model.state.step,
        "final loss": found.loss,
        "final accuracy": found.accuracy,
        **{f"final {key}": value for key, value in asdict(alignment(scores, corpus)).items()},
        "mass": attention_mass(scores[0], corpus) if config.model == "one-layer" else None,
        "metrics": run.metrics,
    }
    return run, record, scores


def machine(device: str) -> dict[str, str]:
    """The chip and the versions that numbers were measured with."""
    chip = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    return {"device": chip, "torch": torch.__version__, "python": platform.python_version(), "numpy": np.__version__}
