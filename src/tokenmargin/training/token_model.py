"""The token model of the built-in sentences: trained here, shipped with the playground.

    python -m tokenmargin.training.token_model token_model.json

makes the sentences, trains all embeddings of the one-layer model on them and writes logit and value of every word: the
file that `tokenmargin playground` opens when it is given no other. About ten seconds on two cores.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
from numpy import ndarray as Array

from tokenmargin.data.pipeline import Pipeline, prepare
from tokenmargin.data.sentences import make_sentences
from tokenmargin.token_model import TokenModel
from tokenmargin.training.batches import TokenData
from tokenmargin.training.trainer import TrainingConfig, train

__all__ = ["SENTENCES", "sentence_model", "train_token_model"]

SENTENCES = TrainingConfig(dimension=64, epochs=6, rate=0.003, milestones=(4,))
"""Enough to select the opinion words, and short of overfitting the filler around them."""


def train_token_model(
    texts: Sequence[str], labels: Sequence[int] | Array, config: TrainingConfig = SENTENCES, *, about: str = ""
) -> TokenModel:
    """Train a one-layer model on lower-case words of labelled texts and keep what its decisions need.

    **Arguments**
    - `texts`, `labels`: the labels are -1 or +1.
    - `config`: a one-layer training; words seen once are left out.
    """
    if config.model != "one-layer":
        raise ValueError(f"a token model is that of one layer, got {config.model!r}; the second layer mixes tokens")
    found = prepare(texts, labels, Pipeline(minimum_count=2))
    run = train(TokenData.of(found.ids, found.offsets, found.labels, m=found.m), config)
    logits, values = run.model.scores().detach().cpu().double().numpy()
    return TokenModel(found.vocabulary, logits.round(6), values.round(6), about)


def sentence_model(n: int = 6000, *, seed: int = 0) -> TokenModel:
    """The model of `n` built-in sentences."""
    made = make_sentences(n, np.random.default_rng(seed))
    about = f"One attention layer trained on {n} built-in sentences (seed {seed})."
    return train_token_model(made.texts, [int(label) for label in made.labels], about=about)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on the built-in sentences and write the token model.")
    parser.add_argument("path", help="the file to write, such as token_model.json")
    sentence_model().save(parser.parse_args().path)


if __name__ == "__main__":
    main()
