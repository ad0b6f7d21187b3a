"""From a trained model back to the theory: alignment with the frequencies, tokens selected, attention mass.

The papers say that `<E_s, v>` follows the posterior difference of token s and `<E_s, p>` its modulus, and that p turns
towards the max-margin direction of the tokens it selects. Here are the numbers that say how far a model does so, and
a run that is looked at in this way while it trains (`run_job`).
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray as Array

from tokenmargin._statistics import spearman
from tokenmargin.problem.corpus import TokenCorpus
from tokenmargin.training.batches import Sequences, TokenData
from tokenmargin.training.config import TrainingConfig
from tokenmargin.training.one_layer import Model
from tokenmargin.training.parameters import State
from tokenmargin.training.ranks import AbstractSplit, ByTexts
from tokenmargin.training.trainer import TrainingRun, train

if TYPE_CHECKING:
    from tokenmargin.margin import MarginSolution


CLEAR = 2.0  # standard deviations from zero at which a token's posterior difference has a clear sign


@runtime_checkable
class Frequencies(Protocol):
    """How often each token occurs under each label: a corpus in memory has it, and one in shards."""

    @property
    def counts(self) -> Array:
        """Occurrences in negative (row 0) and in positive (row 1) sequences."""

    @property
    def posterior_difference(self) -> Array:
        """`p(+1|s) - p(-1|s)` by counting (37)."""


@dataclass(frozen=True)
class Alignment:
    """How well the scores of a model follow the frequencies of its tokens.

    **Attributes**
    - `rho_v`: rank correlation of `<E_s, v>` with the posterior difference (37).
    - `rho_p`: rank correlation of `<E_s, p>` with its modulus.
    - `sign`: share of tokens, among those whose posterior difference is clearly not zero, on which `<E_s, v>` has its
        sign.
    - `clear`: how many tokens those are.
    - `alpha_v`, `alpha_p`: as `rho_v` and `rho_p`, with the signed frequency (3) in place of the posterior difference:
        the difference of the counts, not over their sum.
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


def alignment(scores: Float[Array, "2 m"], corpus: Frequencies) -> Alignment:
    """Compare scores with the corpus's frequencies; tokens that never occur are left out.

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
    """Mean attention on negative, irrelevant and positive tokens, where clear; one-layer model.

    Attention is spread by occurrence; `uniform` attention would give each class its share of the tokens.
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
    """The max-margin direction of a learned selection, and the angle of the learned p to it.

    **Attributes**
    - `margin`: the certified solution; infeasible when no p selects these tokens with a margin.
    - `cosine`: of the trained p with it.
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
    return LearnedDirection(found, cosine, len(pairs.heads))


@torch.no_grad()
def evaluate(model: Model, corpus: TokenCorpus, *, batch: int = 256) -> tuple[float, float]:
    """Mean loss and accuracy of the model as it stands, over the whole corpus."""
    device = model.state.heads.device
    f = torch.cat([model.outputs(rows) for rows in torch.split(torch.arange(corpus.n, device=device), batch)])
    margin = f.double().cpu() * torch.as_tensor(np.array(corpus.labels))
    return float(torch.nn.functional.softplus(-margin).mean()), float((margin > 0).double().mean())


@dataclass(frozen=True, eq=False)
class Survey:
    """A model on all sequences as it stands: mean loss, accuracy, and how often each token is selected."""

    loss: float
    accuracy: float
    chosen: Int[Array, " m"]


@torch.no_grad()
def survey(model: Model, data: Sequences, *, split: AbstractSplit | None = None, batch: int = 256) -> Survey:
    """Go through the sequences once, some at a time; several ranks share the work and all get the result."""
    split = split or ByTexts()
    data, scores = data.cast(torch.float64), model.scores()
    if not all(bool(torch.isfinite(score).all()) for score in scores):
        raise ValueError("the model has diverged: its scores are not finite; lower the rate or the scales")
    sums = torch.zeros(2, dtype=torch.float64, device=data.device)
    chosen = torch.zeros(data.m, dtype=torch.int64, device=data.device)
    for rows in torch.split(torch.arange(data.n, device=data.device)[split.rows(data.n)], batch):
        part = data.batch(rows)
        margin = part.labels * model.outputs(rows).double()
        sums += torch.stack([torch.nn.functional.softplus(-margin).sum(), (margin > 0).double().sum()])
        logits = scores[0][part.ids]
        top = logits.new_full((len(rows),), -torch.inf).scatter_reduce(0, part.segment, logits, "amax")
        place = torch.where(logits == top[part.segment], torch.arange(len(logits), device=data.device), len(logits))
        first = place.new_full((len(rows),), len(logits)).scatter_reduce(0, part.segment, place, "amin")
        chosen += torch.bincount(part.ids[first], minlength=data.m)
    loss, right = (split.total(sums, "survey") / data.n).tolist()
    return Survey(loss, right, split.total(chosen, "survey").cpu().numpy())


@dataclass(frozen=True)
class Job:
    """One training run of a plan."""

    name: str
    dataset: str
    config: TrainingConfig
    budget: float = float("inf")


def observed_epochs(epoch: int) -> bool:
    """About ten epochs per decade are looked at closely."""
    return epoch <= 10 or epoch % 10 ** int(np.log10(epoch)) == 0 or (epoch > 100 and epoch % 20 == 0)


def run_job(
    job: Job,
    corpus: TokenCorpus,
    *,
    device: str,
    budget: float,
    folder: Path | None = None,
    progress: Callable[[Any], None] | None = None,
) -> tuple[TrainingRun, dict[str, Any], dict[str, Array]]:
    """Train, and gather what the figures need: the record and the arrays."""
    offsets = np.concatenate([[0], np.cumsum(corpus.lengths)])
    data = TokenData.of(corpus.tokens, offsets, corpus.labels, m=corpus.size, device=device)
    run = train(
        data,
        job.config,
        folder=folder,
        checkpoint_every=300.0,
        budget=min(budget, job.budget),
        observe=lambda model: asdict(alignment(token_scores(model), corpus)),
        observe_at=observed_epochs,
        chunk=1 << 20 if device == "cuda" and job.config.model == "one-layer" else 64,
        progress=progress,
    )
    loss, accuracy = evaluate(run.model, corpus)
    scores = token_scores(run.model)
    record = {
        "name": job.name,
        "dataset": job.dataset,
        "config": asdict(job.config),
        "status": run.status,
        "seconds": run.seconds,
        "steps": run.model.state.step,
        "final loss": loss,
        "final accuracy": accuracy,
        **{f"final {key}": value for key, value in asdict(alignment(scores, corpus)).items()},
        "mass": attention_mass(scores[0], corpus) if job.config.model == "one-layer" else None,
        "metrics": run.metrics,
    }
    arrays = {"scores": scores.astype(np.float32), "posterior": corpus.posterior_difference.astype(np.float32)}
    return run, record, arrays


def machine(device: str) -> dict[str, str]:
    """What the numbers were measured on."""
    chip = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    return {"device": chip, "torch": torch.__version__, "python": platform.python_version(), "numpy": np.__version__}
