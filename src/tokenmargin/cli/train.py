"""`tokenmargin train`: train attention with all its embeddings on prepared text."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter, Token

from tokenmargin.cli._common import (
    Json,
    Seed,
    UsageError,
    emit_json,
    end_code,
    needs_extra,
    parse_numbers,
    print_answer,
    print_error,
    print_message,
    printable,
    progress_bar,
    usage_errors,
)
from tokenmargin.training.config import TrainingConfig

if TYPE_CHECKING:
    import torch

    from tokenmargin.problem.corpus import CountedByLabel
    from tokenmargin.training.batches import Sequences
    from tokenmargin.training.epochs import TrainingProgress
    from tokenmargin.training.ranks import AbstractSplit
    from tokenmargin.training.trainer import TrainingRun

SHOWN = 8
GAP = 1e-7
_MILESTONES = "Epochs at which the rate is divided by ten, such as 100,200."


def _milestones(_: object, tokens: Sequence[Token]) -> tuple[int, ...]:
    return tuple(parse_numbers(tokens[0].value, int, "--milestones")) if tokens[0].value else ()


@dataclass(frozen=True)
class LaptopConfig(TrainingConfig):
    """The settings as flags, with defaults for a laptop. `train` turns them into a `TrainingConfig`, which checks."""

    dimension: int = 256
    epochs: int = 10
    rate: float = 0.003
    milestones: Annotated[tuple[int, ...], Parameter(converter=_milestones, n_tokens=1, help=_MILESTONES)] = ()
    factor: Annotated[float, Parameter(parse=False)] = 0.1
    trained_head: Annotated[bool, Parameter(negative="--fixed-head")] = True
    seed: Seed = 0

    def __post_init__(self) -> None:
        """Check nothing while the command line is read."""


LAPTOP = LaptopConfig()


def train(
    prepared: Path,
    /,
    *,
    out: Path,
    settings: Annotated[LaptopConfig, Parameter(name="*")] = LAPTOP,
    device: str = "auto",
    deterministic: bool = False,
    split: Literal["texts", "dimension"] = "texts",
    checkpoint_every: float = 60.0,
    stop_loss: float = 0.0,
    budget: float = float("inf"),
    margin: bool = False,
    json: Json = False,
) -> int:
    """Train, and say which tokens the model selects.

    A run found in the folder is resumed. Ctrl-C ends it after the step in hand, with a checkpoint and the exit
    code 130. Started by torchrun, the processes train one model together.

    Examples:

        tokenmargin prepare sentences --out sentences.safetensors
        tokenmargin train sentences.safetensors --out runs/sentences
        tokenmargin train imdb.safetensors --out runs/imdb --dimension 2048 --epochs 5 --rate 0.0003
        torchrun --nproc-per-node 4 --max-restarts 3 -m tokenmargin train shards --out runs/large

    Parameters
    ----------
    prepared:
        What tokenmargin prepare wrote: a file (.safetensors), or a folder of shards, which are read from the disk as
        they are needed.
    out:
        Folder for checkpoints, metrics.parquet and, of one layer over whole words, a model that tokenmargin predict,
        explain, report and playground open.
    device:
        cpu, cuda, or auto.
    deterministic:
        On a GPU: the same bits every time, by slower kernels.
    split:
        Under torchrun: each process takes a part of every batch (texts), or of the embeddings (dimension), which then
        need not fit on one device.
    checkpoint_every:
        Seconds between checkpoints.
    stop_loss:
        End after an epoch below this loss.
    budget:
        Seconds after which to end.
    margin:
        Also solve the max-margin problem of the tokens selected in every text, with a certificate, and compare p with
        it (one-layer model, a prepared file).
    """
    with needs_extra("train"):
        import torch

        from tokenmargin.training.batches import truncate
        from tokenmargin.training.config import choose_device
        from tokenmargin.training.ranks import ByDimension, ByTexts, join_ranks
    with usage_errors():
        place = choose_device(device)
    if margin and (settings.model != "one-layer" or split != "texts" or prepared.is_dir()):
        raise UsageError("--margin needs the one-layer model, a prepared file (no folder of shards), and --split texts")
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for it
        torch.use_deterministic_algorithms(True)
    with usage_errors():
        config = TrainingConfig(**asdict(settings))
    with join_ranks(place) as ranks:
        shared = ByDimension(ranks) if split == "dimension" else ByTexts(ranks)
        with usage_errors():
            whole, words, frequencies = _open_prepared(prepared, ranks.device)
            data = truncate(whole, config.max_tokens)
        result = _train_shown(
            data, config, out, shared, checkpoint_every=checkpoint_every, stop_loss=stop_loss, budget=budget
        )
        if result.status == "diverged":
            print_error(
                f"training has diverged: the loss is not finite in epoch {len(result.metrics) + 1}; "
                f"lower --rate or the scales; checkpoints before it are kept in {out}"
            )
            return 1
        report = _training_as_data(result, data, words, frequencies, shared)
        scores = report.pop("scores")
        if ranks.is_first:
            if result.config.model == "one-layer" and not prepared.is_dir():
                _save_classifier(result, scores, prepared, out)
            if margin and result.status != "interrupted":
                report["margin"] = _margin_as_data(result, frequencies)
            for note in result.notes:
                print_message(note)
            emit_json(report) if json else _print_training(report, out)
    return end_code(interrupted=result.status == "interrupted")


def _train_shown(data: Sequences, config: TrainingConfig, out: Path, split: AbstractSplit, **how: Any) -> TrainingRun:
    """Train, with a progress bar on the first rank; `how` holds the limits of the run."""
    from tokenmargin.training.trainer import train as run

    with progress_bar("training", -(-data.n // config.batch) * config.epochs) as advance, usage_errors():

        def tell(now: TrainingProgress) -> None:
            speed = f"{now.steps_per_second:.0f} steps/s" if now.steps_per_second >= 1 else "under 1 step/s"
            advance(now.step, f"epoch {now.epoch + 1} loss {now.loss:.4g}, {speed}")

        return run(data, config, folder=out, split=split, progress=tell if split.ranks.is_first else None, **how)


def _open_prepared(prepared: Path, device: torch.device) -> tuple[Sequences, tuple[str, ...], CountedByLabel]:
    """The training data, vocabulary and frequencies of a prepared file, or of a folder of shards."""
    from tokenmargin.data.prepared import load_prepared
    from tokenmargin.data.sharded.slices import load_sharded
    from tokenmargin.training.batches import MappedSequences, training_data

    if prepared.is_dir():
        corpus = load_sharded(prepared)
        return MappedSequences.of(corpus.shards, m=corpus.m, device=device), corpus.vocabulary, corpus
    text = load_prepared(prepared)
    return training_data(text, device=device), text.vocabulary, text.corpus()


def _margin_as_data(result: TrainingRun, corpus: CountedByLabel) -> dict[str, Any]:
    """The certified max-margin direction of what the trained p selects in every text."""
    import numpy as np

    from tokenmargin.problem.corpus import TokenCorpus
    from tokenmargin.training.probe import learned_direction

    assert isinstance(corpus, TokenCorpus), "a prepared file has a corpus"
    with progress_bar("max-margin direction", 100) as advance:

        def tell(gap: float) -> None:
            share = np.log(max(min(gap, 1.0), GAP)) / np.log(GAP)
            advance(round(100 * share), f"max-margin direction, gap {gap:.1e}")

        found = learned_direction(result.model.state, corpus, gap=GAP, progress=tell)
    return {
        "status": found.margin.status,
        "margin": found.margin.margin,
        "cosine": found.cosine,
        "distinct tokens selected": found.distinct,
        "active constraints": len(found.margin.tokens),
        "residual": found.margin.certificate.residual,
        "seconds": found.margin.seconds,
    }


def _training_as_data(
    result: TrainingRun, data: Sequences, vocabulary: tuple[str, ...], frequencies: CountedByLabel, split: AbstractSplit
) -> dict[str, Any]:
    """Loss, accuracy, alignment, the tokens with the largest products, and what the ranks exchanged."""
    import numpy as np

    from tokenmargin.training.probe import alignment, evaluate, token_scores

    found = evaluate(result.model, data, split=split)
    if np.isnan(found.loss):
        raise UsageError("the model has diverged: its scores are not finite; lower the rate or the scales")
    a, b = scores = token_scores(result.model)
    posterior, ranks = frequencies.posterior_difference, split.ranks

    def rows(size: Any) -> list[dict[str, Any]]:
        """The tokens where `size` is positive, the largest first."""
        order = np.argsort(-size, kind="stable")[: min(SHOWN, int((size > 0).sum()))]
        numbers = zip(a[order], b[order], posterior[order], found.selected[order].tolist(), order, strict=True)
        return [
            {"token": vocabulary[s], "E.p": p, "E.v": v, "posterior": sign, "selected": count}
            for p, v, sign, count, s in numbers
        ]

    return {
        "status": result.status,
        "epochs": len(result.metrics),
        "seconds": result.seconds,
        "loss": found.loss,
        "accuracy": found.accuracy,
        **asdict(alignment(scores, frequencies)),
        "most selected": rows(found.selected),
        "most positive": rows(b),
        "most negative": rows(-b),
        "scores": scores,
        **({} if ranks.is_alone else {"ranks": ranks.size, "bytes exchanged by a rank": dict(ranks.moved)}),
    }


def _save_classifier(result: TrainingRun, scores: Any, prepared: Path, out: Path) -> None:
    """Leave a classifier in the run's folder that decides as the trained model does."""
    import numpy as np

    try:
        from tokenmargin.classifier.files import save_model
        from tokenmargin.classifier.training_runs import classifier_of_training
    except ImportError:
        print_message(
            "no model for predict, explain and report is written: they need pip install 'tokenmargin[classify]'"
        )
        return
    from tokenmargin.data.prepared import load_prepared

    try:
        logits = scores[0] / result.config.conventions.temperature
        found = classifier_of_training(
            np.stack([logits, scores[1]]), load_prepared(prepared), [row["loss"] for row in result.metrics]
        )
    except ValueError as error:
        print_message(f"no model for predict, explain and report is written: {error}")
        return
    notes = {"trained by": "tokenmargin train", "epochs": len(result.metrics), "prepared": prepared.name}
    save_model(found, out / "model", notes=notes)


