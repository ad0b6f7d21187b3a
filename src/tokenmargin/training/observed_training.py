"""A training run of paper A's figures with everything that they show of it."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy import ndarray as Array

from tokenmargin.problem.corpus import TokenCorpus
from tokenmargin.training.batches import TokenData
from tokenmargin.training.config import TrainingConfig
from tokenmargin.training.probe import alignment, attention_mass, evaluate, token_scores
from tokenmargin.training.trainer import TrainingRun, train


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
