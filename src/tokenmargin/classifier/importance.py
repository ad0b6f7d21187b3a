"""The table of what a model learned about every token."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float, Int, Shaped
from numpy import ndarray as Array

from tokenmargin._notebook import Tabular
from tokenmargin.classifier.token_model import TokenModel
from tokenmargin.classifier.vocabulary import segment_max


@dataclass(frozen=True, eq=False, repr=False)
class TokenTable(Tabular):
    """Columns of equal length, one row per token, the largest influence first.

    >>> table = TokenTable({"token": np.array(["good", "film"]), "count": np.array([3, 5])})
    >>> table["count"].tolist(), len(table), table.head(1)["token"].tolist()
    ([3, 5], 2, ['good'])
    """

    columns: Mapping[str, Array]

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __repr__(self) -> str:
        first = ", ".join(map(str, self.columns["token"][:5])) if "token" in self.columns else ""
        return f"<TokenTable of {len(self)} tokens: {first}{', ...' if len(self) > 5 else ''}>"

    def head(self, n: int = 20) -> TokenTable:
        """The first rows."""
        return TokenTable({name: column[:n] for name, column in self.columns.items()})

    def write_csv(self, target: Path | TextIO) -> None:
        """Write comma-separated values with a header."""
        if isinstance(target, Path):
            with target.open("w", encoding="utf-8", newline="") as file:
                return self.write_csv(file)
        writer = csv.writer(target)
        writer.writerow(self.columns)
        writer.writerows(zip(*(column.tolist() for column in self.columns.values()), strict=True))
        return None

    def _columns(self) -> Mapping[str, Array]:
        return self.columns


@dataclass(frozen=True, eq=False, repr=False)
class TokenStatistics:
    """Statistics of every token over the training texts.

    **Attributes**
    - `texts`: how many texts of each class hold it. `occurrences`: how often it occurs in texts of each class.
    - `selected`: in how many texts its logit is the largest.
    - `attention`: its mean weight over all texts. `contributions`: its mean contribution to each column.
    """

    texts: Int[Array, "m classes"]
    occurrences: Int[Array, "m classes"]
    selected: Int[Array, " m"]
    attention: Float[Array, " m"]
    contributions: Float[Array, "m k"]


def token_statistics(
    counts: sp.csr_matrix, codes: Int[Array, " n"], classes: int, model: TokenModel,
    times: Int[Array, " n"] | None = None,
) -> TokenStatistics:  # fmt: skip
    """Statistics over texts, given how often each text holds each token, and the class of each text.

    **Arguments**
    - `times`: how many copies there are of each text; None for one.
    """
    (n, m), tokens = counts.shape, counts.indices
    times = np.ones(n, np.int64) if times is None else times
    logits, text = model.logits[tokens], np.repeat(np.arange(n), np.diff(counts.indptr))
    of_class = [times * (codes == c) for c in range(classes)]
    texts = np.stack([np.bincount(tokens, one[text], m) for one in of_class], axis=1)
    occurrences = np.stack([counts.T @ one for one in of_class], axis=1)
    largest = segment_max(logits, counts.indptr)
    best = np.flatnonzero(logits == largest[text])  # of several in one text, the first is selected
    chosen = best[np.unique(text[best], return_index=True)[1]]
    top = np.maximum(largest, model.sink_logit)
    share = (counts.data if model.repeats else 1.0) * np.exp(logits - top[text])
    Z = np.bincount(text, share, n) + np.exp(model.sink_logit - top)
    share /= Z[text]
    share *= times[text]
    amount = share * np.exp((1 - model.exponent) * (np.log(Z) + top))[text]
    parts = [np.bincount(tokens, amount * column[tokens], m) for column in model.values.T]
    return TokenStatistics(
        texts=texts.astype(np.int64),
        occurrences=occurrences.astype(np.int64),
        selected=np.bincount(tokens[chosen], times[text[chosen]], m).astype(np.int64),
        attention=np.bincount(tokens, share, m) / max(times.sum(), 1),
        contributions=np.stack(parts, axis=1) / max(times.sum(), 1),
    )


def _class_that_stands_out(texts: Int[Array, "m classes"]) -> Int[Array, " m"]:
    """For each token the class whose number of texts with it exceeds most, in deviations, what chance would give."""
    expected = texts.sum(0) / max(texts.sum(), 1)
    total = texts.sum(1, keepdims=True)
    return np.asarray(((texts - total * expected) / np.sqrt(np.maximum(total * expected, 1e-300))).argmax(1))


def token_table(
    names: Sequence[str], found: TokenStatistics, model: TokenModel, classes: Shaped[Array, " classes"]
) -> TokenTable:
    """All tokens, those that move decisions most first; the columns are those of `token_importance_`."""
    everything = np.arange(len(names))
    two = model.values.shape[1] == 1
    # The class that the numbers are about: the second of two; of more classes the one that stands out most among the
    # texts that hold the token, so that the class and the counts agree.
    own = np.ones(len(names), int) if two else _class_that_stands_out(found.texts)
    column = np.zeros(len(names), int) if two else own
    total = found.occurrences.sum(1)
    signed = 2 * found.occurrences[everything, own] - total
    columns = {
        "token": np.array(names, object),
        "count": found.texts.sum(1),
        "occurrences": total,
        "signed_frequency": signed / max(total.sum(), 1),
        "posterior_difference": signed / np.maximum(total, 1),
        "attention_logit": model.logits,
        "value": model.values[everything, column],
        "selected": found.selected,
        "attention": found.attention,
        "contribution": found.contributions[everything, column],
    }
    if not two:
        columns["class"] = classes[own]
    # The influence is the standard deviation, over texts with a known token (times their share of all texts), of the
    # token's average contribution, there or not. So a word that stands nearly everywhere has little, whatever its
    # contribution: it tells few texts from others.
    share = np.clip(columns["count"] / max(int(found.selected.sum()), 1), 1e-12, 1.0)
    columns["influence"] = np.abs(columns["contribution"]) * np.sqrt((1 - share) / share)
    order = np.argsort(-columns["influence"], kind="stable")
    return TokenTable({name: values[order] for name, values in columns.items()})
