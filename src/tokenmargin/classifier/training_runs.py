"""Turn a run of `tokenmargin train` into a classifier, which needs two numbers per token of the embeddings.

In the one-layer model of paper A every occurrence of a token counts, and there is no sink:
`f = sum_t e^{a_t} b_t / sum_t e^{a_t}` over the tokens of a text, with `a = <E, p>` (over the temperature) and
`b = <E, v>`. That is a `TokenModel` with g = 1, with repeats, and with a sink whose logit is so low that it has no
weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.classifier.classifier import TokenSelectionClassifier
from tokenmargin.classifier.importance import token_statistics
from tokenmargin.classifier.model_choice import FitChoice
from tokenmargin.classifier.token_model import TokenModel
from tokenmargin.classifier.vocabulary import Vocabulary
from tokenmargin.data.pipeline import Pipeline
from tokenmargin.data.prepared import PreparedText

NO_SINK = 800.0  # the sink is so far below the smallest logit: e^-800 is zero


def classifier_of_training(
    scores: Float[Array, "2 m"], prepared: PreparedText, losses: Sequence[float]
) -> TokenSelectionClassifier:
    """A classifier that decides as the trained model does.

    **Arguments**
    - `scores`: the logit and the value of every token of `prepared.vocabulary`.
    - `losses`: the loss of each epoch, for the report.
    """
    choices: Mapping[str, object] = prepared.choices or {}
    if choices.get("vocabulary") is not None:
        raise ValueError("words that were cut into pieces cannot be cut again: the vocabulary of pieces is not kept")
    settings = {name: choices[name] for name in vars(Pipeline()) if name in choices}
    if not isinstance(stops := settings.get("stop_words", "none"), str):
        settings["stop_words"] = tuple(stops)  # type: ignore[arg-type]
    found = TokenSelectionClassifier(Pipeline(**settings), exponent=1.0, attention="learned", repeats=True)  # type: ignore[arg-type]
    classes = choices.get("classes", (-1, 1))
    codes = (np.asarray(prepared.labels) > 0).astype(int)
    share = min(max(float(codes.mean()), 1e-12), 1 - 1e-12)
    prior = np.array([np.log(share / (1 - share))])
    logits, values = np.asarray(scores, float)
    ids, offsets = np.array(prepared.ids), np.array(prepared.offsets)
    counts = sp.csr_matrix((np.ones(len(ids)), ids, offsets), shape=(prepared.n, prepared.m))
    counts.sum_duplicates()
    found.vocabulary_ = Vocabulary(tuple(prepared.vocabulary))
    found.token_model_ = TokenModel(
        logits, values[:, None], float(logits.min()) - NO_SINK, np.zeros(1), prior, repeats=True
    )
    found.classes_ = np.array(classes)
    found.token_statistics_ = token_statistics(counts, codes, 2, found.token_model_)
    found.chosen_, found.validation_ = FitChoice(exponent=1.0, repeats=True), None
    found.loss_curve_, found.n_iter_ = list(losses), len(losses)
    found.n_texts_, found.n_duplicates_ = prepared.n, 0
    return found