def _print_training(report: dict[str, Any], out: Path) -> None:
    print_answer(f"{report['status']} after {report['epochs']} epochs")
    print_answer(f"loss {report['loss']:.4g}, accuracy {report['accuracy']:.2%}")
    rho_v, rho_p = (f"{rho:+.3f}" if rho == rho else "none" for rho in (report["rho_v"], report["rho_p"]))
    clear = (
        f"right on {report['sign']:.1%} of {report['clear']} clear tokens" if report["clear"] else "clear of no token"
    )
    print_answer(
        f"rank correlation of E.v with the posterior difference {rho_v}, of E.p with its modulus {rho_p}; "
        f"sign of E.v {clear}"
    )
    for title in ("most selected", "most positive", "most negative"):
        print_answer(f"{title:24} {'E.p':>8} {'E.v':>8} {'posterior':>10} {'selected':>9}")
        for row in report[title]:
            numbers = f"{row['E.p']:8.2f} {row['E.v']:8.2f} {row['posterior']:10.2f} {row['selected']:9d}"
            print_answer(f"  {printable(row['token']):22} {numbers}")
    if "margin" in report:
        found = report["margin"]
        print_answer(
            f"max-margin direction of the selection: {found['status']} (residual {found['residual']:.1e}), "
            f"{found['distinct tokens selected']} tokens selected; cosine of p with it {found['cosine']:.6f}"
        )
    if "ranks" in report:
        moved = ", ".join(f"{name} {size:,}" for name, size in report["bytes exchanged by a rank"].items())
        print_answer(f"{report['ranks']} ranks; bytes exchanged by each: {moved}")
    print_answer(f"checkpoint and metrics.parquet in {out}" + (" (and model)" if (out / "model").is_dir() else ""))
